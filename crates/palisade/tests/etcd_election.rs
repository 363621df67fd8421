//! Elections on real etcd servers: in order, told to observers, through faults, and shared with
//! `etcdctl elect`.
#![cfg(feature = "etcd")]

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use palisade::{Client, ErrorKind, Leader, Leadership, LossReason, Observer, Released};
use palisade_conformance::{PATIENCE, eventually};
use palisade_testkit::etcd::{Cluster, Etcd};

async fn client(server: &Etcd) -> Client {
    palisade::connect(&format!("etcd://{}", server.address()))
        .await
        .expect("a client")
}

/// A candidate on its way, once it stands in line behind so many others.
async fn candidate(
    client: &Client,
    name: &str,
    value: &'static str,
    behind: usize,
) -> tokio::task::JoinHandle<Leadership> {
    let election = client.election(name);
    let campaign = tokio::spawn(async move { election.campaign(value).await.expect("elected") });
    eventually("the candidate stands in line", async || {
        client
            .show(name)
            .await
            .expect("an answer")
            .is_some_and(|line| line.holders.len() + line.waiters.len() == behind + 1)
    })
    .await;
    campaign
}

async fn elected(campaign: tokio::task::JoinHandle<Leadership>) -> Leadership {
    tokio::time::timeout(PATIENCE, campaign)
        .await
        .expect("elected in time")
        .expect("no panic")
}

async fn heard(observer: &mut Observer) -> Leader {
    tokio::time::timeout(PATIENCE, observer.next())
        .await
        .expect("told in time")
        .expect("a leader")
}

fn leader(leadership: &Leadership, value: &str) -> Leader {
    Leader {
        value: value.to_owned(),
        fence: leadership.fence(),
    }
}

async fn resign(leadership: Leadership) {
    assert_eq!(
        leadership.resign().await.expect("an answer"),
        Released::Done
    );
}

/// Revokes every lease there is.
fn revoke_leases(server: &Etcd) {
    let leases = server.etcdctl(&["lease", "list"]);
    for lease in leases
        .lines()
        .skip(1)
        .map(str::trim)
        .filter(|lease| !lease.is_empty())
    {
        server.etcdctl(&["lease", "revoke", lease]);
    }
}

fn compact(server: &Etcd) {
    let answer = server.etcdctl(&["put", "noise", "last", "-w", "json"]);
    let revision: String = answer
        .split("\"revision\":")
        .nth(1)
        .expect("a revision")
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    server.etcdctl(&["compact", &revision]);
}

#[tokio::test(flavor = "multi_thread")]
async fn candidates_lead_in_order_and_observers_hear_each() {
    let server = Etcd::start();
    let (ours, theirs, outside) = (
        client(&server).await,
        client(&server).await,
        client(&server).await,
    );
    let election = outside.election("order");
    assert_eq!(election.leader().await.expect("an answer"), None);
    let mut observer = election.observe().await.expect("observed");
    let first = ours
        .election("order")
        .campaign("one")
        .await
        .expect("elected");
    assert_eq!(heard(&mut observer).await, leader(&first, "one"));
    assert!(
        theirs
            .election("order")
            .try_campaign("pushy")
            .await
            .expect("an answer")
            .is_none(),
        "there is a leader"
    );
    let second = candidate(&theirs, "order", "two", 1).await;
    let third = candidate(&ours, "order", "three", 2).await;
    assert_eq!(
        election.leader().await.expect("an answer"),
        Some(leader(&first, "one"))
    );
    first.proclaim("one, again").await.expect("proclaimed");
    assert_eq!(heard(&mut observer).await, leader(&first, "one, again"));
    let late = election
        .observe()
        .await
        .expect("observed")
        .next()
        .await
        .expect("a leader");
    assert_eq!(
        late,
        leader(&first, "one, again"),
        "who comes later hears the present one"
    );
    let fence = first.fence();
    resign(first).await;
    let second = elected(second).await;
    assert!(second.fence() > fence);
    assert_eq!(heard(&mut observer).await, leader(&second, "two"));
    // Dropping resigns as well.
    drop(second);
    let third = elected(third).await;
    assert_eq!(heard(&mut observer).await, leader(&third, "three"));
    resign(third).await;
    assert_eq!(election.leader().await.expect("an answer"), None);
}

