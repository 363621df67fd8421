//! Ours, etcd's own Go client and `etcdctl lock` in one line of etcd, each in a process of its own.

mod children;
mod contests;
mod election;
mod exclusion;
mod order;
mod plain;
mod readers;
mod sabotage;
mod table;

use std::time::Duration;

use palisade_interop::etcd::Library;
use palisade_interop::protocol::Request;
use palisade_interop::{Acquired, Contestant, Fault, Peer};
use palisade_testkit::{eventually, shared};

/// A lease that outlasts every test.
const LONG: Duration = Duration::from_secs(60);

/// How long a waiter waits for a lock that it must get.
const PATIENCE: Duration = Duration::from_secs(60);

/// No time at all: one attempt.
const ONCE: Duration = Duration::ZERO;

/// How long a waiter must not get the lock.
const A_WHILE: Duration = Duration::from_millis(300);

/// The program that plays our part. `PALISADE_INTEROP_OURS=mutex` lets Go play it, to tell whether
/// a failure is ours.
fn ours() -> Library {
    let name =
        std::env::var("PALISADE_INTEROP_OURS").unwrap_or_else(|_| Library::Ours.name().to_owned());
    Library::named(&name).unwrap_or_else(|| panic!("PALISADE_INTEROP_OURS={name} is no program"))
}

fn start(library: Library) -> Result<Peer, Fault> {
    library.start(&shared::etcd().url(), env!("CARGO_BIN_EXE_interop-driver"))
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
            0 => library.name().to_owned(),
            earlier => format!("{} {}", library.name(), earlier + 1),
        };
        contestants.push((name, Box::new(start(*library)?)));
    }
    Ok(contestants)
}

/// Asks for a lock, and leaves the answer for later.
fn begin(peer: &mut Peer, name: &str) -> Result<(), Fault> {
    peer.begin(&Request::Acquire {
        name: name.to_owned(),
        lease: Some(LONG),
        wait: PATIENCE,
    })
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

/// The keys of a line in the order of their create revisions: the holder's first, then the
/// waiters'.
fn line(name: &str) -> Vec<String> {
    let words = [
        "get",
        &format!("{name}/"),
        "--prefix",
        "--sort-by=CREATE",
        "--order=ASCEND",
        "--keys-only",
    ];
    shared::etcd()
        .etcdctl(&words)
        .lines()
        .filter(|key| !key.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Returns when so many claims are in line.
#[track_caller]
fn in_line(name: &str, wanted: usize) -> Vec<String> {
    eventually("a line", PATIENCE, || {
        let line = line(name);
        if line.len() == wanted {
            Ok(line)
        } else {
            Err(format!(
                "{wanted} are to be in line, and these are: {line:?}"
            ))
        }
    })
}
