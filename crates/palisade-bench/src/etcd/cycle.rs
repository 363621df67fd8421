//! One task that takes one lock and gives it back, with nobody else: what two writes cost, and what we add to them.

use std::time::{Duration, Instant};

use super::Setting;
use super::lock::Side;
use super::raw::{Elsewhere, Raw};
use crate::compare::Result;
use crate::compare::apart::Apart;
use crate::compare::round::{self, Round, ratio};
use crate::compare::turns;
use crate::compare::verdict::{Verdicts, Wanted};
use crate::compare::way::{Caller, Way};

const WARM: Duration = Duration::from_millis(200);

pub(super) fn run(setting: &Setting, verdicts: &mut Verdicts) -> Result<()> {
    let _apart = Apart::keep(&setting.server)?;
    Way::ALL.into_iter().try_for_each(|way| one(setting, way, verdicts))
}

fn one(setting: &Setting, way: Way, verdicts: &mut Verdicts) -> Result<()> {
    let caller = Caller::new(way)?;
    let (ours, url) = (setting.ours.clone(), setting.server.url().to_owned());
    let ours = caller.call(async move { Ok(palisade::connect(ours).await?) })?;
    let here = caller.call(async move { Raw::connect(&url).await })?;
    let elsewhere = Elsewhere::connect(setting.server.url())?;
    let sides = [Side::Ours(ours), Side::Raw(here), Side::Raw(elsewhere.raw.clone())];
    for side in &sides {
        caller.call(cycles(side, WARM))?;
    }
    let turn = |side: &Side, length| {
        setting.server.compact()?;
        Round::measure(&setting.server, || caller.call(cycles(side, length)))
    };
    let [ours, here, elsewhere] = turns::take(&sides, setting.round, turn)?;
    let way = way.label();
    round::print(&format!("{way}: ours"), &ours, "cycle");
    round::print(&format!("{way}: raw, same runtime"), &here, "cycle");
    round::print(&format!("{way}: raw, own thread"), &elsewhere, "cycle");
    let speed = |round: &Round| round.per_second;
    let wanted = |directly| Wanted::of_cycle(setting.rtt, directly);
    verdicts.judge(format!("{way}: ours / raw, same runtime"), ratio(&ours, &here, speed), wanted(0.95));
    verdicts.judge(format!("{way}: ours / raw, own thread"), ratio(&ours, &elsewhere, speed), wanted(0.97));
    Ok(())
}

fn cycles(side: &Side, length: Duration) -> impl Future<Output = Result<Vec<Duration>>> + Send + 'static + use<> {
    side.lock("cycle").cycle_until(Instant::now() + length)
}
