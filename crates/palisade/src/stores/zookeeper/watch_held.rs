//! The nodes that our claims hold by, watched: to delete one ends its claim, and its holder is told
//! at once.

use std::sync::Arc;

use super::backend::Backend;
use super::claims::Stage;
use super::client::proto::{Request, Stat};
use super::client::{OrMissing, Sent, Session};
use crate::error::{Error, Result};
use crate::store::ClaimId;
use crate::stores::kit::session::watch_held::WatchHolders;

/// A look at the nodes of a holder, in flight.
struct Check {
    claim: ClaimId,
    session: Arc<Session>,
    connection: u64,
    nodes: Vec<String>,
    sent: Vec<Sent<(Vec<u8>, Stat)>>,
}

impl WatchHolders for Backend {
    /// The read of a node sets its watch.
    fn watch(self: &Arc<Self>, claims: Vec<ClaimId>) -> Vec<ClaimId> {
        claims
    }

    async fn verify(self: &Arc<Self>, claims: &[ClaimId]) -> Vec<Result<bool>> {
        // All in one go.
        let checks: Vec<_> = claims.iter().map(|claim| self.send_check(*claim)).collect();
        let mut there = Vec::with_capacity(checks.len());
        for check in checks {
            let is_there = match check {
                Some(check) => self.answer(check).await,
                None => None,
            };
            there.push(is_there.ok_or_else(|| {
                Error::unavailable("ZooKeeper has not said whether the lock's node is there")
            }));
        }
        there
    }
}

impl Backend {
    /// Not with `exists`, which would leave a watch on a node that is gone.
    fn send_check(&self, claim: ClaimId) -> Option<Check> {
        let (session, nodes) = {
            let table = self.claims.lock();
            let own = table.own.get(&claim)?;
            let Stage::Holding(holding) = &own.stage else {
                return None;
            };
            (Arc::clone(&own.entry.session), holding.nodes.clone())
        };
        let connection = session.connection();
        nodes
            .iter()
            .for_each(|node| self.watch_path(&session, node, claim));
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
}
