//! One ZooKeeper server under faults, with a lock that is held and waited for meanwhile.

#![cfg(feature = "zookeeper")]

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use common::actors::{Confirmed, connect, gets_in, in_line, wait_for};
use common::zookeeper::{
    LIMIT, LONG, Pair, RawSession, SHORT, client, has, line_is, line_of, nodes, op, proxy,
};
use palisade::blocking::Wait;
use palisade::{Client, LossReason, Released, Status};
use palisade_conformance::eventually;
use palisade_testkit::proxy::{Proxy, Way};
use palisade_testkit::zookeeper::{Raw, ZooKeeper};

/// Long enough for a restart on a machine with much else to do, and renewed every few seconds.
const LEASE: Duration = Duration::from_secs(15);

/// A server, and a proxy for those who hold and wait; the onlooker goes around it.
struct Scene {
    server: ZooKeeper,
    proxy: Proxy,
    holder: Client,
    waiter: Client,
    outside: Client,
}

impl Scene {
    fn start() -> Scene {
        let server = ZooKeeper::with().long_sessions().start();
        let proxy = proxy(&server);
        let url = format!("zk://{}/lock?request_timeout=2s", proxy.address());
        Scene {
            holder: connect(&url),
            waiter: connect(&url),
            outside: client(&server),
            server,
            proxy,
        }
    }

    async fn begin(&self, name: &str, lease: Duration) -> Pair {
        Pair::begin([&self.holder, &self.waiter, &self.outside], name, lease).await
    }

    /// No node is left.
    async fn is_empty(&self) {
        eventually("no node is left", async || nodes(&self.server).is_empty()).await;
    }
}

// Connections.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_connections_are_reset_at_once() {
    let scene = Scene::start();
    let pair = scene.begin("reset", LONG).await;
    let line = line_of(&scene.server, "reset");
    for _ in 0..5 {
        scene.proxy.reset();
        eventually("connected again", async || scene.proxy.connections() >= 2).await;
    }
    pair.stands();
    assert_eq!(
        line_of(&scene.server, "reset"),
        line,
        "the same nodes on the same sessions"
    );
    let next = pair.hands_over().await;
    assert_eq!(next.release().await.expect("an answer"), Released::Done);
    scene.is_empty().await;
}

/// Packets are dropped without notice. The holder's renewal finds out, and the waiter's
/// heartbeat.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_died_without_a_word_are_found_out() {
    let scene = Scene::start();
    let pair = scene.begin("frozen", LEASE).await;
    let confirmed = Confirmed::of(&pair.held);
    scene.proxy.freeze();
    confirmed.again(&pair.held).await;
    pair.stands();
    drop(pair.hands_over().await);
    scene.is_empty().await;
}

/// The node was made, and the answer is lost; alone, and behind another claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_whose_answer_is_lost_finds_its_one_node() {
    let scene = Scene::start();
    let warm = scene
        .holder
        .mutex("warm")
        .lease(LONG)
        .acquire()
        .await
        .expect("a grant");
    for (name, waits) in [("free", false), ("taken", true)] {
        let first = match waits {
            true => Some(
                scene
                    .outside
                    .mutex(name)
                    .lease(LONG)
                    .acquire()
                    .await
                    .expect("a grant"),
            ),
            false => None,
        };
        scene.proxy.lose_reply_to(|bytes| has(bytes, op::CREATE));
        let waiting = wait_for(&scene.holder.mutex(name).lease(LONG).store_wait(LONG));
        line_is(&scene.outside, name, (1, usize::from(waits))).await;
        eventually("the answer is lost", async || {
            scene.proxy.lost() == 1 + usize::from(waits)
        })
        .await;
        let fence = first.as_ref().map(palisade::Guard::fence);
        if let Some(first) = first {
            // It stands in line by then, and has found its node.
            in_line(&scene.outside, name, 1).await;
            assert_eq!(first.release().await.expect("an answer"), Released::Done);
        }
        let guard = gets_in(waiting).await;
        let line = scene
            .outside
            .show(name)
            .await
            .expect("an answer")
            .expect("held");
        assert_eq!((line.holders.len(), line.waiters.len()), (1, 0));
        assert_eq!(line.holders[0].fence, guard.fence());
        assert!(fence.is_none_or(|fence| fence < guard.fence()));
        assert_eq!(
            line_of(&scene.server, name).len(),
            1,
            "no node but that of the grant"
        );
        assert_eq!(guard.release().await.expect("an answer"), Released::Done);
    }
    assert!(warm.is_held(), "its session has lived through it");
    assert_eq!(warm.release().await.expect("an answer"), Released::Done);
    scene.is_empty().await;
}

