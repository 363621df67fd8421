//! How claims end: by their owner, by an operator, or by becoming somebody else's.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::failure::Failed;
use super::known::Stage;
use super::proto::{ANY, Code, Request};
use super::recipe::guid;
use super::session::Session;
use super::shared::{Shared, fence_of};
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::name::Name;
use crate::store::{ClaimRef, Gone, Released, Revoked, Standing};

/// Between two attempts of what must be done in the end.
const PAUSE: Duration = Duration::from_millis(100);

fn done(done: bool) -> Released {
    if done { Released::Done } else { Released::AlreadyLost }
}

impl Shared {
    pub(super) async fn release(self: &Arc<Self>, claim: &ClaimRef) -> Result<Released> {
        let id = claim.claim.id;
        if self.is_misnamed(claim) {
            return Ok(Released::AlreadyLost);
        }
        // Whoever takes permits for it just now is waited for.
        let turn = self.claims.lock().known.get(&id).map(|known| Arc::clone(&known.turn));
        let turn = match &turn {
            Some(turn) => Some(turn.lock().await),
            None => None,
        };
        // First, so that the end of its node is not taken for a revocation.
        let known = self.claims.lock().known.remove(&id);
        drop(turn);
        let released = match known {
            Some(known) => {
                let there = self.delete(&known.session, &known.nodes()).await?;
                // It left the line, perhaps with permits: that answer was lost.
                let took = matches!(known.stage, Stage::Waiting(_)) && known.seat.permits.is_some() && !there;
                let seat = &known.seat;
                done(there || took && Box::pin(self.wipe(&known.session, &seat.base, &seat.guid, None)).await?)
            }
            None if self.claims.lock().grave(id).is_some() => Released::AlreadyLost,
            None => Box::pin(self.release_unknown(claim)).await?,
        };
        self.is_sure(id);
        if let Some(session) = self.disown(id) {
            // If it cannot be told, it ends by itself.
            tokio::spawn(async move { drop(session.close().await) });
        }
        Ok(released)
    }

    /// A claim that may never have arrived, or one that another client has made.
    async fn release_unknown(self: &Arc<Self>, claim: &ClaimRef) -> Result<Released> {
        let base = self.settings.dir(&claim.claim.name)?;
        let guid = guid(claim.claim.id);
        let unsure = self.unsure_on(claim.claim.id);
        let session = match &unsure {
            Some(session) if session.is_gone() => return Ok(Released::AlreadyLost),
            Some(session) => Arc::clone(session),
            None => self.any_session().await?,
        };
        let wiped = self.wipe(&session, &base, &guid, claim.fence).await;
        if let (Err(Failed::Unsure(_)), Some(session)) = (&wiped, unsure) {
            // The session may live on by other claims, and then nothing else would ever end this one.
            let debt = session.debt();
            self.is_sure(claim.claim.id);
            let wiping = wipe_in_the_end(Arc::downgrade(self), Arc::downgrade(&session), base, guid);
            tokio::spawn(async move {
                wiping.await;
                drop(debt);
            });
        }
        match wiped {
            Err(Failed::Ended) => Ok(Released::AlreadyLost),
            wiped => Ok(done(wiped?)),
        }
    }

    /// Deletes every node of a claim; whether there was one.
    async fn wipe(&self, session: &Arc<Session>, base: &str, guid: &str, fence: Option<Fence>) -> Result<bool, Failed> {
        let found = self.search(session, base, guid).await?;
        let mut any = false;
        for found in found.iter().filter(|found| fence.is_none_or(|fence| fence == fence_of(found.stat.czxid))) {
            match session.ask(Request::delete(&found.path, ANY)).await {
                Ok(_) => any = true,
                Err(failed) if failed.is(Code::NoNode) => {}
                Err(failed) => return Err(failed),
            }
        }
        Ok(any)
    }

    pub(super) async fn standing(self: &Arc<Self>, claim: &ClaimRef) -> Result<Standing> {
        let mut answers = self.renew(std::slice::from_ref(claim)).await;
        answers.pop().unwrap_or_else(|| Err(Error::protocol("the store does not say where the grant stands")))
    }

    /// Makes a grant outlive this client. It has a session of its own already; from now on that is not ours to end.
    pub(super) async fn detach(self: &Arc<Self>, claim: &ClaimRef) -> Result<Standing> {
        let standing = self.standing(claim).await?;
        if let Standing::Held(_) = standing {
            self.claims.lock().known.remove(&claim.claim.id);
            if let Some(session) = self.disown(claim.claim.id) {
                session.leave();
            }
        }
        Ok(standing)
    }

    pub(super) async fn revoke(self: &Arc<Self>, name: &Name, fence: Fence) -> Result<Revoked> {
        let session = self.any_session().await?;
        session.ask(Request::sync("/")).await?;
        let lines = self.lines(&session, &self.settings.dir(name)?).await?;
        let holders = || lines.iter().flat_map(|line| line.entries.iter().take(line.held));
        let victims: Vec<String> = holders().filter(|entry| entry.fence() == fence).map(|entry| entry.path.clone()).collect();
        if victims.is_empty() {
            let other = holders().next();
            return Ok(other.map_or(Revoked::NotHeld, |other| Revoked::OtherHolder { fence: other.fence() }));
        }
        let there = self.delete(&session, &victims).await?;
        // If it is one of ours, nobody needs to wait for the watch.
        let ours = {
            let book = self.claims.lock();
            let is_victim = |nodes: &[String]| nodes.iter().any(|node| victims.contains(node));
            book.known.iter().find(|(_, known)| is_victim(&known.nodes())).map(|(claim, _)| *claim)
        };
        if let Some(claim) = ours {
            self.ended_alone(claim, Gone::Revoked);
        }
        Ok(if there { Revoked::Done } else { Revoked::NotHeld })
    }
}

/// Deletes the nodes of a claim that may arrive even now, however long it takes.
pub(super) async fn wipe_in_the_end(shared: Weak<Shared>, session: Weak<Session>, base: String, guid: String) {
    loop {
        let (Some(shared), Some(session)) = (shared.upgrade(), session.upgrade().filter(|session| !session.is_gone())) else {
            return;
        };
        match shared.wipe(&session, &base, &guid, None).await {
            Err(Failed::Unsure(_)) => {}
            Ok(_) | Err(_) => return,
        }
        drop((shared, session));
        tokio::time::sleep(PAUSE).await;
    }
}
