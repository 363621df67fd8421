//! Back-pressure, from outside: the store counts what one client asks of it at the same time.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use palisade::lease::BootClock;
use palisade::store::{Answer, Claim, ClaimRef, Ending, Released, Store};
use palisade::stores::memory::MemoryStore;
use palisade::{Client, Guard, Result};
use palisade_conformance::around::{Around, Wrapped};
use palisade_conformance::eventually;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// Far more than a client may have in flight.
const CALLERS: usize = 10_000;

/// What a client may have in flight: so many claims, and as many releases.
const BOUND: usize = 128;

/// A request that takes longer does not count any more, because its caller may not be polled.
const OVERDUE: Duration = Duration::from_secs(1);

/// A store that answers nothing until it is told to, and counts.
struct Counting {
    store: MemoryStore,
    answers: AtomicBool,
    answers_now: Notify,
    seen: Mutex<Seen>,
}

#[derive(Clone, Default)]
struct Seen {
    /// The names that were asked for, in order.
    claims: Vec<String>,
    releases: usize,
    in_flight: usize,
    most: usize,
    since: Option<Instant>,
}

impl Counting {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn enter(&self, count: impl FnOnce(&mut Seen)) -> InFlight<'_> {
        let entered = {
            let mut seen = self.seen();
            count(&mut seen);
            seen.since.get_or_insert_with(Instant::now);
            seen.in_flight += 1;
            seen.most = seen.most.max(seen.in_flight);
            InFlight(self)
        };
        loop {
            let answers_now = self.answers_now.notified();
            if self.answers.load(Ordering::SeqCst) {
                break;
            }
            answers_now.await;
        }
        entered
    }

    /// What was seen so far. Never more than may have been let in by then, with those that are
    /// overdue.
    fn bounded(&self) -> Seen {
        let seen = self.seen().clone();
        let elapsed = seen.since.map_or(Duration::ZERO, |since| since.elapsed());
        // One period more: the client has sent the first one a little before the store saw it.
        let periods = 1 + elapsed.as_millis().div_ceil(OVERDUE.as_millis());
        let allowed = 2 * BOUND * usize::try_from(periods).expect("a short test");
        assert!(
            seen.most <= allowed,
            "{} requests at once within {elapsed:?}",
            seen.most
        );
        seen
    }

    fn answer(&self) {
        self.answers.store(true, Ordering::SeqCst);
        self.answers_now.notify_waiters();
    }
}

struct InFlight<'a>(&'a Counting);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.seen().in_flight -= 1;
    }
}

#[async_trait]
impl Around for Counting {
    fn inner(&self) -> &dyn Store {
        &self.store
    }

    async fn claim(&self, claim: &Arc<Claim>) -> Result<Answer> {
        let name = claim.name.as_str().to_owned();
        let _in_flight = self.enter(|seen| seen.claims.push(name)).await;
        self.store.claim(claim).await
    }

    async fn release(&self, claim: &ClaimRef, ending: Ending) -> Result<Released> {
        let _in_flight = self.enter(|seen| seen.releases += 1).await;
        self.store.release(claim, ending).await
    }
}

fn scene() -> (Arc<Counting>, Client) {
    let store = Arc::new(Counting {
        store: MemoryStore::new(Arc::new(BootClock)),
        answers: AtomicBool::new(false),
        answers_now: Notify::new(),
        seen: Mutex::default(),
    });
    let client = Client::over(Arc::new(Wrapped(Arc::clone(&store))), Arc::new(BootClock));
    (store, client)
}

/// Starts all callers, each for a name of its own. All of them have asked, and the store has met as
/// many as it may at once.
async fn crowd(store: &Counting, client: &Client) -> Vec<JoinHandle<Result<Guard>>> {
    let asked = Arc::new(AtomicUsize::new(0));
    let callers = (0..CALLERS)
        .map(|number| {
            let (lock, asked) = (client.mutex(format!("{number:05}")), Arc::clone(&asked));
            tokio::spawn(async move {
                let mut acquiring = std::pin::pin!(lock.acquire());
                tokio::select! {
                    biased;
                    acquired = &mut acquiring => return acquired,
                    () = std::future::ready(()) => {}
                }
                asked.fetch_add(1, Ordering::SeqCst);
                acquiring.await
            })
        })
        .collect();
    eventually("as many as may be are in flight", async || {
        asked.load(Ordering::SeqCst) == CALLERS && store.seen().in_flight >= BOUND
    })
    .await;
    callers
}

#[tokio::test]
async fn claims_in_flight_are_bounded_and_go_in_order() {
    let (store, client) = scene();
    let callers = crowd(&store, &client).await;
    let Seen { most, .. } = store.bounded();
    println!("{most} claims at once");
    store.answer();
    let mut guards = Vec::new();
    for caller in callers {
        guards.push(caller.await.expect("no panic").expect("acquired"));
    }
    let claims = store.seen().claims.clone();
    assert_eq!(claims.len(), CALLERS);
    assert!(claims.is_sorted(), "out of order");
    drop(guards);
    client.shutdown().await;
    assert_eq!(store.seen().releases, CALLERS);
}

#[tokio::test]
async fn a_claim_that_is_dropped_before_it_is_written_is_never_sent() {
    let (store, client) = scene();
    let callers = crowd(&store, &client).await;
    for caller in &callers {
        caller.abort();
    }
    for caller in callers {
        assert!(caller.await.expect_err("it was dropped").is_cancelled());
    }
    let sent = store.bounded().claims.len();
    println!("{sent} claims sent");
    store.answer();
    client.shutdown().await;
    let seen = store.bounded();
    assert_eq!(seen.claims.len(), sent, "sent after its caller had left");
    // Each of those was granted, and is withdrawn.
    assert_eq!(seen.releases, sent);
    assert_eq!(client.stats().kept, 0);
}