/// The node was deleted, and the answer is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_whose_answer_is_lost_is_done() {
    let scene = Scene::start();
    let pair = scene.begin("given", LONG).await;
    scene.proxy.lose_reply_to(|bytes| has(bytes, op::DELETE));
    let next = pair.hands_over().await;
    assert_eq!(scene.proxy.lost(), 1, "an answer was lost");
    assert_eq!(line_of(&scene.server, "given").len(), 1);
    drop(next);
    scene.is_empty().await;
}

/// The node is not deleted when it should be, and its session lives long: so it is deleted later,
/// whether anything else hangs on the session or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_did_not_arrive_is_made_good() {
    let scene = Scene::start();
    for keeps_another in [true, false] {
        let kept = match keeps_another {
            true => Some(
                scene
                    .holder
                    .mutex("kept")
                    .lease(LONG)
                    .acquire()
                    .await
                    .expect("a grant"),
            ),
            false => None,
        };
        let name = format!("left-{keeps_another}");
        // The waiter goes around the proxy: only the holder is cut off.
        let pair = Pair::begin([&scene.holder, &scene.outside, &scene.outside], &name, LONG).await;
        // It is sent, and lost with its connection.
        scene.proxy.stall(Way::ToServer);
        let handed = tokio::spawn(pair.hands_over());
        tokio::time::sleep(Duration::from_millis(300)).await;
        scene.proxy.refuse();
        scene.proxy.reset();
        // So long does a request try at the most.
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(!handed.is_finished() && line_of(&scene.server, &name).len() == 2);
        scene.proxy.heal();
        let next = handed.await.expect("no panic");
        assert!(next.is_held() && kept.is_none_or(|kept| kept.is_held()));
        assert_eq!(line_of(&scene.server, &name).len(), 1);
    }
}

/// A node with our own guid on another session is not ours, whatever made it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_of_another_session_is_not_taken_for_our_own() {
    let scene = Scene::start();
    let warm = scene
        .holder
        .mutex("warm")
        .lease(LONG)
        .acquire()
        .await
        .expect("a grant");
    // Its claim has arrived, and it does not know.
    scene.proxy.stall(Way::ToClient);
    let waiting = wait_for(&scene.holder.mutex("guid").lease(LONG).store_wait(LONG));
    eventually("its node", async || {
        line_of(&scene.server, "guid").len() == 1
    })
    .await;
    let (node, session) = line_of(&scene.server, "guid").remove(0);
    let (prefix, _) = node.split_at(node.len() - 10);
    let mut other = RawSession::connect(&scene.server);
    other.create(prefix);
    scene.server.cli(&["delete", &node]);
    scene.proxy.reset();
    scene.proxy.heal();
    // It looks for its node, finds the other's alone, and makes its own.
    eventually("another node of its session", async || {
        line_of(&scene.server, "guid")
            .iter()
            .any(|(other, of)| *of == session && *other != node)
    })
    .await;
    assert!(!waiting.is_finished(), "the other session is before it");
    drop(other);
    let guard = gets_in(waiting).await;
    let line = line_of(&scene.server, "guid");
    assert!(line.len() == 1 && line[0].1 == session, "{line:?}");
    assert!(guard.is_held() && warm.is_held());
}

