//! One task that takes one lock and gives it back, without contention: what two commits cost, and
//! what we add to them.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::Setting;
use super::lock::Side;
use super::raw::{Raw, create_table};
use crate::compare::Result;
use crate::compare::caller_kind::{Caller, CallerKind};
use crate::compare::cpu_pinning::CpuPinning;
use crate::compare::interleaved;
use crate::compare::round::{self, Round, ratio};
use crate::compare::verdict::{Verdicts, Wanted};

const WARM: Duration = Duration::from_millis(200);

pub(super) fn run(setting: &Setting, verdicts: &mut Verdicts) -> Result<()> {
    let _pinned = CpuPinning::apply(&setting.server)?;
    CallerKind::WAITING
        .into_iter()
        .try_for_each(|kind| one(setting, kind, verdicts))
}

fn one(setting: &Setting, kind: CallerKind, verdicts: &mut Verdicts) -> Result<()> {
    let caller = Caller::new(kind)?;
    let (ours, url) = (setting.ours.clone(), setting.server.url().to_owned());
    let ours = caller.call(async move { Ok(palisade::connect(ours).await?) })?;
    let raw = caller.call(async move {
        create_table(&url).await?;
        Raw::connect(&url).await
    })?;
    let sides = [Side::Ours(ours), Side::Raw(raw)];
    for side in &sides {
        caller.call(cycles(side, WARM))?;
    }
    let turn =
        |side: &Side, length| Round::measure(&setting.server, || caller.call(cycles(side, length)));
    let [ours, raw] = interleaved::measure(&sides, setting.round, turn)?;
    let kind = kind.label();
    round::print(&format!("{kind}: ours"), &ours, "cycle");
    round::print(&format!("{kind}: raw"), &raw, "cycle");
    verdicts.judge(
        format!("cycle: {kind}: ours / raw"),
        ratio(&ours, &raw, |round| round.per_second),
        Wanted::of_cycle(setting.rtt, setting.database.cycle),
    );
    Ok(())
}

fn cycles(
    side: &Side,
    length: Duration,
) -> impl Future<Output = Result<Vec<Duration>>> + Send + 'static + use<> {
    let held = Arc::new(AtomicBool::new(false));
    side.lock("cycle")
        .cycle_until(Instant::now() + length, held)
}
