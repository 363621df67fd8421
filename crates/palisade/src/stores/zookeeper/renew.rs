//! Renewals: one transaction for each session, however many claims hang on it, and a look at the line for each claim that waits.
//!
//! A ping would prove nothing: a server that is cut off from its leader goes on answering it after the leader has ended the session. A
//! `sync` comes back from the leader, but that may have been replaced without knowing it yet. A transaction takes a majority.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::task::JoinSet;

use super::claims::{Entry, OwnClaim, Seat, Stage, fence_of};
use super::client::proto::Request;
use super::client::{Credentials, Failed};
use super::failure::gone;
use super::locks::Locks;
use super::position::Position;
use super::search::search;
use super::sessions::LockSession;
use crate::error::{Error, Result};
use crate::lease::{BootClock, Clock};
use crate::store::{ClaimId, ClaimRef, Gone, Grant, Standing};

/// What is known of a claim before anything is asked.
enum Before {
    /// It has ended.
    Gone(Gone),
    /// It holds, and its node is watched.
    Held(Grant),
    /// It holds, unless its node was deleted while it was not watched.
    Unwatched(Entry),
    Waits,
    Unknown,
}

impl Locks {
    pub(super) async fn renew(self: &Arc<Self>, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        let sent = BootClock.now();
        let mut failed = self.heartbeat(claims).await;
        let mut answers: Vec<Option<Result<Standing>>> = Vec::with_capacity(claims.len());
        let mut asking = JoinSet::new();
        for (at, claim) in claims.iter().enumerate() {
            answers.push(match (failed.remove(&claim.claim.id), self.before(claim)) {
                (Some(error), _) => Some(Err(error)),
                (None, Before::Gone(why)) => Some(Ok(Standing::Gone(why))),
                (None, Before::Held(grant)) => Some(Ok(Standing::Held(grant))),
                (None, before) => {
                    let (this, claim) = (Arc::clone(self), claim.clone());
                    asking.spawn(async move { (at, this.standing_of(&claim, before).await) });
                    None
                }
            });
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
                self.claims.renewed(claim.claim.id, sent);
            }
        }
        let unanswered = || Err(Error::protocol("a renewal broke off in the middle; this is a bug in the store"));
        answers.into_iter().map(|answer| answer.unwrap_or_else(unanswered)).collect()
    }

    /// Asks the leader on each session of these claims. The answer has the claims whose session could not be asked.
    async fn heartbeat(&self, claims: &[ClaimRef]) -> HashMap<ClaimId, Error> {
        let mut sessions: HashMap<i64, (LockSession, String, Vec<ClaimId>)> = HashMap::new();
        {
            let table = self.claims.lock();
            for (id, own) in claims.iter().filter_map(|claim| Some((claim.claim.id, table.own.get(&claim.claim.id)?))) {
                let Entry { seat, session, .. } = &own.entry;
                let node = || own.nodes().first().unwrap_or(&seat.base).clone();
                let of_session = sessions.entry(session.id()).or_insert_with(|| (session.clone(), node(), Vec::new()));
                of_session.2.push(id);
            }
        }
        let sent = BootClock.now();
        let beats: Vec<_> = sessions
            .into_values()
            .map(|(session, node, claims)| ((!session.is_fresh(sent)).then(|| session.send(Request::heartbeat(&node))), claims))
            .collect();
        let mut failed = HashMap::new();
        for (beat, claims) in beats {
            let answer = match beat {
                // Whether the node is there does not matter: the leader has answered.
                Some(beat) => beat.answer().await.map(drop),
                None => Ok(()),
            };
            match answer {
                Ok(()) => claims.into_iter().for_each(|claim| self.claims.renewed(claim, sent)),
                // Its claims were ended with it.
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
        let table = self.claims.lock();
        let id = claim.claim.id;
        if let Some(why) = table.end_reason(id) {
            return Before::Gone(why);
        }
        let Some(own) = table.own.get(&id) else { return Before::Unknown };
        match &own.stage {
            _ if !own.is_meant_by(claim.fence) => Before::Gone(Gone::Expired),
            Stage::Waiting(_) => Before::Waits,
            Stage::Holding(holding) if holding.watched_on == own.entry.session.connection() => {
                Before::Held(own.entry.grant(holding.fence))
            }
            Stage::Holding(_) => Before::Unwatched(own.entry.clone()),
        }
    }

    async fn standing_of(self: &Arc<Self>, claim: &ClaimRef, before: Before) -> Result<Standing> {
        let id = claim.claim.id;
        match before {
            Before::Gone(why) => Ok(Standing::Gone(why)),
            Before::Held(grant) => Ok(Standing::Held(grant)),
            Before::Unknown => self.adopt(claim).await,
            Before::Unwatched(entry) => {
                let is_there = self.holders.check(id).await;
                if is_there == Some(false) {
                    // Its session lives: so just this claim was ended.
                    return Ok(self.revoked(id));
                }
                let table = self.claims.lock();
                match table.own.get(&id).map(|own| &own.stage) {
                    Some(Stage::Holding(holding)) if is_there == Some(true) => Ok(Standing::Held(entry.grant(holding.fence))),
                    Some(_) => Err(Error::unavailable("ZooKeeper has not said whether the lock's node is there")),
                    None => Ok(Standing::Gone(table.end_reason(id).unwrap_or(Gone::Expired))),
                }
            }
            Before::Waits => match self.find_position(id, true).await {
                Ok(Position::Granted(grant)) => Ok(Standing::Held(grant)),
                Ok(Position::Queued(holder)) => Ok(Standing::Waiting(self.place(&claim.claim, holder))),
                Ok(Position::Gone) => Ok(self.revoked(id)),
                Err(Failed::Ended) => Ok(Standing::Gone(Gone::SessionEnded)),
                Err(failed) => Err(failed.into()),
            },
        }
    }

    /// A node of a claim was deleted by another client. The owner of the claim asks just now, and needs no event.
    fn revoked(&self, claim: ClaimId) -> Standing {
        let mut table = self.claims.lock();
        table.end(claim, Gone::Revoked).into_iter().for_each(OwnClaim::give_up_rest);
        Standing::Gone(table.end_reason(claim).unwrap_or(Gone::Expired))
    }

    /// Takes up a claim that is not known here: the grant of another client, detached there.
    async fn adopt(self: &Arc<Self>, claim: &ClaimRef) -> Result<Standing> {
        let session = self.any_session().await?;
        let seat = Seat::of(&self.settings, &claim.claim)?;
        let found = search(&session, &seat).await?;
        let expired = Ok(Standing::Gone(Gone::Expired));
        let Some(first) = found.first() else { return expired };
        if claim.fence.is_some_and(|fence| fence != fence_of(first.stat.czxid)) {
            return expired;
        }
        // Only through its session can it be kept alive.
        let Some(password) = first.value.password(claim.claim.id) else { return expired };
        let credentials = Credentials { id: first.stat.owner, password };
        let Some(own) = self.sessions.take_up(&claim.claim, credentials).await? else { return expired };
        if !self.take_up(&claim.claim, seat, own, &found) {
            if let Some(session) = self.sessions.disown(claim.claim.id) {
                session.leave();
            }
            return expired;
        }
        match self.find_position(claim.claim.id, false).await? {
            Position::Granted(grant) => Ok(Standing::Held(grant)),
            Position::Queued(holder) => Ok(Standing::Waiting(self.place(&claim.claim, holder))),
            Position::Gone => Err(gone().into()),
        }
    }
}
