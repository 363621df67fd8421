//! Renewals: one keep-alive for each session, however many claims are attached to it, and a read of the line for waiters.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinHandle, JoinSet};

use super::claim::place;
use super::claims::Slot;
use super::client::cluster::Resend;
use super::client::txn;
use super::entry::Purpose;
use super::locks::{Locks, gone};
use super::own_watches::Unverified;
use super::position::MANY;
use super::queue_rules::{Verdict, verdict};
use super::session::Session;
use crate::error::{Error, Result};
use crate::lease::{BootClock, Clock, Moment};
use crate::store::{Claim, ClaimId, ClaimRef, Gone, Grant, Standing};

/// How often a key is moved anew because the session was gone.
const ATTEMPTS: usize = 3;

/// What is known of a claim before the store is asked.
enum Known {
    /// It has ended.
    Gone(Gone),
    /// It holds, and its key is watched.
    Held(Grant),
    /// It holds, unless its key was deleted unseen.
    Unverified(Unverified),
    /// It holds, and must move to another session.
    MustMove,
    /// It waits, or is not known here.
    Ask,
}

impl Locks {
    pub(super) async fn renew(self: &Arc<Self>, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        // Holders are believed by the word of a watch. So the stream must be alive.
        self.watches.check_alive();
        let began = tokio::time::Instant::now();
        let mut failed = self.renew_sessions(claims).await;
        let mut answers: Vec<Option<Result<Standing>>> = Vec::with_capacity(claims.len());
        let mut asking: Vec<(usize, JoinHandle<Result<Standing>>)> = Vec::new();
        let mut unverified = Vec::new();
        for (at, claim) in claims.iter().enumerate() {
            if let Some(error) = failed.remove(&claim.claim.id) {
                answers.push(Some(Err(error)));
                continue;
            }
            let (locks, again) = (Arc::clone(self), claim.clone());
            answers.push(match self.known(claim) {
                Known::Gone(why) => Some(Ok(Standing::Gone(why))),
                Known::Held(grant) => Some(Ok(Standing::Held(grant))),
                Known::Unverified(claim) => {
                    unverified.push((at, claim));
                    None
                }
                Known::MustMove => {
                    asking.push((
                        at,
                        tokio::spawn(async move { locks.move_to_full(&again).await }),
                    ));
                    None
                }
                Known::Ask => {
                    asking.push((
                        at,
                        tokio::spawn(async move { locks.standing_of(&again).await }),
                    ));
                    None
                }
            });
        }
        let mut put = |at: usize, answer: Result<Standing>| {
            if let Some(place) = answers.get_mut(at) {
                *place = Some(answer);
            }
        };
        for (at, answer) in self.verified(unverified).await {
            put(at, answer);
        }
        // Slow answers for waiters must not delay the confirmation of holders. Those requests go on by themselves.
        let limit = began
            + claims
                .iter()
                .map(|claim| claim.claim.wait_lease() / 3)
                .min()
                .unwrap_or_default();
        for (at, answer) in asking {
            match tokio::time::timeout_at(limit, answer).await {
                Ok(Ok(answer)) => put(at, answer),
                Ok(Err(_)) => {}
                Err(_) => put(at, Err(self.cluster.silent(self.cluster.current()))),
            }
        }
        let unanswered = || {
            Err(Error::protocol(
                "a renewal broke off in the middle; this is a bug in the store",
            ))
        };
        answers
            .into_iter()
            .map(|answer| answer.unwrap_or_else(unanswered))
            .collect()
    }

    /// Renews the sessions of these claims. The answer has the claims whose session could not be renewed.
    async fn renew_sessions(self: &Arc<Self>, claims: &[ClaimRef]) -> HashMap<ClaimId, Error> {
        let mut sessions: HashMap<i64, (Arc<Session>, Duration, Vec<ClaimId>)> = HashMap::new();
        for claim in claims {
            if let Some(own) = self.claims.lock().own.get(&claim.claim.id)
                && !own.is_span
            {
                let session = &own.slot.session;
                let (_, lease, claims) = sessions
                    .entry(session.id)
                    .or_insert_with(|| (Arc::clone(session), own.lease, Vec::new()));
                *lease = own.lease.min(*lease);
                claims.push(claim.claim.id);
            }
        }
        let mut renewing = JoinSet::new();
        for (session, lease, claims) in sessions.into_values() {
            let locks = Arc::clone(self);
            renewing.spawn(async move {
                let renewed = locks.sessions.renew(&session, lease).await;
                if let Ok(false) = renewed {
                    locks.session_ended(&session);
                }
                (claims, renewed.err())
            });
        }
        let mut failed = HashMap::new();
        while let Some(renewed) = renewing.join_next().await {
            if let Ok((claims, Some(error))) = renewed {
                failed.extend(claims.into_iter().map(|claim| (claim, error.clone())));
            }
        }
        failed
    }