// Servers.

/// Holders go on holding, and no waiter is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_is_survived() {
    let scene = Scene::start();
    let pair = scene.begin("restart", LEASE).await;
    let confirmed = Confirmed::of(&pair.held);
    scene.server.kill();
    scene.server.restart();
    confirmed.again(&pair.held).await;
    pair.stands();
    drop(pair.hands_over().await);
    scene.is_empty().await;
}

/// Nothing answers: the holder is told by its own clock, and no other client holds before that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_longer_than_the_session_never_makes_two_holders() {
    let scene = Scene::start();
    let pair = scene.begin("paused", SHORT).await;
    scene.server.pause();
    assert_eq!(
        tokio::time::timeout(LIMIT, pair.held.lost())
            .await
            .expect("told"),
        LossReason::Expired
    );
    scene.server.resume();
    let (_, next) = pair.loses_it_to_the_next().await;
    eventually("the next one is sure", async || {
        next.status() == Status::Held
    })
    .await;
}

/// Only the holder is cut off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_is_cut_off_is_told_before_the_next_is_admitted() {
    let server = ZooKeeper::start();
    let outside = client(&server);
    let cut = [Way::ToServer, Way::ToClient, Way::Both].map(|way| {
        let (proxy, outside) = (proxy(&server), outside.clone());
        tokio::spawn(async move {
            let ours = connect(format!("zk://{}/lock", proxy.address()));
            let pair =
                Pair::begin([&ours, &outside, &outside], &format!("cut-{way:?}"), SHORT).await;
            proxy.stall(way);
            let (reason, next) = pair.loses_it_to_the_next().await;
            assert_eq!(reason, LossReason::Expired, "{way:?}");
            assert_eq!(next.release().await.expect("an answer"), Released::Done);
        })
    });
    for cut in cut {
        cut.await.expect("told in time");
    }
    eventually("no node is left", async || nodes(&server).is_empty()).await;
}

/// The process of [`a_process_that_stood_still_does_not_believe`].
#[test]
#[ignore = "started by another test"]
fn a_holder_of_its_own() {
    let Ok(url) = std::env::var("PALISADE_WORKER") else {
        return;
    };
    let held = connect(url)
        .mutex("stopped")
        .lease(SHORT)
        .acquire()
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

fn signal(process: &Child, signal: &str) {
    let told = Command::new("kill")
        .args([signal, &process.id().to_string()])
        .status()
        .expect("kill");
    assert!(told.success());
}

/// A process is stopped for longer than its session. When it goes on, another client holds the
/// lock, and it knows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_stood_still_does_not_believe() {
    let server = ZooKeeper::start();
    let outside = client(&server);
    let mut holder = Command::new(std::env::current_exe().expect("this test"));
    holder.args(["--exact", "a_holder_of_its_own", "--ignored", "--nocapture"]);
    holder.env("PALISADE_WORKER", format!("zk://{}/lock", server.address()));
    let mut holder = holder.stdout(Stdio::piped()).spawn().expect("a process");
    let mut lines = BufReader::new(holder.stdout.take().expect("a pipe"))
        .lines()
        .map_while(Result::ok);
    let mut word = |word: &str| {
        lines.find_map(|line| {
            Some(
                line.strip_prefix(word)?
                    .trim()
                    .parse::<u128>()
                    .expect("a number"),
            )
        })
    };
    let fence = word("held").expect("a grant");
    let waiting = wait_for(&outside.mutex("stopped").lease(SHORT));
    in_line(&outside, "stopped", 1).await;
    signal(&holder, "-STOP");
    let next = gets_in(waiting).await;
    let admitted = nanos();
    signal(&holder, "-CONT");
    let believed = word("believed").expect("it is told");
    assert!(
        believed > 0 && believed <= admitted,
        "two believed for {} ns",
        believed - admitted
    );
    assert!(u128::from(next.fence().get()) > fence);
    assert!(holder.wait().expect("ended").success());
}

