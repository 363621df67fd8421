//! Three ZooKeeper servers of which some fail, with a lock that is held and waited for meanwhile.

#![cfg(feature = "zookeeper")]

mod common;

use std::time::{Duration, Instant};

use common::actors::{connect, is_renewed};
use common::zookeeper::{LIMIT, Pair, SHORT, Tally, nodes, proxy};
use palisade::{Client, LossReason, Released, Status};
use palisade_conformance::eventually;
use palisade_testkit::lan::{Host, Lan};
use palisade_testkit::proxy::Way;
use palisade_testkit::zookeeper::{Ensemble, ZooKeeper};

/// Longer than it takes until another leads, on a machine with much else to do.
const LEASE: Duration = Duration::from_secs(20);

/// Starting blocks, which a task may not.
fn three(on: Option<[Host; 3]>, words: &[(&str, &str)]) -> Ensemble {
    let mut setup = ZooKeeper::with().long_sessions();
    for (word, value) in words {
        setup = setup.set(word, value);
    }
    let start = move || match on {
        Some(hosts) => Ensemble::start_on_as(&hosts, &setup),
        None => Ensemble::start_as(&setup),
    };
    std::thread::spawn(start).join().expect("an ensemble")
}

fn client(three: &Ensemble) -> Client {
    connect(format!(
        "zk://{}/lock?request_timeout=2s&connect_timeout=1s",
        three.addresses()
    ))
}

fn clients(three: &Ensemble) -> [Client; 3] {
    [client(three), client(three), client(three)]
}

async fn begin(clients: &[Client; 3], name: &str, lease: Duration) -> Pair {
    Pair::begin(clients.each_ref(), name, lease).await
}

fn a_follower(three: &Ensemble) -> usize {
    let leader = three.leader().address();
    three
        .nodes()
        .iter()
        .position(|node| node.address() != leader)
        .expect("a follower")
}

/// A client gets a lock, whichever server it begins at.
async fn new_claims_succeed(three: &Ensemble, what: &str) {
    for number in 0..4 {
        let fresh = client(three);
        let lock = fresh
            .mutex(format!("new-{what}-{number}"))
            .lease(LEASE)
            .store_wait(LIMIT);
        let guard = lock
            .acquire_timeout(LIMIT)
            .await
            .expect("two of three are enough");
        assert_eq!(guard.release().await.expect("an answer"), Released::Done);
    }
}

/// The leader is killed, then a follower, and at last one hangs: no lock is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_server_costs_no_lock() {
    let three = three(None, &[]);
    let clients = clients(&three);
    for (what, kills, leads) in [
        ("killed", true, true),
        ("down", true, false),
        ("hangs", false, true),
    ] {
        let pair = begin(&clients, what, LEASE).await;
        let failing = match leads {
            true => three.leader(),
            false => &three.nodes()[a_follower(&three)],
        };
        if kills {
            failing.kill()
        } else {
            failing.pause()
        }
        let begun = Instant::now();
        new_claims_succeed(&three, what).await;
        is_renewed(&pair.held).await;
        println!("{what}: renewed after {:?}", begun.elapsed());
        pair.stands();
        let next = pair.hands_over().await;
        if kills {
            failing.restart()
        } else {
            failing.resume()
        }
        eventually("the next one is sure", async || {
            next.status() == Status::Held
        })
        .await;
        assert_eq!(next.release().await.expect("an answer"), Released::Done);
        eventually("no node is left", async || nodes(three.leader()).is_empty()).await;
    }
}

/// A holder that dies just before its leader: sessions begin anew with the next leader, and so the
/// name is free a session later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_holder_keeps_the_name_for_a_whole_session_after_a_new_leader() {
    let three = three(None, &[]);
    let [_, waiter, outside] = clients(&three);
    let leader = three.leader();
    let proxy = proxy(&three.nodes()[a_follower(&three)]);
    let holder = connect(format!("zk://{}/lock", proxy.address()));
    let pair = Pair::begin([&holder, &waiter, &outside], "dies", SHORT).await;
    let begun = Instant::now();
    proxy.stall(Way::Both);
    eventually("half of the session is over", async || {
        begun.elapsed() > SHORT / 2
    })
    .await;
    leader.kill();
    let killed = Instant::now();
    let (reason, _next) = pair.loses_it_to_the_next().await;
    let took = killed.elapsed();
    println!(
        "{took:?} after the leader was killed, {:?} after the holder died",
        begun.elapsed()
    );
    assert_eq!(reason, LossReason::Expired);
    assert!(
        took >= SHORT,
        "the page says a whole session, and it was {took:?}"
    );
    // An election, the session, and a tick; the rest is for busy machines.
    assert!(took < SHORT * 2 + Duration::from_secs(12), "{took:?}");
}

