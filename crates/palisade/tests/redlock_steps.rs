//! A Redlock that is disturbed in the middle of its steps: connections that are cut during each of
//! them, fences that are raised in several rounds, and a client that is stopped.

#![cfg(feature = "redis")]

mod common;

use std::time::{Duration, Instant};

use common::actors::{give_back, is_renewed, rise, soon, wait_for};
use common::apart::Apart;
use common::ms;
use common::redlock::{
    SIXTY, Ways, client, cycle, cycle_on_all, five, has, held_on_all, nothing_is_left,
};
use palisade::fence::file::FencedFile;
use palisade::{ErrorKind, Fence, Released};
use palisade_conformance::eventually;
use palisade_testkit::proxy::Way;
use palisade_testkit::redis::{Five, Redis};

/// No other number in a request is written like this one.
const LEASE: Duration = Duration::from_millis(2987);
/// Above the servers' clocks: a claim needs a second round where a server has stored this.
const FLOOR: u64 = 7_000_000_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Claim,
    SecondRound,
    Renew,
    Release,
}

impl Step {
    const ALL: [Step; 4] = [Step::Claim, Step::SecondRound, Step::Renew, Step::Release];

    /// Tells the requests of this step from those of the others for the same name.
    fn is_it(self, request: &[u8]) -> bool {
        let asks_for_a_lease = contains(request, b"\r\n2987\r\n");
        match self {
            Step::Claim | Step::Renew => asks_for_a_lease,
            Step::SecondRound => asks_for_a_lease && contains(request, &digits(FLOOR + 1)),
            Step::Release => !asks_for_a_lease,
        }
    }
}

fn digits(number: u64) -> Vec<u8> {
    format!("\r\n{number}\r\n").into_bytes()
}

fn contains(request: &[u8], part: &[u8]) -> bool {
    request.windows(part.len()).any(|window| window == part)
}

/// What a server has stored as the last fence of a name.
fn set_last_fence(node: &Redis, name: &str, fence: u64) {
    let key = format!("palisade:1:fence:{{{name}}}");
    node.call(&["SET", &key, &fence.to_string()]);
}

/// The step is done on these servers, its replies are lost, and their connections are cut.
fn cut(ways: &Ways, places: usize, name: &str, step: Step) {
    for way in &ways.0[..places] {
        let name = format!("\r\n{name}\r\n").into_bytes();
        way.lose_reply_to(move |request| contains(request, &name) && step.is_it(request));
    }
}

fn cuts(ways: &Ways) -> usize {
    ways.0.iter().map(|way| way.lost()).sum()
}

/// Two connections of five, and then three, are cut in each step.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_may_be_cut_in_every_step() {
    let five = five();
    let ways = Ways::to(&five);
    for step in Step::ALL {
        for places in [2, 3] {
            // A client proposes no lower fence than its last, of whichever name.
            let client = ways.client("young=vote");
            let name = format!("{step:?}-{places}");
            let what = format!("{places} connections are cut: {step:?}");
            let mutex = client.mutex(name.as_str()).lease(LEASE);
            cycle_on_all(&client, &five, "warm").await;
            if step == Step::SecondRound {
                let nodes = five.nodes().iter();
                nodes.for_each(|node| set_last_fence(node, &name, FLOOR));
            }
            let before = cuts(&ways);
            if matches!(step, Step::Claim | Step::SecondRound) {
                cut(&ways, places, &name, step);
                let claimed = soon(&what, mutex.try_acquire()).await;
                match claimed {
                    Ok(Some(guard)) if places == 2 => give_back(guard).await,
                    Err(error) if places == 3 => {
                        assert_eq!(error.kind(), ErrorKind::Unavailable, "{what}: {error}");
                    }
                    other => panic!("{what}: {other:?}"),
                }
            } else {
                // No claim is on its way any more.
                let guard = held_on_all(&mutex, &five, &name).await;
                cut(&ways, places, &name, step);
                if step == Step::Renew {
                    eventually(&what, async || cuts(&ways) - before == places).await;
                    is_renewed(&guard).await;
                }
                let released = soon(&what, guard.release()).await.expect("an answer");
                let unknown = step == Step::Release && places == 3;
                assert!(
                    released == Released::Done || unknown && released == Released::Unknown,
                    "{what}: {released:?}"
                );
            }
            // A release is answered by the majority, before the others are.
            eventually(&what, async || cuts(&ways) - before >= places).await;
            nothing_is_left(&five, &name).await;
            let again = soon("it is free", mutex.acquire()).await.expect("a grant");
            give_back(again).await;
        }
    }
}

