//! Renewals: one transaction for each session, however many claims hang on it.
//!
//! A ping would prove nothing: a server that is cut off from its leader goes on answering it after
//! the leader has ended the session. A `sync` comes back from the leader, but that may have been
//! replaced without knowing it yet. A transaction takes a majority.

use std::sync::Arc;
use std::time::Duration;

use super::backend::Backend;
use super::claims::{ClaimLocation, fence_of};
use super::client::proto::Request;
use super::client::{Credentials, Failed};
use super::search::search;
use super::sessions::LockSession;
use crate::error::Result;
use crate::lease::{BootClock, Clock};
use crate::store::{ClaimId, ClaimRef, Gone, Query, Standing};
use crate::stores::kit::session::renew::Renew;
use crate::stores::kit::session::wait::stand_in_task;

impl Renew for Backend {
    async fn renew_session(
        self: &Arc<Self>,
        session: &LockSession,
        _: Duration,
        claims: &[ClaimId],
    ) -> Result<()> {
        let _one = session.heartbeat.lock().await;
        if session.is_fresh(BootClock.now()) {
            return Ok(());
        }
        let node = {
            let table = self.claims.lock();
            let own = claims.iter().find_map(|claim| table.own.get(claim));
            own.map_or_else(
                || "/".to_owned(),
                |own| {
                    own.nodes()
                        .first()
                        .unwrap_or(&own.entry.location.base)
                        .clone()
                },
            )
        };
        match session.ask(Request::heartbeat(&node)).await {
            // Whether the node is there does not matter: the leader has answered. With the session
            // its claims were ended.
            Ok(_) | Err(Failed::Ended) => Ok(()),
            Err(failed) => Err(failed.into()),
        }
    }

    /// Takes up a claim that is not known here: the grant of another client, detached there.
    async fn ask(self: &Arc<Self>, claim: &ClaimRef) -> Result<Standing> {
        let session = self.any_session().await?;
        let location = ClaimLocation::of(&self.settings, &claim.claim)?;
        let found = search(&session, &location).await?;
        let Some(first) = found.first() else {
            let (_, newest) = session.send(Request::sync("/")).with_zxid().await?;
            // Fences are transactions.
            let page = self
                .inspect(&Query::Leader(claim.claim.name.clone()))
                .await?;
            let holders = page
                .lines
                .iter()
                .filter(|line| line.kind == claim.claim.kind);
            let fences = holders.flat_map(|line| &line.holders).map(|one| &one.fence);
            let gone = Gone::by_holders(claim, fence_of(newest), fences);
            return Ok(Standing::Gone(gone));
        };
        let expired = Ok(Standing::Gone(Gone::Ended));
        if claim
            .fence
            .is_some_and(|fence| fence != fence_of(first.stat.czxid))
        {
            return expired;
        }
        // Only through its session can it be kept alive.
        let Some(password) = first.value.password(claim.claim.id) else {
            return expired;
        };
        let credentials = Credentials {
            id: first.stat.owner,
            password,
        };
        let Some(own) = self.sessions.take_up(&claim.claim, credentials).await? else {
            return expired;
        };
        if !self.take_up(&claim.claim, location, own, &found) {
            if let Some(session) = self.sessions.disown(claim.claim.id) {
                session.leave();
            }
            return expired;
        }
        Ok(stand_in_task(self, &claim.claim).await?)
    }
}