// Sessions and nodes that are ended from outside.

/// A client that knows the number of a session can end it: the holder is told, and the waiter gets
/// in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_an_outsider_ends_is_told() {
    let scene = Scene::start();
    let other = scene
        .holder
        .mutex("other")
        .lease(LEASE)
        .acquire()
        .await
        .expect("a grant");
    let pair = scene.begin("hijacked", LEASE).await;
    let (_, session) = line_of(&scene.server, "hijacked").remove(0);
    scene.server.end_session(session);
    let (reason, next) = pair.has_it_dropped().await;
    assert_eq!(reason, LossReason::SessionEnded);
    let told = tokio::time::timeout(LIMIT, other.lost())
        .await
        .expect("told with it");
    assert_eq!(told, LossReason::SessionEnded);
    // Another session, and higher fences by it.
    let again = scene
        .holder
        .mutex("other")
        .lease(LEASE)
        .acquire_timeout(LIMIT)
        .await
        .expect("another session");
    assert!(again.fence() > other.fence() && next.is_held());
    assert!(
        line_of(&scene.server, "other")
            .iter()
            .all(|(_, of)| *of != session)
    );
    drop((again, next));
    scene.is_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_session_is_ended_stands_in_line_again() {
    let scene = Scene::start();
    let pair = scene.begin("again", LEASE).await;
    let (_, session) = line_of(&scene.server, "again").remove(1);
    scene.server.end_session(session);
    eventually("in line by another session", async || {
        let line = line_of(&scene.server, "again");
        line.len() == 2 && line[1].1 != session
    })
    .await;
    pair.stands();
    drop(pair.hands_over().await);
    scene.is_empty().await;
}

/// The name's node is deleted with everything in it, one by one, as the tool of servers before 3.6
/// does it. The last go first: otherwise a waiter may be admitted in between, and lose that again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_that_is_deleted_begins_anew() {
    let scene = Scene::start();
    let pair = scene.begin("deleted", LONG).await;
    let third = wait_for(&scene.outside.mutex("deleted").lease(LONG).store_wait(LONG));
    in_line(&scene.outside, "deleted", 2).await;
    let mut operator = Raw::open(scene.server.address(), LIMIT).expect("a session");
    for (node, _) in line_of(&scene.server, "deleted").into_iter().rev() {
        assert!(operator.delete(&node).expect("an answer"), "{node}");
    }
    // Refused where another claim has come back already.
    let _ = operator.delete("/lock/deleted");
    // The two who wait stand in line again, in whatever order.
    let told = tokio::time::timeout(LIMIT, pair.held.lost())
        .await
        .expect("told");
    assert_eq!(told, LossReason::Revoked);
    line_is(&scene.outside, "deleted", (1, 1)).await;
    let of_outside = tokio::spawn(async move { gets_in(third).await.release().await });
    let (_, next) = pair.has_it_dropped().await;
    assert_eq!(next.release().await.expect("an answer"), Released::Done);
    let last = tokio::time::timeout(LIMIT, of_outside)
        .await
        .expect("in time")
        .expect("no panic");
    assert_eq!(last.expect("an answer"), Released::Done);
    scene.is_empty().await;
}

/// Only the waiter's node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_node_is_deleted_stands_in_line_again() {
    let scene = Scene::start();
    let pair = scene.begin("pushed", LONG).await;
    let (node, _) = line_of(&scene.server, "pushed").remove(1);
    scene.server.cli(&["delete", &node]);
    eventually("in line by another node", async || {
        let line = line_of(&scene.server, "pushed");
        line.len() == 2 && line[1].0 != node
    })
    .await;
    pair.stands();
    drop(pair.hands_over().await);
    scene.is_empty().await;
}
