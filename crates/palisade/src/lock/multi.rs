//! Several locks as one: all or nothing.

use std::collections::HashSet;
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::options::Options;
use super::{Attempt, Mutex, Obstacle, RwLock, Semaphore};
use crate::engine::acquire::{Outcome, WaitLimit};
use crate::engine::release::PendingRelease;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::guard::{AnyMode, Ends, Guard, about_to_be_lost, until_stopped};
use crate::lease::tracked::{Group, TrackedClaim};
use crate::lease::{LossReason, Moment, Status};
use crate::store::{Busy, Ending, Mode, Released};

/// One lock of a [`Multi`]: a [`Mutex`], one side of an [`RwLock`], or permits of a [`Semaphore`].
#[derive(Clone)]
pub struct Member {
    options: Options,
    mode: Mode,
}

impl Member {
    /// The read side.
    pub fn read(lock: &RwLock) -> Member {
        Member {
            options: lock.options.clone(),
            mode: Mode::Shared,
        }
    }

    /// The write side.
    pub fn write(lock: &RwLock) -> Member {
        Member {
            options: lock.options.clone(),
            mode: Mode::Exclusive,
        }
    }

    /// So many permits.
    pub fn permits(semaphore: &Semaphore, permits: u32) -> Member {
        Member {
            options: semaphore.options.clone(),
            mode: Mode::Permits(permits),
        }
    }

    /// The rank of this member in the order in which all processes acquire: by store, then by name.
    /// For one name on two servers of one kind, the given order counts.
    fn rank(&self) -> (&'static str, &str) {
        (self.options.core.capability().store, &self.options.name)
    }
}

impl From<Mutex> for Member {
    fn from(mutex: Mutex) -> Member {
        Member {
            options: mutex.options,
            mode: Mode::Exclusive,
        }
    }
}

/// Several locks that are held together. Made by [`Client::multi`](crate::Client::multi) or
/// [`Multi::of`].
///
/// They are acquired one after the other, in one order that every process shares, by store and
/// name, so that two of them never wait for each other. (For one name on two servers of one kind,
/// give the servers in one order everywhere.) If one cannot be had, those before it are released.
/// If one is lost, all are.
///
/// A name that is given twice would wait for itself, and is refused; also by two clients of one
/// store, as far as their URLs show that: the same hosts in any order, path, format and prefix, or
/// the same file. Two names or ports of one server, two formats that share their keys, and clients
/// made by [`Client::over`](crate::Client::over) are not noticed.
#[derive(Clone)]
pub struct Multi {
    members: Vec<Member>,
}

impl Multi {
    /// Several locks, of one client or of several.
    pub fn of(members: impl IntoIterator<Item = Member>) -> Multi {
        let mut members: Vec<Member> = members.into_iter().collect();
        members.sort_by(|one, other| one.rank().cmp(&other.rank()));
        Multi { members }
    }

    /// The lease of every member, as [`Mutex::lease`].
    #[must_use]
    pub fn lease_all(mut self, lease: Duration) -> Multi {
        self.members
            .iter_mut()
            .for_each(|member| member.options.lease = Some(lease));
        self
    }

    /// Checks names and options without asking the store.
    ///
    /// # Errors
    ///
    /// As `acquire`, before a request is sent: no member, the same name twice, or an error of a
    /// member.
    pub fn check(&self) -> Result<()> {
        if self.members.is_empty() {
            return Err(Error::config(
                "a multi-lock of nothing; give it at least one name",
            ));
        }
        let mut seen = HashSet::new();
        for member in &self.members {
            member.options.plan(member.mode)?;
            let Options { core, name, .. } = &member.options;
            let store = core.identity.as_deref().ok_or(Arc::as_ptr(core));
            if !seen.insert((store, name)) {
                return Err(Error::config(format!(
                    "{name} is in the multi-lock twice: it would wait for itself; name it once"
                )));
            }
        }
        Ok(())
    }

    /// Waits until all are held.
    ///
    /// # Errors
    ///
    /// As each member's own verb.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, everything is released.
    pub async fn acquire(&self) -> Result<MultiGuard> {
        self.acquire_within(WaitLimit::Forever)
            .await?
            .ok_or_else(lost_on_the_way)
    }

    /// Takes all if all are free now; `None` when one is not.
    ///
    /// # Errors
    ///
    /// As each member's own verb; busy is not one.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, everything is released.
    pub async fn try_acquire(&self) -> Result<Option<MultiGuard>> {
        self.acquire_within(WaitLimit::Now).await
    }