/// Lists show what a candidate proclaims, and never the whole id of a claim.
#[tokio::test(flavor = "multi_thread")]
async fn lists_show_the_value() {
    let server = Etcd::start();
    let client = client(&server).await;
    let leadership = client
        .election("shown")
        .campaign("http://node-1")
        .await
        .expect("elected");
    let _waits = candidate(&client, "shown", "http://node-2", 1).await;
    let line = client
        .show("shown")
        .await
        .expect("an answer")
        .expect("a line");
    assert_eq!(
        line.holders.first().map(|holder| holder.owner.as_str()),
        Some("http://node-1")
    );
    assert_eq!(
        line.waiters.first().map(|waiter| waiter.owner.as_str()),
        Some("http://node-2")
    );
    leadership.proclaim("").await.expect("proclaimed");
    assert_eq!(
        client
            .election("shown")
            .leader()
            .await
            .expect("an answer")
            .map(|leader| leader.value),
        Some(String::new())
    );
    let owner = client
        .show("shown")
        .await
        .expect("an answer")
        .expect("a line")
        .holders
        .remove(0)
        .owner;
    assert!(
        owner.starts_with("claim ") && !owner.contains(&leadership.guard().value()),
        "{owner}"
    );
}

/// A value that would be taken for a lock of ours, or of a newer version, is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_value_cannot_pretend_to_be_a_lock() {
    let server = Etcd::start();
    let election = client(&server).await.election("pretender");
    let refused = election
        .campaign("palisade:1:mode=shared")
        .await
        .expect_err("refused");
    assert_eq!(refused.kind(), ErrorKind::Config, "{refused}");
    let leadership = election.campaign("honest").await.expect("elected");
    let refused = leadership
        .proclaim("palisade:2:")
        .await
        .expect_err("refused");
    assert_eq!(refused.kind(), ErrorKind::Config, "{refused}");
    assert!(leadership.is_held());
    assert_eq!(
        election.leader().await.expect("an answer"),
        Some(leader(&leadership, "honest"))
    );
}

/// The lease is revoked by hand: the leader is told, and may proclaim nothing more; the next leads.
/// All candidates hang on one lease here, so all go in one step, in the order of their keys: the
/// observer must not take one of them for a leader on the way.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_lead_is_told_and_the_next_leads() {
    const DOOMED: usize = 10;
    let server = Etcd::start();
    let (ours, theirs) = (client(&server).await, client(&server).await);
    let lease = Duration::from_secs(5);
    let mut observer = theirs.election("lost").observe().await.expect("observed");
    let first = ours
        .election("lost")
        .lease(lease)
        .campaign("first")
        .await
        .expect("elected");
    assert_eq!(heard(&mut observer).await, leader(&first, "first"));
    let mut doomed = tokio::task::JoinSet::new();
    for _ in 0..DOOMED {
        let election = ours.election("lost").lease(lease);
        doomed.spawn(async move { election.campaign("doomed").await.expect("elected") });
    }
    eventually("they wait", async || {
        ours.show("lost")
            .await
            .expect("an answer")
            .is_some_and(|line| line.waiters.len() == DOOMED)
    })
    .await;
    let stop = first.on_lost();
    revoke_leases(&server);
    let reason = tokio::time::timeout(PATIENCE, first.lost())
        .await
        .expect("told");
    assert_eq!(reason, LossReason::SessionEnded);
    tokio::time::timeout(PATIENCE, stop.cancelled())
        .await
        .expect("told to stop");
    let refused = first.proclaim("still me").await.expect_err("refused");
    assert!(matches!(refused.kind(), ErrorKind::Lost(_)), "{refused}");
    // Their claims were gone, so they queued again by themselves.
    let next = tokio::time::timeout(PATIENCE, doomed.join_next())
        .await
        .expect("elected in time");
    let next = next.expect("a candidate").expect("no panic");
    assert!(next.fence() > first.fence());
    assert_eq!(
        heard(&mut observer).await,
        leader(&next, "doomed"),
        "told of a leader that never led"
    );
    assert_eq!(
        first.resign().await.expect("an answer"),
        Released::AlreadyLost
    );
    assert_eq!(
        theirs.election("lost").leader().await.expect("an answer"),
        Some(leader(&next, "doomed"))
    );
}

