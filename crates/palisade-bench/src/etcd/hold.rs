//! Many locks held by one client: what it costs the server to keep them.

use std::time::{Duration, Instant};

use palisade::Guard;
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::Setting;
use crate::compare::round::spread;
use crate::compare::spread::Spread;
use crate::compare::verdict::{Verdicts, Wanted};
use crate::compare::{Result, Server as _};
use crate::{figure, usage};

const LOCKS: usize = 10_000;
const LEASE: Duration = Duration::from_secs(9);
const RENEWED_EVERY: Duration = Duration::from_secs(3);

/// How many tasks take them.
const TASKS: usize = 64;

/// Fewer than in the other parts: one is as long as ten.
const ROUNDS: usize = 3;

/// The resources used while all locks were held.
struct Held {
    /// CPU of the client, in parts of a core.
    client: f64,
    /// CPU of the server, in parts of a core.
    server: f64,
    /// CPU of the server before anything was held.
    idle: f64,
    /// For each third of a lease.
    keep_alives: f64,
    /// Whatever else the server received, for each third of a lease.
    others: f64,
    lost: usize,
}

pub(super) fn run(setting: &Setting, verdicts: &mut Verdicts) -> Result<()> {
    let length = setting.round * 10;
    let mut held = Vec::new();
    for _ in 0..ROUNDS {
        held.push(
            Builder::new_current_thread()
                .enable_all()
                .build()?
                .block_on(hold(setting, length))?,
        );
    }
    figure("locks held", LOCKS as f64, "");
    figure("observed for, each time", length.as_secs_f64(), "s");
    spread(&held, |held| held.idle * 100.0).print("server CPU before, of one core", "%");
    spread(&held, |held| held.server * 100.0).print("server CPU, of one core", "%");
    spread(&held, |held| held.client * 100.0).print("client CPU, of one core", "%");
    spread(&held, |held| held.keep_alives).print("keep-alives every 3 s, with a lease of 9 s", "");
    spread(&held, |held| held.others).print("other messages every 3 s", "");
    verdicts.judge(
        "hold: server CPU, in % of a core",
        spread(&held, |held| held.server * 100.0),
        Wanted::AtMost(2.0),
    );
    let lost = Spread::of([held.iter().map(|held| held.lost).sum::<usize>() as f64]);
    verdicts.judge("hold: guards lost", lost, Wanted::AtMost(0.0));
    if lost.greatest > 0.0 {
        verdicts.unsound();
    }
    Ok(())
}

async fn hold(setting: &Setting, length: Duration) -> Result<Held> {
    let idle = server_cpu(setting, RENEWED_EVERY).await?;
    let locks = palisade::connect(&setting.ours).await?;
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let locks = locks.clone();
        tasks.spawn(async move {
            let mut guards: Vec<Guard> = Vec::new();
            for number in (task..LOCKS).step_by(TASKS) {
                guards.push(
                    locks
                        .mutex(format!("hold/{number}"))
                        .lease(LEASE)
                        .acquire()
                        .await?,
                );
            }
            Ok::<_, palisade::Error>(guards)
        });
    }
    let mut guards = Vec::with_capacity(LOCKS);
    while let Some(acquired) = tasks.join_next().await {
        guards.extend(acquired??);
    }
    // Every key is looked at once after its watch was opened. That is the cost of taking a lock,
    // not of holding it.
    sleep(LEASE).await;
    let (before, client_before, begun) = (setting.server.received()?, usage::cpu(), Instant::now());
    let server = server_cpu(setting, length).await?;
    let (client, elapsed) = (usage::cpu().saturating_sub(client_before), begun.elapsed());
    let after = setting.server.received()?;
    let lost = guards.iter().filter(|guard| !guard.is_held()).count();
    let intervals = elapsed.as_secs_f64() / RENEWED_EVERY.as_secs_f64();
    let keep_alives = after.keep_alives - before.keep_alives;
    let all = after.unary + after.streamed - before.unary - before.streamed;
    drop(guards);
    locks.shutdown().await;
    Ok(Held {
        client: client.as_secs_f64() / elapsed.as_secs_f64(),
        server,
        idle,
        keep_alives: keep_alives / intervals,
        others: (all - keep_alives) / intervals,
        lost,
    })
}

/// The server's CPU from now on, in parts of a core.
async fn server_cpu(setting: &Setting, length: Duration) -> Result<f64> {
    let (before, begun) = (setting.server.cpu()?, Instant::now());
    sleep(length).await;
    Ok(setting.server.cpu()?.saturating_sub(before).as_secs_f64() / begun.elapsed().as_secs_f64())
}
