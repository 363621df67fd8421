//! One etcd server under faults, with locks that are held and waited for meanwhile: a mutex,
//! readers, permits, and `format=plain`.

#![cfg(feature = "etcd")]

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::actors::{connect, is_renewed, number, rise};
use common::etcd::{
    LIMIT, LONG, Metrics, Pair, SHORT, client, keys, leases, leases_of, line_is, proxy, revoke_all,
};
use common::etcd_lines::{Clients, LINES, Line, Pairs, is_alone};
use palisade::blocking::Wait;
use palisade::store::Revoked;
use palisade::{Client, LossReason, Released, Status};
use palisade_conformance::eventually;
use palisade_testkit::etcd::Etcd;
use palisade_testkit::proxy::{Proxy, Way};

/// A server, and a proxy for those who hold and wait; the onlooker goes around it.
struct Scene {
    server: Etcd,
    proxy: Proxy,
    clients: Clients,
    outside: Client,
}

impl Scene {
    fn start() -> Scene {
        let server = Etcd::start();
        let proxy = proxy(&server);
        let clients = Clients::of(&through(&proxy));
        Scene {
            clients,
            outside: client(&server),
            server,
            proxy,
        }
    }

    fn url(&self) -> String {
        through(&self.proxy)
    }

    async fn begin(&self, name: &str, lease: Duration) -> Pairs {
        Pairs::begin(
            &self.server,
            &self.clients,
            &self.clients,
            &self.outside,
            name,
            lease,
        )
        .await
    }

    /// Breaks the connections whose answers are held up, so that they are lost.
    fn lose_answers(&self) {
        self.proxy.reset();
        self.proxy.heal();
    }
}

fn through(proxy: &Proxy) -> String {
    format!("etcd://{}/lock?request_timeout=2s", proxy.address())
}

/// A client of two addresses of one server, which asks through the proxy just now. To it they are
/// two members.
async fn of_two_members(server: &Etcd, proxy: &Proxy, words: &str) -> Client {
    let url = format!(
        "etcd://{},{}/lock{words}",
        proxy.address(),
        server.address()
    );
    loop {
        let client = connect(&url);
        let warm = client
            .mutex("warm")
            .lease(SHORT)
            .acquire()
            .await
            .expect("a grant");
        assert_eq!(warm.release().await.expect("an answer"), Released::Done);
        if proxy.connections() > 0 {
            return client;
        }
    }
}

// Connections.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_connections_are_reset_at_once() {
    let scene = Scene::start();
    let pairs = scene.begin("reset", LONG).await;
    for _ in 0..5 {
        scene.proxy.reset();
        eventually("connected again", async || scene.proxy.connections() > 0).await;
    }
    pairs.stand();
    pairs.hand_over().await;
    assert_eq!(keys(&scene.server), [""; 0]);
}

/// Packets are dropped without notice. The holder's renewal finds out, and the waiter's
/// heartbeat.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_died_without_a_word_are_found_out() {
    let scene = Scene::start();
    let pairs = scene.begin("frozen", Duration::from_secs(15)).await;
    pairs.confirmed_after(|| scene.proxy.freeze()).await;
    pairs.stand();
    pairs.hand_over().await;
}

