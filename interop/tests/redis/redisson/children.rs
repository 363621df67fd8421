//! No Java is left behind, and a missing installation is reported.

use std::process::Command;

use palisade_interop::redisson::{Library, Lock, Program};
use palisade_interop::{Acquired, Fault};
use palisade_testkit::{eventually, is_alive, shared};

use super::{PATIENCE, alone, takes, url};

/// When the tests themselves are killed, no process is left to kill a peer. The peer ends by itself
/// when its stdin ends, also while a hand holds and another waits.
#[test]
fn a_java_ends_with_its_stdin() -> Result<(), Fault> {
    let (name, host) = (shared::name("left"), Program::New.host(&url())?);
    let (mut holder, mut waiter) = (host.hand("lock")?, host.hand("lock")?);
    takes(&mut holder, &name)?;
    super::begin(&mut waiter, &name)?;
    let pid = holder.pid();
    let _killed_by_the_end = holder.hang_up();
    eventually("the end of a Java", PATIENCE, || {
        if is_alive(pid) {
            Err(format!("{pid} runs"))
        } else {
            Ok(())
        }
    });
    let ended = waiter
        .awaited::<Acquired>(PATIENCE)
        .expect_err("no hand is left");
    assert!(ended.to_string().contains("it ended"), "{ended}");
    Ok(())
}

/// With its last hand, as a failed test drops it.
#[test]
fn a_java_ends_when_nothing_uses_it() -> Result<(), Fault> {
    let peer = alone(Library(Program::New, Lock::Lock))?;
    let pid = peer.pid();
    assert!(is_alive(pid));
    drop(peer);
    assert!(!is_alive(pid), "{pid} is left behind");
    Ok(())
}

/// Runs this test binary again where nothing is installed: it must fail, and say what to do.
#[test]
fn what_is_missing_fails_and_names_the_script() {
    let this = std::env::current_exe().expect("a test binary has a path");
    let test = "redisson::children::a_java_ends_when_nothing_uses_it";
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
        said.contains("redis-java is not installed: run scripts/setup"),
        "{said}"
    );
}
