//! Ours, Apache Curator and kazoo at the same nodes of ZooKeeper, each in a process of its own.
//!
//! A peer in Java takes a second to start: so each is taken through several situations.

mod children;
mod contests;
mod exclusion;
mod order;
mod readers;
mod sabotage;
mod semaphore;

use std::time::Duration;

use palisade_interop::protocol::Request;
use palisade_interop::zookeeper::{Library, Program, Recipe};
use palisade_interop::{Acquired, Contestant, Fault, Participant, Peer, Released};
use palisade_testkit::{eventually, shared};

/// The longest session of these servers. A live program keeps its session beyond this.
const LONG: Duration = Duration::from_secs(10);

/// A session whose end a test awaits: the shortest that ours has.
const SHORT: Duration = Duration::from_secs(4);

/// How long a waiter waits for a lock that it must get.
const PATIENCE: Duration = Duration::from_secs(60);

/// No time at all: one attempt.
const ONCE: Duration = Duration::ZERO;

/// How long a waiter must not get the lock.
const A_WHILE: Duration = Duration::from_millis(300);

fn url() -> String {
    format!("zk://{}", shared::zookeeper().address())
}

fn start(program: Program, recipe: Recipe) -> Result<Peer, Fault> {
    Library(program, recipe).start(&url(), env!("CARGO_BIN_EXE_interop-driver"))
}

/// The program that plays our part beside this peer.
fn ours(peer: Program) -> Program {
    if peer == Program::Kazoo {
        Program::OursAsKazoo
    } else {
        Program::Ours
    }
}

/// For a contest, in which one program may play several times.
fn contestants(libraries: &[Library]) -> Result<Vec<Contestant>, Fault> {
    let mut contestants: Vec<Contestant> = Vec::new();
    for (index, library) in libraries.iter().enumerate() {
        let name = match libraries[..index]
            .iter()
            .filter(|earlier| *earlier == library)
            .count()
        {
            0 => library.to_string(),
            earlier => format!("{library} {}", earlier + 1),
        };
        let Library(program, recipe) = *library;
        let mut peer = start(program, recipe)?;
        // The first lock of a Java program can take as long as a whole contest.
        takes(&mut peer, &shared::name("warm"))?;
        gives_back(&mut peer)?;
        contestants.push((name, Box::new(peer)));
    }
    Ok(contestants)
}

/// Gets it at once or after a wait, with a session that is long.
#[track_caller]
fn takes(peer: &mut Peer, name: &str) -> Result<(), Fault> {
    assert_eq!(peer.acquire(name, Some(LONG), PATIENCE)?, Acquired::Yes);
    Ok(())
}

#[track_caller]
fn gives_back(peer: &mut Peer) -> Result<(), Fault> {
    assert_ne!(peer.release()?, Released::NotHeld);
    Ok(())
}

/// Asks for a lock, leaves the answer for later, and returns when its node is there.
fn begin(peer: &mut Peer, name: &str) -> Result<(), Fault> {
    begin_with(peer, name, LONG)
}

fn begin_with(peer: &mut Peer, name: &str, lease: Duration) -> Result<(), Fault> {
    let before = nodes(name);
    peer.begin(&Request::Acquire {
        name: name.to_owned(),
        lease: Some(lease),
        wait: PATIENCE,
    })?;
    eventually("a place in line", PATIENCE, || {
        let now = nodes(name);
        if now.iter().any(|node| !before.contains(node)) {
            Ok(())
        } else {
            Err(format!("no node joined these: {now:?}"))
        }
    });
    Ok(())
}

/// The answer to what was begun: the lock.
#[track_caller]
fn gets(peer: &mut Peer) -> Result<(), Fault> {
    assert_eq!(peer.awaited(PATIENCE)?, Some(Acquired::Yes));
    Ok(())
}

/// There is none yet.
#[track_caller]
fn waits(peer: &mut Peer, who: &str) -> Result<(), Fault> {
    assert_eq!(peer.awaited::<Acquired>(A_WHILE)?, None, "{who} waits");
    Ok(())
}

/// The nodes of all holders and waiters of this name, in the order of their numbers. All are
/// ephemeral, so the server lists them. The nodes of a multi-lock's two names count as its own.
fn nodes(name: &str) -> Vec<String> {
    let said = shared::zookeeper().ask("dump");
    let paths = said.lines().map(str::trim).filter(|path| {
        let rest = path
            .strip_prefix('/')
            .and_then(|path| path.strip_prefix(name));
        rest.is_some_and(|rest| {
            ["/", "-1/", "-2/"]
                .iter()
                .any(|next| rest.starts_with(next))
        })
    });
    let mut nodes: Vec<String> = paths.map(str::to_owned).collect();
    nodes.sort_by_key(|node| {
        (
            node[node.len().saturating_sub(10)..].to_owned(),
            node.clone(),
        )
    });
    nodes
}

/// Returns when these are the nodes.
#[track_caller]
fn become_again(name: &str, wanted: &[String]) {
    eventually("the nodes of before", PATIENCE, || {
        let now = nodes(name);
        if now == wanted {
            Ok(())
        } else {
            Err(format!(
                "these are there: {now:?}, and not these: {wanted:?}"
            ))
        }
    });
}
