//! Many contenders on one name: ours in as many processes, and Curator with as many sessions in one
//! Java process, which favours it.
//!
//! Acquisitions are counted on all sides: every queue is first come, first served. The bare side is
//! the recipe without its safety: a waiter believes the first event that says the node before its
//! own is gone.

use std::net::SocketAddr;
use std::process::{Command, ExitCode};
use std::time::Duration;

use palisade::{Mutex, Released};
use palisade_testkit::zookeeper::{Make, Raw};

use super::{LEASE, Setting};
use crate::compare::Result;
use crate::compare::caller_kind::CallerKind;
use crate::compare::contest::{self, Contest, PROCESSES};
use crate::compare::java::Java;
use crate::compare::rate::{self, Rate};
use crate::compare::round::{ratio, spread};
use crate::compare::spread::Spread;
use crate::compare::verdict::{Verdicts, Wanted};
use crate::compare::worker::{Contender, contend};
use crate::compare::{ROUNDS, Server};

const NAME: &str = "handoff";

/// The parent node of the bare line.
const BARE: &str = "/handoff-raw";

/// Better an error than a run without end.
const NEVER_TOLD: Duration = Duration::from_secs(30);

pub(super) fn run(setting: &Setting, verdicts: &mut Verdicts) -> Result<()> {
    let handoff = format!("handoff {NAME}-of-curator {PROCESSES}");
    let java = super::curator(setting.server.url(), &handoff)?;
    setting.server.raw()?.create(BARE, b"", Make::Persistent)?;
    let (mut ours, mut raw, mut curator) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(Contest::hold(
            &setting.server,
            command("ours", &setting.ours)?,
            setting.round,
        )?);
        raw.push(Contest::hold(
            &setting.server,
            command("raw", setting.server.url())?,
            setting.round,
        )?);
        curator.push(theirs(&setting.server, &java, &handoff, setting)?);
    }
    contest::print("ours", &ours);
    contest::print("raw", &raw);
    rate::print(&format!("{PROCESSES} sessions: Curator"), &curator);
    ratio(&ours, &raw, |contest| contest.round.per_second).print("handoff: ours / raw", "");
    let speed = ours
        .iter()
        .zip(&curator)
        .map(|(ours, curator)| ours.round.per_second / curator.per_second);
    verdicts.judge(
        "handoff: ours / Curator",
        Spread::of(speed),
        Wanted::AtLeast(1.1),
    );
    verdicts.judge(
        "handoff: fairness of ours, most / least",
        spread(&ours, |contest| contest.unfairness),
        Wanted::AtMost(1.1),
    );
    Ok(())
}

fn theirs(server: &impl Server, java: &Java, handoff: &str, setting: &Setting) -> Result<Rate> {
    Rate::measure(server, || {
        java.run(handoff, setting.round)
            .map(|(count, took)| (count, Some(took)))
    })
}

fn command(side: &str, url: &str) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["zookeeper-worker", side, url]);
    Ok(command)
}

/// Runs as one process of a contest.
pub(crate) fn worker(words: &[&str]) -> ExitCode {
    match words {
        ["ours", url] => contend(CallerKind::CurrentThread, async || ours(url).await),
        ["raw", url] => contend(CallerKind::CurrentThread, async || Bare::connect(url)),
        _ => ExitCode::from(64),
    }
}

async fn ours(url: &str) -> Result<Mutex> {
    let locks = palisade::connect(url).await?;
    // Connects, without standing in the way of the others.
    let warm = locks
        .mutex(format!("{NAME}-warm-{}", std::process::id()))
        .lease(LEASE)
        .acquire()
        .await?;
    match warm.release().await? {
        Released::Done => Ok(locks.mutex(NAME).lease(LEASE)),
        other => Err(format!("ours: not released: {other:?}").into()),
    }
}

/// A session that queues, and believes every event.
struct Bare(Raw);

impl Bare {
    fn connect(url: &str) -> Result<Bare> {
        let address: SocketAddr = url.trim_start_matches("zk://").parse()?;
        Ok(Bare(Raw::open(address, NEVER_TOLD)?))
    }
}

impl Contender for Bare {
    /// Its node.
    type Held = String;

    async fn take(&mut self) -> Result<String> {
        let node = self
            .0
            .create(&format!("{BARE}/"), b"raw", Make::EphemeralSequential)?
            .ok_or("raw: not made")?;
        let mut line = self.0.children(BARE)?;
        line.sort();
        let before = line
            .iter()
            .take_while(|child| !node.ends_with(child.as_str()))
            .last();
        if let Some(before) = before
            && self.0.watch(&format!("{BARE}/{before}"))?
        {
            self.0.told()?;
        }
        Ok(node)
    }

    async fn give_back(&mut self, node: String) -> Result<()> {
        if self.0.delete(&node)? {
            Ok(())
        } else {
            Err("raw: gone before it was given back".into())
        }
    }
}