    /// Takes all if all are free now, or says which is not and who holds it.
    ///
    /// # Errors
    ///
    /// As each member's own verb; busy is not one.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, everything is released.
    pub async fn try_acquire_or_holder(&self) -> Result<Attempt<MultiGuard>> {
        self.attempt(WaitLimit::Now).await
    }

    /// Waits until all are held, for at most so long in all; zero is one attempt.
    ///
    /// # Errors
    ///
    /// [`Timeout`](crate::ErrorKind::Timeout) with the holder of the one that could not be had.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, everything is released.
    pub async fn acquire_timeout(&self, longest: Duration) -> Result<MultiGuard> {
        self.acquire_within(WaitLimit::AtMost(longest))
            .await?
            .ok_or_else(lost_on_the_way)
    }

    /// Acquires all, runs the body, and releases however it ends. The body is dropped when a member
    /// is about to be lost.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) when the body was stopped; what `acquire` answers
    /// otherwise.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the body is dropped and everything is released.
    pub async fn run<T, F, Fut>(&self, body: F) -> Result<T>
    where
        F: FnOnce(Arc<MultiGuard>) -> Fut,
        Fut: Future<Output = T>,
    {
        let guard = Arc::new(self.acquire().await?);
        // However this future or the body ends, all are released, also if the body has kept the
        // guard.
        let ends: Vec<Ends> = guard.members.iter().rev().map(Guard::ends).collect();
        let done = until_stopped(&guard.on_lost(), body(Arc::clone(&guard))).await;
        let loss = guard.loss();
        // All are sent before the first answer is awaited.
        let sent: Vec<PendingRelease> = ends.into_iter().map(Ends::now).collect();
        let mut released = Ok(());
        for release in sent {
            released = released.and(release.outcome().await.map(drop));
        }
        match done {
            Some(done) => released.map(|()| done),
            None => Err(loss.map_or_else(about_to_be_lost, Error::lost)),
        }
    }

    /// Waits for all as the value says, in all; `None` when it says [`Now`](WaitLimit::Now) and one
    /// is taken.
    ///
    /// # Errors
    ///
    /// [`Timeout`](crate::ErrorKind::Timeout) with the holder when a wait ran out; a name that is
    /// taken now is no error.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, everything is released.
    pub async fn acquire_within(&self, wait: WaitLimit) -> Result<Option<MultiGuard>> {
        Ok(self.attempt(wait).await?.acquired())
    }

    async fn attempt(&self, wait: WaitLimit) -> Result<Attempt<MultiGuard>> {
        self.check()?;
        let begun = self.now();
        let mut guards: Vec<Guard<AnyMode>> = Vec::with_capacity(self.members.len());
        for member in &self.members {
            let left = match wait {
                WaitLimit::AtMost(longest) => {
                    WaitLimit::AtMost(longest.saturating_sub(self.now().since(begun)))
                }
                WaitLimit::Now | WaitLimit::Forever => wait,
            };
            match member.options.acquire(member.mode, left).await? {
                Outcome::Granted(held) => guards.push(Guard::new(Arc::new(held))),
                Outcome::Busy(busy) if wait == WaitLimit::Now => {
                    // Given back before the store is asked for the holder.
                    guards.clear();
                    return Ok(Attempt::Busy(member.options.obstacle(busy).await));
                }
                Outcome::Busy(busy) => return Err(member.options.busy(busy)),
                Outcome::Sealed => return Err(member.options.sealed()),
            }
        }
        // The first may have been lost while we waited for the last.
        let guard = MultiGuard::bind(guards, self.now());
        match (guard.is_held(), wait, self.members.first()) {
            (true, ..) => Ok(Attempt::Acquired(guard)),
            (false, WaitLimit::Now, Some(first)) => {
                let busy = Obstacle::of(&first.options.name, Busy::default());
                Ok(Attempt::Busy(busy))
            }
            (false, ..) => Err(lost_on_the_way()),
        }
    }

    fn now(&self) -> Moment {
        self.members
            .first()
            .map_or(Moment::default(), |member| member.options.core.now())
    }
}

/// One was lost while the others were still awaited.
fn lost_on_the_way() -> Error {
    Error::lost(LossReason::MemberLost)
}

