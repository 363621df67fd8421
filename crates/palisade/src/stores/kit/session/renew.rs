//! Renewals: one for each session, however many claims hang on it. Claims whose entries are watched
//! are answered by that; for the others the store is asked.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout_at};

use super::claims::{Claims, OwnClaim, Stage};
use super::wait::{Look, stand};
use super::watch_held::WatchHolders;
use super::{SessionOf, record_end};
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::lease::{BootClock, Clock, Moment};
use crate::store::{ClaimId, ClaimRef, Gone, Standing};

/// Renews sessions, and asks for single claims.
pub(crate) trait Renew: Look + WatchHolders {
    /// Claims will be believed by the word of their watches: makes sure that these are alive.
    fn check_watches(&self) {}

    /// Renews a session for these claims, the shortest of which has this lease; unless that was
    /// done just now. A majority must stand behind the answer. Claims on a session that turns out
    /// to have ended are ended with it.
    fn renew_session(
        self: &Arc<Self>,
        session: &SessionOf<Self>,
        lease: Duration,
        claims: &[ClaimId],
    ) -> impl Future<Output = Result<()>> + Send;

    /// Asks where a claim stands that is [outdated](Stage::Outdated), or not known here: then it is
    /// the grant of another client, detached there, and this client's from now on.
    fn ask(self: &Arc<Self>, claim: &ClaimRef) -> impl Future<Output = Result<Standing>> + Send;
}

/// What is known of a claim before the store is asked.
enum Known {
    Answer(Standing),
    /// It holds with this fence, unless its entry was deleted unseen.
    Unverified(Fence),
    Waiting,
    Ask,
}

/// The claims of one session, each with its index in the request; without a session, the claims
/// that are not known.
struct Share<S> {
    session: Option<S>,
    /// The shortest lease.
    lease: Duration,
    /// Whether a renewal of these claims renews the session.
    renews: bool,
    claims: Vec<(usize, ClaimRef)>,
}

type Answered = (usize, Result<Standing>);

pub(crate) async fn renew<B: Renew>(
    backend: &Arc<B>,
    claims: &[ClaimRef],
) -> Vec<Result<Standing>> {
    backend.check_watches();
    let shares = shares(&backend.claims().lock(), claims);
    let is_bounded = shares.len() > 1;
    let mut renewing = JoinSet::new();
    for share in shares {
        renewing.spawn(renew_share(Arc::clone(backend), share, is_bounded));
    }
    let mut answers = vec![Err(late()); claims.len()];
    while let Some(answered) = renewing.join_next().await {
        for (at, answer) in answered.unwrap_or_default() {
            if let Some(place) = answers.get_mut(at) {
                *place = answer;
            }
        }
    }
    answers
}

/// Renews a single claim.
pub(crate) async fn renew_one<B: Renew>(backend: &Arc<B>, claim: &ClaimRef) -> Result<Standing> {
    let mut answers = renew(backend, std::slice::from_ref(claim)).await;
    answers.pop().unwrap_or_else(|| Err(late()))
}

fn late() -> Error {
    Error::unavailable("the store has not answered a renewal in time")
}

fn shares<C: OwnClaim>(table: &Claims<C>, claims: &[ClaimRef]) -> Vec<Share<C::Session>> {
    let (mut shares, now) = (HashMap::new(), BootClock.now());
    for (at, claim) in claims.iter().enumerate() {
        let own = table.own.get(&claim.claim.id);
        let share = shares
            .entry(own.map(OwnClaim::session_id))
            .or_insert_with(|| Share {
                session: own.map(|own| own.session().clone()),
                lease: claim.claim.lease,
                renews: false,
                claims: Vec::new(),
            });
        let lease = match own.map(|own| own.stage(now)) {
            Some(Stage::Waiting) => claim.claim.wait_lease(),
            _ => claim.claim.lease,
        };
        share.lease = share.lease.min(lease);
        share.renews |= own.is_some_and(OwnClaim::renews_session);
        share.claims.push((at, claim.clone()));
    }
    shares.into_values().collect()
}