/// The claim has arrived, and its answer has not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_whose_answer_is_lost_finds_its_one_grant() {
    let scene = Scene::start();
    // A waiter with so short a lease waits on the session of the holders.
    let lease = Duration::from_secs(5);
    for line in LINES {
        for waits in [false, true] {
            // Opens a session, so that the claim is the next request. The one before was given up
            // with the claim in doubt.
            let warm = format!("warm-{}", line.what);
            let warm = line
                .holder
                .take(scene.clients.waiter(&line), &warm, lease)
                .await
                .expect("a grant");
            let name = format!("answer-{}-{waits}", line.what);
            let first = match waits {
                true => Some(
                    line.holder
                        .take(&scene.outside, &name, LONG)
                        .await
                        .expect("a grant"),
                ),
                false => None,
            };
            let claims = Metrics::of(&scene.server).begun("Txn");
            scene.proxy.stall(Way::ToClient);
            let (client, named) = (scene.clients.waiter(&line).clone(), name.clone());
            let claiming =
                tokio::spawn(async move { line.waiter.take(&client, &named, lease).await });
            if waits && !line.queues {
                // It is turned away.
                eventually("it has asked", async || {
                    Metrics::of(&scene.server).begun("Txn") > claims
                })
                .await;
            } else {
                line_is(&scene.outside, &name, (1, usize::from(waits))).await;
            }
            scene.lose_answers();
            let made = keys(&scene.server);
            let fence = first.as_ref().map_or(0, number);
            drop(first);
            let guard = tokio::time::timeout(LIMIT, claiming)
                .await
                .expect("a grant in time")
                .expect("no panic")
                .expect("a grant");
            rise(&[fence, number(&guard)]);
            let now = keys(&scene.server);
            let known = |key: &String| made.contains(key) || (waits && !line.queues);
            assert!(
                now.iter().all(known),
                "{}: another key was made: {made:?}, {now:?}",
                line.what
            );
            is_alone(&scene.outside, &line, &name, guard).await;
            drop(warm);
        }
    }
}

/// The release has arrived, and its answer has not: the next is let in once, and nothing of it is
/// released by the second attempt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_whose_answer_is_lost_is_made_once() {
    // So that the next ones are renewed while we wait.
    let lease = Duration::from_secs(6);
    let scene = Scene::start();
    let name = |line: &Line| format!("given-back-{}", line.what);
    let (mut held, mut waiting, mut next) = (Vec::new(), Vec::new(), Vec::new());
    for line in LINES {
        held.push(
            line.holder
                .take(scene.clients.holder(&line), &name(&line), LONG)
                .await
                .expect("a grant"),
        );
        // It goes around the proxy, and so nothing but the release lets it in. Its line is that of
        // both formats.
        let (client, name) = (scene.outside.clone(), name(&line));
        waiting.push(tokio::spawn(async move {
            line.waiter.take(&client, &name, lease).await
        }));
    }
    for line in LINES {
        line_is(&scene.outside, &name(&line), (1, 1)).await;
    }
    scene.proxy.stall(Way::ToClient);
    let fences: Vec<u64> = held.iter().map(number).collect();
    let releasing: Vec<_> = held
        .into_iter()
        .map(|held| tokio::spawn(async move { held.release().await }))
        .collect();
    for waiting in waiting {
        next.push(
            tokio::time::timeout(LIMIT, waiting)
                .await
                .expect("gets in")
                .expect("no panic")
                .expect("a grant"),
        );
    }
    scene.lose_answers();
    for (line, releasing) in LINES.iter().zip(releasing) {
        let released = tokio::time::timeout(LIMIT, releasing)
            .await
            .expect("an end")
            .expect("no panic");
        let released = released.expect("an answer");
        assert!(
            matches!(released, Released::Done | Released::Unknown),
            "{}: {released:?}",
            line.what
        );
    }
    for ((line, fence), next) in LINES.iter().zip(fences).zip(next) {
        rise(&[fence, number(&next)]);
        is_renewed(&next).await;
        is_alone(&scene.outside, line, &name(line), next).await;
    }
    assert_eq!(keys(&scene.server), [""; 0]);
}

/// A release that hangs at one member for longer than the lease, while the session lives on by
/// another: the key must not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_did_not_arrive_is_made_good() {
    let server = Etcd::start();
    let (proxy, outside) = (proxy(&server), client(&server));
    let ours = of_two_members(&server, &proxy, "").await;
    let kept = ours
        .mutex("kept")
        .lease(SHORT)
        .acquire()
        .await
        .expect("a grant");
    let pair = Pair::begin([&ours, &outside, &outside], "left", SHORT).await;
    proxy.stall(Way::Both);
    let next = pair.hands_over().await;
    assert!(next.is_held());
    // The others of its session are none the worse for it, unless the stall has cost them a lease.
    println!("the other one: {:?}", kept.status());
}

