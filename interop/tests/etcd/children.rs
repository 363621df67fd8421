//! No process is left behind, and a missing installation is reported.

use std::process::Command;

use palisade_interop::etcd::Library;
use palisade_interop::{Acquired, Fault, Participant};
use palisade_testkit::{eventually, is_alive, shared};

use crate::{LONG, PATIENCE, start};

/// When the tests themselves are killed, no process is left to kill a peer. The peer ends by itself
/// when its stdin ends, and etcdctl with the driver that started it.
#[test]
fn a_peer_ends_with_its_stdin() -> Result<(), Fault> {
    for library in Library::PEERS {
        let mut peer = start(library)?;
        assert_eq!(
            peer.acquire(&shared::name("left"), Some(LONG), PATIENCE)?,
            Acquired::Yes
        );
        let mut family = children(peer.pid());
        assert_eq!(
            !family.is_empty(),
            library != Library::Go,
            "etcdctl is a child of its driver"
        );
        family.push(peer.pid());
        let _killed_by_the_end = peer.hang_up();
        eventually("the end of a peer", PATIENCE, || {
            let alive: Vec<u32> = family
                .iter()
                .copied()
                .filter(|pid| is_alive(*pid))
                .collect();
            if alive.is_empty() {
                Ok(())
            } else {
                Err(format!("{alive:?} of {} run", library.name()))
            }
        });
    }
    Ok(())
}

/// Those that a process has started, and those that they have.
fn children(pid: u32) -> Vec<u32> {
    let of = |pid: u32| {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task"))
            .into_iter()
            .flatten()
            .flatten();
        let lists = threads
            .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
        lists
            .flat_map(|list| {
                list.split_whitespace()
                    .filter_map(|pid| pid.parse().ok())
                    .collect::<Vec<u32>>()
            })
            .collect()
    };
    let mut all: Vec<u32> = of(pid);
    let grandchildren: Vec<u32> = all.iter().flat_map(|pid| of(*pid)).collect();
    all.extend(grandchildren);
    all
}

/// Runs this test binary again where nothing is installed: it must fail, and say what to do.
#[test]
fn what_is_missing_fails_and_names_the_script() {
    let this = std::env::current_exe().expect("a test binary has a path");
    let test = "table::go::ours_holds";
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
