//! Ours and the peers' libraries at one lock in Redis, each in a process of its own.

mod children;
mod contests;
mod exclusion;
mod five;
mod redisson;
mod sabotage;
mod table;

use std::time::Duration;

use palisade_interop::redis::Library;
use palisade_interop::{Contestant, Fault, Peer};
use palisade_testkit::redis::Redis;

/// A lease that outlasts every test.
const LONG: Duration = Duration::from_secs(60);

/// How long a waiter waits for a lock that it must get.
const PATIENCE: Duration = Duration::from_secs(30);

/// No time at all: one attempt.
const ONCE: Duration = Duration::ZERO;

/// The library that plays our part. `PALISADE_INTEROP_OURS=raw` lets the bare format play it, to
/// tell whether a failure is ours.
fn ours() -> Library {
    let name =
        std::env::var("PALISADE_INTEROP_OURS").unwrap_or_else(|_| Library::Ours.name().to_owned());
    Library::named(&name).unwrap_or_else(|| panic!("PALISADE_INTEROP_OURS={name} is no library"))
}

fn start(library: Library, redis: &Redis) -> Result<Peer, Fault> {
    start_at(library, &redis.url())
}

fn start_at(library: Library, url: &str) -> Result<Peer, Fault> {
    library.start(url, env!("CARGO_BIN_EXE_interop-driver"))
}

/// For a contest, in which one library may play several times.
fn contestants(libraries: &[Library], url: &str) -> Result<Vec<Contestant>, Fault> {
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
        contestants.push((name, Box::new(start_at(*library, url)?)));
    }
    Ok(contestants)
}
