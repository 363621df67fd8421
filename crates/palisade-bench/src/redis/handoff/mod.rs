//! Many processes on one name: the limit hands one token around with `BLPOP` and `RPUSH`, first
//! come, first served.
//!
//! The floor is a queue of bare names: a claim that finds the lock held is answered at once and
//! queued, and a release tells the next one in its own channel. That is one message more than the
//! limit, which blocks inside the server.

mod bare;
mod worker;

use std::process::Command;

pub(crate) use worker::worker;

use super::round::{ratio, spread, take_turns};
use super::verdict::{Verdicts, Wanted};
use super::{Result, Setting};
use crate::compare::caller_kind::CallerKind;
use crate::compare::contest::{Contest, print};

pub(super) fn run(setting: &Setting, verdicts: &mut Verdicts) -> Result<()> {
    CallerKind::WAITING
        .into_iter()
        .try_for_each(|kind| one(setting, kind, verdicts))
}

fn one(setting: &Setting, kind: CallerKind, verdicts: &mut Verdicts) -> Result<()> {
    let kind = kind.label();
    let sides = [
        ("ours", setting.ours.as_str()),
        ("raw", setting.server.url()),
        ("floor", setting.server.url()),
    ];
    let [ours, raw, floor] = take_turns(&sides, |(side, url)| {
        setting.server.clear()?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["redis-worker", side, url, kind]);
        Contest::hold(&setting.server, command, setting.round)
    })?;
    print(&format!("{kind}: ours"), &ours);
    print(&format!("{kind}: BLPOP + RPUSH"), &raw);
    print(&format!("{kind}: floor"), &floor);
    let changes = |contest: &Contest| contest.changes_per_second;
    ratio(&floor, &raw, changes).print(
        &format!("handoff: {kind}: owner changes, floor / limit"),
        "",
    );
    ratio(&ours, &floor, changes)
        .print(&format!("handoff: {kind}: owner changes, ours / floor"), "");
    verdicts.judge(
        format!("handoff: {kind}: owner changes, ours / limit"),
        ratio(&ours, &raw, changes),
        Wanted::AtLeast(0.65),
    );
    verdicts.judge(
        format!("handoff: {kind}: fairness of ours, most / least"),
        spread(&ours, |contest| contest.unfairness),
        Wanted::AtMost(1.1),
    );
    verdicts.judge(
        format!("handoff: {kind}: wait p99, ours / limit"),
        ratio(&ours, &raw, |contest| contest.round.p99),
        Wanted::AtMost(2.0),
    );
    Ok(())
}
