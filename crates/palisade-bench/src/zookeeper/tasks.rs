//! Many tasks on as many names with one client: the server commits many writes at once, and CPU is
//! the limit.
//!
//! The bare side has as many requests on their way, on one session and below as many nodes, and no
//! task waits for another.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use palisade::Client;
use palisade_testkit::zookeeper::Raw;
use tokio::task::JoinSet;

use super::Setting;
use super::cycle::ours_until;
use crate::compare::Result;
use crate::compare::caller_kind::{Caller, CallerKind};
use crate::compare::interleaved;
use crate::compare::java::Java;
use crate::compare::rate::{self, Rate};
use crate::compare::round::ratio;
use crate::compare::verdict::{Verdicts, Wanted};

const TASKS: usize = 64;
const WARM: Duration = Duration::from_millis(500);

enum Side {
    Ours(Caller, Client),
    Raw(RefCell<Raw>, Vec<String>),
    Curator(Java),
}

pub(super) fn run(setting: &Setting, verdicts: &mut Verdicts) -> Result<()> {
    let caller = Caller::new(CallerKind::Body)?;
    let url = setting.ours.clone();
    let ours = caller.call(async move { Ok(palisade::connect(url).await?) })?;
    let curator = super::curator(setting.server.url(), &format!("tasks curator {TASKS}"))?;
    let raw = Side::Raw(
        RefCell::new(setting.server.raw()?),
        setting.server.parents("raw", TASKS)?,
    );
    let sides = [Side::Ours(caller, ours), raw, Side::Curator(curator)];
    for side in &sides {
        all(side, WARM)?;
    }
    let [ours, raw, curator] = interleaved::measure(&sides, setting.round, |side, length| {
        Rate::measure(&setting.server, || all(side, length))
    })?;
    rate::print(&format!("{TASKS} tasks: ours"), &ours);
    rate::print(&format!("{TASKS} tasks: raw"), &raw);
    rate::print(&format!("{TASKS} tasks: Curator"), &curator);
    let speed = |rate: &Rate| rate.per_second;
    ratio(&ours, &raw, speed).print(&format!("{TASKS} tasks: ours / raw create and delete"), "");
    verdicts.judge(
        format!("{TASKS} tasks: ours / Curator"),
        ratio(&ours, &curator, speed),
        Wanted::AtLeast(1.8),
    );
    Ok(())
}

/// Every task has a lock of its own.
fn all(side: &Side, length: Duration) -> Result<(f64, Option<Duration>)> {
    match side {
        Side::Ours(caller, locks) => {
            let locks = locks.clone();
            let count = caller.call(async move {
                let end = Instant::now() + length;
                let mut tasks = JoinSet::new();
                for task in 0..TASKS {
                    tasks.spawn(ours_until(locks.clone(), format!("ours-{task}"), end));
                }
                let mut count = 0.0;
                while let Some(cycled) = tasks.join_next().await {
                    count += cycled??;
                }
                Ok(count)
            })?;
            Ok((count, None))
        }
        Side::Raw(raw, parents) => {
            let count = raw.borrow_mut().cycles(parents, Instant::now() + length)?;
            Ok((count as f64, None))
        }
        Side::Curator(curator) => curator
            .run(&format!("tasks curator {TASKS}"), length)
            .map(|(count, took)| (count, Some(took))),
    }
}