/// A claim hangs on its way to one member, is made at another, and is given back. When it arrives
/// after all, the session that it names is gone, or ends soon: the client's other locks have left
/// that session, which would keep the name locked for as long as they live.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_arrives_late_does_not_lock_the_name() {
    // Longer than a key is deleted after its claim was withdrawn, which is twice the request
    // time-out.
    let (lease, late_by) = (Duration::from_secs(12), Duration::from_secs(6));
    let server = Etcd::start();
    let (proxy, outside) = (proxy(&server), client(&server));
    let ours = of_two_members(&server, &proxy, "?request_timeout=1s").await;
    let kept = ours
        .mutex("kept")
        .lease(lease)
        .acquire()
        .await
        .expect("a grant");
    proxy.delay(Way::ToServer, late_by, Duration::ZERO);
    let sent = Instant::now();
    let guard = ours
        .mutex("late")
        .lease(lease)
        .store_wait(LONG)
        .acquire()
        .await
        .expect("by the other member");
    assert!(
        sent.elapsed() < late_by,
        "it was not made at the other member"
    );
    assert_eq!(guard.release().await.expect("an answer"), Released::Done);
    line_is(&outside, "late", (0, 0)).await;
    eventually("the claim has arrived", async || {
        sent.elapsed() > late_by + Duration::from_secs(1)
    })
    .await;
    line_is(&outside, "late", (0, 0)).await;
    is_renewed(&kept).await;
    line_is(&outside, "late", (0, 0)).await;
    assert_eq!(kept.status(), Status::Held);
}

/// The server is away for longer than the lease, and the locks are given back meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_while_the_server_is_away_is_made_good() {
    let scene = Scene::start();
    let mut held = Vec::new();
    for line in LINES {
        held.push(
            line.holder
                .take(scene.clients.holder(&line), line.what, SHORT)
                .await
                .expect("a grant"),
        );
    }
    scene.server.kill();
    drop(held);
    // So long does a client try to release.
    tokio::time::sleep(SHORT * 2).await;
    scene.server.restart();
    for line in LINES {
        // By mistake it could be the same session as before, and with it the key that should be
        // gone.
        let name = format!("other-{}", line.what);
        let other = line.holder.take(scene.clients.holder(&line), &name, SHORT);
        let other = tokio::time::timeout(LIMIT, other)
            .await
            .expect("in time")
            .expect("a grant");
        let next = tokio::time::timeout(
            LIMIT,
            line.waiter
                .take(scene.clients.waiter(&line), line.what, SHORT),
        );
        let next = next
            .await
            .unwrap_or_else(|_| panic!("{}: another claim holds it", line.what))
            .expect("a grant");
        assert!(next.is_held() && other.is_held(), "{}", line.what);
    }
}

/// A member hangs that has the watches: the holder does not go on believing by their word.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_hangs_is_not_believed() {
    let lease = Duration::from_secs(3);
    let server = Etcd::start();
    let (proxy, outside) = (proxy(&server), client(&server));
    let ours = of_two_members(&server, &proxy, "").await;
    let held = ours
        .mutex("hung")
        .lease(lease)
        .acquire()
        .await
        .expect("a grant");
    eventually("its key is watched", async || {
        Metrics::of(&server).watches() > 0
    })
    .await;
    // By then it was looked at once after that.
    is_renewed(&held).await;
    is_renewed(&held).await;
    proxy.stall(Way::Both);
    is_renewed(&held).await;
    assert_eq!(
        outside
            .revoke("hung", held.fence())
            .await
            .expect("an answer"),
        Revoked::Done
    );
    let mut renewals = 0;
    loop {
        tokio::select! {
            reason = held.lost() => {
                println!("{reason:?} after {renewals} renewals");
                break;
            }
            () = is_renewed(&held) => renewals += 1,
        }
        assert!(
            renewals <= 4,
            "renewed {renewals} times though its key was gone"
        );
    }
}

// Servers.

/// Holders go on holding, and no waiter is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_is_survived() {
    let scene = Scene::start();
    let pairs = scene.begin("restart", Duration::from_secs(15)).await;
    let restart = || {
        scene.server.kill();
        scene.server.restart();
    };
    pairs.confirmed_after(restart).await;
    pairs.stand();
    pairs.hand_over().await;
}

