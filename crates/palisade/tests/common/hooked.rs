//! A memory store that has, when told, the oddities of other stores: it stands in for the ones that the core must bear.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::Poll;

use async_trait::async_trait;
use palisade::lease::Moment;
use palisade::store::{
    Answer, Capability, Claim, ClaimRef, Ending, Event, Holder, Leader, Lease, Observation, Page, Query, Released, Revoked,
    Standing, Store, Woken,
};
use palisade::stores::memory::MemoryStore;
use palisade::{Error, Fence, Name, Result};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::ms;

pub struct Hooked {
    store: MemoryStore,
    capability: Capability,
    dead_shard: Mutex<Option<&'static str>>,
    heartbeat: Mutex<Option<Moment>>,
    stale_push: Mutex<Option<Fence>>,
    eager: CancellationToken,
    wake_panics: AtomicBool,
    restore_in_reply: AtomicBool,
    restored: Notify,
}

impl Hooked {
    pub fn over(store: MemoryStore, change: impl FnOnce(&mut Capability)) -> Hooked {
        let mut capability = *store.capability();
        change(&mut capability);
        Hooked {
            store,
            capability,
            dead_shard: Mutex::default(),
            heartbeat: Mutex::default(),
            stale_push: Mutex::default(),
            eager: CancellationToken::new(),
            wake_panics: AtomicBool::new(false),
            restore_in_reply: AtomicBool::new(false),
            restored: Notify::new(),
        }
    }

    /// This name cannot be renewed any more; all others can, and are answered a little later than it fails.
    pub fn shard_dies(&self, name: &'static str) {
        set(&self.dead_shard, name);
    }

    /// Every lease counts from here, as that of a session whose last heartbeat was then.
    pub fn last_heartbeat(&self, at: Moment) {
        set(&self.heartbeat, at);
    }

    /// The next waiter finds this push, which was not meant for it.
    pub fn stale_push(&self, fence: Fence) {
        set(&self.stale_push, fence);
    }

    /// Every waiter is woken at once, for ever.
    pub fn wake_eagerly(&self) {
        self.eager.cancel();
    }

    /// Waiting for a wake panics.
    pub fn wake_panics(&self) {
        self.wake_panics.store(true, Ordering::SeqCst);
    }

    /// Another server answers just when the answer to the next renewal is read: the event is taken up before the answer is.
    pub fn restore_in_next_reply(&self) {
        self.restore_in_reply.store(true, Ordering::SeqCst);
    }

    fn date(&self, lease: &mut Lease) {
        lease.counted_from = get(&self.heartbeat).or(lease.counted_from);
    }

    fn renewed(&self, claim: &ClaimRef, answer: Result<Standing>) -> Result<Standing> {
        if get(&self.dead_shard).is_some_and(|dead| dead == claim.claim.name.as_str()) {
            return Err(Error::unavailable("the shard is dead"));
        }
        let mut standing = answer?;
        match &mut standing {
            Standing::Held(grant) => self.date(&mut grant.lease),
            Standing::Waiting(place) => self.date(&mut place.lease),
            Standing::Gone(_) => {}
        }
        Ok(standing)
    }
}

fn set<T>(switch: &Mutex<Option<T>>, to: T) {
    *switch.lock().unwrap_or_else(PoisonError::into_inner) = Some(to);
}

fn get<T: Copy>(switch: &Mutex<Option<T>>) -> Option<T> {
    *switch.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets every task run once that is ready now; tokio's own yield would let those run, too, that they wake.
async fn step_aside() {
    let mut waited = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut waited, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for Hooked {
    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn attach(&self, runtime: &tokio::runtime::Handle) {
        self.store.attach(runtime);
    }

    fn part(&self, name: &Name) -> u64 {
        self.store.part(name)
    }

    async fn claim(&self, claim: &Claim) -> Result<Answer> {
        loop {
            let mut answer = self.store.claim(claim).await?;
            match &mut answer {
                Answer::Granted(grant) => self.date(&mut grant.lease),
                Answer::Queued(_) if self.capability.claim_blocks => {
                    tokio::time::sleep(ms(2)).await;
                    continue;
                }
                Answer::Queued(place) => self.date(&mut place.lease),
                Answer::Busy(_) | Answer::Sealed => {}
            }
            return Ok(answer);
        }
    }

    async fn wake(&self, claim: &Claim) -> Woken {
        assert!(!self.wake_panics.load(Ordering::SeqCst), "the test wants a panic here");
        let stale = self.stale_push.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(fence) = stale {
            return Woken::Granted(fence);
        }
        tokio::select! {
            woken = self.store.wake(claim) => woken,
            () = self.eager.cancelled() => Woken::Ask,
        }
    }

    async fn holder(&self, claim: &Claim) -> Result<Option<Holder>> {
        self.store.holder(claim).await
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        let answers = self.store.renew(claims).await;
        if self.restore_in_reply.swap(false, Ordering::SeqCst) {
            self.restored.notify_one();
            step_aside().await;
        }
        if get(&self.dead_shard).is_some_and(|dead| claims.iter().any(|claim| claim.claim.name.as_str() != dead)) {
            tokio::time::sleep(ms(1)).await;
        }
        claims.iter().zip(answers).map(|(claim, answer)| self.renewed(claim, answer)).collect()
    }

    async fn release(&self, claim: &ClaimRef, ending: Ending) -> Result<Released> {
        self.store.release(claim, ending).await
    }

    async fn downgrade(&self, claim: &ClaimRef) -> Result<Standing> {
        self.store.downgrade(claim).await
    }

    async fn detach(&self, claim: &ClaimRef) -> Result<Standing> {
        self.store.detach(claim).await
    }

    async fn leader(&self, name: &Name) -> Result<Option<Leader>> {
        self.store.leader(name).await
    }

    async fn proclaim(&self, claim: &ClaimRef, value: &str) -> Result<Standing> {
        self.store.proclaim(claim, value).await
    }

    async fn observe(&self, name: &Name) -> Result<Observation> {
        self.store.observe(name).await
    }

    async fn revoke(&self, name: &Name, fence: Fence) -> Result<Revoked> {
        self.store.revoke(name, fence).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.store.inspect(query).await
    }

    fn lock_key(&self, claim: palisade::store::ClaimId) -> Option<String> {
        self.store.lock_key(claim)
    }

    fn liveness(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.store.liveness()
    }

    async fn event(&self) -> Event {
        tokio::select! {
            event = self.store.event() => event,
            () = self.restored.notified() => Event::Restored,
        }
    }
}