/// Several locks that are held. Dropping it releases all of them.
#[must_use = "a guard that is dropped at once protects nothing"]
pub struct MultiGuard {
    members: Vec<Guard<AnyMode>>,
    group: Arc<Group>,
}

impl MultiGuard {
    fn bind(members: Vec<Guard<AnyMode>>, now: Moment) -> MultiGuard {
        let tracked: Vec<&Arc<TrackedClaim>> = members
            .iter()
            .map(|member| &member.held().tracked)
            .collect();
        let group = Group::bind(&tracked, now);
        MultiGuard { members, group }
    }

    /// The members, in the order in which they were acquired.
    pub fn members(&self) -> &[Guard<AnyMode>] {
        &self.members
    }

    /// The fence of an exclusive member; `None` for another name, or for one that is not held
    /// exclusively.
    pub fn fence(&self, name: &str) -> Option<Fence> {
        let member = self.members.iter().find(|member| member.name() == name)?;
        (member.mode() == Mode::Exclusive).then(|| member.held().fence())
    }

    /// Whether all are held now. Reads the clock and asks no server.
    pub fn is_held(&self) -> bool {
        self.members.iter().all(Guard::is_held)
    }

    /// How long all are certainly held without another renewal.
    pub fn remaining(&self) -> Duration {
        self.members
            .iter()
            .map(Guard::remaining)
            .min()
            .unwrap_or_default()
    }

    /// Why it is lost, if it is: the reason of the member that was lost first.
    pub fn loss(&self) -> Option<LossReason> {
        let mut losses: Vec<LossReason> = self
            .members
            .iter()
            .filter_map(|member| lost_as(member.status()))
            .collect();
        // The others were lost with it.
        losses.sort_by_key(|reason| *reason == LossReason::MemberLost);
        losses.first().copied()
    }

    /// Completes when one is lost, with its reason: then all are.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again; a loss is never missed.
    pub async fn lost(&self) -> LossReason {
        // One lost, all lost: the first member tells of each loss.
        if let Some(first) = self.members.first() {
            let waiting = pin!(first.lost());
            waiting.await;
        }
        self.loss().unwrap_or(LossReason::MemberLost)
    }

    /// A token that is cancelled when the work should stop: the stop margin of the first member to
    /// end, or a loss.
    pub fn on_lost(&self) -> CancellationToken {
        self.group.stop.clone()
    }

    /// Releases all: every one is tried, whatever the outcome of the others.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, all are released all the same.
    pub async fn release(self) -> MultiReleased {
        self.end(Ending::Release).await
    }

    /// Releases all: every one is tried, whatever the outcome of the others.
    ///
    /// # Cancel safety
    ///
    /// Dropped before the first poll, all are released but the marks stay; later, as
    /// [`release`](MultiGuard::release).
    pub async fn undo(self) -> MultiReleased {
        self.end(Ending::Undo).await
    }

    async fn end(self, ending: Ending) -> MultiReleased {
        // All are sent before the first answer is awaited. The last acquired goes first.
        let send = |member: &Guard<AnyMode>| {
            let held = member.held();
            (
                member.name().to_owned(),
                held.core.release_tracked(&held.tracked, ending),
            )
        };
        let sent: Vec<(String, PendingRelease)> = self.members.iter().rev().map(send).collect();
        let mut members = Vec::with_capacity(sent.len());
        for (name, release) in sent {
            members.push((name, release.outcome().await));
        }
        MultiReleased { members }
    }
}

fn lost_as(status: Status) -> Option<LossReason> {
    match status {
        Status::Lost(reason) => Some(reason),
        Status::Held | Status::AtRisk => None,
    }
}

impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.members).finish()
    }
}

/// The outcome for each member of a release.
#[derive(Debug)]
#[must_use = "a member that was already lost may mean that the work was not protected"]
pub struct MultiReleased {
    /// Each member's name and outcome.
    pub members: Vec<(String, Result<Released>)>,
}

impl MultiReleased {
    /// Whether every member was held until now, and is released.
    pub fn all_done(&self) -> bool {
        self.failures().next().is_none()
    }

    /// The members that were not released as they should.
    pub fn failures(&self) -> impl Iterator<Item = (&str, &Result<Released>)> {
        self.members
            .iter()
            .filter(|(_, released)| !matches!(released, Ok(Released::Done)))
            .map(|(name, released)| (name.as_str(), released))
    }
}
