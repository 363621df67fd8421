//! One task that takes one lock and gives it back, without contention: what two writes cost, and
//! what each side adds to them.

use std::time::{Duration, Instant};

use palisade::{Client, Released};
use palisade_testkit::zookeeper::{Make, Raw};

use super::own_thread::OwnThread;
use super::{LEASE, Setting};
use crate::compare::Result;
use crate::compare::caller_kind::{Caller, CallerKind};
use crate::compare::cpu_pinning::CpuPinning;
use crate::compare::interleaved;
use crate::compare::java::Java;
use crate::compare::rate::{self, Rate};
use crate::compare::round::ratio;
use crate::compare::verdict::{Verdicts, Wanted};

const WARM: Duration = Duration::from_millis(500);

enum Side {
    Ours(Caller, Client),
    /// A thread of its own waits for the socket, and wakes us.
    OwnThread(Caller, OwnThread),
    /// The same, but it reads the line as well: the least that knows whether it is first.
    Floor(Caller, OwnThread),
    /// In a Java process, which reports its count: Curator's mutex, or bare nodes by ZooKeeper's
    /// own client.
    Java(Java, &'static str),
}

pub(super) fn run(setting: &Setting, verdicts: &mut Verdicts) -> Result<()> {
    let caller = Caller::new(CallerKind::Body)?;
    let url = setting.ours.clone();
    let ours = caller.call(async move { Ok(palisade::connect(url).await?) })?;
    let mut raw = setting.server.raw()?;
    raw.create("/raw", b"", Make::Persistent)?;
    raw.create("/floor", b"", Make::Persistent)?;
    let own_thread = Side::OwnThread(
        Caller::new(CallerKind::Body)?,
        OwnThread::start(setting.server.raw()?)?,
    );
    let floor = Side::Floor(
        Caller::new(CallerKind::Body)?,
        OwnThread::start(setting.server.raw()?)?,
    );
    // Before the cores are shared out: a Java has more to do than one of them can.
    let java = Side::Java(
        super::bare(setting.server.url(), "cycle bare")?,
        "cycle bare",
    );
    let curator = Side::Java(
        super::curator(setting.server.url(), "cycle curator")?,
        "cycle curator",
    );
    let _pinned = CpuPinning::apply(&setting.server)?;
    let sides = [Side::Ours(caller, ours), own_thread, floor, java, curator];
    for side in &sides {
        cycles(side, WARM)?;
    }
    let [ours, raw, floor, java, curator] =
        interleaved::measure(&sides, setting.round, |side, length| {
            Rate::measure(&setting.server, || cycles(side, length))
        })?;
    rate::print("cycle: ours", &ours);
    rate::print("cycle: raw, ZooKeeper's client", &java);
    rate::print("cycle: raw, own thread", &raw);
    rate::print("cycle: floor", &floor);
    rate::print("cycle: Curator", &curator);
    let speed = |rate: &Rate| rate.per_second;
    let wanted = Wanted::of_cycle(setting.rtt, 0.93);
    // Bare nodes, by a client without sessions to restore or losses to report.
    verdicts.judge_through_network(
        "cycle: ours / raw create and delete, own thread",
        ratio(&ours, &raw, speed),
        setting.rtt,
    );
    ratio(&floor, &raw, speed).print("cycle: floor / raw create and delete, own thread", "");
    ratio(&ours, &floor, speed).print("cycle: ours / floor", "");
    verdicts.judge(
        "cycle: ours / raw create and delete, ZooKeeper's client",
        ratio(&ours, &java, speed),
        wanted,
    );
    verdicts.judge(
        "cycle: ours / Curator",
        ratio(&ours, &curator, speed),
        Wanted::AtLeast(1.2),
    );
    Ok(())
}

/// The count, and the time if the side measures it itself.
fn cycles(side: &Side, length: Duration) -> Result<(f64, Option<Duration>)> {
    let end = Instant::now() + length;
    match side {
        Side::Ours(caller, locks) => {
            let count = caller.call(ours_until(locks.clone(), "ours".to_owned(), end))?;
            Ok((count, None))
        }
        Side::OwnThread(caller, raw) => {
            let raw = raw.clone();
            let count = caller.call(async move {
                let mut count = 0.0;
                while Instant::now() < end {
                    let node = raw.run(make).await?;
                    raw.run(move |raw| delete(raw, &node)).await?;
                    count += 1.0;
                }
                Ok(count)
            })?;
            Ok((count, None))
        }
        Side::Floor(caller, raw) => {
            let raw = raw.clone();
            let count = caller.call(async move {
                let mut count = 0.0;
                while Instant::now() < end {
                    let (node, line) = raw
                        .run(|raw| Ok(raw.stand("/floor", "node-", b"raw")?))
                        .await?;
                    if line.len() != 1 {
                        return Err("floor: not alone".into());
                    }
                    raw.run(move |raw| delete(raw, &node)).await?;
                    count += 1.0;
                }
                Ok(count)
            })?;
            Ok((count, None))
        }
        Side::Java(java, words) => java
            .run(words, length)
            .map(|(count, took)| (count, Some(took))),
    }
}

fn make(raw: &mut Raw) -> Result<String> {
    Ok(raw
        .create("/raw/node-", b"raw", Make::EphemeralSequential)?
        .ok_or("raw: not made")?)
}

fn delete(raw: &mut Raw, node: &str) -> Result<()> {
    if raw.delete(node)? {
        Ok(())
    } else {
        Err("raw: gone before it was deleted".into())
    }
}

/// Takes one lock of ours and gives it back until then.
pub(super) async fn ours_until(locks: Client, name: String, end: Instant) -> Result<f64> {
    let (lock, mut count) = (locks.mutex(name).lease(LEASE), 0.0);
    while Instant::now() < end {
        match lock.acquire().await?.release().await? {
            Released::Done => count += 1.0,
            other => return Err(format!("ours: not released: {other:?}").into()),
        }
    }
    Ok(count)
}
