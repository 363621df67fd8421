//! How claims end: by their owner, by an operator, or by passing to another client.

use std::sync::Arc;

use super::claims::{OwnClaim, Seat, Stage};
use super::cleanup::{Leftover, delete_claim};
use super::client::Failed;
use super::client::proto::Request;
use super::inspect::Reader;
use super::locks::Locks;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::name::Name;
use crate::store::{ClaimId, ClaimRef, Gone, Released, Revoked, Standing};
use crate::stores::kit::session::in_task;

fn released(was_there: bool) -> Released {
    if was_there {
        Released::Done
    } else {
        Released::AlreadyLost
    }
}

impl Locks {
    pub(super) async fn release(self: &Arc<Self>, claim: &ClaimRef) -> Result<Released> {
        let id = claim.claim.id;
        if self.claims.is_misnamed(id, claim.fence) {
            return Ok(Released::AlreadyLost);
        }
        // First, so that the end of its node is not taken for a revocation.
        let own = match self.claims.remove_idle(id) {
            Ok(own) => own,
            Err(looking) => Box::pin(self.remove_after(looking, id)).await?,
        };
        let answer = match own {
            Some(own) => delete(&own).await?,
            None if self.claims.lock().end_reason(id).is_some() => Released::AlreadyLost,
            None => Box::pin(self.release_unknown(claim)).await?,
        };
        self.unconfirmed.confirmed(id);
        self.sessions.end_owned(id);
        Ok(answer)
    }

    /// Removes a claim when the look at its position is over, which may take permits for it just now.
    async fn remove_after(
        &self,
        looking: Arc<tokio::sync::Mutex<()>>,
        claim: ClaimId,
    ) -> Result<Option<OwnClaim>> {
        let claims = Arc::clone(&self.claims);
        in_task(async move {
            let _looking = looking.lock().await;
            Ok(claims.lock().own.remove(&claim))
        })
        .await
    }

    /// A claim that may never have arrived, or one that another client has made.
    async fn release_unknown(&self, claim: &ClaimRef) -> Result<Released> {
        let seat = Seat::of(&self.settings, &claim.claim)?;
        let unconfirmed = self.unconfirmed.session_of(claim.claim.id);
        let session = match &unconfirmed {
            Some(session) if session.is_gone() => return Ok(Released::AlreadyLost),
            Some(session) => Arc::clone(session),
            None => self.any_session().await?,
        };
        let deleted = delete_claim(&session, &seat, claim.fence).await;
        if let (Err(Failed::Unsure(_)), Some(session)) = (&deleted, unconfirmed) {
            // The session may live on by other claims, and then nothing else would ever end this one.
            Leftover::Claim(Arc::new(seat)).delete_later(&session);
            self.unconfirmed.confirmed(claim.claim.id);
        }
        match deleted {
            Err(Failed::Ended) => Ok(Released::AlreadyLost),
            deleted => Ok(released(deleted?)),
        }
    }

    async fn standing(self: &Arc<Self>, claim: &ClaimRef) -> Result<Standing> {
        let mut answers = self.renew(std::slice::from_ref(claim)).await;
        answers.pop().unwrap_or_else(|| {
            Err(Error::protocol(
                "the store does not say where the grant stands",
            ))
        })
    }

    /// Makes a grant outlive this client. It has a session of its own already; from now on that is not ours to end.
    pub(super) async fn detach(self: &Arc<Self>, claim: &ClaimRef) -> Result<Standing> {
        let standing = self.standing(claim).await?;
        if let Standing::Held(_) = standing {
            self.claims.lock().own.remove(&claim.claim.id);
            if let Some(session) = self.sessions.disown(claim.claim.id) {
                session.leave();
            }
        }
        Ok(standing)
    }

    pub(super) async fn revoke(&self, name: &Name, fence: Fence) -> Result<Revoked> {
        let session = self.any_session().await?;
        session.ask(Request::sync("/")).await?;
        let lines = Reader {
            settings: &self.settings,
            session: &session,
            holders_only: true,
        }
        .lines(&self.settings.dir(name)?)
        .await?;
        let holders = || {
            lines
                .iter()
                .flat_map(|line| line.nodes.iter().take(line.held))
        };
        let victims: Vec<String> = holders()
            .filter(|node| node.fence() == fence)
            .map(|node| node.path.clone())
            .collect();
        if victims.is_empty() {
            let other = holders().next();
            return Ok(
                other.map_or(Revoked::NotHeld, |other| Revoked::OtherHolder {
                    fence: other.fence(),
                }),
            );
        }
        let leftover = Leftover::Nodes(victims.clone());
        let deleted = match leftover.delete(&session).await {
            Err(failed @ Failed::Unsure(_)) => {
                leftover.delete_later(&session);
                return Err(failed.into());
            }
            deleted => deleted?,
        };
        // If it is one of ours, its owner need not wait for the watch.
        let is_victim = |own: &OwnClaim| own.nodes().iter().any(|node| victims.contains(node));
        let ours = self
            .claims
            .lock()
            .own
            .iter()
            .find(|(_, own)| is_victim(own))
            .map(|(claim, _)| *claim);
        if let Some(claim) = ours {
            self.claims.end(claim, Gone::Revoked);
        }
        Ok(if deleted {
            Revoked::Done
        } else {
            Revoked::NotHeld
        })
    }
}

/// Deletes the nodes of a claim of ours.
async fn delete(own: &OwnClaim) -> Result<Released> {
    let (seat, session) = (&own.entry.seat, &own.entry.session);
    let is_deleted = session.delete(&own.nodes()).await?;
    // It left the line of a semaphore, perhaps with permits: that answer was lost.
    let may_have_permits =
        matches!(own.stage, Stage::Waiting(_)) && seat.permits.is_some() && !is_deleted;
    Ok(released(
        is_deleted || may_have_permits && Box::pin(delete_claim(session, seat, None)).await?,
    ))
}
