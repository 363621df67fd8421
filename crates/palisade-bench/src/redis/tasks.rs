//! Many tasks on as many names with one client: requests share round trips, and CPU is the limit.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::lock::Side;
use super::round::{self, Round, ratio};
use super::verdict::{Verdicts, Wanted};
use super::{Result, Setting, floor, raw};
use crate::compare::caller_kind::{Caller, CallerKind};
use crate::compare::interleaved;

const TASKS: usize = 64;
const WARM: Duration = Duration::from_millis(100);

pub(super) fn run(setting: &Setting, verdicts: &mut Verdicts) -> Result<()> {
    one(setting, CallerKind::Body, "two workers", verdicts)?;
    one(setting, CallerKind::CurrentThread, "one thread", verdicts)
}

fn one(setting: &Setting, kind: CallerKind, label: &str, verdicts: &mut Verdicts) -> Result<()> {
    let caller = Caller::new(kind)?;
    let (ours, url) = (setting.ours.clone(), setting.server.url().to_owned());
    let ours = caller.call(async move { Ok(palisade::connect(ours).await?) })?;
    let raw = caller.call(async move { raw::connect(&url).await })?;
    let url = setting.server.url().to_owned();
    let floor = caller.call(async move { floor::connect(&url).await })?;
    let sides = [Side::Ours(ours), Side::Raw(raw), Side::Floor(floor)];
    for side in &sides {
        caller.call(all(side.clone(), WARM))?;
    }
    let turn = |side: &Side, length| {
        Round::measure(&setting.server, || caller.call(all(side.clone(), length)))
    };
    let [ours, raw, floor] = interleaved::measure(&sides, setting.round, turn)?;
    round::print(&format!("{TASKS} tasks, {label}: ours"), &ours, "cycle");
    round::print(&format!("{TASKS} tasks, {label}: raw"), &raw, "cycle");
    round::print(&format!("{TASKS} tasks, {label}: floor"), &floor, "cycle");
    let speed = |round: &Round| round.per_second;
    ratio(&floor, &raw, speed).print(&format!("{TASKS} tasks, {label}: floor / raw"), "");
    ratio(&ours, &floor, speed).print(&format!("{TASKS} tasks, {label}: ours / floor"), "");
    verdicts.judge(
        format!("{TASKS} tasks, {label}: ours / raw"),
        ratio(&ours, &raw, speed),
        Wanted::AtLeast(0.75),
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
