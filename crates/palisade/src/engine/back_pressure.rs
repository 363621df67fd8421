//! Back-pressure: the requests that one client has in flight are bounded, and further claims queue
//! in the client, in order.
//!
//! A claim holds its permit until it is answered. A claim whose caller has left holds it until its
//! withdrawal is answered, too. So many callers that give up cannot overload the store: a claim
//! that is dropped while it queues here is never sent.
//!
//! A caller that is not polled must not hold up the others. So permits are waited for on the
//! client's runtime, and one that is overdue is taken back when others queue.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;

/// How many claims one client has in flight, and beside them how many releases.
const IN_FLIGHT: usize = 128;

/// A request that has taken so long does not hold up others any more: its caller may not be polled.
/// If the store hangs, its own time-out bounds the number of such requests.
const OVERDUE: Duration = Duration::from_secs(1);

/// How often a queued request looks for permits to take back.
const SWEEP: Duration = Duration::from_millis(100);

/// A place among the requests in flight; dropping it frees the place.
pub(super) struct Permit {
    /// `None` for a request that is not counted.
    _place: Option<Arc<Place>>,
}

impl Permit {
    /// For a request that is not counted.
    pub(super) fn unbounded() -> Permit {
        Permit { _place: None }
    }
}

struct Place {
    permit: Mutex<Option<OwnedSemaphorePermit>>,
    since: Instant,
}

/// Bounds the requests of one client in flight.
pub(super) struct Gate {
    claims: Arc<RequestQueue>,
    endings: Arc<RequestQueue>,
}

impl Gate {
    pub(super) fn new() -> Gate {
        Gate {
            claims: Arc::default(),
            endings: Arc::default(),
        }
    }

    /// A place for a claim, inside the client's runtime. Releases that queue already go first: they
    /// shorten the lines that a claim would lengthen.
    ///
    /// # Cancel safety
    ///
    /// Dropped while it queues, it leaves the queue.
    pub(super) async fn claim(&self) -> Permit {
        if self.endings.is_full() {
            drop(self.endings.enter().await);
        }
        self.claims.enter().await
    }

    /// A place for a release or a withdrawal, inside the client's runtime.
    ///
    /// # Cancel safety
    ///
    /// Dropped while it queues, it leaves the queue.
    pub(super) async fn ending(&self) -> Permit {
        self.endings.enter().await
    }
}

/// One kind of request.
struct RequestQueue {
    free: Arc<Semaphore>,
    /// The places that are taken, the oldest first, and some that have been freed since.
    taken: Mutex<VecDeque<Weak<Place>>>,
    /// Locked by the one queued request that looks for permits to take back.
    sweeper: tokio::sync::Mutex<()>,
    #[cfg(test)]
    sweeps: std::sync::atomic::AtomicUsize,
}

impl Default for RequestQueue {
    fn default() -> RequestQueue {
        RequestQueue {
            free: Arc::new(Semaphore::new(IN_FLIGHT)),
            taken: Mutex::default(),
            sweeper: tokio::sync::Mutex::default(),
            #[cfg(test)]
            sweeps: std::sync::atomic::AtomicUsize::new(0),
        }
    }
}

impl RequestQueue {
    fn is_full(&self) -> bool {
        self.free.available_permits() == 0
    }

    async fn enter(self: &Arc<Self>) -> Permit {
        if let Ok(permit) = Arc::clone(&self.free).try_acquire_owned() {
            return self.take(permit);
        }
        let (reply, given) = oneshot::channel();
        let queue = Arc::clone(self);
        Handle::current().spawn(queue.wait(reply));
        // Without the client's runtime nothing is sent.
        given.await.unwrap_or(Permit::unbounded())
    }

    /// Waits for a place as a task of the client's, for as long as the caller stays.
    async fn wait(self: Arc<Self>, mut reply: oneshot::Sender<Permit>) {
        let mut place = std::pin::pin!(Arc::clone(&self.free).acquire_owned());
        let mut sweeper = std::pin::pin!(self.sweeper.lock());
        let mut sweeps = None;
        loop {
            tokio::select! {
                biased;
                () = reply.closed() => return,
                permit = &mut place => {
                    let Ok(permit) = permit else { return };
                    drop(reply.send(self.take(permit)));
                    return;
                }
                // One for all: there may be many thousands.
                turn = &mut sweeper, if sweeps.is_none() => sweeps = Some(turn),
                () = tokio::time::sleep(SWEEP), if sweeps.is_some() => {}
            }
            self.take_back();
        }
    }

