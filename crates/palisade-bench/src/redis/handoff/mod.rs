//! Many processes on one name: the limit hands one token around with `BLPOP` and `RPUSH`, first come, first served.
//!
//! The floor is a line of bare names: a claim that finds the lock held is told so and stands in line, and a release tells the next
//! one in its own channel. One message more than the limit, as for everybody who can be asked while it waits.

mod bare;
mod worker;

use std::process::Command;

pub(crate) use worker::worker;

use super::round::{ratio, spread, take_turns};
use super::verdict::{Verdicts, Wanted};
use super::{Result, Setting};
use crate::compare::contest::{Contest, print};
use crate::compare::way::Way;

pub(super) fn run(setting: &Setting, verdicts: &mut Verdicts) -> Result<()> {
    Way::WAITING.into_iter().try_for_each(|way| one(setting, way, verdicts))
}

fn one(setting: &Setting, way: Way, verdicts: &mut Verdicts) -> Result<()> {
    let way = way.label();
    let sides = [("ours", setting.ours.as_str()), ("raw", setting.server.url()), ("floor", setting.server.url())];
    let [ours, raw, floor] = take_turns(&sides, |(side, url)| {
        setting.server.clear()?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["redis-worker", side, url, way]);
        Contest::hold(&setting.server, command, setting.round)
    })?;
    print(&format!("{way}: ours"), &ours);
    print(&format!("{way}: BLPOP + RPUSH"), &raw);
    print(&format!("{way}: floor"), &floor);
    let changes = |contest: &Contest| contest.changes_per_second;
    ratio(&floor, &raw, changes).print(&format!("handoff: {way}: owner changes, floor / limit"), "");
    ratio(&ours, &floor, changes).print(&format!("handoff: {way}: owner changes, ours / floor"), "");
    verdicts.judge(format!("handoff: {way}: owner changes, ours / limit"), ratio(&ours, &raw, changes), Wanted::AtLeast(0.70));
    verdicts.judge(
        format!("handoff: {way}: fairness of ours, most / least"),
        spread(&ours, |contest| contest.unfairness),
        Wanted::AtMost(1.1),
    );
    verdicts.judge(
        format!("handoff: {way}: wait p99, ours / limit"),
        ratio(&ours, &raw, |contest| contest.round.p99),
        Wanted::AtMost(2.0),
    );
    Ok(())
}
