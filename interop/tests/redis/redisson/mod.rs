//! Ours with `format=redisson` and Redisson, the newest and 3.45, at the same locks of one server.
//!
//! A Java takes a second of both cores to start. So there is one of each version for all tests, and
//! each participant is a hand of it; only those that are to be killed have a Java of their own.

mod children;
mod cluster;
mod contests;
mod crashes;
mod exclusion;
mod latch;
mod order;
mod permits;
mod readers;
mod sabotage;

use std::sync::LazyLock;
use std::time::Duration;

use palisade_interop::protocol::Request;
use palisade_interop::redisson::{Library, Program};
use palisade_interop::{Acquired, Contestant, Fault, Host, Participant, Peer, Released};
use palisade_testkit::redis::Redis;
use palisade_testkit::resp::Reply;
use palisade_testkit::{eventually, shared};

use crate::ONCE;

/// A lease that outlasts every wait of a test.
const LONG: Duration = Duration::from_secs(90);

/// How long a waiter waits for a lock that it must get: a dead waiter before it in the fair queue
/// keeps its place for seconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// A lease whose end a test awaits.
const SHORT: Duration = Duration::from_secs(2);

/// How long a waiter must not get the lock: long enough to have been told to wait, and to sleep.
const A_WHILE: Duration = Duration::from_millis(150);

/// The versions of Redisson.
const PEERS: [Program; 2] = [Program::New, Program::Old];

/// The program that plays our part: Redisson itself if `PALISADE_INTEROP_OURS` names another than
/// ours, to tell whether a failure is ours.
fn ours() -> Program {
    match std::env::var("PALISADE_INTEROP_OURS") {
        Ok(name) if name != "palisade" => Program::Old,
        _ => Program::Ours,
    }
}

fn url() -> String {
    shared::redis().url()
}

/// A participant whose process nothing happens to.
fn player(Library(program, lock): Library) -> Result<Peer, Fault> {
    static NEW: LazyLock<Result<Host, Fault>> = LazyLock::new(|| Program::New.host(&url()));
    static OLD: LazyLock<Result<Host, Fault>> = LazyLock::new(|| Program::Old.host(&url()));
    let host = match program {
        Program::New => &NEW,
        Program::Old => &OLD,
        Program::Ours | Program::Saboteur(_) => return alone(Library(program, lock)),
    };
    host.as_ref().map_err(Fault::clone)?.hand(lock.in_java())
}

/// A participant in a process of its own.
fn alone(library: Library) -> Result<Peer, Fault> {
    library.start(&url(), env!("CARGO_BIN_EXE_interop-driver"))
}

/// For a contest, in which one program may play several times.
fn contestants(libraries: &[Library]) -> Result<Vec<Contestant>, Fault> {
    let peers = libraries.iter().map(|library| player(*library));
    warm(libraries, peers.collect::<Result<_, Fault>>()?)
}

/// With names of their own, and with a first lock behind them, which takes a Java long.
fn warm(libraries: &[Library], peers: Vec<Peer>) -> Result<Vec<Contestant>, Fault> {
    let mut contestants: Vec<Contestant> = Vec::new();
    for (index, (library, mut peer)) in libraries.iter().zip(peers).enumerate() {
        let earlier = libraries[..index]
            .iter()
            .filter(|earlier| *earlier == library)
            .count();
        takes(&mut peer, &shared::name("warm"))?;
        gives_back(&mut peer)?;
        contestants.push((format!("{library} {}", earlier + 1), Box::new(peer)));
    }
    Ok(contestants)
}

/// Gets it at once or after a wait, with a long lease.
#[track_caller]
fn takes(peer: &mut Peer, name: &str) -> Result<(), Fault> {
    assert_eq!(peer.acquire(name, Some(LONG), PATIENCE)?, Acquired::Yes);
    Ok(())
}

#[track_caller]
fn is_refused(peer: &mut Peer, name: &str) -> Result<(), Fault> {
    assert_eq!(peer.acquire(name, Some(LONG), ONCE)?, Acquired::Busy);
    Ok(())
}

#[track_caller]
fn gives_back(peer: &mut Peer) -> Result<(), Fault> {
    assert_ne!(peer.release()?, Released::NotHeld);
    Ok(())
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
fn waits(peer: &mut Peer) -> Result<(), Fault> {
    assert_eq!(peer.awaited::<Acquired>(A_WHILE)?, None, "it waits");
    Ok(())
}

/// Returns when nothing of this name is left but fences, and what ends by itself: Redisson's latches,
/// and our notes.
#[track_caller]
fn gone(name: &str) {
    gone_from(shared::redis(), name);
}

#[track_caller]
fn gone_from(redis: &Redis, name: &str) {
    eventually("the end of the lock", PATIENCE, || {
        let keys = redis.call(&["KEYS", &format!("*{name}*")]);
        let mut keys: Vec<String> = keys.list().iter().map(Reply::text).collect();
        keys.retain(|key| {
            let may_end_by_itself =
                key.starts_with("redisson_unlock_latch:") || key.starts_with("palisade:");
            let ends = redis.call(&["PTTL", key]).int() > Some(0);
            !(may_end_by_itself && ends
                || key.starts_with("redisson_lock_token:")
                || is_free_semaphore(redis, key))
        });
        if keys.is_empty() {
            Ok(())
        } else {
            Err(format!("{keys:?} are left"))
        }
    });
}

/// A semaphore is the number of its permits, and has no end.
fn is_free_semaphore(redis: &Redis, key: &str) -> bool {
    redis.call(&["TYPE", key]).text() == "string" && redis.call(&["GET", key]).text() == "2"
}
