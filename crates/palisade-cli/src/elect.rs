//! `elect`: campaign and lead, or print the leader.

use std::io;

use palisade::Leader;
use palisade::blocking::Wait;
use serde_json::json;

use crate::args::{Common, ElectArgs};
use crate::config::{self, Store};
use crate::exit::{Exit, Failure};
use crate::notice::{Notices, print, printable, write_out};
use crate::run::watcher::Watcher;
use crate::run::{self, Job, Role};

pub(crate) fn elect(
    common: &Common,
    args: ElectArgs,
    notices: Notices,
    watcher: Option<io::Result<Watcher>>,
) -> Result<Exit, Failure> {
    if args.leader {
        return leader(common, &args, notices);
    }
    if args.observe {
        return observe(common, &args, notices);
    }
    let job = Job {
        names: vec![args.hold.name.clone()],
        hold: args.hold,
        claim: args.claim,
        role: Role::Leader(args.value),
        on_lost: args.on_lost.into(),
        stop: args.stop,
        command: args.command,
    };
    run::run(common, job, notices, watcher)
}

fn leader(common: &Common, args: &ElectArgs, notices: Notices) -> Result<Exit, Failure> {
    let store = config::connect(common, notices)?;
    let leader = store.locks().election(&args.hold.name).leader().wait()?;
    if args.json {
        print(&as_json(&store, args, leader.as_ref()))?;
    } else {
        match leader {
            Some(leader) => print(&as_text(&leader))?,
            None => notices.notice(&format!("{}: there is no leader", args.hold.name)),
        }
    }
    Ok(Exit::DONE)
}

/// Prints each change until it is ended from outside, or its reader has gone.
fn observe(common: &Common, args: &ElectArgs, notices: Notices) -> Result<Exit, Failure> {
    let store = config::connect(common, notices)?;
    let mut observer = store.locks().election(&args.hold.name).observe().wait()?;
    loop {
        let leader = observer.next().wait()?;
        let line = if args.json {
            as_json(&store, args, Some(&leader))
        } else {
            as_text(&leader)
        };
        match write_out(&line) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(Exit::DONE),
            written => {
                written.map_err(|error| Failure::internal(format!("cannot write: {error}")))?
            }
        }
    }
}

/// The fence first: it has no spaces, and the value may have them.
fn as_text(leader: &Leader) -> String {
    format!(
        "{} {}\n",
        fence(leader).as_deref().unwrap_or("none"),
        printable(&leader.value)
    )
}

fn as_json(store: &Store, args: &ElectArgs, leader: Option<&Leader>) -> String {
    let object = json!({
        "name": args.hold.name,
        "store": store.scheme,
        "value": leader.map(|leader| &leader.value),
        "fence": leader.and_then(fence),
    });
    format!("{object}\n")
}

fn fence(leader: &Leader) -> Option<String> {
    (!leader.fence.is_none()).then(|| leader.fence.to_string())
}