    fn known(&self, claim: &ClaimRef) -> Known {
        let claims = self.claims.lock();
        let id = claim.claim.id;
        if let Some(why) = claims.end_reason(id) {
            return Known::Gone(why);
        }
        let Some(own) = claims.own.get(&id) else {
            return Known::Ask;
        };
        if claim.fence.is_some_and(|asked| asked != own.slot.fence()) {
            return Known::Gone(Gone::Expired);
        }
        if own.waiting.is_some() {
            Known::Ask
        } else if own.must_move(BootClock.now()) {
            Known::MustMove
        } else if own.watch.is_verified && !own.is_span {
            Known::Held(own.slot.grant())
        } else {
            Known::Unverified(Unverified {
                claim: id,
                slot: own.slot.clone(),
                is_open: own.watch.is_open,
            })
        }
    }

    /// Reads whether these still hold. Each comes with its index, and its answer has it again.
    async fn verified(&self, claims: Vec<(usize, Unverified)>) -> Vec<(usize, Result<Standing>)> {
        let (indices, claims): (Vec<usize>, Vec<Unverified>) = claims.into_iter().unzip();
        let mut answers = Vec::with_capacity(claims.len());
        for batch in claims.chunks(MANY) {
            let asked = BootClock.now();
            match self.verify(batch).await {
                Ok(there) => {
                    let standing = |(claim, there): (&Unverified, bool)| {
                        Ok(self.standing_seen(claim.claim, there, asked))
                    };
                    answers.extend(batch.iter().zip(there).map(standing));
                }
                Err(failed) => answers.extend(batch.iter().map(|_| Err(failed.error.clone()))),
            }
        }
        indices.into_iter().zip(answers).collect()
    }

    fn standing_seen(&self, claim: ClaimId, is_there: bool, asked: Moment) -> Standing {
        if !is_there {
            // Its session lives: so another client ended just this claim.
            return Standing::Gone(self.why_gone(claim, Gone::Revoked));
        }
        let claims = self.claims.lock();
        match claims.own.get(&claim) {
            Some(own) => Standing::Held(Grant {
                fence: own.slot.fence(),
                lease: own.lease_from(asked),
            }),
            None => Standing::Gone(claims.end_reason(claim).unwrap_or(Gone::Expired)),
        }
    }

    /// Records that a claim has ended, unless that was recorded before; and why.
    pub(super) fn why_gone(&self, claim: ClaimId, why: Gone) -> Gone {
        self.record_end(claim, why);
        self.claims
            .lock()
            .end_reason(claim)
            .unwrap_or(Gone::Expired)
    }

    /// Asks the store where a claim stands that waits, or that is not known here.
    async fn standing_of(self: &Arc<Self>, claim: &ClaimRef) -> Result<Standing> {
        self.leave_doubtful(&claim.claim).await?;
        match self.stand(&claim.claim).await? {
            Some(standing) => Ok(standing),
            None => self.find(claim).await,
        }
    }

    /// Moves the key of a waiter to another session, if a claim may yet arrive that names its own.
    async fn leave_doubtful(self: &Arc<Self>, claim: &Arc<Claim>) -> Result<()> {
        let Some(slot) = self
            .claims
            .slot(claim.id)
            .filter(|slot| slot.session.is_doubtful())
        else {
            return Ok(());
        };
        let full = self.full_session(claim).await?;
        let wait = self.wait_session(claim, &full).await?;
        match self.move_to_lasting(claim, &slot, &wait).await {
            Ok(()) => self.claims.moved(claim.id, slot.revision, wait),
            // It waits with the session that it has, or is found to be gone.
            Err(failed) => {
                tracing::debug!(error = %failed.error, name = %claim.name, "a waiter's key was not moved")
            }
        }
        Ok(())
    }

    /// Moves the key of a holder to the session of its full length.
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
                return self.find(claim).await;
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
            let moving = txn::only_if(slot.is_there(), txn::move_to(&slot.key.bytes, full.id));
            match self.txn(moving, Resend::IfUnsure).await {
                Ok(response) if response.succeeded => {
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
                Ok(_) => {
                    self.find_ended(&[&slot.session]).await?;
                    return Ok(Standing::Gone(self.why_gone(id, Gone::Revoked)));
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
    async fn find(self: &Arc<Self>, claim: &ClaimRef) -> Result<Standing> {
        let id = claim.claim.id;
        let taken = self.keys.of(id);
        let key = self.key(&claim.claim.name, id);
        let line = self.read_line(&key.line).await?;
        let Some((at, own)) = line
            .entries
            .iter()
            .enumerate()
            .find(|(_, entry)| entry.key == key.bytes)
        else {
            return Ok(Standing::Gone(Gone::Expired));
        };
        if claim.fence.is_some_and(|fence| fence != own.fence()) || own.purpose != Purpose::Claim {
            return Ok(Standing::Gone(Gone::Expired));
        }
        let Some(session) = self
            .sessions
            .of_key(&key, own.lease, claim.claim.lease)
            .await?
        else {
            return Ok(Standing::Gone(Gone::Expired));
        };
        // It may have been released while we read, and its key be another claim's by now.
        if taken.is_some_and(|taken| {
            !self
                .keys
                .of(id)
                .is_some_and(|now| Arc::ptr_eq(&now, &taken))
        }) {
            return Ok(Standing::Gone(Gone::Expired));
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