/// Cables are pulled: first the leader's from all others, then a leader's from the other servers
/// only, so that we still reach it and it has nothing to say.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_cut_off_is_left() {
    let lan = Lan::new();
    let hosts = [lan.host(), lan.host(), lan.host()];
    let three = three(Some(hosts.clone()), &[]);
    let clients = clients(&three);
    for (round, from_us_too) in [true, false].into_iter().enumerate() {
        let pair = begin(&clients, &format!("cut-{round}"), LEASE).await;
        let leader = three.leader();
        let at = three
            .nodes()
            .iter()
            .position(|node| node.address() == leader.address())
            .expect("one of them");
        let others = || {
            hosts
                .iter()
                .enumerate()
                .filter(|(other, _)| *other != at)
                .map(|(_, host)| host)
        };
        match from_us_too {
            true => hosts[at].cut(),
            false => others().for_each(|other| hosts[at].cut_from(other)),
        }
        let new = three.leader_after(leader);
        println!("{} leads after {}", new.address(), leader.address());
        new_claims_succeed(&three, &format!("cut-{round}")).await;
        is_renewed(&pair.held).await;
        pair.stands();
        let next = pair.hands_over().await;
        match from_us_too {
            true => hosts[at].heal(),
            false => others().for_each(|other| hosts[at].heal_with(other)),
        }
        assert!(next.is_held());
        drop(next);
        eventually("all three are one again", async || {
            three.nodes().iter().all(|node| node.mode().is_some())
        })
        .await;
    }
}

/// A follower that is cut off from the others goes on answering, here for longer than the session.
/// A holder knows of the loss before the leader admits another claim, because what must come
/// back from the leader does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_is_cut_off_proves_nothing() {
    let lan = Lan::new();
    let hosts = [lan.host(), lan.host(), lan.host()];
    let three = three(Some(hosts.clone()), &[("syncLimit", "60")]);
    let follower = a_follower(&three);
    let ours = connect(format!("zk://{}/lock", three.nodes()[follower].address()));
    let theirs = connect(format!("zk://{}/lock", three.leader().address()));
    let pair = Pair::begin([&ours, &theirs, &theirs], "cut", SHORT).await;
    // Kept alive by its heartbeats alone by now.
    for _ in 0..4 {
        is_renewed(&pair.held).await;
    }
    let others = || {
        hosts
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != follower)
            .map(|(_, host)| host)
    };
    others().for_each(|other| hosts[follower].cut_from(other));
    let (reason, next) = pair.loses_it_to_the_next().await;
    assert_eq!(reason, LossReason::Expired);
    assert_eq!(
        three.nodes()[follower].mode().as_deref(),
        Some("follower"),
        "it still thinks that all is well"
    );
    assert!(next.is_held());
    others().for_each(|other| hosts[follower].heal_with(other));
    // The first one's client is none the worse for it.
    drop(next);
    let again = ours
        .mutex("cut")
        .lease(SHORT)
        .store_wait(LIMIT)
        .acquire_timeout(LIMIT)
        .await
        .expect("a grant");
    assert!(again.is_held());
}

/// A leader stands still for longer than a session lasts, and another leads meanwhile. Who holds by
/// the old one is told before the new one admits a claim, and no client believes it again when it
/// goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_stood_still_gives_nothing_twice() {
    let three = three(None, &[]);
    let old = three.leader();
    let ours = connect(format!("zk://{}/lock?request_timeout=2s", old.address()));
    let theirs = connect(format!(
        "zk://{}/lock",
        three.nodes()[a_follower(&three)].address()
    ));
    let pair = Pair::begin([&ours, &theirs, &theirs], "stood", SHORT).await;
    old.pause();
    let (reason, next) = pair.loses_it_to_the_next().await;
    assert_eq!(reason, LossReason::Expired);
    // The last that was sent to it is done now, or never.
    let waiting = common::actors::wait_for(&ours.mutex("stood").lease(SHORT).store_wait(LIMIT));
    old.resume();
    eventually("it follows", async || {
        old.mode().as_deref() == Some("follower")
    })
    .await;
    eventually("both are in line", async || {
        nodes(three.leader()).len() == 2
    })
    .await;
    assert!(next.is_held() && !waiting.is_finished());
    let fence = next.fence();
    assert_eq!(next.release().await.expect("an answer"), Released::Done);
    let again = tokio::time::timeout(LIMIT, waiting)
        .await
        .expect("served")
        .expect("no panic")
        .expect("a grant");
    common::actors::rise(&[fence, again.fence()]);
    assert_eq!(again.release().await.expect("an answer"), Released::Done);
    eventually("no node is left", async || nodes(three.leader()).is_empty()).await;
}

/// Makes a server patient or not with those whom it does not hear, from its next start on.
fn limit_sync(server: &ZooKeeper, ticks: u32) {
    let config = server.dir().join("zoo.cfg");
    let words = std::fs::read_to_string(&config).expect("a configuration");
    std::fs::write(&config, format!("{words}\nsyncLimit={ticks}\n")).expect("written");
}

