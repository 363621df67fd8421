//! No process is left behind, and a missing installation is reported.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;

use palisade_interop::redis::Library;
use palisade_interop::{Acquired, Fault, Participant, Peer};
use palisade_testkit::redis::Redis;
use palisade_testkit::{eventually, is_alive};

use crate::{LONG, ONCE, PATIENCE, start};

#[test]
fn a_peer_ends_with_a_panic() -> Result<(), Fault> {
    let redis = Redis::start();
    for library in Library::PEERS {
        let peer = start(library, &redis)?;
        let pid = peer.pid();
        assert!(is_alive(pid));
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _peer = peer;
            panic!("as a failed test does");
        }));
        panicked.expect_err("it panics");
        assert!(!is_alive(pid), "{} is left behind", library.name());
    }
    Ok(())
}

/// When the tests themselves are killed, no process is left to kill a peer. The peer ends by itself
/// when its stdin ends.
#[test]
fn a_peer_ends_with_its_stdin() -> Result<(), Fault> {
    let redis = Redis::start();
    for library in [Library::Raw].into_iter().chain(Library::PEERS) {
        let mut peer = start(library, &redis)?;
        assert_eq!(
            peer.acquire(library.name(), Some(LONG), ONCE)?,
            Acquired::Yes
        );
        let pid = peer.pid();
        let _killed_by_the_end = peer.hang_up();
        eventually("the end of a peer", PATIENCE, || {
            if is_alive(pid) {
                Err(format!("{} runs", library.name()))
            } else {
                Ok(())
            }
        });
    }
    Ok(())
}

/// Runs this test binary again where nothing is installed: it must fail, and say what to do.
#[test]
fn what_is_missing_fails_and_names_the_script() {
    let this = std::env::current_exe().expect("a test binary has a path");
    for test in [
        "table::redis_py::ours_holds",
        "table::redsync::ours_holds",
        "table::node_redlock::ours_holds",
    ] {
        let again = Command::new(&this)
            .args(["--exact", test])
            .env("XDG_CACHE_HOME", "/nonexistent")
            .env("PALISADE_INTEROP_OURS", Library::Raw.name())
            .output()
            .expect("the test binary runs");
        let said = String::from_utf8_lossy(&again.stdout);
        assert!(
            !again.status.success(),
            "{test} passed without its peer: {said}"
        );
        assert!(
            said.contains("is not installed: run scripts/setup"),
            "{said}"
        );
    }
    let missing =
        Peer::start("missing", Command::new("no-such-driver")).expect_err("there is none");
    assert!(
        missing.to_string().contains("run scripts/setup"),
        "{missing}"
    );
}
