//! Ours with `format=redisson` beside Redisson, which a warm Java runs, at the same keys.
//!
//! Redisson's hand-off is between clients in one Java, which favours it: ours is between processes.
//! Its plain lock lets a client take the lock again before any waiter is awake, so the changes of
//! its owner are compared, and not the acquisitions.

use std::process::Command;
use std::time::{Duration, Instant};

use palisade::Client;
use tokio::task::JoinSet;

use super::lock::Side;
use super::{Result, Setting};
use crate::compare::ROUNDS;
use crate::compare::caller_kind::{Caller, CallerKind};
use crate::compare::contest::{self, Contest, PROCESSES};
use crate::compare::cpu_pinning::CpuPinning;
use crate::compare::interleaved;
use crate::compare::java::Java;
use crate::compare::rate::{self, Rate};
use crate::compare::round::{ratio, spread};
use crate::compare::spread::Spread;
use crate::compare::verdict::{Verdicts, Wanted};

const TASKS: usize = 64;
const WARM: Duration = Duration::from_millis(500);

/// How each side knows the same lock.
struct Lock {
    name: &'static str,
    /// What ours must be told.
    words: &'static str,
    java: &'static str,
}

const LOCKS: [Lock; 2] = [
    Lock {
        name: "RLock",
        words: "format=redisson",
        java: "lock",
    },
    Lock {
        name: "RFairLock",
        words: "format=redisson&fair=yes",
        java: "fair",
    },
];

pub(super) fn run(setting: &Setting, verdicts: &mut Verdicts) -> Result<()> {
    for lock in &LOCKS {
        // Before the cores are shared out: a Java has more to do than one of them can.
        let java = lock.java(setting, "cycle warm")?;
        let pinned = CpuPinning::apply(&setting.server)?;
        let cycle = loops(setting, lock, 1, &java)?;
        drop(pinned);
        verdicts.judge(
            format!("{}: cycle, ours / Redisson", lock.name),
            cycle,
            Wanted::AtLeast(1.0),
        );
        java.run(&format!("tasks warm {TASKS}"), WARM)?;
        loops(setting, lock, TASKS, &java)?.print(
            &format!("{}: {TASKS} tasks, ours / Redisson", lock.name),
            "",
        );
        handoff(setting, lock, &java, verdicts)?;
    }
    Ok(())
}

impl Lock {
    fn java(&self, setting: &Setting, warm: &str) -> Result<Java> {
        Java::start("redis-java", [self.java, setting.server.url()], warm)
    }

    fn url(&self, setting: &Setting) -> String {
        let sign = if setting.ours.contains('?') { '&' } else { '?' };
        format!("{}{sign}{}", setting.ours, self.words)
    }
}

enum Looping<'a> {
    Ours(Caller, Client),
    Redisson(&'a Java),
}

/// So many tasks, each with a lock of its own.
fn loops(setting: &Setting, lock: &Lock, tasks: usize, java: &Java) -> Result<Spread> {
    let caller = Caller::new(CallerKind::Body)?;
    let url = lock.url(setting);
    let ours = caller.call(async move { Ok(palisade::connect(url).await?) })?;
    let sides = [Looping::Ours(caller, ours), Looping::Redisson(java)];
    for side in &sides {
        turn(side, tasks, WARM)?;
    }
    let [ours, theirs] = interleaved::measure(&sides, setting.round, |side, length| {
        Rate::measure(&setting.server, || turn(side, tasks, length))
    })?;
    let title = match tasks {
        1 => format!("{}: cycle", lock.name),
        tasks => format!("{}: {tasks} tasks", lock.name),
    };
    rate::print(&format!("{title}: ours"), &ours);
    rate::print(&format!("{title}: Redisson"), &theirs);
    Ok(ratio(&ours, &theirs, |rate| rate.per_second))
}

/// The count, and the time if the side measures it itself.
fn turn(side: &Looping, tasks: usize, length: Duration) -> Result<(f64, Option<Duration>)> {
    match side {
        Looping::Ours(caller, locks) => {
            let (side, end) = (Side::Ours(locks.clone()), Instant::now() + length);
            let count = caller.call(async move {
                let mut cycling = JoinSet::new();
                for task in 0..tasks {
                    cycling.spawn(side.lock(&format!("ours-{task}")).cycle_until(end));
                }
                let mut count = 0;
                while let Some(cycled) = cycling.join_next().await {
                    count += cycled??.len();
                }
                Ok(count)
            })?;
            Ok((count as f64, None))
        }
        Looping::Redisson(java) => java
            .run(&format!("tasks theirs {tasks}"), length)
            .map(|(count, took)| (count, Some(took))),
    }
}

fn handoff(setting: &Setting, lock: &Lock, java: &Java, verdicts: &mut Verdicts) -> Result<()> {
    let theirs = format!("handoff theirs {PROCESSES}");
    java.run(&theirs, WARM * 4)?;
    let kind = CallerKind::CurrentThread.label();
    let (mut ours, mut redisson) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["redis-worker", "ours", &lock.url(setting), kind]);
        ours.push(Contest::hold(&setting.server, command, setting.round)?);
        redisson.push(Rate::measure(&setting.server, || {
            java.run(&theirs, setting.round)
                .map(|(count, took)| (count, Some(took)))
        })?);
    }
    contest::print(&format!("{}: ours", lock.name), &ours);
    spread(&redisson, |rate| rate.per_second).print(
        &format!("{PROCESSES} clients: {}: Redisson", lock.name),
        "owner changes/s",
    );
    let changes = ours
        .iter()
        .zip(&redisson)
        .map(|(ours, redisson)| ours.changes_per_second / redisson.per_second);
    verdicts.judge(
        format!("{}: handoff, owner changes, ours / Redisson", lock.name),
        Spread::of(changes),
        Wanted::AtLeast(1.5),
    );
    Ok(())
}
