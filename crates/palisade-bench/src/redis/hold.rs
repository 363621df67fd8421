//! Many locks held by one client: what it costs to keep them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use palisade::Guard;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio::time::{Interval, interval_at, sleep};

use super::raw::{self, RawLock};
use super::round::{ratio, spread};
use super::server::Server;
use super::spread::Spread;
use super::verdict::{Verdicts, Wanted};
use super::{Result, Setting};
use crate::compare::Server as _;
use crate::{figure, usage};

const LOCKS: u32 = 10_000;
const LEASE: Duration = Duration::from_secs(9);
const RENEWED_EVERY: Duration = Duration::from_secs(3);

/// Fewer than in the other parts: one is as long as ten.
const ROUNDS: usize = 3;

/// The resources of one side while it held all locks.
struct Held {
    /// CPU of the client, in parts of a core.
    client: f64,
    /// CPU of the server, in parts of a core.
    server: f64,
    lost: usize,
}

impl Held {
    /// Measures for so long, while the renewals run. The caller counts losses.
    async fn watch(server: &Server, length: Duration) -> Result<Held> {
        let server_before = server.cpu()?;
        let (client_before, begun) = (usage::cpu(), Instant::now());
        sleep(length).await;
        let (client, elapsed) = (
            usage::cpu().saturating_sub(client_before),
            begun.elapsed().as_secs_f64(),
        );
        let served = server.cpu()?.saturating_sub(server_before);
        Ok(Held {
            client: client.as_secs_f64() / elapsed,
            server: served.as_secs_f64() / elapsed,
            lost: 0,
        })
    }
}

pub(super) fn run(setting: &Setting, verdicts: &mut Verdicts) -> Result<()> {
    let length = setting.round * 10;
    let (mut ours, mut raw) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(runtime()?.block_on(hold_ours(setting, length))?);
        setting.server.clear()?;
        raw.push(runtime()?.block_on(hold_raw(setting, length))?);
        setting.server.clear()?;
    }
    figure("locks held", f64::from(LOCKS), "");
    figure("observed for, each time", length.as_secs_f64(), "s");
    print("ours", &ours);
    print("raw, a task per lock", &raw);
    let client = ratio(&ours, &raw, |held| held.client);
    verdicts.judge("hold: client CPU, ours / raw", client, Wanted::AtMost(0.5));
    let lost = Spread::of([ours.iter().map(|held| held.lost).sum::<usize>() as f64]);
    verdicts.judge("hold: guards lost", lost, Wanted::AtMost(0.0));
    if lost.greatest > 0.0 {
        verdicts.unsound();
    }
    Ok(())
}

/// One thread: the cheapest home for a task per lock. Ours has its own thread anyway.
fn runtime() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

/// Renewals are counted as due, not as requests: a client may batch them.
fn print(who: &str, rounds: &[Held]) {
    let renewals = f64::from(LOCKS) / RENEWED_EVERY.as_secs_f64();
    spread(rounds, |held| held.client * 100.0)
        .print(&format!("{who}, client CPU, of one core"), "%");
    spread(rounds, |held| held.server * 100.0)
        .print(&format!("{who}, server CPU, of one core"), "%");
    spread(rounds, |held| held.client * 1e6 / renewals)
        .print(&format!("{who}, client CPU"), "µs/renewal");
    spread(rounds, |held| held.server * 1e6 / renewals)
        .print(&format!("{who}, server CPU"), "µs/renewal");
    spread(rounds, |held| held.lost as f64).print(&format!("{who}, lost"), "");
}

/// When a lock is taken: a program does not take all its locks at once, so they are not due at once
/// either.
fn turn_of(lock: u32) -> Duration {
    RENEWED_EVERY * lock / LOCKS
}

async fn hold_ours(setting: &Setting, length: Duration) -> Result<Held> {
    let locks = palisade::connect(&setting.ours).await?;
    let mut tasks = JoinSet::new();
    for number in 0..LOCKS {
        let lock = locks.mutex(format!("hold/{number}")).lease(LEASE);
        tasks.spawn(async move {
            sleep(turn_of(number)).await;
            lock.acquire().await
        });
    }
    let mut guards: Vec<Guard> = Vec::with_capacity(LOCKS as usize);
    while let Some(acquired) = tasks.join_next().await {
        guards.push(acquired??);
    }
    let held = Held::watch(&setting.server, length).await?;
    let lost = guards.iter().filter(|guard| !guard.is_held()).count();
    drop(guards);
    locks.shutdown().await;
    Ok(Held { lost, ..held })
}

async fn hold_raw(setting: &Setting, length: Duration) -> Result<Held> {
    let connection = raw::connect(setting.server.url()).await?;
    let (taken, lost) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = JoinSet::new();
    for number in 0..LOCKS {
        let lock = RawLock::new(connection.clone(), &format!("hold/{number}"), LEASE);
        let (taken, lost) = (Arc::clone(&taken), Arc::clone(&lost));
        tasks.spawn(async move {
            sleep(turn_of(number)).await;
            keep(lock, &taken, &lost).await
        });
    }
    while taken.load(Ordering::Relaxed) < LOCKS as usize {
        // No task ends before all locks are taken, unless it fails.
        if let Some(ended) = tasks.try_join_next() {
            ended??;
        }
        sleep(Duration::from_millis(10)).await;
    }
    let held = Held::watch(&setting.server, length).await?;
    Ok(Held {
        lost: lost.load(Ordering::Relaxed),
        ..held
    })
}

/// Until the lock is lost, or the task is dropped.
async fn keep(mut lock: RawLock, taken: &AtomicUsize, lost: &AtomicUsize) -> Result<()> {
    lock.take().await?;
    taken.fetch_add(1, Ordering::Relaxed);
    let mut due: Interval = interval_at(tokio::time::Instant::now() + RENEWED_EVERY, RENEWED_EVERY);
    loop {
        due.tick().await;
        if !lock.extend().await? {
            lost.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
    }
}
