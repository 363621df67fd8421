//! The nodes that our claims hold by, watched: to delete one ends its claim, and its holder is told at once.

use std::sync::Arc;

use super::claims::{ClaimTable, OwnClaim, Stage};
use super::client::proto::{Request, Stat};
use super::client::{OrMissing, Sent, Session};
use super::watches::Watches;
use crate::store::{ClaimId, Gone};
use crate::stores::kit::session::holders::{FreshHolders, WatchesHolders};

pub(super) struct HolderWatches {
    claims: Arc<ClaimTable>,
    watches: Arc<Watches>,
    fresh: FreshHolders,
}

/// A look at the nodes of a holder, in flight.
struct Check {
    claim: ClaimId,
    session: Arc<Session>,
    connection: u64,
    nodes: Vec<String>,
    sent: Vec<Sent<(Vec<u8>, Stat)>>,
}

impl HolderWatches {
    pub(super) fn new(claims: &Arc<ClaimTable>, watches: &Arc<Watches>) -> Arc<HolderWatches> {
        Arc::new(HolderWatches {
            claims: Arc::clone(claims),
            watches: Arc::clone(watches),
            fresh: FreshHolders::default(),
        })
    }

    /// A watch has fired: the claim has ended, unless its nodes are there.
    pub(super) fn check_later(self: &Arc<Self>, claim: ClaimId) {
        let this = Arc::clone(self);
        tokio::spawn(async move { this.end_if(claim, this.check(claim).await == Some(false)) });
    }

    /// Looks whether a holder's nodes are there, and watches them; `None` when that cannot be said.
    pub(super) async fn check(&self, claim: ClaimId) -> Option<bool> {
        self.answer(self.send(claim)?).await
    }

    /// Not with `exists`, which would leave a watch on a node that is gone.
    fn send(&self, claim: ClaimId) -> Option<Check> {
        let (session, nodes) = {
            let table = self.claims.lock();
            let own = table.own.get(&claim)?;
            let Stage::Holding(holding) = &own.stage else {
                return None;
            };
            (Arc::clone(&own.entry.session), holding.nodes.clone())
        };
        let connection = session.connection();
        let is_wanted = |claim| self.claims.is_wanted(claim);
        nodes
            .iter()
            .for_each(|node| self.watches.add(session.id(), node, claim, is_wanted));
        let sent = nodes
            .iter()
            .map(|node| session.send(Request::get_data(node).watched()))
            .collect();
        Some(Check {
            claim,
            session,
            connection,
            nodes,
            sent,
        })
    }

    async fn answer(
        &self,
        Check {
            claim,
            session,
            connection,
            nodes,
            sent,
        }: Check,
    ) -> Option<bool> {
        let (mut is_gone, mut is_unknown) = (false, false);
        for (sent, node) in sent.into_iter().zip(&nodes) {
            let answer = sent.answer().await;
            if answer.is_err() {
                self.watches.remove(session.id(), node, claim);
            }
            match answer.or_missing() {
                // In its place there may be the node of another client by now.
                Ok(there) => is_gone |= there.is_none_or(|(_, stat)| stat.owner != session.id()),
                Err(_) => is_unknown = true,
            }
        }
        if is_unknown && !is_gone {
            return None;
        }
        let mut table = self.claims.lock();
        // The same claim may have been made again meanwhile, and that one is not gone.
        let Some(Stage::Holding(holding)) = table.own.get_mut(&claim).map(|own| &mut own.stage)
        else {
            return (!is_gone).then_some(true);
        };
        let is_same = holding.nodes == nodes;
        if is_gone {
            return is_same.then_some(false);
        }
        if is_same && session.connection() == connection {
            holding.watched_on = connection;
        }
        Some(true)
    }

    /// Ends a claim whose node was deleted. Its session lives: so just this claim was ended.
    fn end_if(&self, claim: ClaimId, is_gone: bool) {
        if is_gone {
            self.claims
                .end(claim, Gone::Revoked)
                .into_iter()
                .for_each(OwnClaim::give_up_rest);
        }
    }
}

impl WatchesHolders for HolderWatches {
    fn fresh(&self) -> &FreshHolders {
        &self.fresh
    }

    async fn watch(self: &Arc<Self>, claims: Vec<ClaimId>) {
        // All in one go.
        let checks: Vec<_> = claims
            .into_iter()
            .filter_map(|claim| self.send(claim))
            .collect();
        for check in checks {
            let claim = check.claim;
            self.end_if(claim, self.answer(check).await == Some(false));
        }
    }
}
