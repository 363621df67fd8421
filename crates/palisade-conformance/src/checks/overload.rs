//! Back-pressure: a client whose tasks give up again and again does not bury the store under
//! withdrawals.

use std::time::{Duration, Instant};

use palisade::{Client, ErrorKind, Mutex, Released};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::mutex::waiters;
use crate::{Subject, Verdict, needs, patience};

const TASKS: usize = 24;
const NAMES: usize = 4;

/// As many as one line of every store takes in a few seconds, in a debug build on a busy machine.
const CROWD: usize = 100;

/// An attempt ends after this at the latest, and half of it on average.
const LONGEST: Duration = Duration::from_millis(8);

/// How soon another client must get in afterwards, on all names.
const RECOVERY: Duration = Duration::from_secs(1);

/// What that may take on a busy machine without any storm. It is measured before each, and allowed
/// afterwards as well, up to this.
const BUSY: Duration = Duration::from_secs(7);

/// How many storms may be followed by a late client on a busy machine: a store that is buried is
/// late after each.
const LATE_STORMS: usize = 4;

/// Whether the machine is the store's alone. Otherwise other checks use it at the same time.
fn is_soak() -> bool {
    std::env::var_os("PALISADE_STORM").is_some()
}

/// The attempts of all tasks together, unless `PALISADE_STORM` says otherwise: as few as show a
/// client without bounds.
const ATTEMPTS: usize = 2_400;

fn attempts() -> usize {
    std::env::var("PALISADE_STORM").map_or(ATTEMPTS, |number| {
        number.parse().expect("PALISADE_STORM is a number")
    })
}

/// Claims that are dropped before they are sent, in flight, in line, or with the lock just granted.
pub async fn dropped_claims_do_not_pile_up(subject: &Subject) -> Verdict {
    storm(subject, "dropped", |lock, length| async move {
        let holding = async {
            let _held = lock
                .acquire()
                .await
                .expect("a claim that waits is not refused");
            std::future::pending::<()>().await;
        };
        timeout(length, holding)
            .await
            .expect_err("it never ends by itself");
    })
    .await
}

/// Claims that give up by themselves.
pub async fn timed_out_claims_do_not_pile_up(subject: &Subject) -> Verdict {
    storm(subject, "timed-out", |lock, length| async move {
        match lock.acquire_timeout(length).await {
            Ok(held) => {
                // Without a holder, no other attempt would have to wait.
                tokio::time::sleep(length).await;
                drop(held);
            }
            Err(error) => {
                // Within so short a wait the store may not even have answered.
                let in_time = matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unavailable);
                assert!(in_time, "a claim that waits is not refused: {error}")
            }
        }
    })
    .await
}

/// Waiters that all stand in line, and leave together.
pub async fn a_crowd_that_leaves_leaves_nothing(subject: &Subject) -> Verdict {
    needs!(
        subject.capability().waiters_known,
        "a line that can be seen"
    );
    let name = subject.name("crowd");
    let (client, outside) = (subject.client(), subject.client());
    let held = outside.mutex(&name).acquire().await.expect("acquired");
    let lock = client.mutex(&name);
    let mut tasks = JoinSet::new();
    for _ in 0..CROWD {
        let lock = lock.clone();
        tasks.spawn(async move { lock.acquire().await });
    }
    waiters(&outside, &name, CROWD).await;
    tasks.shutdown().await;
    timeout(patience(), client.shutdown())
        .await
        .expect("all claims are withdrawn");
    assert_eq!(client.stats().kept, 0, "the keeper still keeps something");
    let line = outside
        .show(&name)
        .await
        .expect("an answer")
        .expect("it is held");
    assert!(
        line.waiters.is_empty(),
        "{} places in line are left",
        line.waiters.len()
    );
    assert_eq!(held.release().await.expect("released"), Released::Done);
    drop(
        lock.try_acquire()
            .await
            .expect("an answer")
            .expect("no waiter that has left is served"),
    );
    Verdict::Kept
}

/// Lets many tasks of one client attempt something on a few names; then another client must get in
/// at once, and nothing may be left.
async fn storm<A>(
    subject: &Subject,
    what: &str,
    attempt: impl Fn(Mutex, Duration) -> A + Copy + Send + 'static,
) -> Verdict
where
    A: Future<Output = ()> + Send + 'static,
{
    let prefix = subject.name(what);
    let names: Vec<String> = (0..NAMES)
        .map(|number| format!("{prefix}-{number}"))
        .collect();
    let client = subject.client();
    let mut late = Vec::new();
    loop {
        let calm = acquire_all(&subject.client(), &names).await;
        let stormed = storm_once(&client, &names, attempt).await;
        let took = acquire_all(&subject.client(), &names).await;
        println!(
            "{} attempts in {stormed:?}, then another client got in within {took:?}, before in {calm:?}",
            attempts()
        );
        let (slack, late_storms) = if is_soak() {
            (Duration::ZERO, 0)
        } else {
            (calm.min(BUSY), LATE_STORMS)
        };
        if took <= RECOVERY + slack {
            break;
        }
        late.push(took);
        assert!(
            late.len() <= late_storms,
            "another client waited {late:?} for names that no task wants any more"
        );
    }
    timeout(patience(), client.shutdown())
        .await
        .expect("all claims are withdrawn");
    assert_eq!(client.stats().kept, 0, "the keeper still keeps something");
    for name in &names {
        assert!(
            client.show(name).await.expect("an answer").is_none(),
            "the store still has something of {name}"
        );
    }
    Verdict::Kept
}

/// How long it takes until no task attempts anything any more.
async fn storm_once<A>(
    client: &Client,
    names: &[String],
    attempt: impl Fn(Mutex, Duration) -> A + Copy + Send + 'static,
) -> Duration
where
    A: Future<Output = ()> + Send + 'static,
{
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (lock, mut random) = (
            client.mutex(&names[task % NAMES]),
            fastrand::Rng::with_seed(task as u64),
        );
        tasks.spawn(async move {
            for _ in 0..attempts() / TASKS {
                attempt(lock.clone(), LONGEST.mul_f64(random.f64())).await;
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no attempt fails");
    }
    begun.elapsed()
}

/// How long it takes to have had each of the locks.
async fn acquire_all(client: &Client, names: &[String]) -> Duration {
    let begun = Instant::now();
    for name in names {
        let held = client
            .mutex(name)
            .acquire_timeout(patience())
            .await
            .expect("nothing stands in the way");
        assert_eq!(held.release().await.expect("released"), Released::Done);
    }
    begun.elapsed()
}
