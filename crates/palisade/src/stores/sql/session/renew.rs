//! Renewals: one heartbeat for each session, however many claims hang on it.

use std::sync::Arc;
use std::time::Duration;

use super::Backend;
use super::engine::{Engine, Link};
use super::sessions::Session;
use crate::error::Result;
use crate::fence::Fence;
use crate::lease::{BootClock, Clock};
use crate::store::{ClaimId, ClaimRef, Gone, Standing};
use crate::stores::kit::session::renew::Renew;
use crate::stores::kit::session::watch_held::WatchHolders;

impl<E: Engine> Renew for Backend<E> {
    async fn renew_session(
        self: &Arc<Self>,
        session: &Arc<Session<E>>,
        lease: Duration,
        _: &[ClaimId],
    ) -> Result<()> {
        if !session.has_ended() {
            if BootClock.now().since(session.confirmed()) < lease / 10 {
                return Ok(());
            }
            let limit = self.engine.request_timeout();
            let beat = session.ask(limit, session.link.beat()).await;
            if !session.has_ended() {
                return beat;
            }
        }
        self.session_over(session);
        Ok(())
    }

    /// A claim that is not known here. Its grant cannot be another client's: none can be handed over.
    async fn ask(self: &Arc<Self>, claim: &ClaimRef) -> Result<Standing> {
        let gone = match claim.fence {
            None => Gone::Unknown,
            // Fences are the server's time. So one of the future was never given.
            fence => Gone::by_last_fence(fence, self.engine.now().await?),
        };
        Ok(Standing::Gone(gone))
    }
}

/// Nothing but the end of its session ends a lock, and that shows by itself.
impl<E: Engine> WatchHolders for Backend<E> {
    fn watch(self: &Arc<Self>, _: Vec<ClaimId>) -> Vec<ClaimId> {
        Vec::new()
    }

    async fn verify(self: &Arc<Self>, claims: &[ClaimId]) -> Vec<Result<bool>> {
        let claims = claims.iter();
        let own = self.claims.lock();
        claims
            .map(|claim| Ok(own.own.contains_key(claim)))
            .collect()
    }

    async fn why_lost(self: &Arc<Self>, _: ClaimId) -> Gone {
        Gone::SessionEnded
    }
}

/// The last fence that a server with this time can have given.
pub(crate) fn fence_at(micros: i64) -> Fence {
    u64::try_from(micros)
        .ok()
        .and_then(Fence::new)
        .unwrap_or(Fence::NONE)
}
