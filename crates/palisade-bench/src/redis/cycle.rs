//! One task that takes one lock and gives it back, with nobody else: what a round trip costs, and what we add to it.

use std::time::{Duration, Instant};

use super::lock::Side;
use super::raw::{self, Elsewhere};
use super::round::{self, Round, ratio};
use super::verdict::{Verdicts, Wanted};
use super::way::{Caller, Way};
use super::{Result, Setting, floor};
use crate::compare::apart::Apart;
use crate::compare::turns;

const WARM: Duration = Duration::from_millis(100);

pub(super) fn run(setting: &Setting, verdicts: &mut Verdicts) -> Result<()> {
    let _apart = Apart::keep(&setting.server)?;
    Way::ALL.into_iter().try_for_each(|way| one(setting, way, verdicts))
}

fn one(setting: &Setting, way: Way, verdicts: &mut Verdicts) -> Result<()> {
    let caller = Caller::new(way)?;
    let (ours, url) = (setting.ours.clone(), setting.server.url().to_owned());
    let ours = caller.call(async move { Ok(palisade::connect(ours).await?) })?;
    let here = caller.call(async move { raw::connect(&url).await })?;
    let url = setting.server.url().to_owned();
    let floor = caller.call(async move { floor::connect(&url).await })?;
    let elsewhere = Elsewhere::connect(setting.server.url())?;
    let sides = [Side::Ours(ours), Side::Raw(here), Side::Raw(elsewhere.connection.clone()), Side::Floor(floor)];
    for side in &sides {
        caller.call(cycles(side, WARM))?;
    }
    let turn = |side: &Side, length| Round::measure(&setting.server, || caller.call(cycles(side, length)));
    let [ours, here, elsewhere, floor] = turns::take(&sides, setting.round, turn)?;
    let way = way.label();
    round::print(&format!("{way}: ours"), &ours, "cycle");
    round::print(&format!("{way}: raw, same runtime"), &here, "cycle");
    round::print(&format!("{way}: raw, own thread"), &elsewhere, "cycle");
    round::print(&format!("{way}: floor, same runtime"), &floor, "cycle");
    let speed = |round: &Round| round.per_second;
    let wanted = |directly| Wanted::of_cycle(setting.rtt, directly);
    ratio(&floor, &here, speed).print(&format!("{way}: floor / raw, same runtime"), "");
    ratio(&ours, &floor, speed).print(&format!("{way}: ours / floor"), "");
    verdicts.judge(format!("{way}: ours / raw, same runtime"), ratio(&ours, &here, speed), wanted(0.90));
    verdicts.judge(format!("{way}: ours / raw, own thread"), ratio(&ours, &elsewhere, speed), wanted(0.97));
    Ok(())
}

fn cycles(side: &Side, length: Duration) -> impl Future<Output = Result<Vec<Duration>>> + Send + 'static + use<> {
    side.lock("cycle").cycle_until(Instant::now() + length)
}
