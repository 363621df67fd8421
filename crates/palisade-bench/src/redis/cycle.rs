//! One task that takes one lock and gives it back, without contention: what a round trip costs, and
//! what we add to it.

use std::time::{Duration, Instant};

use super::lock::Side;
use super::raw::{self, OwnThread};
use super::round::{self, Round, ratio};
use super::verdict::{Verdicts, Wanted};
use super::{Result, Setting, floor};
use crate::compare::caller_kind::{Caller, CallerKind};
use crate::compare::cpu_pinning::CpuPinning;
use crate::compare::interleaved;

const WARM: Duration = Duration::from_millis(100);

pub(super) fn run(setting: &Setting, verdicts: &mut Verdicts) -> Result<()> {
    let _pinned = CpuPinning::apply(&setting.server)?;
    CallerKind::ALL
        .into_iter()
        .try_for_each(|kind| one(setting, kind, verdicts))
}

fn one(setting: &Setting, kind: CallerKind, verdicts: &mut Verdicts) -> Result<()> {
    let caller = Caller::new(kind)?;
    let (ours, url) = (setting.ours.clone(), setting.server.url().to_owned());
    let ours = caller.call(async move { Ok(palisade::connect(ours).await?) })?;
    let here = caller.call(async move { raw::connect(&url).await })?;
    let url = setting.server.url().to_owned();
    let floor = caller.call(async move { floor::connect(&url).await })?;
    let own_thread = OwnThread::connect(setting.server.url())?;
    let sides = [
        Side::Ours(ours),
        Side::Raw(here),
        Side::Raw(own_thread.connection.clone()),
        Side::Floor(floor),
    ];
    for side in &sides {
        caller.call(cycles(side, WARM))?;
    }
    let turn =
        |side: &Side, length| Round::measure(&setting.server, || caller.call(cycles(side, length)));
    let [ours, here, own_thread, floor] = interleaved::measure(&sides, setting.round, turn)?;
    let kind = kind.label();
    round::print(&format!("{kind}: ours"), &ours, "cycle");
    round::print(&format!("{kind}: raw, same runtime"), &here, "cycle");
    round::print(&format!("{kind}: raw, own thread"), &own_thread, "cycle");
    round::print(&format!("{kind}: floor, same runtime"), &floor, "cycle");
    let speed = |round: &Round| round.per_second;
    let wanted = Wanted::of_cycle(setting.rtt, 0.85);
    ratio(&floor, &here, speed).print(&format!("{kind}: floor / raw, same runtime"), "");
    ratio(&ours, &floor, speed).print(&format!("{kind}: ours / floor"), "");
    verdicts.judge(
        format!("{kind}: ours / raw, same runtime"),
        ratio(&ours, &here, speed),
        wanted,
    );
    verdicts.judge_through_network(
        format!("{kind}: ours / raw, own thread"),
        ratio(&ours, &own_thread, speed),
        setting.rtt,
    );
    Ok(())
}

fn cycles(
    side: &Side,
    length: Duration,
) -> impl Future<Output = Result<Vec<Duration>>> + Send + 'static + use<> {
    side.lock("cycle").cycle_until(Instant::now() + length)
}
