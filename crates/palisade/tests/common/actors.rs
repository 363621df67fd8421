//! Holders and waiters under a fault, and the assertions about them afterwards.

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use palisade::store::{Answer, Claim, Kind, Mode, Standing};
use palisade::{Client, Guard, GuardMode, LossReason, Mutex, Released, Result};
use tokio::task::JoinHandle;

/// A waiter gets the lock within this once the fault is over, on a loaded machine; usually in 2 s.
pub const SOON: Duration = Duration::from_secs(12);

pub fn connect(url: impl AsRef<str>) -> Client {
    Client::connect(url).expect("a good URL")
}

/// Waits for what must come soon.
#[track_caller]
pub fn soon<F: Future>(what: &str, future: F) -> impl Future<Output = F::Output> {
    let (what, place) = (what.to_owned(), std::panic::Location::caller());
    async move {
        match tokio::time::timeout(SOON, future).await {
            Ok(output) => output,
            Err(_) => panic!("{place}: not within {SOON:?}: {what}"),
        }
    }
}

/// Waits in the background.
pub fn wait_for(mutex: &Mutex) -> JoinHandle<Result<Guard>> {
    let mutex = mutex.clone();
    tokio::spawn(async move { mutex.acquire().await })
}

/// The waiter gets in soon.
#[track_caller]
pub fn gets_in(waiter: JoinHandle<Result<Guard>>) -> impl Future<Output = Guard> {
    let brought = soon("the waiter gets in", waiter);
    async move { brought.await.expect("no panic").expect("a grant") }
}

/// One of these gets in soon, and leaves the rest.
#[track_caller]
pub fn some_gets_in(waiters: &mut Vec<JoinHandle<Result<Guard>>>) -> impl Future<Output = Guard> {
    soon("some waiter gets in", async {
        loop {
            if let Some(at) = waiters.iter().position(JoinHandle::is_finished) {
                return waiters
                    .swap_remove(at)
                    .await
                    .expect("no panic")
                    .expect("a grant");
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
}

/// The holder is told of the loss. Any reason will do: the grant is gone, or already another
/// client's.
#[track_caller]
pub fn is_told(guard: &Guard) -> impl Future<Output = LossReason> {
    let told = soon("the holder is told", guard.lost());
    async move {
        let reason = told.await;
        assert!(!guard.is_held());
        reason
    }
}

/// Later grants have higher fences.
#[track_caller]
pub fn rise<F: PartialOrd + Debug>(fences: &[F]) {
    assert!(
        fences.is_sorted_by(|one, next| one < next),
        "fences do not rise: {fences:?}"
    );
}

/// The fence of a grant in whatever mode.
pub fn number<M: GuardMode>(guard: &Guard<M>) -> u64 {
    guard.fence().to_string().parse().expect("a number")
}

/// Waits until `waiters` claims wait in line, as seen by a client that is not cut off.
pub async fn in_line(outside: &Client, name: &str, waiters: usize) {
    super::in_line(outside, name, waiters).await;
}

/// How long a lease had to run at some time.
pub struct Confirmed(Instant, Duration);

impl Confirmed {
    pub fn of<M: GuardMode>(guard: &Guard<M>) -> Confirmed {
        // In this order here and in the other order below, so that a delay in between only makes
        // the sum smaller.
        let left = guard.remaining();
        Confirmed(Instant::now(), left)
    }

    /// Waits until the store has confirmed the lease again.
    pub async fn again<M: GuardMode>(self, guard: &Guard<M>) {
        let Confirmed(at, left) = self;
        let renewed = async || {
            let passed = at.elapsed();
            guard.remaining() + passed > left + Duration::from_millis(1)
        };
        palisade_conformance::eventually("renewed", renewed).await;
    }
}

/// The store confirms the lease again after now.
pub async fn is_renewed<M: GuardMode>(guard: &Guard<M>) {
    Confirmed::of(guard).again(guard).await;
}

/// Releases, and checks that it still held.
pub async fn give_back(guard: Guard) {
    let released = soon("released", guard.release()).await.expect("an answer");
    assert!(
        matches!(released, Released::Done | Released::Unknown),
        "{released:?}"
    );
}

/// Reads a guard's state in a loop, on a thread of its own, and records when it last said held.
pub struct Believer {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Option<Instant>>,
}

impl Believer {
    pub fn watch<M: GuardMode>(guard: Arc<Guard<M>>) -> Believer {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        // The first read is here: on a loaded machine the thread may start when all is over.
        let now = Instant::now();
        let mut last = guard.is_held().then_some(now);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Acquire) {
                // Taken before the read: what the guard says may be over by the time it returns.
                let now = Instant::now();
                if guard.is_held() {
                    last = Some(now);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            last
        });
        Believer { stop, thread }
    }

    pub fn last_belief(self) -> Option<Instant> {
        self.stop.store(true, Ordering::Release);
        self.thread.join().expect("no panic")
    }
}

/// Two clients renew claims of the same hundred names again and again, each in its own order.
pub async fn renew_in_opposite_orders(url: String) {
    let open = move || palisade::stores::open(url.parse().expect("a good URL")).expect("a store");
    let subject = palisade_conformance::Subject::new(open);
    let mut clients = Vec::new();
    for reversed in [false, true] {
        let store = subject.store();
        let mut refs = Vec::new();
        for number in 0..100 {
            let claim = Arc::new(Claim {
                kind: Kind::RwLock,
                mode: Mode::Shared,
                lease: Duration::from_secs(3600),
                ..subject.claim(&format!("n{number}"))
            });
            match soon("an answer", store.claim(&claim)).await {
                Ok(Answer::Granted(grant)) => refs.push(claim.to_ref(Some(grant.fence))),
                other => panic!("{other:?}"),
            }
        }
        if reversed {
            refs.reverse();
        }
        clients.push((store, refs));
    }
    let renewals = clients.into_iter().map(|(store, refs)| {
        tokio::spawn(async move {
            for _ in 0..40 {
                for standing in store.renew(&refs).await {
                    assert!(matches!(standing, Ok(Standing::Held(_))), "{standing:?}");
                }
            }
        })
    });
    for renewed in renewals.collect::<Vec<_>>() {
        tokio::time::timeout(3 * SOON, renewed)
            .await
            .expect("in time")
            .expect("no panic");
    }
}
