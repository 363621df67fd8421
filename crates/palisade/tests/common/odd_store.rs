//! A memory store that shows, on request, an oddity of another kind of store.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use palisade::lease::{ManualClock, Moment};
use palisade::store::{
    Answer, Capability, Claim, ClaimId, ClaimRef, ClientHandle, Lease, Standing, Store,
};
use palisade::stores::memory::MemoryStore;
use palisade::{Error, Fence, Result};
use palisade_conformance::around::Around;
use tokio_util::sync::CancellationToken;

use super::ms;

pub struct OddStore {
    store: MemoryStore,
    capability: Capability,
    dead_shard: Mutex<Option<&'static str>>,
    heartbeat: Mutex<Option<Moment>>,
    stale_push: Mutex<Option<Fence>>,
    eager: CancellationToken,
    claim_panics: AtomicBool,
    restore_in_reply: AtomicBool,
    late: Mutex<Option<(ManualClock, Duration)>>,
    client: OnceLock<ClientHandle>,
}

impl OddStore {
    pub fn over(store: MemoryStore, change: impl FnOnce(&mut Capability)) -> OddStore {
        let mut capability = *store.capability();
        change(&mut capability);
        OddStore {
            store,
            capability,
            dead_shard: Mutex::default(),
            heartbeat: Mutex::default(),
            stale_push: Mutex::default(),
            eager: CancellationToken::new(),
            claim_panics: AtomicBool::new(false),
            restore_in_reply: AtomicBool::new(false),
            late: Mutex::default(),
            client: OnceLock::new(),
        }
    }

    /// Renewals of this name fail from now on. Others are answered, a little later than the
    /// failure.
    pub fn shard_dies(&self, name: &'static str) {
        set(&self.dead_shard, name);
    }

    /// Every lease counts from this moment, like that of a session whose last heartbeat was then.
    pub fn last_heartbeat(&self, at: Moment) {
        set(&self.heartbeat, at);
    }

    /// The next waiter receives this push, which belongs to another claim.
    pub fn stale_push(&self, fence: Fence) {
        set(&self.stale_push, fence);
    }

    /// Every waiter is woken in a loop.
    pub fn wake_eagerly(&self) {
        self.eager.cancel();
    }

    /// A claim arrives, and then the store panics.
    pub fn claim_panics(&self) {
        self.claim_panics.store(true, Ordering::SeqCst);
    }

    /// Another server answers while the answer to the next renewal is read: the push is handled
    /// before the answer.
    pub fn restore_in_next_reply(&self) {
        self.restore_in_reply.store(true, Ordering::SeqCst);
    }

    /// The answer to every claim takes so long, by this clock.
    pub fn answer_late(&self, clock: ManualClock, by: Duration) {
        set(&self.late, (clock, by));
    }

    fn pass_time(&self) {
        let late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((clock, by)) = &*late {
            clock.advance(*by);
        }
    }

    fn client(&self) -> &ClientHandle {
        self.client.get().expect("a client")
    }

    /// Pushes that a correct store does not send to a claim it has just queued.
    fn push_oddly(&self, claim: ClaimId) {
        let stale = self
            .stale_push
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(fence) = stale {
            self.client().granted(claim, fence);
        }
        let (client, eager) = (self.client().clone(), self.eager.clone());
        self.client().while_waiting(claim, async move {
            eager.cancelled().await;
            loop {
                client.ask_again(claim);
                tokio::task::yield_now().await;
            }
        });
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

#[async_trait]
impl Around for OddStore {
    fn inner(&self) -> &dyn Store {
        &self.store
    }

    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn attach(&self, client: ClientHandle) {
        let _ = self.client.set(client.clone());
        self.store.attach(client);
    }

    async fn claim(&self, claim: &Arc<Claim>) -> Result<Answer> {
        loop {
            let mut answer = self.store.claim(claim).await?;
            self.pass_time();
            assert!(
                !self.claim_panics.load(Ordering::SeqCst),
                "the test wants a panic here"
            );
            match &mut answer {
                Answer::Granted(grant) => self.date(&mut grant.lease),
                Answer::Queued(_) if self.capability.claim_blocks => {
                    tokio::time::sleep(ms(2)).await;
                    continue;
                }
                Answer::Queued(place) => {
                    self.date(&mut place.lease);
                    self.push_oddly(claim.id);
                }
                Answer::Busy(_) | Answer::Sealed => {}
            }
            return Ok(answer);
        }
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        let answers = self.store.renew(claims).await;
        if self.restore_in_reply.swap(false, Ordering::SeqCst) {
            self.client().contact_regained();
        }
        if get(&self.dead_shard)
            .is_some_and(|dead| claims.iter().any(|claim| claim.claim.name.as_str() != dead))
        {
            tokio::time::sleep(ms(1)).await;
        }
        claims
            .iter()
            .zip(answers)
            .map(|(claim, answer)| self.renewed(claim, answer))
            .collect()
    }
}
