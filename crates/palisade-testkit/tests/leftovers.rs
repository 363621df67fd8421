//! Nothing is left behind, however a test or its whole process ends.
//!
//! Each test here runs this binary again, with one of the `victim` tests, and looks for what that
//! leaves.

use std::io::{BufRead, BufReader, Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use palisade_testkit::lan::Lan;
use palisade_testkit::redis::Redis;
use palisade_testkit::{Server, etcd, eventually, is_alive, shared};

const PATIENCE: Duration = Duration::from_secs(60);
/// Set in the process that is the victim. Without it, the victims do nothing.
const VICTIM: &str = "PALISADE_TESTKIT_VICTIM";
const READY: &str = "all started";

fn is_victim() -> bool {
    std::env::var_os(VICTIM).is_some()
}

fn report(server: &Server) {
    println!("\nserver {} {}", server.pid(), server.dir().display());
}

/// One of each kind that differs in how it dies: alone, in a namespace, as another user, in its
/// children, paused, and shared.
fn start_some() -> (Redis, Lan, Redis, etcd::Etcd) {
    let redis = Redis::start();
    let lan = Lan::new();
    let in_lan = Redis::with().on(&lan.host()).start();
    let etcd = etcd::Etcd::start();
    etcd.pause();
    for server in [
        &*redis,
        &*in_lan,
        &*etcd,
        &**shared::postgres(),
        &**shared::mariadb(),
        &**shared::zookeeper(),
    ] {
        report(server);
    }
    println!("\n{READY}");
    (redis, lan, in_lan, etcd)
}

#[test]
fn victim_that_panics() {
    if is_victim() {
        let _servers = start_some();
        panic!("as it must");
    }
}

#[test]
fn victim_that_exits_with_everything_running() {
    if is_victim() {
        std::mem::forget(start_some());
    }
}

#[test]
fn victim_that_is_killed() {
    if is_victim() {
        let _servers = start_some();
        std::thread::sleep(PATIENCE);
    }
}

/// Servers and their children run in their own directories, also after those are gone.
fn processes_in(base: &Path) -> Vec<u32> {
    let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_in = |pid: &u32| {
        std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.starts_with(base))
    };
    pids.filter(is_in).collect()
}

struct Victim {
    child: Child,
    pids: Vec<u32>,
    dirs: Vec<PathBuf>,
}

impl Victim {
    fn start(test: &str) -> Self {
        let mut words = tempfile::tempfile().expect("a file");
        let mut child = Command::new(std::env::current_exe().expect("this binary"))
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env(VICTIM, "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(words.try_clone().expect("a file"))
            .spawn()
            .expect("this binary");
        let (mut pids, mut dirs) = (Vec::new(), Vec::new());
        for line in BufReader::new(child.stdout.take().expect("a pipe")).lines() {
            let line = line.expect("text");
            if line == READY {
                break;
            }
            if let ["server", pid, dir] = line.split(' ').collect::<Vec<_>>()[..] {
                pids.push(pid.parse().expect("a number"));
                dirs.push(PathBuf::from(dir));
            }
        }
        if pids.len() != 6 {
            let mut why = String::new();
            words
                .rewind()
                .and_then(|()| words.read_to_string(&mut why))
                .expect("its words");
            panic!("the victim did not start its servers: {why}");
        }
        Self { child, pids, dirs }
    }

    /// The directory of the process.
    fn base(&self) -> PathBuf {
        self.dirs[0]
            .parent()
            .expect("the directory of the process")
            .to_owned()
    }

    fn assert_nothing_left(mut self) {
        self.child.wait().expect("its end");
        let base = self.base();
        eventually("the end of all servers", PATIENCE, || {
            match self.pids.iter().find(|pid| is_alive(**pid)) {
                Some(pid) => Err(format!("{pid} still runs")),
                None => Ok(()),
            }
        });
        eventually("the removal of all files", PATIENCE, || {
            if base.exists() {
                Err(format!("{base:?} is there"))
            } else {
                Ok(())
            }
        });
        let mine = format!("palisade-{}-", self.child.id());
        eventually("the removal of all namespaces", PATIENCE, || {
            let names = std::fs::read_dir("/run/netns")
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.file_name());
            match names
                .filter_map(|name| name.into_string().ok())
                .find(|name| name.starts_with(&mine))
            {
                Some(name) => Err(format!("{name} is there")),
                None => Ok(()),
            }
        });
    }
}

#[test]
fn a_panic_leaves_nothing() {
    Victim::start("victim_that_panics").assert_nothing_left();
}

#[test]
fn an_exit_leaves_nothing() {
    Victim::start("victim_that_exits_with_everything_running").assert_nothing_left();
}

#[test]
fn a_kill_leaves_nothing() {
    let mut victim = Victim::start("victim_that_is_killed");
    // This one waits for us, so what is looked for afterwards can be seen to be there before.
    assert!(victim.pids.iter().all(|pid| is_alive(*pid)));
    assert!(
        processes_in(&victim.base()).len() > victim.pids.len(),
        "PostgreSQL alone has several"
    );
    victim.child.kill().expect("it runs");
    victim.assert_nothing_left();
}

#[test]
fn a_server_outlives_the_thread_that_asked_for_it() {
    let redis = std::thread::spawn(Redis::start).join().expect("a server");
    assert_eq!(redis.call(&["PING"]).text(), "PONG");
    // The kernel kills at once when it does; a restart is asked for by yet another thread.
    std::thread::scope(|scope| scope.spawn(|| redis.restart()).join()).expect("a restart");
    assert_eq!(redis.call(&["PING"]).text(), "PONG");
}

#[test]
fn shared_servers_are_started_once_and_names_are_unique() {
    let pids: Vec<u32> = std::thread::scope(|scope| {
        let askers: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| shared::redis().pid()))
            .collect();
        askers
            .into_iter()
            .map(|asker| asker.join().expect("a server"))
            .collect()
    });
    assert!(pids.iter().all(|pid| *pid == pids[0]));
    assert_ne!(shared::name("a"), shared::name("a"));
}