/// A proclamation by a leader that was deposed unnoticed changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_deposed_leader_proclaims_nothing() {
    let server = Etcd::start();
    let (ours, theirs) = (client(&server).await, client(&server).await);
    let first = ours
        .election("deposed")
        .campaign("first")
        .await
        .expect("elected");
    let next = candidate(&theirs, "deposed", "next", 1).await;
    assert_eq!(
        theirs
            .revoke("deposed", first.fence())
            .await
            .expect("an answer"),
        palisade::store::Revoked::Done
    );
    let refused = first.proclaim("still me").await.expect_err("refused");
    assert!(matches!(refused.kind(), ErrorKind::Lost(_)), "{refused}");
    assert!(!first.is_held());
    let next = elected(next).await;
    assert_eq!(
        theirs
            .election("deposed")
            .leader()
            .await
            .expect("an answer"),
        Some(leader(&next, "next"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn observers_survive_compaction_and_a_restart() {
    let server = Etcd::start();
    let (ours, outside) = (client(&server).await, client(&server).await);
    let mut observer = outside
        .election("survives")
        .observe()
        .await
        .expect("observed");
    let first = ours
        .election("survives")
        .campaign("first")
        .await
        .expect("elected");
    assert_eq!(heard(&mut observer).await, leader(&first, "first"));
    compact(&server);
    first
        .proclaim("after compaction")
        .await
        .expect("proclaimed");
    assert_eq!(
        heard(&mut observer).await,
        leader(&first, "after compaction")
    );
    server.kill();
    server.restart();
    compact(&server);
    first.proclaim("after a restart").await.expect("proclaimed");
    assert_eq!(
        heard(&mut observer).await,
        leader(&first, "after a restart")
    );
    resign(first).await;
    let second = ours
        .election("survives")
        .campaign("second")
        .await
        .expect("elected");
    assert_eq!(heard(&mut observer).await, leader(&second, "second"));
}

/// An observer that was cut off is told the present leader when it is back.
#[tokio::test(flavor = "multi_thread")]
async fn an_observer_that_was_cut_off_hears_the_present_leader() {
    use palisade_testkit::proxy::Proxy;

    let server = Etcd::start();
    let proxy = tokio::task::block_in_place(|| Proxy::start(server.address()));
    let ours = client(&server).await;
    let cut_off = palisade::connect(&format!("etcd://{}?request_timeout=1s", proxy.address()))
        .await
        .expect("a client");
    let mut observer = cut_off.election("cut").observe().await.expect("observed");
    let first = ours
        .election("cut")
        .campaign("first")
        .await
        .expect("elected");
    assert_eq!(heard(&mut observer).await, leader(&first, "first"));
    tokio::task::block_in_place(|| {
        proxy.refuse();
        proxy.reset();
    });
    resign(first).await;
    resign(
        ours.election("cut")
            .campaign("second")
            .await
            .expect("elected"),
    )
    .await;
    let third = ours
        .election("cut")
        .campaign("third")
        .await
        .expect("elected");
    tokio::task::block_in_place(|| proxy.heal());
    assert_eq!(heard(&mut observer).await, leader(&third, "third"));
}

#[tokio::test(flavor = "multi_thread")]
async fn observers_survive_the_loss_of_a_member() {
    let three = Cluster::start();
    let url = format!("etcd://{}/lock?request_timeout=2s", three.addresses());
    let (ours, outside) = (
        palisade::connect(&url).await.expect("a client"),
        palisade::connect(&url).await.expect("a client"),
    );
    let mut observer = outside
        .election("members")
        .observe()
        .await
        .expect("observed");
    let first = ours
        .election("members")
        .campaign("0")
        .await
        .expect("elected");
    assert_eq!(heard(&mut observer).await, leader(&first, "0"));
    // One after the other, so that the one it listens to is among them.
    for (number, node) in three.nodes().iter().enumerate() {
        node.kill();
        let value = format!("without {number}");
        first
            .proclaim(&value)
            .await
            .expect("two of three are enough");
        assert_eq!(heard(&mut observer).await, leader(&first, &value));
        node.restart();
    }
    resign(first).await;
}

/// `etcdctl elect`, with its output in a file.
struct Etcdctl {
    child: Child,
    output: PathBuf,
    _folder: tempfile::TempDir,
}

impl Etcdctl {
    fn elect(server: &Etcd, words: &[&str]) -> Etcdctl {
        let folder = tempfile::tempdir().expect("a folder");
        let output = folder.path().join("output");
        let mut etcdctl = Command::new("etcdctl");
        etcdctl
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &server.url(), "elect"])
            .args(words);
        etcdctl
            .stdin(Stdio::null())
            .stdout(File::create(&output).expect("a file"))
            .stderr(Stdio::null());
        Etcdctl {
            child: etcdctl.spawn().expect("etcdctl"),
            output,
            _folder: folder,
        }
    }

    /// As ctrl-c does: it resigns.
    fn interrupt(&self) {
        let told = Command::new("kill")
            .args(["-INT", &self.child.id().to_string()])
            .status()
            .expect("kill");
        assert!(told.success());
    }

    async fn says(&self, what: &str) {
        eventually(&format!("etcdctl says {what:?}"), async || {
            std::fs::read_to_string(&self.output)
                .is_ok_and(|said| said.lines().any(|line| line == what))
        })
        .await;
    }
}

impl Drop for Etcdctl {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_election_is_shared_with_etcdctl() {
    let server = Etcd::start();
    let client = client(&server).await;
    let election = client.election("mixed");
    let mut observer = election.observe().await.expect("observed");
    let listens = Etcdctl::elect(&server, &["-l", "mixed"]);
    // Theirs leads, ours waits.
    let theirs = Etcdctl::elect(&server, &["mixed", "their value"]);
    theirs.says("their value").await;
    assert_eq!(heard(&mut observer).await.value, "their value");
    assert_eq!(
        election
            .leader()
            .await
            .expect("an answer")
            .map(|leader| leader.value)
            .as_deref(),
        Some("their value")
    );
    assert!(
        election
            .try_campaign("pushy")
            .await
            .expect("an answer")
            .is_none()
    );
    let ours = candidate(&client, "mixed", "our value", 1).await;
    // Another of theirs behind us: one line.
    let behind = Etcdctl::elect(&server, &["mixed", "their second"]);
    eventually("it stands behind us", async || {
        client
            .show("mixed")
            .await
            .expect("an answer")
            .is_some_and(|line| line.waiters.len() == 2)
    })
    .await;
    listens.says("their value").await;
    theirs.interrupt();
    let ours = elected(ours).await;
    assert_eq!(heard(&mut observer).await, leader(&ours, "our value"));
    listens.says("our value").await;
    ours.proclaim("our second value").await.expect("proclaimed");
    listens.says("our second value").await;
    assert_eq!(
        heard(&mut observer).await,
        leader(&ours, "our second value")
    );
    // And back.
    resign(ours).await;
    behind.says("their second").await;
    listens.says("their second").await;
    assert_eq!(heard(&mut observer).await.value, "their second");
}

/// The election and the mutex of one name are one line, as in Go.
#[tokio::test(flavor = "multi_thread")]
async fn an_election_and_a_mutex_of_one_name_exclude_each_other() {
    let server = Etcd::start();
    let client = client(&server).await;
    let leadership = client
        .election("one")
        .campaign("leader")
        .await
        .expect("elected");
    assert!(
        client
            .mutex("one")
            .try_acquire()
            .await
            .expect("an answer")
            .is_none()
    );
    resign(leadership).await;
    let guard = client
        .mutex("one")
        .owner("holder")
        .acquire()
        .await
        .expect("acquired");
    assert!(
        client
            .election("one")
            .try_campaign("leader")
            .await
            .expect("an answer")
            .is_none()
    );
    assert_eq!(
        client
            .election("one")
            .leader()
            .await
            .expect("an answer")
            .map(|leader| leader.value)
            .as_deref(),
        Some("holder")
    );
    drop(guard);
}