/// A server that only the second of three rounds has reached is released and renewed all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_fence_of_every_round_is_the_grant_s() {
    let five = five();
    let ways = Ways::to(&five);
    let client = ways.client("young=vote");
    for (name, lease) in [("released", SIXTY), ("renewed", Duration::from_secs(3))] {
        cycle_on_all(&client, &five, name).await;
        for (place, node) in five.nodes().iter().enumerate() {
            set_last_fence(node, name, if place < 3 { FLOOR } else { FLOOR + 1000 });
        }
        // The first round is decided by the first three servers, which know of the lower fence.
        for way in &ways.0[3..] {
            way.delay(Way::ToClient, ms(150), Duration::ZERO);
        }
        ways.0[0].lose_reply_to(|request| contains(request, &digits(FLOOR + 1)));
        let mutex = client.mutex(name).lease(lease);
        let guard = soon("three rounds", mutex.acquire())
            .await
            .expect("a grant");
        assert_eq!(guard.fence().get(), FLOOR + 1001);
        ways.0.iter().for_each(|way| way.heal());
        let behind = |fence: u64| {
            let token = five.nodes()[0].call(&["GET", name]).text();
            token.contains(&format!(".{fence}."))
        };
        if name == "renewed" {
            eventually("renewed", async || behind(FLOOR + 1001)).await;
        } else {
            assert!(behind(FLOOR + 1), "the third round did not reach it");
        }
        give_back(guard).await;
        nothing_is_left(&five, name).await;
    }
}

/// Whichever majority answers, whatever the clocks say, and with replies lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_rise_on_any_majority() {
    const NAME: &str = "random";
    let seed = std::env::var("PALISADE_SEED").map_or_else(
        |_| fastrand::u64(..),
        |seed| seed.parse().expect("PALISADE_SEED is a number"),
    );
    println!("PALISADE_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let five = five();
    let all = [Ways::to(&five), Ways::to(&five)];
    let clients = [all[0].client("young=vote"), all[1].client("young=vote")];
    let mut fences: Vec<Fence> = Vec::new();
    for turn in 0..15 {
        let at = random.usize(..2);
        let (ways, client) = (&all[at], &clients[at]);
        let mut places = [0, 1, 2, 3, 4];
        random.shuffle(&mut places);
        // The first two are in the majority of three that answers.
        let mut away = &places[3..];
        match random.u8(..8) {
            2 => five.nodes()[places[0]].clock().set_ahead(SIXTY),
            3 => places[..2]
                .iter()
                .for_each(|place| five.nodes()[*place].clock().set_back(SIXTY)),
            4 => five.nodes()[places[0]].clock().set_right(),
            5 => {
                ways.0[places[0]].lose_reply();
                away = &places[4..];
            }
            _ => {}
        }
        for place in away {
            ways.0[*place].refuse();
            ways.0[*place].reset();
        }
        fences.push(cycle(client, NAME).await);
        ways.0.iter().for_each(|way| way.heal());
        assert!(
            fences.is_sorted_by(|one, next| one < next),
            "PALISADE_SEED={seed}, turn {turn}: {fences:?}"
        );
    }
}

/// A lock of another program that has no end is asked for at the usual intervals.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_without_an_end_is_waited_for_in_peace() {
    let five = five();
    for node in five.nodes() {
        node.call(&["SET", "endless", "another program's"]);
    }
    let client = client(&five);
    let waiting = wait_for(&client.mutex("endless"));
    let asked = || {
        let stats = five.nodes()[0].call(&["INFO", "commandstats"]).text();
        let calls = |line: &str| {
            let (_, calls) = line.split_once("calls=")?;
            calls.split(',').next()?.parse::<u64>().ok()
        };
        let lines = stats
            .lines()
            .filter(|line| line.starts_with("cmdstat_eval"));
        lines.filter_map(calls).sum::<u64>()
    };
    eventually("it waits", async || asked() > 2).await;
    let (before, begun) = (asked(), Instant::now());
    tokio::time::sleep(ms(1000)).await;
    // Each attempt is a claim; pauses grow to a quarter of a second.
    let most = 2 + 50 * begun.elapsed().as_millis() as u64 / 1000;
    let asked = asked() - before;
    assert!(asked <= most, "{asked} requests in a second");
    for node in five.nodes() {
        node.call(&["DEL", "endless"]);
    }
    let guard = soon("it gets in", waiting).await.expect("no panic");
    give_back(guard.expect("a grant")).await;
}

