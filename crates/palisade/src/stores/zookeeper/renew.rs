//! Renewals: one transaction for each session, however many claims hang on it, and a look at the line for each claim that waits.
//!
//! A ping would prove nothing: a server that is cut off from its leader goes on answering it after the leader has ended the session. A
//! `sync` comes back from the leader, but that may have been replaced without knowing it yet. A transaction takes a majority.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

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

/// The claims of one session, each with its place in the request; without a session, the claims that are not known.
#[derive(Default)]
struct Share {
    session: Option<LockSession>,
    claims: Vec<(usize, ClaimRef)>,
}

impl Share {
    /// How long its server may hold up the answers of the others.
    fn limit(&self) -> Duration {
        let shortest = self.claims.iter().map(|(_, claim)| claim.claim.lease).min();
        (shortest.unwrap_or_default() / 6).max(Duration::from_millis(100))
    }
}

impl Locks {
    pub(super) async fn renew(self: &Arc<Self>, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        let shares = self.shares(claims);
        let is_bounded = shares.len() > 1;
        let mut renewing = JoinSet::new();
        for share in shares {
            let (this, limit) = (Arc::clone(self), share.limit());
            renewing.spawn(async move {
                match is_bounded {
                    true => tokio::time::timeout(limit, this.renew_share(share))
                        .await
                        .unwrap_or_default(),
                    false => this.renew_share(share).await,
                }
            });
        }
        let late = Error::unavailable("ZooKeeper has not answered a renewal in time");
        let mut answers = vec![Err(late); claims.len()];
        while let Some(answered) = renewing.join_next().await {
            for (at, answer) in answered.unwrap_or_default() {
                if let Some(place) = answers.get_mut(at) {
                    *place = answer;
                }
            }
        }
        answers
    }

    fn shares(&self, claims: &[ClaimRef]) -> Vec<Share> {
        let table = self.claims.lock();
        let mut shares: HashMap<Option<i64>, Share> = HashMap::new();
        for (at, claim) in claims.iter().enumerate() {
            let session = table.own.get(&claim.claim.id).map(|own| &own.entry.session);
            let share = shares
                .entry(session.map(|session| session.id()))
                .or_default();
            share.session = session.cloned();
            share.claims.push((at, claim.clone()));
        }
        shares.into_values().collect()
    }

    /// Renews the claims of one session.
    async fn renew_share(
        self: Arc<Self>,
        Share { session, claims }: Share,
    ) -> Vec<(usize, Result<Standing>)> {
        if let Some(session) = session
            && let Err(error) = self.heartbeat(&session, &claims).await
        {
            return claims
                .into_iter()
                .map(|(at, _)| (at, Err(error.clone())))
                .collect();
        }
        let mut answers = Vec::with_capacity(claims.len());
        let mut asking = JoinSet::new();
        for (at, claim) in claims {
            match self.before(&claim) {
                Before::Gone(why) => answers.push((at, Ok(Standing::Gone(why)))),
                Before::Held(grant) => answers.push((at, Ok(Standing::Held(grant)))),
                before => {
                    let this = Arc::clone(&self);
                    asking.spawn(async move { (at, this.standing_of(&claim, before).await) });
                }
            }
        }
        while let Some(answer) = asking.join_next().await {
            answers.extend(answer);
        }
        answers
    }

    /// Asks the leader on a session of these claims, unless it has answered just now.
    async fn heartbeat(&self, session: &LockSession, claims: &[(usize, ClaimRef)]) -> Result<()> {
        let _one = session.heartbeat.lock().await;
        if session.is_fresh(BootClock.now()) {
            return Ok(());
        }
        let node = {
            let table = self.claims.lock();
            let own = claims
                .iter()
                .find_map(|(_, claim)| table.own.get(&claim.claim.id));
            own.map_or_else(
                || "/".to_owned(),
                |own| own.nodes().first().unwrap_or(&own.entry.seat.base).clone(),
            )
        };
        match session.ask(Request::heartbeat(&node)).await {
            // Whether the node is there does not matter: the leader has answered. With the session its claims were ended.
            Ok(_) | Err(Failed::Ended) => Ok(()),
            Err(failed) => Err(failed.into()),
        }
    }

    fn before(&self, claim: &ClaimRef) -> Before {
        let table = self.claims.lock();
        let id = claim.claim.id;
        if let Some(why) = table.end_reason(id) {
            return Before::Gone(why);
        }
        let Some(own) = table.own.get(&id) else {
            return Before::Unknown;
        };
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
                    Some(Stage::Holding(holding)) if is_there == Some(true) => {
                        Ok(Standing::Held(entry.grant(holding.fence)))
                    }
                    Some(_) => Err(Error::unavailable(
                        "ZooKeeper has not said whether the lock's node is there",
                    )),
                    None => Ok(Standing::Gone(
                        table.end_reason(id).unwrap_or(Gone::Expired),
                    )),
                }
            }
            Before::Waits => match self.find_position(id, true).await {
                Ok(Position::Granted(grant)) => Ok(Standing::Held(grant)),
                Ok(Position::Queued(holder)) => {
                    Ok(Standing::Waiting(self.place(&claim.claim, holder)))
                }
                Ok(Position::Gone) => Ok(self.revoked(id)),
                Err(Failed::Ended) => Ok(Standing::Gone(Gone::SessionEnded)),
                Err(failed) => Err(failed.into()),
            },
        }
    }

    /// A node of a claim was deleted by another client. The owner of the claim asks just now, and needs no event.
    fn revoked(&self, claim: ClaimId) -> Standing {
        let mut table = self.claims.lock();
        table
            .end(claim, Gone::Revoked)
            .into_iter()
            .for_each(OwnClaim::give_up_rest);
        Standing::Gone(table.end_reason(claim).unwrap_or(Gone::Expired))
    }

    /// Takes up a claim that is not known here: the grant of another client, detached there.
    async fn adopt(self: &Arc<Self>, claim: &ClaimRef) -> Result<Standing> {
        let session = self.any_session().await?;
        let seat = Seat::of(&self.settings, &claim.claim)?;
        let found = search(&session, &seat).await?;
        let expired = Ok(Standing::Gone(Gone::Expired));
        let Some(first) = found.first() else {
            return expired;
        };
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
