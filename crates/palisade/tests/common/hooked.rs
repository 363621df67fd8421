//! A memory store that has, when told, the oddities of other stores: it stands in for the ones that the core must bear.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use async_trait::async_trait;
use palisade::lease::Moment;
use palisade::store::{
    Answer, Capability, Claim, ClaimId, ClaimRef, ClientHandle, Lease, Standing, Store,
};
use palisade::stores::memory::MemoryStore;
use palisade::{Error, Fence, Result};
use palisade_conformance::around::Around;
use tokio_util::sync::CancellationToken;

use super::ms;

pub struct Hooked {
    store: MemoryStore,
    capability: Capability,
    dead_shard: Mutex<Option<&'static str>>,
    heartbeat: Mutex<Option<Moment>>,
    stale_push: Mutex<Option<Fence>>,
    eager: CancellationToken,
    claim_panics: AtomicBool,
    restore_in_reply: AtomicBool,
    client: OnceLock<ClientHandle>,
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
            claim_panics: AtomicBool::new(false),
            restore_in_reply: AtomicBool::new(false),
            client: OnceLock::new(),
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

    /// A claim arrives, and then the store panics.
    pub fn claim_panics(&self) {
        self.claim_panics.store(true, Ordering::SeqCst);
    }

    /// Another server answers just when the answer to the next renewal is read: the push is taken up before the answer is.
    pub fn restore_in_next_reply(&self) {
        self.restore_in_reply.store(true, Ordering::SeqCst);
    }

    fn client(&self) -> &ClientHandle {
        self.client.get().expect("a client")
    }

    /// What a good store does not push to a claim that it has just put in line.
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
impl Around for Hooked {
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
