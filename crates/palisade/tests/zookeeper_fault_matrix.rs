//! One server under faults, for every format and every kind of lock; the mutex of the format
//! `curator` has `zookeeper_faults`. Each time there is one holder at most, no node
//! without a claim, no waiter that is forgotten, and fences rise.

#![cfg(feature = "zookeeper")]

mod common;

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, SystemTime};

use common::actors::{Confirmed, connect};
use common::zookeeper::{LIMIT, LONG, SHORT, has, nodes, op};
use common::zookeeper_fault_matrix::{ROWS, Scene, url};
use palisade::LossReason;
use palisade::blocking::Wait;
use palisade_conformance::eventually;
use palisade_testkit::proxy::Way;
use palisade_testkit::zookeeper::ZooKeeper;

/// Long enough for a restart on a machine with much else to do, and renewed every few seconds.
const LEASE: Duration = Duration::from_secs(20);

/// So long that its holder looks by itself only after the test has given up: it hears by its watch.
const FOREVER: Duration = Duration::from_secs(1800);

fn server() -> ZooKeeper {
    ZooKeeper::with().long_sessions().start()
}

// Connections.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_connections_are_reset_at_once() {
    let server = server();
    for row in &ROWS {
        let scene = Scene::set(row, &server, LONG);
        let pair = scene.begin().await;
        let before = scene.nodes();
        for _ in 0..3 {
            for proxy in [&scene.holders, &scene.waiters] {
                proxy.reset();
                eventually("connected again", async || proxy.connections() >= 1).await;
            }
        }
        pair.stands();
        assert_eq!(scene.nodes(), before, "the same nodes on the same sessions");
        scene.ends_with(pair.hands_over().await).await;
    }
}

/// The node was made, and the answer is lost: of the first, of one that waits, and of what it gets
/// at last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_whose_answer_is_lost_finds_its_one_node() {
    let server = server();
    for row in &ROWS {
        let scene = Scene::set(row, &server, LONG);
        scene.holders.lose_reply_to(|bytes| has(bytes, op::CREATE));
        let held = scene.hold().await;
        assert_eq!(scene.holders.lost(), 1, "{}: an answer was lost", row.what);
        scene.waiters.lose_reply_to(|bytes| has(bytes, op::CREATE));
        let pair = scene.wait_behind(held).await;
        eventually("the answer is lost", async || scene.waiters.lost() == 1).await;
        // Longer than it takes to make another by mistake: it is connected again, and has looked.
        eventually("connected again", async || scene.waiters.connections() >= 1).await;
        pair.stands();
        scene.has_no_more_nodes_than(1, 1);
        if let Some(made) = row.taken_by {
            let is_it = move |bytes: &[u8]| {
                has(bytes, op::MULTI)
                    && bytes
                        .windows(made.len())
                        .any(|part| part == made.as_bytes())
            };
            scene.waiters.lose_reply_to(is_it);
        }
        let next = pair.hands_over().await;
        assert_eq!(
            scene.waiters.lost(),
            1 + usize::from(row.taken_by.is_some()),
            "{}: answers were lost",
            row.what
        );
        scene.ends_with(next).await;
    }
}

/// The node was deleted, and the answer is lost: of a holder, and of a waiter that gave up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_whose_answer_is_lost_is_the_end() {
    let server = server();
    for row in &ROWS {
        let scene = Scene::set(row, &server, LONG);
        let held = scene.hold().await;
        if row.has_line {
            let session = scene.session();
            let waiting = scene.waits_for_a_while();
            scene.waits_beside(&[session]).await;
            scene.waiters.lose_reply_to(|bytes| has(bytes, op::DELETE));
            waiting.abort();
            eventually("the answer is lost", async || scene.waiters.lost() == 1).await;
            eventually("it has left the line", async || {
                scene.nodes().iter().all(|(_, of)| *of == session)
            })
            .await;
        }
        let pair = scene.wait_behind(held).await;
        scene.holders.lose_reply_to(|bytes| has(bytes, op::DELETE));
        let next = pair.hands_over().await;
        assert_eq!(scene.holders.lost(), 1, "{}: an answer was lost", row.what);
        scene.ends_with(next).await;
    }
}

/// Only the holders are cut off: each is told before the next is admitted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_is_cut_off_is_told_before_the_next_is_admitted() {
    let server = server();
    let mut cut = Vec::new();
    for row in &ROWS {
        let scene = Scene::set(row, &server, SHORT);
        let pair = scene.begin().await;
        scene.holders.stall(Way::Both);
        cut.push((scene, pair));
    }
    for (scene, pair) in cut {
        let (reason, next) = pair.loses_it_to_the_next().await;
        assert_eq!(reason, LossReason::Expired, "{}", scene.row.what);
        scene.holders.heal();
        scene.ends_with(next).await;
    }
}

