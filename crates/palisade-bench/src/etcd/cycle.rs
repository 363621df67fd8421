//! One task that takes one lock and gives it back, without contention: what two writes cost, and
//! what we add to them. The floor is raw with a release that compares the revision of the key, as
//! every safe one does.

use std::time::{Duration, Instant};

use super::Setting;
use super::lock::Side;
use super::raw::{OwnThread, Raw};
use crate::compare::Result;
use crate::compare::caller_kind::{Caller, CallerKind};
use crate::compare::cpu_pinning::CpuPinning;
use crate::compare::interleaved;
use crate::compare::round::{self, Round, ratio};
use crate::compare::verdict::{Verdicts, Wanted};

const WARM: Duration = Duration::from_millis(200);

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
    let here = caller.call(async move { Raw::connect(&url).await })?;
    let own_thread = OwnThread::connect(setting.server.url())?;
    let sides = [
        Side::Ours(ours),
        Side::Raw(here.clone()),
        Side::Raw(own_thread.raw.clone()),
        Side::Floor(here),
    ];
    for side in &sides {
        caller.call(cycles(side, WARM))?;
    }
    let turn = |side: &Side, length| {
        setting.server.compact()?;
        Round::measure(&setting.server, || caller.call(cycles(side, length)))
    };
    let [ours, here, own_thread, floor] = interleaved::measure(&sides, setting.round, turn)?;
    let kind = kind.label();
    round::print(&format!("{kind}: ours"), &ours, "cycle");
    round::print(&format!("{kind}: raw, same runtime"), &here, "cycle");
    round::print(&format!("{kind}: raw, own thread"), &own_thread, "cycle");
    round::print(&format!("{kind}: floor"), &floor, "cycle");
    let speed = |round: &Round| round.per_second;
    let wanted = Wanted::of_cycle(setting.rtt, 0.92);
    verdicts.judge(
        format!("{kind}: ours / raw, same runtime"),
        ratio(&ours, &here, speed),
        wanted,
    );
    let of_floor = ratio(&ours, &floor, speed);
    of_floor.print(&format!("{kind}: ours / floor"), "");
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
