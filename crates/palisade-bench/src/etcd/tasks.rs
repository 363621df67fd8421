//! Many tasks on as many names with one client: the server commits many writes at once, and CPU is
//! the limit.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::Setting;
use super::lock::Side;
use super::raw::Raw;
use crate::compare::Result;
use crate::compare::caller_kind::{Caller, CallerKind};
use crate::compare::round::{self, Round, ratio, take_turns};
use crate::compare::verdict::{Verdicts, Wanted};

const TASKS: usize = 64;
const WARM: Duration = Duration::from_millis(200);

pub(super) fn run(setting: &Setting, verdicts: &mut Verdicts) -> Result<()> {
    one(setting, CallerKind::Body, "two workers", verdicts)?;
    one(setting, CallerKind::CurrentThread, "one thread", verdicts)
}

fn one(setting: &Setting, kind: CallerKind, label: &str, verdicts: &mut Verdicts) -> Result<()> {
    let caller = Caller::new(kind)?;
    let (ours, url) = (setting.ours.clone(), setting.server.url().to_owned());
    let ours = caller.call(async move { Ok(palisade::connect(ours).await?) })?;
    let raw = caller.call(async move { Raw::connect(&url).await })?;
    let sides = [Side::Ours(ours), Side::Raw(raw)];
    for side in &sides {
        caller.call(all(side.clone(), WARM))?;
    }
    let cycles = |side: &Side| {
        setting.server.compact()?;
        Round::measure(&setting.server, || {
            caller.call(all(side.clone(), setting.round))
        })
    };
    let [ours, raw] = take_turns(&sides, cycles)?;
    round::print(&format!("{TASKS} tasks, {label}: ours"), &ours, "cycle");
    round::print(&format!("{TASKS} tasks, {label}: raw"), &raw, "cycle");
    let speed = ratio(&ours, &raw, |round| round.per_second);
    verdicts.judge(
        format!("{TASKS} tasks, {label}: ours / raw"),
        speed,
        Wanted::AtLeast(0.90),
    );
    Ok(())
}

/// Every task has a lock of its own.
async fn all(side: Side, length: Duration) -> Result<Vec<Duration>> {
    let end = Instant::now() + length;
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        tasks.spawn(side.lock(&format!("tasks/{task}")).cycle_until(end));
    }
    let mut times = Vec::new();
    while let Some(cycled) = tasks.join_next().await {
        times.extend(cycled??);
    }
    Ok(times)
}
