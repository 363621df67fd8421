//! Many on one name: ours in as many processes, and Curator with as many sessions in one Java, where most can be saved.

use std::process::{Command, ExitCode};

use palisade::{Mutex, Released};

use super::curator::Curator;
use super::pace::{self, Pace};
use super::{LEASE, Setting};
use crate::compare::Result;
use crate::compare::contest::{self, Contest, PROCESSES};
use crate::compare::round::spread;
use crate::compare::spread::Spread;
use crate::compare::verdict::{Verdicts, Wanted};
use crate::compare::worker::contend;
use crate::compare::{ROUNDS, Server};

const NAME: &str = "handoff";

pub(super) fn run(setting: &Setting, verdicts: &mut Verdicts) -> Result<()> {
    let handoff = format!("handoff {NAME}-of-curator {PROCESSES}");
    let java = Curator::start(setting.server.url(), &handoff)?;
    let (mut ours, mut curator) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(Contest::hold(&setting.server, command(setting)?, setting.round)?);
        curator.push(theirs(&setting.server, &java, &handoff, setting)?);
    }
    contest::print("ours", &ours);
    pace::print(&format!("{PROCESSES} sessions: Curator"), &curator);
    // Its line is first come, first served, too: every turn is another's.
    let changes = ours.iter().zip(&curator).map(|(ours, curator)| ours.changes_per_second / curator.per_second);
    verdicts.judge("handoff: owner changes, ours / Curator", Spread::of(changes), Wanted::AtLeast(1.2));
    verdicts.judge("handoff: fairness of ours, most / least", spread(&ours, |contest| contest.unfairness), Wanted::AtMost(1.1));
    Ok(())
}

fn theirs(server: &impl Server, java: &Curator, handoff: &str, setting: &Setting) -> Result<Pace> {
    Pace::measure(server, || java.run(handoff, setting.round).map(|(count, took)| (count, Some(took))))
}

fn command(setting: &Setting) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["zookeeper-worker", &setting.ours]);
    Ok(command)
}

/// Runs as one process of a contest.
pub(crate) fn worker(words: &[&str]) -> ExitCode {
    match words {
        [url] => contend(async || ours(url).await),
        _ => ExitCode::from(64),
    }
}

async fn ours(url: &str) -> Result<Mutex> {
    let locks = palisade::connect(url).await?;
    // Connects, without standing in the way of the others.
    let warm = locks.mutex(format!("{NAME}-warm-{}", std::process::id())).lease(LEASE).acquire().await?;
    match warm.release().await? {
        Released::Done => Ok(locks.mutex(NAME).lease(LEASE)),
        other => Err(format!("ours: not released: {other:?}").into()),
    }
}
