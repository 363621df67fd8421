//! Every kind of server: starts, answers, bears its faults, and leaves nothing behind.

mod etcd;
mod lan;
mod mariadb;
mod pgbouncer;
mod port_taken;
mod postgres;
mod redis;
mod redis_groups;
mod zookeeper;

use std::path::PathBuf;
use std::time::Duration;

use palisade_testkit::{Server, eventually, is_alive};

const PATIENCE: Duration = Duration::from_secs(60);

/// The traces of a server that must be gone after it.
struct Trace {
    pid: u32,
    dir: PathBuf,
}

impl Trace {
    fn of(server: &Server) -> Self {
        assert!(is_alive(server.pid()) && server.is_running() && server.dir().is_dir());
        Self {
            pid: server.pid(),
            dir: server.dir().to_owned(),
        }
    }

    fn all<'a>(servers: impl IntoIterator<Item = &'a Server>) -> Vec<Self> {
        servers.into_iter().map(Self::of).collect()
    }

    #[track_caller]
    fn assert_gone(&self) {
        assert!(!is_alive(self.pid), "{} still runs", self.pid);
        assert!(!self.dir.exists(), "{} is still there", self.dir.display());
    }
}

/// Waits until a question has the expected answer.
#[track_caller]
fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    eventually(what, PATIENCE, || {
        if is_so() {
            Ok(())
        } else {
            Err("not yet".into())
        }
    });
}