    fn take(&self, permit: OwnedSemaphorePermit) -> Permit {
        let place = Arc::new(Place {
            permit: Mutex::new(Some(permit)),
            since: Instant::now(),
        });
        let mut taken = locked(&self.taken);
        if taken.len() >= 2 * IN_FLIGHT {
            taken.retain(|place| place.strong_count() > 0);
        }
        taken.push_back(Arc::downgrade(&place));
        Permit {
            _place: Some(place),
        }
    }

    /// Takes back the permits that are overdue.
    fn take_back(&self) {
        #[cfg(test)]
        self.sweeps
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut taken = locked(&self.taken);
        while let Some(place) = taken.front() {
            match place.upgrade() {
                Some(place) if place.since.elapsed() < OVERDUE => return,
                Some(place) => drop(locked(&place.permit).take()),
                None => {}
            }
            taken.pop_front();
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls a future once, and keeps it.
    async fn begun<F: Future + Unpin>(future: &mut F) -> bool {
        tokio::select! {
            biased;
            _ = future => false,
            () = std::future::ready(()) => true,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn claims_queue_in_order_and_one_that_leaves_is_skipped() {
        let gate = Gate::new();
        let mut held = Vec::new();
        for _ in 0..IN_FLIGHT {
            held.push(gate.claim().await);
        }
        let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(gate.claim())).collect();
        for claim in &mut waiting {
            assert!(begun(claim).await, "it does not queue");
            tokio::task::yield_now().await;
        }
        drop(waiting.remove(0));
        tokio::task::yield_now().await;
        held.pop();
        let [first, second] = &mut waiting[..] else {
            panic!("two are left")
        };
        tokio::select! {
            biased;
            _ = second => panic!("out of turn"),
            permit = first => drop(permit),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn releases_that_queue_go_before_claims() {
        let gate = Gate::new();
        let mut held = Vec::new();
        for _ in 0..IN_FLIGHT {
            held.push(gate.ending().await);
        }
        let (mut ending, mut claim) = (Box::pin(gate.ending()), Box::pin(gate.claim()));
        assert!(begun(&mut ending).await);
        tokio::task::yield_now().await;
        assert!(
            begun(&mut claim).await,
            "it goes before a release that waits"
        );
        tokio::task::yield_now().await;
        held.pop();
        let ended = tokio::select! {
            biased;
            _ = &mut claim => panic!("out of turn"),
            ended = ending => ended,
        };
        drop(ended);
        claim.await;
    }

    /// As many callers as there are permits are never polled again: the next one is only late.
    #[tokio::test(start_paused = true)]
    async fn a_caller_that_is_not_polled_holds_up_no_other_for_ever() {
        let gate = Gate::new();
        let mut held = Vec::new();
        for _ in 0..IN_FLIGHT {
            held.push(gate.claim().await);
        }
        let begun = Instant::now();
        gate.claim().await;
        assert!(begun.elapsed() >= OVERDUE && begun.elapsed() < OVERDUE * 2);
    }

    /// Thousands of claims queue because the store hangs: the client's thread has renewals to send,
    /// too.
    #[tokio::test(start_paused = true)]
    async fn a_long_queue_looks_for_overdue_permits_no_more_often_than_a_short_one() {
        let gate = Gate::new();
        let mut held = Vec::new();
        for _ in 0..IN_FLIGHT {
            held.push(gate.claim().await);
        }
        let mut waiting: Vec<_> = (0..1_000).map(|_| Box::pin(gate.claim())).collect();
        for claim in &mut waiting {
            assert!(begun(claim).await, "it does not queue");
        }
        tokio::time::sleep(OVERDUE / 2).await;
        // Another one goes on when the first leaves.
        drop(waiting.remove(0));
        tokio::time::sleep(OVERDUE / 4).await;
        let sweeps = gate
            .claims
            .sweeps
            .load(std::sync::atomic::Ordering::Relaxed);
        assert!(sweeps < 20, "{sweeps} looks in {:?}", OVERDUE * 3 / 4);
        tokio::time::timeout(OVERDUE, waiting.remove(0))
            .await
            .expect("the permits are overdue");
    }
}
