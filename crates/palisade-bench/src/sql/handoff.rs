//! Many processes on one name: ours, and the poller.

use std::process::{Command, ExitCode};

use tokio::runtime::Builder;

use super::Setting;
use super::raw::{Raw, create_table};
use crate::compare::Result;
use crate::compare::caller_kind::CallerKind;
use crate::compare::contest::{self, Contest};
use crate::compare::ours;
use crate::compare::round::{ratio, spread, take_turns};
use crate::compare::verdict::{Verdicts, Wanted};
use crate::compare::worker::{Contender, contend};

const NAME: &str = "handoff";

pub(super) fn run(setting: &Setting, verdicts: &mut Verdicts) -> Result<()> {
    Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(create_table(setting.server.url()))?;
    let sides = [
        ("ours", setting.ours.as_str()),
        ("poller", setting.server.url()),
    ];
    let [ours, poller] = take_turns(&sides, |(side, url)| {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["sql-worker", side, url]);
        Contest::hold(&setting.server, command, setting.round)
    })?;
    let statements = |contest: &Contest| contest.counted_per_change.iter().sum::<f64>();
    for (who, contests) in [("ours", &ours), ("poller", &poller)] {
        contest::print(who, contests);
        let who = format!("{} processes: {who}", contest::PROCESSES);
        spread(contests, statements).print(&who, "statements/change");
    }
    verdicts.judge(
        "handoff: owner changes, ours / poller",
        ratio(&ours, &poller, |contest| contest.changes_per_second),
        Wanted::AtLeast(setting.database.handoff),
    );
    if setting.database.format == super::SESSION {
        return Ok(());
    }
    verdicts.judge(
        "handoff: statements per change, ours / poller",
        ratio(&ours, &poller, statements),
        Wanted::AtMost(0.1),
    );
    verdicts.judge(
        "handoff: fairness of ours, most / least",
        spread(&ours, |contest| contest.unfairness),
        Wanted::AtMost(1.1),
    );
    Ok(())
}

/// Runs as one process of a contest.
pub(crate) fn worker(words: &[&str]) -> ExitCode {
    match words {
        ["ours", url] => contend(CallerKind::CurrentThread, async || {
            ours::connect(url, NAME).await
        }),
        ["poller", url] => contend(CallerKind::CurrentThread, async || Raw::connect(url).await),
        _ => ExitCode::from(64),
    }
}

impl Contender for Raw {
    type Held = ();

    async fn take(&mut self) -> Result<()> {
        Raw::take(self, NAME).await
    }

    async fn give_back(&mut self, (): ()) -> Result<()> {
        Raw::give_back(self, NAME).await
    }
}
