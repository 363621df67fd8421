//! Renewals: one transaction for each session, however many claims hang on it, and a look at its node for each that waits.
//!
//! A ping would prove nothing: a server that is cut off from its leader goes on answering it after the leader has ended the session. A
//! `sync` comes back from the leader, but that may have been replaced without knowing it yet. A transaction takes a majority.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::task::JoinSet;

use super::claiming::{Stood, gone};
use super::failure::Failed;
use super::known::{Known, Stage};
use super::proto::Request;
use super::session::Session;
use super::shared::{Shared, fence_of};
use crate::error::{Error, Result};
use crate::lease::{BootClock, Clock};
use crate::store::{ClaimId, ClaimRef, Gone, Grant, Standing};

/// What is known of a claim before anything is asked.
enum Before {
    /// It has ended.
    Gone(Gone),
    /// It holds, and its node is watched.
    Sure(Grant),
    /// It holds, unless its node was deleted unseen.
    Unsure,
    Waits,
    Unknown,
}

impl Shared {
    pub(super) async fn renew(self: &Arc<Self>, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        let sent = BootClock.now();
        let mut failed = self.beat(claims).await;
        let mut answers: Vec<Option<Result<Standing>>> = claims.iter().map(|_| None).collect();
        let mut asking = JoinSet::new();
        for (at, claim) in claims.iter().enumerate() {
            let known = match failed.remove(&claim.claim.id) {
                Some(error) => Err(error),
                None => Ok(self.before(claim)),
            };
            let answer = match known {
                Err(error) => Some(Err(error)),
                Ok(Before::Gone(why)) => Some(Ok(Standing::Gone(why))),
                Ok(Before::Sure(grant)) => Some(Ok(Standing::Held(grant))),
                Ok(before) => {
                    let (shared, claim) = (Arc::clone(self), claim.clone());
                    asking.spawn(async move { (at, shared.ask_where(&claim, before).await) });
                    None
                }
            };
            if let Some(place) = answers.get_mut(at) {
                *place = answer;
            }
        }
        while let Some(answer) = asking.join_next().await {
            if let Ok((at, answer)) = answer
                && let Some(place) = answers.get_mut(at)
            {
                *place = Some(answer);
            }
        }
        for (claim, answer) in claims.iter().zip(&answers) {
            if let Some(Ok(Standing::Held(_))) = answer {
                self.is_renewed(claim.claim.id, sent);
            }
        }
        let unanswered = || Err(Error::protocol("a renewal broke off in the middle; this is a bug in the store"));
        answers.into_iter().map(|answer| answer.unwrap_or_else(unanswered)).collect()
    }

    /// Asks the leader on each session of these claims. The answer has the claims whose session could not be asked.
    async fn beat(self: &Arc<Self>, claims: &[ClaimRef]) -> HashMap<ClaimId, Error> {
        let mut sessions: Vec<(Arc<Session>, String, Vec<ClaimId>)> = Vec::new();
        {
            let book = self.claims.lock();
            for claim in claims {
                let Some(known) = book.known.get(&claim.claim.id) else { continue };
                match sessions.iter_mut().find(|(session, ..)| Arc::ptr_eq(session, &known.session)) {
                    Some((_, _, claims)) => claims.push(claim.claim.id),
                    None => {
                        let node = known.nodes().first().unwrap_or(&known.seat.base).clone();
                        sessions.push((Arc::clone(&known.session), node, vec![claim.claim.id]));
                    }
                }
            }
        }
        let sent = BootClock.now();
        let beats: Vec<_> = sessions
            .into_iter()
            .map(|(session, node, claims)| {
                let beat = (!session.is_fresh(sent)).then(|| session.send(Request::beat(&node)));
                (beat, claims)
            })
            .collect();
        let mut failed = HashMap::new();
        for (beat, claims) in beats {
            let answer = match beat {
                Some(beat) => beat.answer().await.map(drop),
                None => Ok(()),
            };
            match answer {
                Ok(()) => {
                    let mut book = self.claims.lock();
                    for claim in claims {
                        if let Some(known) = book.known.get_mut(&claim) {
                            known.renewed(sent);
                        }
                    }
                }
                // Whoever hears sessions has buried its claims.
                Err(Failed::Ended) => {}
                Err(other) => {
                    let error = Error::from(other);
                    failed.extend(claims.into_iter().map(|claim| (claim, error.clone())));
                }
            }
        }
        failed
    }