/// Nothing answers: the holders are told by their own clocks, and no other client holds before
/// that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_longer_than_the_lease_never_makes_two_holders() {
    let scene = Scene::start();
    let pairs = scene.begin("paused", SHORT).await;
    scene.server.pause();
    pairs.are_told(LossReason::Expired).await;
    scene.server.resume();
    pairs.lose_it_to_the_next(LossReason::Expired).await;
}

/// Only the holders are cut off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_is_cut_off_is_told_before_the_next_is_admitted() {
    let scene = Scene::start();
    let near = Clients::of(&format!(
        "etcd://{}/lock?request_timeout=2s",
        scene.server.address()
    ));
    for way in [Way::ToServer, Way::ToClient, Way::Both] {
        let name = format!("cut-{way:?}");
        let pairs = Pairs::begin(
            &scene.server,
            &scene.clients,
            &near,
            &scene.outside,
            &name,
            SHORT,
        )
        .await;
        scene.proxy.stall(way);
        pairs.lose_it_to_the_next(LossReason::Expired).await;
        scene.proxy.reset();
        scene.proxy.heal();
    }
}

/// Compaction behind the back of those who wait changes nothing for them, with their connections
/// broken or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compaction_during_a_wait_is_survived() {
    let scene = Scene::start();
    for (round, breaks) in [false, true].into_iter().enumerate() {
        let pairs = scene.begin(&format!("compacted-{round}"), LONG).await;
        if breaks {
            scene.proxy.refuse();
            scene.proxy.reset();
        }
        for round in 0..20 {
            scene.server.etcdctl(&["put", "noise", &round.to_string()]);
        }
        let answer = scene
            .server
            .etcdctl(&["put", "noise", "last", "-w", "json"]);
        let (_, revision) = answer.split_once("\"revision\":").expect("a revision");
        let revision: String = revision.chars().take_while(char::is_ascii_digit).collect();
        scene.server.etcdctl(&["compact", &revision]);
        scene.proxy.heal();
        pairs.stand();
        pairs.hand_over().await;
    }
}

/// Leases that are revoked by hand take all their claims with them. Who held is told, and who
/// waited stands in line again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoked_leases_are_told_and_no_waiter_is_lost() {
    let scene = Scene::start();
    let holder = scene.clients.holder(&LINES[0]);
    let other = holder
        .mutex("other")
        .lease(LONG)
        .acquire()
        .await
        .expect("a grant");
    let pairs = scene.begin("revoked", LONG).await;
    // Waiters first: no waiter is granted what the next revocation takes from it.
    let holders = leases_of(&scene.server, &pairs.fences());
    let (last, first): (Vec<_>, Vec<_>) = leases(&scene.server)
        .into_iter()
        .partition(|lease| holders.contains(lease));
    assert!(last.len() == 2 && first.len() >= 2, "{last:?} {first:?}");
    revoke_all(&scene.server, first.iter().chain(&last));
    // Long before the next renewal.
    pairs.have_it_dropped(LossReason::SessionEnded).await;
    let told = tokio::time::timeout(LIMIT, other.lost())
        .await
        .expect("told long before its next renewal");
    assert_eq!(told, LossReason::SessionEnded);
    let again = holder
        .mutex("other")
        .acquire_timeout(LIMIT)
        .await
        .expect("another session");
    assert!(again.fence() > other.fence());
}

/// The session of the waiters alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_lease_is_revoked_stands_in_line_again() {
    let scene = Scene::start();
    for line in LINES.iter().filter(|line| line.queues) {
        let before = leases(&scene.server);
        let held = line
            .holder
            .take(&scene.outside, line.what, LONG)
            .await
            .expect("a grant");
        let holders = leases(&scene.server);
        // A lease of its own, so that its sessions are new ones.
        let (client, lease, line) = (connect(scene.url()), LONG, *line);
        let waiting =
            tokio::spawn(async move { line.waiter.take(&client, line.what, lease).await });
        line_is(&scene.outside, line.what, line.shape()).await;
        let waiters = keys(&scene.server);
        for lease in leases(&scene.server)
            .iter()
            .filter(|lease| !holders.contains(lease) && !before.contains(lease))
        {
            scene.server.etcdctl(&["lease", "revoke", lease]);
        }
        eventually("in line by another key", async || {
            let now = keys(&scene.server);
            now.len() == 2 && now != waiters
        })
        .await;
        assert!(held.is_held());
        let fence = number(&held);
        assert_eq!(held.release().await.expect("an answer"), Released::Done);
        let next = tokio::time::timeout(LIMIT, waiting)
            .await
            .expect("gets in")
            .expect("no panic")
            .expect("a grant");
        rise(&[fence, number(&next)]);
        is_alone(&scene.outside, &line, line.what, next).await;
    }
}