/// Renews the claims of one session. If that `is_bounded`, it must not hold up those of others.
async fn renew_share<B: Renew>(
    backend: Arc<B>,
    share: Share<SessionOf<B>>,
    is_bounded: bool,
) -> Vec<Answered> {
    let limit = Instant::now() + (share.lease / 4).max(Duration::from_millis(100));
    let mut until = is_bounded.then_some(limit);
    let renewed = within(until, renew_session(&backend, &share)).await;
    if let Err(error) = renewed.flatten() {
        let failed = |(at, _)| (at, Err(error.clone()));
        return share.claims.into_iter().map(failed).collect();
    }
    let mut answers: Vec<Answered> = Vec::with_capacity(share.claims.len());
    let mut unverified = Vec::new();
    let mut asking: Vec<(usize, JoinHandle<Result<Standing>>)> = Vec::new();
    for (at, claim) in share.claims {
        let known = known(&*backend, &claim);
        let backend = Arc::clone(&backend);
        match known {
            Known::Answer(standing) => answers.push((at, Ok(standing))),
            Known::Unverified(fence) => unverified.push((at, claim.claim.id, fence)),
            Known::Waiting => {
                let standing = async move {
                    let standing = stand(&backend, &claim.claim, true).await;
                    standing.map_err(Into::into)
                };
                asking.push((at, tokio::spawn(standing)));
            }
            Known::Ask => {
                asking.push((at, tokio::spawn(async move { backend.ask(&claim).await })));
            }
        }
    }
    let verified = within(until, verified(&backend, unverified)).await;
    answers.extend(verified.unwrap_or_default());
    if !answers.is_empty() {
        // Slow answers for waiters do not delay the confirmation of holders. Those requests go on
        // by themselves.
        until = Some(limit);
    }
    for (at, asked) in asking {
        let answer = within(until, asked).await;
        let answer = answer.map(|asked| asked.unwrap_or_else(|_| Err(late())));
        answers.push((at, answer.flatten()));
    }
    answers
}

/// Bounds some work, where there is a limit.
async fn within<T>(until: Option<Instant>, work: impl Future<Output = T>) -> Result<T> {
    match until {
        Some(until) => timeout_at(until, work).await.map_err(|_| late()),
        None => Ok(work.await),
    }
}

async fn renew_session<B: Renew>(backend: &Arc<B>, share: &Share<SessionOf<B>>) -> Result<()> {
    let Some(session) = share.session.as_ref().filter(|_| share.renews) else {
        return Ok(());
    };
    let claims: Vec<ClaimId> = share
        .claims
        .iter()
        .map(|(_, claim)| claim.claim.id)
        .collect();
    backend.renew_session(session, share.lease, &claims).await
}

fn known<B: Renew>(backend: &B, claim: &ClaimRef) -> Known {
    let (claims, now) = (backend.claims().lock(), BootClock.now());
    let id = claim.claim.id;
    if let Some(why) = claims.end_reason(id) {
        return Known::Answer(Standing::Gone(why));
    }
    match claims.own.get(&id) {
        None => Known::Ask,
        Some(own) if !own.is_meant_by(claim.fence) => {
            let why = Gone::by_last_fence(claim.fence, own.fence());
            Known::Answer(Standing::Gone(why))
        }
        Some(own) => match own.stage(now) {
            Stage::Waiting => Known::Waiting,
            Stage::Held => Known::Answer(Standing::Held(own.grant(now))),
            Stage::Unverified => Known::Unverified(own.fence()),
            Stage::Outdated => Known::Ask,
        },
    }
}

/// Reads whether these claims, each with its index and its fence, still hold.
async fn verified<B: Renew>(
    backend: &Arc<B>,
    holders: Vec<(usize, ClaimId, Fence)>,
) -> Vec<Answered> {
    if holders.is_empty() {
        return Vec::new();
    }
    let asked = BootClock.now();
    let claims: Vec<ClaimId> = holders.iter().map(|(_, claim, _)| *claim).collect();
    let there = backend.verify(&claims).await;
    let standing = |((at, claim, fence), there): ((usize, ClaimId, Fence), Result<bool>)| {
        let standing = there.map(|there| seen(&**backend, claim, fence, there, asked));
        (at, standing)
    };
    holders.into_iter().zip(there).map(standing).collect()
}

fn seen<B: Renew>(
    backend: &B,
    claim: ClaimId,
    fence: Fence,
    is_there: bool,
    asked: Moment,
) -> Standing {
    let now = {
        let claims = backend.claims().lock();
        let own = claims.own.get(&claim);
        own.filter(|own| own.fence() == fence)
            .map(|own| own.grant(asked))
    };
    match now {
        Some(grant) if is_there => Standing::Held(grant),
        // Its session lives: so another client ended just this claim.
        Some(_) => Standing::Gone(record_end(backend, claim, Gone::Revoked)),
        None => Standing::Gone(backend.claims().why_gone(claim)),
    }
}