    fn before(&self, claim: &ClaimRef) -> Before {
        let book = self.claims.lock();
        let id = claim.claim.id;
        if let Some(why) = book.grave(id) {
            return Before::Gone(why);
        }
        let Some(known) = book.known.get(&id) else { return Before::Unknown };
        match &known.stage {
            _ if !known.is_meant_by(claim.fence) => Before::Gone(Gone::Expired),
            Stage::Waiting(_) => Before::Waits,
            Stage::Holding(holding) if holding.watched_on == known.session.connection() => {
                Before::Sure(Grant { fence: holding.fence, lease: known.session.lease() })
            }
            Stage::Holding(_) => Before::Unsure,
        }
    }

    async fn ask_where(self: &Arc<Self>, claim: &ClaimRef, before: Before) -> Result<Standing> {
        let id = claim.claim.id;
        match before {
            Before::Gone(why) => Ok(Standing::Gone(why)),
            Before::Sure(grant) => Ok(Standing::Held(grant)),
            Before::Unknown => self.find(claim).await,
            Before::Unsure => {
                let there = self.watch_own(id).await;
                if there == Some(false) {
                    // Its session lives: so somebody ended just this claim.
                    self.bury(id, Gone::Revoked).into_iter().for_each(Known::give_up_the_rest);
                }
                let book = self.claims.lock();
                match book.known.get(&id) {
                    Some(known) if there == Some(true) => {
                        let fence = known.fence().unwrap_or(crate::fence::Fence::NONE);
                        Ok(Standing::Held(Grant { fence, lease: known.session.lease() }))
                    }
                    Some(_) => Err(Error::unavailable("ZooKeeper has not said whether the lock's node is there")),
                    None => Ok(Standing::Gone(book.grave(id).unwrap_or(Gone::Expired))),
                }
            }
            Before::Waits => match self.look_after(&claim.claim, true).await {
                Ok(Stood::Granted(grant)) => Ok(Standing::Held(grant)),
                Ok(Stood::Queued(holder)) => Ok(Standing::Waiting(self.place(id, &claim.claim, holder))),
                Ok(Stood::Gone) => {
                    self.bury(id, Gone::Revoked).into_iter().for_each(Known::give_up_the_rest);
                    Ok(Standing::Gone(self.claims.lock().grave(id).unwrap_or(Gone::Expired)))
                }
                Err(Failed::Ended) => Ok(Standing::Gone(Gone::SessionEnded)),
                Err(failed) => Err(failed.into()),
            },
        }
    }

    /// Finds a claim that is not known here: somebody else's grant that is to be ours from now on.
    async fn find(self: &Arc<Self>, claim: &ClaimRef) -> Result<Standing> {
        let session = self.any_session().await?;
        let seat = self.seat(&claim.claim)?;
        let found = self.search(&session, &seat.base, &seat.guid).await?;
        let Some(first) = found.first() else { return Ok(Standing::Gone(Gone::Expired)) };
        if claim.fence.is_some_and(|fence| fence != fence_of(first.stat.czxid)) {
            return Ok(Standing::Gone(Gone::Expired));
        }
        // Without its session nobody can keep it alive.
        let Some(password) = first.value.password(claim.claim.id) else { return Ok(Standing::Gone(Gone::Expired)) };
        let with = (first.stat.owner, password);
        let Some(own) = Session::take_up(&self.settings, claim.claim.lease, with, self.hears()).await? else {
            return Ok(Standing::Gone(Gone::Expired));
        };
        self.own(claim.claim.id, &own);
        if !self.take_up(&claim.claim, seat, &own, &found) {
            if let Some(session) = self.disown(claim.claim.id) {
                session.leave();
            }
            return Ok(Standing::Gone(Gone::Expired));
        }
        match self.look(&claim.claim).await? {
            Stood::Granted(grant) => Ok(Standing::Held(grant)),
            Stood::Queued(holder) => Ok(Standing::Waiting(self.place(claim.claim.id, &claim.claim, holder))),
            Stood::Gone => Err(gone().into()),
        }
    }
}