/// A leader is cut off from the others, which choose another at once. It does not know, and goes on
/// answering for longer than the session: pings, reads, and a `sync`. Only what takes a majority is
/// not answered, and by that who holds is told in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deposed_leader_proves_nothing() {
    let lan = Lan::new();
    let hosts = [lan.host(), lan.host(), lan.host()];
    let three = three(Some(hosts.clone()), &[("syncLimit", "60")]);
    let old = three.leader();
    let at = three
        .nodes()
        .iter()
        .position(|node| node.address() == old.address())
        .expect("one of them");
    // The others hear soon that it is gone.
    for node in three
        .nodes()
        .iter()
        .filter(|node| node.address() != old.address())
    {
        limit_sync(node, 4);
        node.restart();
        eventually("it follows again", async || {
            node.mode().as_deref() == Some("follower")
        })
        .await;
    }
    let ours = connect(format!("zk://{}/lock?request_timeout=2s", old.address()));
    let theirs = connect(format!(
        "zk://{}/lock",
        three.nodes()[a_follower(&three)].address()
    ));
    let pair = Pair::begin([&ours, &theirs, &theirs], "deposed", SHORT).await;
    // Kept alive by its heartbeats alone by now.
    for _ in 0..4 {
        is_renewed(&pair.held).await;
    }
    let others = || {
        hosts
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != at)
            .map(|(_, host)| host)
    };
    others().for_each(|other| hosts[at].cut_from(other));
    let (reason, next) = pair.loses_it_to_the_next().await;
    assert_eq!(reason, LossReason::Expired);
    assert_eq!(
        old.mode().as_deref(),
        Some("leader"),
        "it still thinks that it leads"
    );
    let new = three.leader_after(old);
    println!(
        "{} leads, and {} thinks so too",
        new.address(),
        old.address()
    );
    others().for_each(|other| hosts[at].heal_with(other));
    let waiting = common::actors::wait_for(&ours.mutex("deposed").lease(SHORT).store_wait(LIMIT));
    eventually("both are in line", async || nodes(new).len() == 2).await;
    assert!(next.is_held() && !waiting.is_finished());
    let fence = next.fence();
    assert_eq!(next.release().await.expect("an answer"), Released::Done);
    let again = tokio::time::timeout(LIMIT, waiting)
        .await
        .expect("served")
        .expect("no panic")
        .expect("a grant");
    common::actors::rise(&[fence, again.fence()]);
}

/// A holder is cut off, and its server, the leader, is cut off from the others, which choose
/// another. The holder reaches the old leader again, which takes its session up without asking the
/// others. That must not lengthen what the holder believes: the new leader ends the session by its
/// own clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_taken_up_by_a_deposed_leader_is_not_believed() {
    let lan = Lan::new();
    let hosts = [lan.host(), lan.host(), lan.host()];
    let three = three(Some(hosts.clone()), &[("syncLimit", "120")]);
    let old = three.leader();
    let at = three
        .nodes()
        .iter()
        .position(|node| node.address() == old.address())
        .expect("one of them");
    for node in three
        .nodes()
        .iter()
        .filter(|node| node.address() != old.address())
    {
        limit_sync(node, 4);
        node.restart();
        eventually("it follows again", async || {
            node.mode().as_deref() == Some("follower")
        })
        .await;
    }
    let proxy = proxy(old);
    // Requests that were queued while it was cut off are over by the time that it is back.
    let ours = connect(format!(
        "zk://{}/lock?request_timeout=300ms",
        proxy.address()
    ));
    let theirs = connect(format!(
        "zk://{}/lock",
        three.nodes()[a_follower(&three)].address()
    ));
    let pair = Pair::begin([&ours, &theirs, &theirs], "taken-up", LEASE).await;
    is_renewed(&pair.held).await;
    let cut = Instant::now();
    proxy.refuse();
    proxy.reset();
    hosts
        .iter()
        .enumerate()
        .filter(|(other, _)| *other != at)
        .for_each(|(_, other)| hosts[at].cut_from(other));
    let new = three.leader_after(old);
    println!(
        "{} leads {:?} after the cut, and {:?} thinks that it does, too",
        new.address(),
        cut.elapsed(),
        old.address()
    );
    // Late enough that a whole session from now on ends after the one that the new leader counts.
    eventually("half of the session is over", async || {
        cut.elapsed() > LEASE / 2
    })
    .await;
    proxy.heal();
    // Several times: a request that was queued meanwhile may come first, and waits for a majority.
    for _ in 0..5 {
        let (tally, seen) = (Tally::of(&proxy), Instant::now());
        eventually("the old leader has answered for a while", async || {
            tally.bytes() > 0 && seen.elapsed() > Duration::from_millis(400)
        })
        .await;
        proxy.reset();
    }
    assert_eq!(
        old.mode().as_deref(),
        Some("leader"),
        "it still thinks that it leads"
    );
    println!(
        "{:?} are left to the holder, {:?} after the cut",
        pair.held.remaining(),
        cut.elapsed()
    );
    proxy.heal();
    proxy.refuse();
    proxy.reset();
    let (reason, _next) = pair.loses_it_to_the_next().await;
    println!("lost and granted {:?} after the cut", cut.elapsed());
    assert_eq!(reason, LossReason::Expired);
}
