//! No process is left behind, and a missing installation is reported.

use std::process::Command;

use palisade_interop::Fault;
use palisade_interop::zookeeper::{Program, Recipe};
use palisade_testkit::{eventually, is_alive, shared};

use crate::{PATIENCE, start, takes};

/// When the tests themselves are killed, no process is left to kill a peer. The peer ends by itself
/// when its stdin ends.
#[test]
fn a_peer_ends_with_its_stdin() -> Result<(), Fault> {
    for program in [Program::Ours, Program::Curator, Program::Kazoo] {
        let mut peer = start(program, Recipe::Mutex)?;
        takes(&mut peer, &shared::name("left"))?;
        let peer = peer.hang_up();
        eventually("the end of a peer", PATIENCE, || {
            if is_alive(peer.pid()) {
                Err(format!("{program:?} runs"))
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
    let test = "readers::kazoo";
    let again = Command::new(&this)
        .args(["--exact", test])
        .env("XDG_CACHE_HOME", "/nonexistent")
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
