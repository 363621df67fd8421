//! Helpers of the etcd tests: a lock that is held and waited for through a fault, and what the
//! server says of itself.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use palisade::Client;
use palisade_testkit::etcd::Etcd;
use palisade_testkit::proxy::{Protocol, Proxy};

use super::actors::connect;
#[allow(unused_imports, reason = "each test binary uses its own part")]
pub use super::pair::*;

/// The shortest lease that etcd grants.
pub const SHORT: Duration = Duration::from_secs(2);

pub fn client(server: &Etcd) -> Client {
    connect(format!("etcd://{}/lock", server.address()))
}

/// A proxy starts by blocking, which a task may not.
pub fn proxy(server: &Etcd) -> Proxy {
    let address = server.address();
    std::thread::spawn(move || Proxy::speaking(Protocol::Http2, address))
        .join()
        .expect("a proxy")
}

/// `etcdctl lock`, which holds until it is told to stop.
pub struct Etcdctl(pub Child);

impl Etcdctl {
    pub fn lock(server: &Etcd, words: &[&str]) -> Etcdctl {
        let mut etcdctl = Command::new("etcdctl");
        etcdctl
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &server.url(), "lock"])
            .args(words);
        Etcdctl(
            etcdctl
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("etcdctl"),
        )
    }

    /// As ctrl-c does: it gives its lock back.
    pub fn interrupt(&self) {
        let told = Command::new("kill")
            .args(["-INT", &self.0.id().to_string()])
            .status()
            .expect("kill");
        assert!(told.success());
    }
}

impl Drop for Etcdctl {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// All that the server counts.
pub struct Metrics(String);

impl Metrics {
    pub fn of(server: &Etcd) -> Metrics {
        // In a thread of its own: it blocks.
        let asked =
            std::thread::scope(|scope| scope.spawn(|| server.metrics()).join().expect("no panic"));
        Metrics(asked.expect("the server counts"))
    }

    fn sum(&self, metric: &str, label: &str) -> u64 {
        let counted = self
            .0
            .lines()
            .filter(|line| line.starts_with(metric) && line.contains(label));
        counted
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .map(|number| number as u64)
            .sum()
    }

    /// How many requests and streams of a method have begun.
    pub fn begun(&self, method: &str) -> u64 {
        self.sum(
            "grpc_server_started_total",
            &format!("grpc_method=\"{method}\""),
        )
    }

    /// How many messages came in on the streams of a method.
    pub fn received(&self, method: &str) -> u64 {
        self.sum(
            "grpc_server_msg_received_total",
            &format!("grpc_method=\"{method}\""),
        )
    }

    /// How many messages went out on the streams of a method.
    pub fn sent(&self, method: &str) -> u64 {
        self.sum(
            "grpc_server_msg_sent_total",
            &format!("grpc_method=\"{method}\""),
        )
    }

    /// How many bytes went out to clients.
    pub fn bytes(&self) -> u64 {
        self.sum("etcd_network_client_grpc_sent_bytes_total", "")
    }

    /// How many watches are open.
    pub fn watches(&self) -> u64 {
        self.sum("etcd_debugging_mvcc_watcher_total", "")
    }
}

/// The leases that the server has.
pub fn leases(server: &Etcd) -> Vec<String> {
    let list = server.etcdctl(&["lease", "list"]);
    list.lines()
        .skip(1)
        .map(|line| line.trim().to_owned())
        .filter(|lease| !lease.is_empty())
        .collect()
}

pub fn revoke_all<'a>(server: &Etcd, leases: impl IntoIterator<Item = &'a String>) {
    for lease in leases {
        // It may have ended meanwhile.
        drop(server.try_etcdctl(&["lease", "revoke", lease]));
    }
}

/// The leases of the keys that were made at these revisions.
pub fn leases_of(server: &Etcd, made: &[u64]) -> Vec<String> {
    let fields = server.etcdctl(&["get", "lock/", "--prefix", "-w", "fields"]);
    let number = |line: &str, field: &str| {
        line.strip_prefix(&format!("\"{field}\" : "))?
            .trim()
            .parse::<u64>()
            .ok()
    };
    let (mut is_one, mut leases) = (false, Vec::new());
    for line in fields.lines() {
        if let Some(revision) = number(line, "CreateRevision") {
            is_one = made.contains(&revision);
        }
        if let Some(lease) = number(line, "Lease").filter(|_| is_one) {
            leases.push(format!("{lease:016x}"));
        }
    }
    leases
}

/// All keys that locks ever had here, each as often as it was made. Nothing may have been
/// compacted.
pub fn keys_ever(server: &Etcd) -> Vec<String> {
    let last = format!("lock/zzz/{}", fastrand::u64(..));
    server.etcdctl(&["put", &last, ""]);
    let mut etcdctl = Command::new("etcdctl");
    etcdctl.env("ETCDCTL_API", "3").args([
        "--endpoints",
        &server.url(),
        "watch",
        "--prefix",
        "--rev=1",
        "lock/",
    ]);
    let mut etcdctl = etcdctl
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("etcdctl");
    let mut lines = BufReader::new(etcdctl.stdout.take().expect("a pipe"))
        .lines()
        .map_while(Result::ok);
    let mut made = Vec::new();
    while let Some(line) = lines.next() {
        if line == "PUT" {
            made.push(lines.next().expect("a key"));
        }
        if made.last() == Some(&last) {
            break;
        }
    }
    etcdctl.kill().and_then(|()| etcdctl.wait()).expect("ended");
    assert_eq!(made.pop(), Some(last), "the history was told to its end");
    made.retain(|key| !key.starts_with("lock/zzz/"));
    server.etcdctl(&["del", "--prefix", "lock/zzz/"]);
    made
}

/// The keys that the server has, of locks.
pub fn keys(server: &Etcd) -> Vec<String> {
    let list = server.etcdctl(&["get", "lock/", "--prefix", "--keys-only"]);
    list.lines()
        .map(str::to_owned)
        .filter(|key| !key.is_empty())
        .collect()
}
