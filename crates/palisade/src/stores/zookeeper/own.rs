//! The nodes that our claims hold by, watched: who deletes one has ended its claim, and its holder hears of that at once.
//!
//! A node is watched only after a while: most holds are shorter, and then a watch would cost as much as the lock.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::known::{Known, Stage};
use super::proto::{self, Code, Request};
use super::session::{Sent, Session};
use super::shared::{Shared, locked};
use crate::store::{ClaimId, Gone};

/// A holder's node is watched only after so long.
const UNWATCHED: Duration = Duration::from_millis(100);

impl Shared {
    /// Watches the node of a claim that was granted just now, if it is still held a moment later.
    pub(super) fn watch_soon(self: &Arc<Self>, claim: ClaimId) {
        let mut fresh = locked(&self.fresh);
        fresh.0.push(claim);
        if !std::mem::replace(&mut fresh.1, true) {
            tokio::spawn(look_after(Arc::downgrade(self)));
        }
    }

    /// Looks whether a holder's nodes are there, and watches them; `None` when that cannot be said.
    pub(super) async fn watch_own(&self, claim: ClaimId) -> Option<bool> {
        self.own_answered(self.ask_own(claim)?).await
    }

    /// Not with `exists`, which would watch for ever what is gone already.
    fn ask_own(&self, claim: ClaimId) -> Option<OwnAsked> {
        let (session, nodes) = {
            let mut book = self.claims.lock();
            let known = book.known.get(&claim)?;
            let (session, Stage::Holding(holding)) = (Arc::clone(&known.session), &known.stage) else { return None };
            let nodes = holding.nodes.clone();
            nodes.iter().for_each(|node| book.watch(session.id(), node, claim));
            (session, nodes)
        };
        let connection = session.connection();
        let sent = nodes.iter().map(|node| session.send(Request::get_data(node, true))).collect();
        Some(OwnAsked { claim, session, connection, nodes, sent })
    }

    async fn own_answered(&self, asked: OwnAsked) -> Option<bool> {
        let OwnAsked { claim, session, connection, nodes, sent } = asked;
        let (mut gone, mut unsaid) = (false, false);
        for (sent, node) in sent.into_iter().zip(&nodes) {
            let answer = sent.answer().await;
            if answer.is_err() {
                self.claims.lock().is_not_watched(session.id(), node, claim);
            }
            match answer {
                // In a node's place there may be another's by now.
                Ok(body) => gone |= proto::data(&body).ok()?.1.owner != session.id(),
                Err(failed) if failed.is(Code::NoNode) => gone = true,
                Err(_) => unsaid = true,
            }
        }
        if unsaid && !gone {
            return None;
        }
        let mut book = self.claims.lock();
        // The same claim may have been made again meanwhile, and that one is not gone.
        let Some(Stage::Holding(holding)) = book.known.get_mut(&claim).map(|known| &mut known.stage) else {
            return (!gone).then_some(true);
        };
        let is_same = holding.nodes == nodes;
        if gone {
            return is_same.then_some(false);
        }
        if is_same && session.connection() == connection {
            holding.watched_on = connection;
        }
        Some(true)
    }
}

/// A look at the nodes of a holder, on its way.
struct OwnAsked {
    claim: ClaimId,
    session: Arc<Session>,
    connection: u64,
    nodes: Vec<String>,
    sent: Vec<Sent>,
}

async fn look_after(shared: Weak<Shared>) {
    loop {
        tokio::time::sleep(UNWATCHED).await;
        let Some(shared) = shared.upgrade() else { return };
        let claims = {
            let mut fresh = locked(&shared.fresh);
            let claims = std::mem::take(&mut fresh.0);
            fresh.1 = !claims.is_empty();
            claims
        };
        if claims.is_empty() {
            return;
        }
        // All in one go.
        let asked: Vec<_> = claims.into_iter().filter_map(|claim| shared.ask_own(claim)).collect();
        for asked in asked {
            let claim = asked.claim;
            if shared.own_answered(asked).await == Some(false) {
                shared.ended_alone(claim, Gone::Revoked).into_iter().for_each(Known::give_up_the_rest);
            }
        }
    }
}
