//! Many processes on one name with nothing to do under it: how fast the lock changes hands.
//!
//! The limit hands one token around with `BLPOP` and `RPUSH`, first come, first served. Every process notes when it got the lock,
//! each time, on the clock that they share; put in order, these notes say who had it after whom. A process that takes the lock
//! twice in a row changes no owner, however fast it is.
//!
//! The floor is a line of bare names: a claim that finds the lock held is told so and stands in line, and a release tells the next
//! one in its own channel. One message more than the limit, as for everybody who can be asked while it waits.

mod bare;
mod contest;
mod order;
mod worker;

use contest::Contest;
pub(crate) use worker::worker;

use super::round::{ratio, spread, take_turns};
use super::verdict::{Verdicts, Wanted};
use super::{Result, Setting};

const PROCESSES: usize = 16;

pub(super) fn run(setting: &Setting, verdicts: &mut Verdicts) -> Result<()> {
    let sides = [("ours", setting.ours.as_str()), ("raw", setting.server.url()), ("floor", setting.server.url())];
    let [ours, raw, floor] = take_turns(&sides, |(side, url)| Contest::hold(&setting.server, side, url, setting.round))?;
    print("ours", &ours);
    print("BLPOP + RPUSH", &raw);
    print("floor", &floor);
    let changes = |contest: &Contest| contest.changes_per_second;
    ratio(&floor, &raw, changes).print("handoff: owner changes, floor / limit", "");
    ratio(&ours, &floor, changes).print("handoff: owner changes, ours / floor", "");
    verdicts.judge("handoff: owner changes, ours / limit", ratio(&ours, &raw, changes), Wanted::AtLeast(0.70));
    verdicts.judge("handoff: fairness of ours, most / least", spread(&ours, |contest| contest.unfairness), Wanted::AtMost(1.1));
    verdicts.judge("handoff: wait p99, ours / limit", ratio(&ours, &raw, |contest| contest.round.p99), Wanted::AtMost(2.0));
    Ok(())
}

fn print(who: &str, contests: &[Contest]) {
    let who = format!("{PROCESSES} processes: {who}");
    spread(contests, |contest| contest.changes_per_second).print(&who, "owner changes/s");
    spread(contests, |contest| contest.round.per_second).print(&who, "acquisitions/s");
    spread(contests, |contest| contest.unfairness).print(&format!("{who}, most / least"), "");
    spread(contests, |contest| contest.round.p50).print(&format!("{who}, wait p50"), "µs");
    spread(contests, |contest| contest.round.p99).print(&format!("{who}, wait p99"), "µs");
    spread(contests, |contest| contest.client_per_change).print(&format!("{who}, clients' CPU"), "µs/change");
    spread(contests, |contest| contest.server_per_change).print(&format!("{who}, server CPU"), "µs/change");
}
