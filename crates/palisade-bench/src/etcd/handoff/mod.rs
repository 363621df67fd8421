//! Many processes on one name: ours, the lock that is in the server itself, and the mutex of etcd's
//! own Go client.

mod worker;

use std::path::Path;
use std::process::Command;

pub(crate) use worker::worker;

use super::Setting;
use crate::compare::Result;
use crate::compare::contest::{self, Contest};
use crate::compare::round::{ratio, spread, take_turns};
use crate::compare::verdict::{Verdicts, Wanted};

enum Side {
    Ours,
    /// The service v3lock.
    Server,
    /// `concurrency.Mutex`.
    Go,
}

pub(super) fn run(setting: &Setting, verdicts: &mut Verdicts) -> Result<()> {
    let sides = [Side::Ours, Side::Server, Side::Go];
    let [ours, server, go] = take_turns(&sides, |side| {
        setting.server.compact()?;
        Contest::hold(&setting.server, command(setting, side)?, setting.round)
    })?;
    print("ours", &ours);
    print("the server's own lock", &server);
    print("Go's concurrency.Mutex", &go);
    let changes = |contest: &Contest| contest.changes_per_second;
    verdicts.judge(
        "handoff: owner changes, ours / the server's own lock",
        ratio(&ours, &server, changes),
        Wanted::AtLeast(2.0),
    );
    verdicts.judge(
        "handoff: owner changes, ours / Go",
        ratio(&ours, &go, changes),
        Wanted::AtLeast(4.0),
    );
    verdicts.judge(
        "handoff: unary requests of ours, per change",
        spread(&ours, unary),
        Wanted::AtMost(3.1),
    );
    verdicts.judge(
        "handoff: all messages of ours, per change",
        spread(&ours, all),
        Wanted::AtMost(3.1),
    );
    verdicts.judge(
        "handoff: fairness of ours, most / least",
        spread(&ours, |contest| contest.unfairness),
        Wanted::AtMost(1.1),
    );
    Ok(())
}

fn unary(contest: &Contest) -> f64 {
    contest
        .counted_per_change
        .first()
        .copied()
        .unwrap_or(f64::NAN)
}

fn all(contest: &Contest) -> f64 {
    contest.counted_per_change.iter().sum()
}

/// With what the server received: of a whole turn, from the claim to the release, and of the
/// keep-alives meanwhile.
fn print(who: &str, contests: &[Contest]) {
    contest::print(who, contests);
    let who = format!("{} processes: {who}", contest::PROCESSES);
    spread(contests, unary).print(&format!("{who}, unary"), "requests/change");
    spread(contests, |contest| all(contest) - unary(contest))
        .print(&format!("{who}, streams"), "messages/change");
}

fn command(setting: &Setting, side: &Side) -> Result<Command> {
    let own = |side: &str, url: &str| -> Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["etcd-worker", side, url]);
        Ok(command)
    };
    match side {
        Side::Ours => own("ours", &setting.ours),
        Side::Server => own("server", setting.server.url()),
        Side::Go => {
            let mut go = Command::new(go_driver()?);
            go.args(["handoff", setting.server.url()]);
            Ok(go)
        }
    }
}

/// Where the interop tests have it, too.
fn go_driver() -> Result<std::path::PathBuf> {
    let install = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../interop/peers/install");
    let asked = Command::new(install)
        .args(["--where", "etcd-go"])
        .output()?;
    let driver = Path::new(String::from_utf8_lossy(&asked.stdout).trim()).join("driver");
    if driver.is_file() {
        Ok(driver)
    } else {
        Err("the Go client is not installed: run scripts/setup".into())
    }
}