// Clients.

/// One process of [`a_holder_that_was_stopped_past_its_lease_does_not_believe`]: says as often as
/// it can that it holds.
#[test]
#[ignore = "started by another test"]
fn a_stopped_holder() {
    let Ok(task) = std::env::var("PALISADE_HOLDER") else {
        return;
    };
    let [url, at]: [&str; 2] = task
        .split(' ')
        .collect::<Vec<_>>()
        .try_into()
        .expect("two words");
    let line = &LINES[at.parse::<usize>().expect("a number")];
    let client = connect(url);
    let guard = line
        .holder
        .take(&client, line.what, SHORT)
        .wait()
        .expect("a grant");
    loop {
        // Before the question: what is believed after it is not known.
        let now = millis();
        if !guard.is_held() {
            println!("\nlost");
            return;
        }
        println!("\nheld {now} {}", number(&guard));
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn millis() -> u128 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after 1970")
        .as_millis()
}

/// A process that is stopped for longer than its lease, and goes on: it does not believe for a
/// moment that it holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_was_stopped_past_its_lease_does_not_believe() {
    let server = Etcd::start();
    let near = Clients::of(&format!(
        "etcd://{}/lock?request_timeout=2s",
        server.address()
    ));
    let outside = client(&server);
    let mut stopped = Vec::new();
    for (at, line) in LINES.into_iter().enumerate() {
        let mut holder = Command::new(std::env::current_exe().expect("this test"));
        holder.args(["--exact", "a_stopped_holder", "--ignored", "--nocapture"]);
        holder.env(
            "PALISADE_HOLDER",
            format!(
                "etcd://{}/lock?format={} {at}",
                server.address(),
                line.format
            ),
        );
        let mut holder = holder.stdout(Stdio::piped()).spawn().expect("a process");
        let mut said = BufReader::new(holder.stdout.take().expect("a pipe"))
            .lines()
            .map_while(Result::ok);
        let held = said.find_map(|said| {
            Some(
                said.strip_prefix("held ")?
                    .split_once(' ')?
                    .1
                    .parse::<u64>()
                    .expect("a fence"),
            )
        });
        let (waiter, named) = (near.waiter(&line).clone(), line.what);
        let waiting = tokio::spawn(async move {
            line.waiter
                .take(&waiter, named, SHORT)
                .await
                .map(|guard| (guard, millis()))
        });
        line_is(&outside, named, line.shape()).await;
        signal("-STOP", &holder);
        stopped.push((line, holder, said, held.expect("it holds"), waiting));
    }
    for (line, mut holder, said, fence, waiting) in stopped {
        let (next, began) = tokio::time::timeout(LIMIT, waiting)
            .await
            .expect("gets in")
            .expect("no panic")
            .expect("a grant");
        rise(&[fence, number(&next)]);
        signal("-CONT", &holder);
        // Its own clock has told it: it says so at once, and before it can have asked the store.
        let said: Vec<String> = said.collect();
        assert!(
            said.iter().any(|said| said == "lost"),
            "{}: it does not end",
            line.what
        );
        let last = said
            .iter()
            .filter_map(|said| {
                said.strip_prefix("held ")?
                    .split(' ')
                    .next()?
                    .parse::<u128>()
                    .ok()
            })
            .max();
        assert!(
            last.is_none_or(|last| last <= began),
            "{}: it believed {last:?}, and the next from {began} on",
            line.what
        );
        assert!(holder.wait().expect("ended").success(), "{}", line.what);
        is_alone(&outside, &line, line.what, next).await;
    }
}

fn signal(signal: &str, process: &Child) {
    assert!(
        Command::new("kill")
            .args([signal, &process.id().to_string()])
            .status()
            .expect("kill")
            .success()
    );
}
