//! What the tests of etcd share: a lock that is held and waited for through a fault, and what the server says of itself.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade::{Client, ErrorKind, Guard, LossReason, Released, Result};
use palisade_conformance::eventually;
use palisade_testkit::etcd::Etcd;
use palisade_testkit::proxy::{Protocol, Proxy};
use tokio::task::JoinHandle;

use super::actors::{Believer, connect, rise};

/// The shortest lease that etcd grants.
pub const SHORT: Duration = Duration::from_secs(2);

/// So long that no test waits for its end: who gets a lock before did not wait for a lease.
pub const LONG: Duration = Duration::from_secs(120);

/// Within this everything happens that must happen, on a machine with much else to do.
pub const LIMIT: Duration = Duration::from_secs(40);

pub fn client(server: &Etcd) -> Client {
    connect(format!("etcd://{}/lock", server.address()))
}

/// A proxy starts by blocking, which a task may not.
pub fn proxy(server: &Etcd) -> Proxy {
    let address = server.address();
    std::thread::spawn(move || Proxy::speaking(Protocol::Http2, address)).join().expect("a proxy")
}

/// Somebody who holds and somebody who waits. Never do both believe that they hold.
pub struct Pair {
    pub held: Arc<Guard>,
    believer: Believer,
    waiting: JoinHandle<Result<(Guard, Instant)>>,
}

impl Pair {
    /// One client takes the lock, another stands in line for it. `outside` sees it.
    pub async fn begin([holder, waiter, outside]: [&Client; 3], name: &str, lease: Duration) -> Pair {
        let held = Arc::new(holder.mutex(name).lease(lease).store_wait(LONG).acquire().await.expect("a grant"));
        let believer = Believer::watch(Arc::clone(&held));
        let lock = waiter.mutex(name).lease(lease).store_wait(LONG);
        let waiting = tokio::spawn(async move { lock.acquire().await.map(|guard| (guard, Instant::now())) });
        line_is(outside, name, (1, 1)).await;
        Pair { held, believer, waiting }
    }

    /// The holder still holds, and the waiter still waits.
    #[track_caller]
    pub fn stands(&self) {
        assert!(self.held.is_held() && !self.waiting.is_finished());
    }

    /// The holder gives the lock back, and the waiter gets in.
    pub async fn hands_over(self) -> Guard {
        let Pair { held, believer, waiting } = self;
        let fence = held.fence();
        let last = believer.last_belief().expect("it was held at first");
        let released = Arc::into_inner(held).expect("nobody else has it").release();
        match tokio::time::timeout(LIMIT, released).await.expect("an answer in time") {
            Ok(released) => assert!(matches!(released, Released::Done | Released::Unknown), "{released:?}"),
            // Nobody knows whether it arrived.
            Err(error) => assert_eq!(*error.kind(), ErrorKind::Unavailable, "{error}"),
        }
        let (next, began) = gets_in(waiting).await;
        assert!(last <= began, "two believed for {:?}", last - began);
        rise(&[fence, next.fence()]);
        next
    }

    /// The holder is told that it has lost the lock, and only then does the waiter get in.
    pub async fn loses_it_to_the_next(self) -> (LossReason, Guard) {
        let Pair { held, believer, waiting } = self;
        let reason = tokio::time::timeout(LIMIT, held.lost()).await.expect("the holder is told");
        let (next, began) = gets_in(waiting).await;
        let last = believer.last_belief().expect("it was held at first");
        assert!(last <= began, "two believed for {:?}", last - began);
        assert!(!held.is_held());
        rise(&[held.fence(), next.fence()]);
        (reason, next)
    }

    /// The same, where the store itself drops the grant: the holder is told at its next contact.
    pub async fn has_it_dropped(self) -> (LossReason, Guard) {
        let Pair { held, believer, waiting } = self;
        let reason = tokio::time::timeout(LIMIT, held.lost()).await.expect("the holder is told");
        let (next, _) = gets_in(waiting).await;
        let _ = believer.last_belief();
        assert!(!held.is_held());
        rise(&[held.fence(), next.fence()]);
        (reason, next)
    }
}

async fn gets_in(waiting: JoinHandle<Result<(Guard, Instant)>>) -> (Guard, Instant) {
    let brought = tokio::time::timeout(LIMIT, waiting).await.expect("the waiter gets in");
    brought.expect("no panic").expect("a grant")
}

/// Waits until so many hold and so many wait. A member that has just had a fault may leave the first questions unanswered.
pub async fn line_is(client: &Client, name: &str, wanted: (usize, usize)) {
    eventually(&format!("{wanted:?} in line"), async || match client.show(name).await {
        Ok(line) => line.map_or((0, 0), |line| (line.holders.len(), line.waiters.len())) == wanted,
        Err(error) => {
            assert_eq!(*error.kind(), ErrorKind::Unavailable, "{error}");
            false
        }
    })
    .await;
}

/// `etcdctl lock`, which holds until it is told to stop.
pub struct Etcdctl(pub Child);

impl Etcdctl {
    pub fn lock(server: &Etcd, words: &[&str]) -> Etcdctl {
        let mut etcdctl = Command::new("etcdctl");
        etcdctl.env("ETCDCTL_API", "3").args(["--endpoints", &server.url(), "lock"]).args(words);
        Etcdctl(etcdctl.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("etcdctl"))
    }

    /// As ctrl-c does: it gives its lock back.
    pub fn interrupt(&self) {
        let told = Command::new("kill").args(["-INT", &self.0.id().to_string()]).status().expect("kill");
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
        let url = format!("{}/metrics", server.url());
        let output = Command::new("curl").args(["-sf", &url]).output().expect("curl");
        Metrics(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn sum(&self, metric: &str, label: &str) -> u64 {
        let counted = self.0.lines().filter(|line| line.starts_with(metric) && line.contains(label));
        counted.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).map(|number| number as u64).sum()
    }

    /// How many requests and streams of a method have begun.
    pub fn begun(&self, method: &str) -> u64 {
        self.sum("grpc_server_started_total", &format!("grpc_method=\"{method}\""))
    }

    /// How many messages came in on the streams of a method.
    pub fn received(&self, method: &str) -> u64 {
        self.sum("grpc_server_msg_received_total", &format!("grpc_method=\"{method}\""))
    }

    /// How many messages went out on the streams of a method.
    pub fn sent(&self, method: &str) -> u64 {
        self.sum("grpc_server_msg_sent_total", &format!("grpc_method=\"{method}\""))
    }

    /// How many watches are open.
    pub fn watches(&self) -> u64 {
        self.sum("etcd_debugging_mvcc_watcher_total", "")
    }
}

/// The leases that the server has.
pub fn leases(server: &Etcd) -> Vec<String> {
    let list = server.etcdctl(&["lease", "list"]);
    list.lines().skip(1).map(|line| line.trim().to_owned()).filter(|lease| !lease.is_empty()).collect()
}

pub fn revoke_all(server: &Etcd) {
    for lease in leases(server) {
        // It may have ended meanwhile.
        drop(server.try_etcdctl(&["lease", "revoke", &lease]));
    }
}

/// The keys that the server has, of locks.
pub fn keys(server: &Etcd) -> Vec<String> {
    let list = server.etcdctl(&["get", "lock/", "--prefix", "--keys-only"]);
    list.lines().map(str::to_owned).filter(|key| !key.is_empty()).collect()
}
