//! The etcd store on real servers: shared with `etcdctl lock`, counted request by request, and through faults.
#![cfg(feature = "etcd")]

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade::{Client, ErrorKind, LossReason, Released, Status};
use palisade_conformance::{PATIENCE, eventually};
use palisade_testkit::etcd::{Cluster, Etcd};

/// The shortest lease that etcd grants.
const SHORT: Duration = Duration::from_secs(2);

async fn client(server: &Etcd) -> Client {
    palisade::connect(&format!("etcd://{}", server.address())).await.expect("a client")
}

async fn client_of(three: &Cluster) -> Client {
    palisade::connect(&format!("etcd://{}/lock?request_timeout=2s", three.addresses())).await.expect("a client")
}

/// `etcdctl lock`, which holds until it is told to stop.
struct Etcdctl(Child);

impl Etcdctl {
    fn lock(server: &Etcd, words: &[&str]) -> Etcdctl {
        let mut etcdctl = Command::new("etcdctl");
        etcdctl.env("ETCDCTL_API", "3").args(["--endpoints", &server.url(), "lock"]).args(words);
        Etcdctl(etcdctl.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("etcdctl"))
    }

    /// As ctrl-c does: it gives its lock back.
    fn interrupt(&self) {
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

async fn line(client: &Client, name: &str) -> (usize, usize) {
    client.show(name).await.expect("an answer").map_or((0, 0), |line| (line.holders.len(), line.waiters.len()))
}

async fn line_is(client: &Client, name: &str, wanted: (usize, usize)) {
    eventually(&format!("{wanted:?} in line"), async || line(client, name).await == wanted).await;
}

/// What the server counts of one method.
fn count(server: &Etcd, metric: &str, method: &str) -> u64 {
    let url = format!("{}/metrics", server.url());
    let output = Command::new("curl").args(["-sf", &url]).output().expect("curl");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let wanted = format!("grpc_method=\"{method}\"");
    let counted = text.lines().filter(|line| line.starts_with(metric) && line.contains(&wanted));
    counted.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).map(|number| number as u64).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_shared_with_etcdctl() {
    let server = Etcd::start();
    let client = client(&server).await;
    // It holds, we wait.
    let theirs = Etcdctl::lock(&server, &["mixed"]);
    line_is(&client, "mixed", (1, 0)).await;
    assert!(client.mutex("mixed").try_acquire().await.expect("an answer").is_none(), "etcdctl holds it");
    assert!(client.rwlock("mixed").try_read().await.expect("an answer").is_none(), "an unknown value is exclusive");
    let lock = client.mutex("mixed");
    let waiting = tokio::spawn(async move { lock.acquire().await });
    line_is(&client, "mixed", (1, 1)).await;
    // Another of theirs waits behind us: one line, in order.
    let mut behind = Etcdctl::lock(&server, &["mixed", "true"]);
    line_is(&client, "mixed", (1, 2)).await;
    theirs.interrupt();
    let guard = tokio::time::timeout(PATIENCE, waiting).await.expect("handed over").expect("no panic").expect("acquired");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(behind.0.try_wait().expect("asked").is_none(), "etcdctl ran beside our guard");
    assert_eq!(guard.release().await.expect("released"), Released::Done);
    let begun = Instant::now();
    while behind.0.try_wait().expect("asked").is_none() {
        assert!(begun.elapsed() < PATIENCE, "etcdctl has not had its turn");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    line_is(&client, "mixed", (0, 0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_is_killed_is_replaced() {
    let server = Etcd::start();
    let client = client(&server).await;
    let mut theirs = Etcdctl::lock(&server, &["--ttl=2", "killed"]);
    line_is(&client, "killed", (1, 0)).await;
    theirs.0.kill().expect("killed");
    let guard = client.mutex("killed").acquire_timeout(PATIENCE).await.expect("acquired");
    assert_eq!(guard.release().await.expect("released"), Released::Done);
}

/// What the page of the store says about requests.
#[tokio::test(flavor = "multi_thread")]
async fn every_verb_costs_what_the_page_says() {
    const ROUNDS: u64 = 50;
    let server = Etcd::start();
    let client = client(&server).await;
    let warm = client.mutex("warm").acquire().await.expect("acquired");
    assert_eq!(warm.release().await.expect("released"), Released::Done);
    let before = count(&server, "grpc_server_started_total", "Txn");
    for _ in 0..ROUNDS {
        let guard = client.mutex("free").acquire().await.expect("acquired");
        assert_eq!(guard.release().await.expect("released"), Released::Done);
    }
    assert_eq!(count(&server, "grpc_server_started_total", "Txn") - before, 2 * ROUNDS, "one to acquire and one to release");
    for method in ["Range", "Put", "DeleteRange"] {
        assert_eq!(count(&server, "grpc_server_started_total", method), 0, "{method}");
    }
    assert_eq!(count(&server, "grpc_server_started_total", "LeaseGrant"), 1, "one session for all");
}

/// However many locks are held, each renewal is one keep-alive.
#[tokio::test(flavor = "multi_thread")]
async fn many_locks_cost_one_keep_alive() {
    let server = Etcd::start();
    let client = client(&server).await;
    let mut guards = Vec::new();
    for number in 0..500 {
        guards.push(client.mutex(format!("many-{number}")).lease(SHORT * 3).acquire().await.expect("acquired"));
    }
    // Watched by now, and looked at once.
    tokio::time::sleep(SHORT * 2).await;
    let beats = || count(&server, "grpc_server_msg_received_total", "LeaseKeepAlive");
    let (before, reads) = (beats(), count(&server, "grpc_server_started_total", "Txn"));
    tokio::time::sleep(SHORT * 3).await;
    assert!((1..=6).contains(&(beats() - before)), "{} keep-alives in one lease", beats() - before);
    let reads = count(&server, "grpc_server_started_total", "Txn") - reads;
    assert!(reads <= 10, "{reads} transactions");
    assert_eq!(count(&server, "grpc_server_started_total", "LeaseKeepAlive"), 1, "one stream");
    assert!(guards.iter().all(|guard| guard.is_held()));
}

/// A session lives by its other claims: one that nobody renews ends all the same, in its own time.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_nobody_renews_ends_though_its_session_lives() {
    let server = Etcd::start();
    let (ours, theirs) = (client(&server).await, client(&server).await);
    let kept = ours.mutex("kept").lease(SHORT).acquire().await.expect("acquired");
    let unrenewed = ours.mutex("unrenewed").lease(SHORT).auto_renew(false).acquire().await.expect("acquired");
    let limited = ours.mutex("limited").lease(SHORT).max_hold(SHORT / 4).acquire().await.expect("acquired");
    assert_eq!(count(&server, "grpc_server_started_total", "LeaseGrant"), 1, "one session for all");
    let begun = Instant::now();
    for name in ["unrenewed", "limited"] {
        let next = theirs.mutex(name).acquire_timeout(PATIENCE).await.expect("freed");
        assert!(begun.elapsed() < SHORT * 3, "{name} after {:?}", begun.elapsed());
        drop(next);
    }
    assert!(!unrenewed.is_held() && !limited.is_held());
    assert_eq!(limited.lost().await, LossReason::MaxHold);
    assert_eq!(kept.status(), Status::Held, "the others go on");
}

/// Two guards of one client contend, though they share a session.
#[tokio::test(flavor = "multi_thread")]
async fn guards_of_one_client_contend() {
    let server = Etcd::start();
    let client = client(&server).await;
    let first = client.mutex("one").acquire().await.expect("acquired");
    assert!(client.mutex("one").try_acquire().await.expect("an answer").is_none());
    drop(first);
    let second = client.mutex("one").acquire_timeout(PATIENCE).await.expect("acquired");
    assert_eq!(second.release().await.expect("released"), Released::Done);
}

/// A lease that is revoked by hand takes all its claims with it, and everybody hears of it at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_lease_is_told_at_once() {
    let server = Etcd::start();
    let client = client(&server).await;
    let one = client.mutex("one").acquire().await.expect("acquired");
    let other = client.mutex("other").acquire().await.expect("acquired");
    // Long enough for their watches; the next renewal is ten seconds away.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let leases = server.etcdctl(&["lease", "list"]);
    for lease in leases.lines().skip(1).map(str::trim).filter(|lease| !lease.is_empty()) {
        server.etcdctl(&["lease", "revoke", lease]);
    }
    for guard in [&one, &other] {
        let reason = tokio::time::timeout(Duration::from_secs(2), guard.lost()).await.expect("told at once");
        assert_eq!(reason, LossReason::SessionEnded);
    }
    let again = client.mutex("one").acquire_timeout(PATIENCE).await.expect("another session");
    assert!(again.fence() > one.fence());
}

/// Compaction behind the back of those who wait changes nothing for them.
#[tokio::test(flavor = "multi_thread")]
async fn compaction_during_a_wait_is_survived() {
    let server = Etcd::start();
    let (ours, theirs) = (client(&server).await, client(&server).await);
    let guard = ours.mutex("compacted").acquire().await.expect("acquired");
    let lock = theirs.mutex("compacted");
    let waiting = tokio::spawn(async move { lock.acquire().await });
    line_is(&ours, "compacted", (1, 1)).await;
    for round in 0..20 {
        server.etcdctl(&["put", "noise", &round.to_string()]);
    }
    let answer = server.etcdctl(&["put", "noise", "last", "-w", "json"]);
    let revision: String =
        answer.split("\"revision\":").nth(1).expect("a revision").chars().take_while(char::is_ascii_digit).collect();
    server.etcdctl(&["compact", &revision]);
    assert_eq!(guard.release().await.expect("released"), Released::Done);
    let begun = Instant::now();
    let next = tokio::time::timeout(PATIENCE, waiting).await.expect("handed over").expect("no panic").expect("acquired");
    assert!(begun.elapsed() < Duration::from_secs(1), "woken by the clock only: {:?}", begun.elapsed());
    assert_eq!(next.release().await.expect("released"), Released::Done);
}

/// A server that restarts: who holds goes on holding, who waits is not lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_is_survived() {
    let server = Etcd::start();
    let (ours, theirs) = (client(&server).await, client(&server).await);
    let guard = ours.mutex("restart").acquire().await.expect("acquired");
    let lock = theirs.mutex("restart");
    let waiting = tokio::spawn(async move { lock.acquire().await });
    line_is(&ours, "restart", (1, 1)).await;
    server.kill();
    server.restart();
    eventually("the holder is sure again", async || guard.status() == Status::Held).await;
    let fence = guard.fence();
    assert_eq!(guard.release().await.expect("released"), Released::Done);
    let next = tokio::time::timeout(PATIENCE, waiting).await.expect("handed over").expect("no panic").expect("acquired");
    assert!(next.fence() > fence);
}

/// With locks held and waited for: the leader is killed, then a member is paused; new claims go on with two of three.
#[tokio::test(flavor = "multi_thread")]
async fn members_come_and_go() {
    let three = Arc::new(Cluster::start());
    let (ours, theirs) = (client_of(&three).await, client_of(&three).await);
    let lease = Duration::from_secs(15);
    let guard = ours.mutex("cluster").lease(lease).acquire().await.expect("acquired");
    let lock = theirs.mutex("cluster").lease(lease);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    line_is(&ours, "cluster", (1, 1)).await;
    let old = three.leader();
    old.kill();
    let begun = Instant::now();
    let new = theirs.mutex("new").acquire_timeout(PATIENCE).await.expect("two of three are enough");
    assert!(begun.elapsed() < Duration::from_secs(8), "after {:?}", begun.elapsed());
    drop(new);
    assert!(guard.is_held());
    let fence = guard.fence();
    assert_eq!(guard.release().await.expect("released"), Released::Done);
    let next = tokio::time::timeout(PATIENCE, waiting).await.expect("handed over").expect("no panic").expect("acquired");
    assert!(next.fence() > fence);
    old.restart();
    // A follower that hangs: whoever talks to it turns to another.
    let leader = three.leader();
    let hung = three.nodes().iter().find(|node| node.address() != leader.address()).expect("a follower");
    hung.pause();
    let begun = Instant::now();
    for number in 0..3 {
        let name = format!("hung-{number}");
        let guard = ours.mutex(&name).acquire_timeout(PATIENCE).await.expect("the others answer");
        drop(guard);
    }
    assert!(begun.elapsed() < PATIENCE, "after {:?}", begun.elapsed());
    hung.resume();
    assert_eq!(next.release().await.expect("released"), Released::Done);
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_say_what_to_do() {
    let server = Etcd::with().auth().start();
    let error = |url: String| async move {
        let client = palisade::connect(&url).await.expect("a client");
        client.mutex("name").try_acquire().await.map(|_| ()).expect_err("refused")
    };
    let address = server.address();
    for (url, words) in [
        (format!("etcd://{address}/lock"), "user and a password"),
        (format!("etcd://locker:wrong@{address}/lock"), "refused the user or the password"),
        (format!("etcd://locker:lockpw@{address}/elsewhere"), "denies a right"),
    ] {
        let error = error(url).await;
        assert_eq!(*error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains(words), "{error}");
        assert!(!format!("{error:?}").contains("lockpw"), "a secret: {error:?}");
    }
    let error = error(format!("etcd://127.0.0.1:{}/lock?connect_timeout=300ms", 1)).await;
    assert_eq!(*error.kind(), ErrorKind::Unavailable, "{error}");
    for wrong in ["etcd://h/?ca=/x", "etcd://h/?format=other", "etcd://user@h/", "etcd://h/a?prefix=b"] {
        let refused = palisade::connect(wrong).await.map(|_| ()).expect_err("refused");
        assert_eq!(*refused.kind(), ErrorKind::Config, "{wrong}: {refused}");
    }
}

/// A write that compares the lock's own key is refused from the moment the grant ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_stale_write_is_refused_by_the_lock_itself() {
    use std::io::Write;

    let server = Etcd::start();
    let client = palisade::connect(&format!("etcd://{}/locks", server.address())).await.expect("a client");
    let guard = client.mutex("stock/bolt").acquire().await.expect("acquired");
    let held = palisade::fence::etcd::Held::by(&guard).expect("a lock in etcd").prefix("/locks");
    let write = |value: &str| {
        let key = String::from_utf8(held.lock_key()).expect("text");
        let txn = format!("c(\"{key}\") = \"{}\"\n\nput stock {value}\n\n\n", held.create_revision());
        let mut etcdctl = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &server.url(), "txn"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("etcdctl");
        etcdctl.stdin.take().expect("piped").write_all(txn.as_bytes()).expect("told");
        let output = etcdctl.wait_with_output().expect("ended");
        String::from_utf8_lossy(&output.stdout).contains("SUCCESS")
    };
    assert!(write("7"), "the holder writes");
    assert_eq!(client.revoke("stock/bolt", guard.fence()).await.expect("an answer"), palisade::store::Revoked::Done);
    assert!(!write("6"), "a stale write passed");
    assert_eq!(server.etcdctl(&["get", "stock", "--print-value-only"]).trim(), "7");
}