// Servers and processes.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_is_survived() {
    let server = server();
    let mut pairs = Vec::new();
    for row in &ROWS {
        let scene = Scene::set(row, &server, LEASE);
        let pair = scene.begin().await;
        pairs.push((scene, pair));
    }
    let confirmed: Vec<Confirmed> = pairs
        .iter()
        .map(|(_, pair)| Confirmed::of(&pair.held))
        .collect();
    let before = nodes(&server);
    server.kill();
    server.restart();
    for ((scene, pair), confirmed) in pairs.iter().zip(confirmed) {
        confirmed.again(&pair.held).await;
        assert!(pair.held.is_held(), "{}", scene.row.what);
        pair.stands();
    }
    assert_eq!(
        nodes(&server),
        before,
        "the same nodes on the same sessions"
    );
    for (scene, pair) in pairs {
        scene.ends_with(pair.hands_over().await).await;
    }
}

/// The process of [`a_process_that_stood_still_does_not_believe`].
#[test]
#[ignore = "started by another test"]
fn a_holder_of_its_own() {
    let Ok(work) = std::env::var("PALISADE_WORKER") else {
        return;
    };
    let (row, url) = work.split_once(' ').expect("a row and a URL");
    let row = ROWS.iter().find(|other| other.what == row).expect("a row");
    let held = row
        .holds
        .acquire(&connect(url), row.what, SHORT)
        .wait()
        .expect("a grant");
    println!("\nheld {}", held.fence());
    let mut last = 0;
    loop {
        // Before the question: what is believed after it is not known.
        let now = nanos();
        if !held.is_held() {
            break;
        }
        last = now;
        // There are many of them.
        std::thread::sleep(Duration::from_millis(1));
    }
    println!("\nbelieved {last}");
}

/// The one clock that two processes share.
fn nanos() -> u128 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .expect("after 1970")
        .as_nanos()
}

struct Worker {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    fn start(work: &str) -> Worker {
        let mut holder = Command::new(std::env::current_exe().expect("this test"));
        holder
            .args(["--exact", "a_holder_of_its_own", "--ignored", "--nocapture"])
            .env("PALISADE_WORKER", work);
        let mut process = holder.stdout(Stdio::piped()).spawn().expect("a process");
        let lines = BufReader::new(process.stdout.take().expect("a pipe")).lines();
        Worker { process, lines }
    }

    fn word(&mut self, word: &str) -> u128 {
        let mut lines = self.lines.by_ref().map_while(Result::ok);
        let found =
            lines.find_map(|line| Some(line.strip_prefix(word)?.trim().parse().expect("a number")));
        found.unwrap_or_else(|| panic!("it has not said {word}"))
    }

    fn signal(&self, signal: &str) {
        let told = Command::new("kill")
            .args([signal, &self.process.id().to_string()])
            .status()
            .expect("kill");
        assert!(told.success());
    }
}

/// Processes are stopped for longer than their sessions. When they go on, another client holds, and
/// they know.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_stood_still_does_not_believe() {
    let server = server();
    let mut stopped = Vec::new();
    for row in &ROWS {
        let scene = Scene::set(row, &server, SHORT);
        let mut worker = Worker::start(&format!("{} {}", row.what, url(row, server.address())));
        let fence = worker.word("held");
        let session = scene.session();
        let waiting = scene.waits_for_a_while();
        scene.waits_beside(&[session]).await;
        let admitted = tokio::spawn(async move { waiting.await.map(|guard| (guard, nanos())) });
        worker.signal("-STOP");
        stopped.push((scene, worker, fence, admitted));
    }
    for (scene, mut worker, fence, admitted) in stopped {
        let what = scene.row.what;
        let (next, admitted) = tokio::time::timeout(LIMIT, admitted)
            .await
            .expect("served")
            .expect("no panic")
            .expect("no panic");
        let next = next.expect("a grant");
        worker.signal("-CONT");
        let believed = worker.word("believed");
        assert!(
            believed > 0 && believed <= admitted,
            "{what}: two believed for {} ns",
            believed - admitted
        );
        assert!(u128::from(next.fence().get()) > fence, "{what}");
        assert!(worker.process.wait().expect("ended").success(), "{what}");
        scene.ends_with(next).await;
    }
}

// Sessions and nodes that are ended from outside.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_an_outsider_ends_is_told() {
    let server = server();
    for row in &ROWS {
        let scene = Scene::set(row, &server, LEASE);
        let held = scene.hold().await;
        let session = scene.session();
        let pair = scene.wait_behind(held).await;
        server.end_session(session);
        let (reason, next) = pair.has_it_dropped().await;
        assert_eq!(reason, LossReason::SessionEnded, "{}", row.what);
        scene.ends_with(next).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_session_is_ended_waits_again() {
    let server = server();
    for row in &ROWS {
        let scene = Scene::set(row, &server, LEASE);
        let held = scene.hold().await;
        let holds = scene.session();
        let pair = scene.wait_behind(held).await;
        let session = scene.waits_beside(&[holds]).await;
        server.end_session(session);
        scene.waits_beside(&[holds, session]).await;
        pair.stands();
        scene.has_no_more_nodes_than(1, 1);
        scene.ends_with(pair.hands_over().await).await;
    }
}

/// The name's nodes are deleted with everything in them, under who holds and who waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_that_is_deleted_begins_anew() {
    let server = server();
    for row in &ROWS {
        let scene = Scene::set(row, &server, FOREVER);
        let pair = scene.begin().await;
        scene.delete_all();
        let (reason, next) = pair.has_it_dropped().await;
        assert_eq!(reason, LossReason::Revoked, "{}", row.what);
        scene.ends_with(next).await;
    }
}
