//! Renewals: a keep-alive for each session, and what a renewal changes of a single key.

use std::sync::Arc;
use std::time::Duration;

use super::backend::Backend;
use super::claim::place;
use super::claims::Slot;
use super::client::txn;
use super::entry::{Purpose, fence_of};
use super::queue_rules::{Verdict, verdict};
use super::sessions::Session;
use crate::error::Result;
use crate::lease::{BootClock, Clock};
use crate::store::{ClaimId, ClaimRef, Gone, Standing};
use crate::stores::kit::session::renew::Renew;
use crate::stores::kit::session::{gone, record_end};

/// How often a key is moved anew because the session was gone.
const ATTEMPTS: usize = 3;

impl Renew for Backend {
    fn check_watches(&self) {
        self.watches.check_alive();
    }

    async fn renew_session(
        self: &Arc<Self>,
        session: &Arc<Session>,
        lease: Duration,
        _: &[ClaimId],
    ) -> Result<()> {
        if !self.sessions.renew(session, lease).await? {
            self.session_ended(session);
        }
        Ok(())
    }

    async fn ask(self: &Arc<Self>, claim: &ClaimRef) -> Result<Standing> {
        self.move_to_full(claim).await
    }
}

impl Backend {
    /// Moves the key of a holder to the session of its full length; adopts a claim that is not known
    /// here.
    async fn move_to_full(self: &Arc<Self>, claim: &ClaimRef) -> Result<Standing> {
        let id = claim.claim.id;
        let mut attempt = 1;
        loop {
            let known = self
                .claims
                .lock()
                .own
                .get(&id)
                .map(|own| (own.slot.clone(), own.is_span));
            let Some((mut slot, is_span)) = known else {
                return self.adopt(claim).await;
            };
            let full = self.full_session(&claim.claim).await?;
            // A key must not end sooner than its holder counts on.
            let until = slot
                .session
                .end_of()
                .min(BootClock.now() + claim.claim.lease);
            if !self.sessions.outlasts(&full, &slot.key, until).await? {
                self.session_ended(&full);
                if attempt == ATTEMPTS {
                    return Err(gone());
                }
                attempt += 1;
                continue;
            }
            let moving = txn::move_to(&slot.key.bytes, full.id);
            match self.lines.only_if(slot.is_there(), moving).await {
                Ok(true) => {
                    slot.session = full;
                    let grant = slot.grant();
                    if self.claims.knows(id, slot.revision) {
                        self.hold(&claim.claim, slot, false);
                    }
                    if is_span {
                        self.sessions.end_owned(id);
                    }
                    return Ok(Standing::Held(grant));
                }
                Ok(false) => {
                    self.find_ended(&[&slot.session]).await?;
                    return Ok(Standing::Gone(record_end(&**self, id, Gone::Revoked)));
                }
                Err(failed) if failed.lease_gone && attempt < ATTEMPTS => {
                    self.find_ended(&[&full]).await?
                }
                // It holds with the session that it has, which was renewed just now.
                Err(failed) if !is_span && !failed.lease_gone && failed.error.retry_may_help() => {
                    return Ok(Standing::Held(slot.grant()));
                }
                Err(failed) => return Err(failed.into()),
            }
            attempt += 1;
        }
    }

    /// Finds a claim that is not known here: another process's grant, which is ours from now on.
    async fn adopt(self: &Arc<Self>, claim: &ClaimRef) -> Result<Standing> {
        let id = claim.claim.id;
        let taken = self.keys.of(id);
        let key = self.key(&claim.claim.name, id);
        let line = self.lines.read_line(&key.line).await?;
        // Fences are revisions.
        let first = line.first().filter(|first| first.purpose == Purpose::Claim);
        let first = first.map(|first| first.fence());
        let gone = Gone::by_holders(claim, fence_of(line.revision), first.iter());
        let gone = Ok(Standing::Gone(gone));
        let Some((at, own)) = line
            .entries
            .iter()
            .enumerate()
            .find(|(_, entry)| entry.key == key.bytes)
        else {
            return gone;
        };
        if claim.fence.is_some_and(|fence| fence != own.fence()) || own.purpose != Purpose::Claim {
            return gone;
        }
        let Some(session) = self
            .sessions
            .of_key(&key, own.lease, claim.claim.lease)
            .await?
        else {
            return gone;
        };
        // It may have been released while we read, and its key be another claim's by now.
        if taken.is_some_and(|taken| {
            !self
                .keys
                .of(id)
                .is_some_and(|now| Arc::ptr_eq(&now, &taken))
        }) {
            return gone;
        }
        let slot = Slot::new(key, own.revision, session);
        match verdict(&line.entries, at) {
            Verdict::Held => {
                let grant = slot.grant();
                self.hold(&claim.claim, slot, false);
                Ok(Standing::Held(grant))
            }
            Verdict::Blocked(blocker) => {
                self.wait(&claim.claim, &slot, blocker, &line);
                Ok(Standing::Waiting(place(&slot.session, &line)))
            }
            Verdict::Sealed => Ok(Standing::Gone(Gone::Sealed)),
        }
    }
}