/// The key of a last fence is no lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_key_of_a_fence_is_refused_as_a_name() {
    let five = five();
    let client = client(&five);
    let refused = client.mutex("palisade:1:fence:{held}").try_acquire().await;
    let refused = refused.map(drop).expect_err("it is refused");
    assert_eq!(refused.kind(), ErrorKind::Config, "{refused}");
}

#[test]
#[ignore = "a part of other tests, in a process of its own"]
fn a_client_apart() {
    common::apart::do_as_told(LEASE);
}

/// No server keeps a key of the client that was stopped for longer than the lease.
async fn ends_with_its_lease(five: &Five) {
    let begun = Instant::now();
    for node in five.nodes() {
        let left = node.call(&["PTTL", "stopped"]).int().expect("a number");
        assert!(left <= LEASE.as_millis() as i64, "{left} ms");
    }
    nothing_is_left(five, "stopped").await;
    assert!(begun.elapsed() < LEASE + ms(3000), "{:?}", begun.elapsed());
}

/// Stopped between T1 and T2: the servers have granted, and the answers wait in the client's sockets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_stopped_between_t1_and_t2_is_not_granted() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = FencedFile::new(folder.path().join("orders")).expect("a file");
    let five = five();
    let ways = Ways::to(&five);
    let mut stopped = Apart::start(&ways.url("young=vote"), &file);
    assert!(stopped.ask("claim").starts_with("granted "));
    assert_eq!(stopped.ask("write"), "written");
    assert_eq!(stopped.ask("release"), "Done");
    nothing_is_left(&five, "stopped").await;

    ways.0.iter().for_each(|way| way.stall(Way::ToClient));
    stopped.tell("claim");
    eventually("all servers have granted", async || {
        five.nodes().iter().all(|node| has(node, "stopped"))
    })
    .await;
    stopped.stop();
    ways.0.iter().for_each(|way| way.heal());
    ends_with_its_lease(&five).await;

    let other = client(&five).mutex("stopped").lease(LEASE);
    let other = soon("the next", other.acquire()).await.expect("a grant");
    file.write(other.fence(), b"by the next").expect("a write");
    stopped.go_on();
    let answer = stopped.answer();
    assert!(!answer.starts_with("granted"), "{answer}");
    stopped.claims("busy");
    // What it takes back is its own alone.
    is_renewed(&other).await;
    assert_eq!(
        file.read().expect("read").as_deref(),
        Some(&b"by the next"[..])
    );
    give_back(other).await;
    stopped.claims("granted ");
    assert_eq!(stopped.ask("write"), "written");
}

/// Stopped after the grant, and after its last look at the guard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_stopped_after_the_grant_writes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = FencedFile::new(folder.path().join("orders")).expect("a file");
    let five = five();
    let ways = Ways::to(&five);
    let mut stopped = Apart::start(&ways.url("young=vote"), &file);
    let granted = stopped.ask("claim");
    let first: u64 = granted
        .strip_prefix("granted ")
        .and_then(|fence| fence.parse().ok())
        .unwrap_or_else(|| panic!("{granted}"));
    assert_eq!(stopped.ask("look"), "held");
    stopped.stop();
    ends_with_its_lease(&five).await;

    let other = client(&five).mutex("stopped").lease(LEASE);
    let other = soon("the next", other.acquire()).await.expect("a grant");
    rise(&[first, other.fence().get()]);
    file.write(other.fence(), b"by the next").expect("a write");
    stopped.go_on();
    assert_eq!(stopped.ask("write"), "stale");
    assert_eq!(stopped.ask("look"), "lost");
    assert_eq!(stopped.ask("release"), "AlreadyLost");
    is_renewed(&other).await;
    assert_eq!(
        file.read().expect("read").as_deref(),
        Some(&b"by the next"[..])
    );
    give_back(other).await;
}
