//! One task that takes one lock and gives it back, without contention.

use std::time::Duration;

use super::lock::Side;
use super::{Result, Setting};
use crate::compare::caller_kind::{Caller, CallerKind};
use crate::compare::cpu_pinning::CpuPinning;
use crate::compare::interleaved;
use crate::compare::round::{self, Round, ratio};
use crate::compare::verdict::{Verdicts, Wanted};
use crate::redis::raw;

/// Every connection is open, and every script loaded, when it is over.
const WARM: Duration = Duration::from_millis(300);

pub(super) fn run(setting: &Setting, verdicts: &mut Verdicts) -> Result<()> {
    let _pinned = CpuPinning::apply(&setting.servers)?;
    CallerKind::ALL
        .into_iter()
        .try_for_each(|kind| one(setting, kind, verdicts))
}

fn one(setting: &Setting, kind: CallerKind, verdicts: &mut Verdicts) -> Result<()> {
    let caller = Caller::new(kind)?;
    let (ours, urls) = (setting.ours.clone(), setting.servers.urls());
    let rslock = rslock::LockManager::new(urls.clone());
    let ours = caller.call(async move { Ok(palisade::connect(ours).await?) })?;
    let raw = caller.call(async move {
        let mut connections = Vec::with_capacity(urls.len());
        for url in &urls {
            connections.push(raw::connect(url).await?);
        }
        Ok(connections)
    })?;
    let sides = [Side::Ours(ours), Side::Raw(raw), Side::Rslock(rslock)];
    for side in &sides {
        caller.call(side.cycles(WARM))?;
    }
    let turn =
        |side: &Side, length| Round::measure(&setting.servers, || caller.call(side.cycles(length)));
    let [ours, raw, rslock] = interleaved::measure(&sides, setting.round, turn)?;
    let kind = kind.label();
    round::print(&format!("{kind}: ours"), &ours, "cycle");
    round::print(&format!("{kind}: raw, in parallel"), &raw, "cycle");
    round::print(&format!("{kind}: rslock"), &rslock, "cycle");
    let speed = |round: &Round| round.per_second;
    verdicts.judge(
        format!("{kind}: ours / raw, in parallel"),
        ratio(&ours, &raw, speed),
        Wanted::of_cycle(setting.rtt, 0.8),
    );
    verdicts.judge(
        format!("{kind}: ours / rslock"),
        ratio(&ours, &rslock, speed),
        Wanted::AtLeast(1.3),
    );
    Ok(())
}
