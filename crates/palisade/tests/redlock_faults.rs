//! Five servers of a Redlock under faults: servers that die, hang, restart empty or have a wrong
//! clock, and connections that are cut at each step.

#![cfg(feature = "redis")]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::actors::{
    Believer, connect, gets_in, give_back, is_renewed, is_told, rise, soon, wait_for,
};
use common::ms;
use common::redlock::{
    SIXTY, Ways, client, cycle, cycle_on_all, five, has, held_on_all, nothing_is_left,
};
use palisade::store::Order;
use palisade::{ErrorKind, Released};
use palisade_conformance::eventually;
use palisade_testkit::proxy::Way;
use palisade_testkit::redis::Redis;

const LEASE: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_of_five_may_die_while_it_is_held() {
    let five = five();
    let (holder, other) = (client(&five), client(&five));
    let mutex = holder.mutex("held").lease(LEASE);
    let held = held_on_all(&mutex, &five, "held").await;
    five.nodes()[..2].iter().for_each(|node| node.kill());
    is_renewed(&held).await;
    is_renewed(&held).await;
    let refused = other.mutex("held").try_acquire().await.expect("an answer");
    assert!(refused.is_none(), "three of five hold");
    // A third ends it: no majority renews, and the holder is told by its own clock.
    five.nodes()[2].kill();
    is_told(&held).await;
    let down = other.mutex("held").try_acquire().await.map(drop);
    let down = down.expect_err("two of five decide nothing");
    assert_eq!(down.kind(), ErrorKind::Unavailable, "{down}");
}

/// Restarted empty, a server has lost its vote; the others still have theirs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_that_restart_empty_free_nothing() {
    let five = five();
    let (holder, other) = (client(&five), client(&five));
    let held = held_on_all(&holder.mutex("kept").lease(LEASE), &five, "kept").await;
    five.nodes()[..2]
        .iter()
        .for_each(|node| node.restart_empty());
    is_renewed(&held).await;
    let refused = other.mutex("kept").try_acquire().await.expect("an answer");
    assert!(refused.is_none());
    assert!(held.is_held());
    give_back(held).await;
    nothing_is_left(&five, "kept").await;
}

/// The fence is on a majority: it rises although two servers lost it, and those that are asked have
/// clocks that are behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_rise_when_two_servers_are_lost_and_replaced() {
    let five = five();
    let before = cycle_on_all(&client(&five), &five, "fence").await;
    for node in &five.nodes()[..2] {
        node.restart_empty();
    }
    for node in &five.nodes()[..3] {
        node.clock().set_back(SIXTY);
    }
    // The third server is the only one of these that has seen the fence.
    let ways = Ways::only(&five, &[0, 1, 2]);
    let newcomer = ways.client("young=vote");
    let after = cycle(&newcomer, "fence").await;
    rise(&[before, after, cycle(&client(&five), "fence").await]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_rise_whatever_one_or_two_clocks_do() {
    let five = five();
    let clients = [client(&five), client(&five)];
    let mut fences = Vec::new();
    for wrong in [1, 2] {
        for step in ["ahead", "right", "back", "right"] {
            for node in &five.nodes()[..wrong] {
                match step {
                    "ahead" => node.clock().set_ahead(SIXTY),
                    "back" => node.clock().set_back(SIXTY),
                    _ => node.clock().set_right(),
                }
            }
            for client in &clients {
                fences.push(cycle(client, "clocks").await);
            }
        }
    }
    rise(&fences);
}

/// Leases end at once on a server whose clock steps ahead, and late on one whose clock steps back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_or_two_wrong_clocks_neither_free_nor_keep_a_lock() {
    let five = five();
    for (wrong, ahead) in [(1, true), (1, false), (2, true), (2, false)] {
        let name = format!("{wrong}-{ahead}");
        let (holder, other) = (client(&five), client(&five));
        // Every server is reached, and the lock is on all of them.
        cycle_on_all(&holder, &five, &name).await;
        let mutex = holder.mutex(name.as_str()).lease(LEASE);
        let held = held_on_all(&mutex, &five, &name).await;
        for node in &five.nodes()[..wrong] {
            if ahead {
                node.clock().set_ahead(SIXTY);
            } else {
                node.clock().set_back(SIXTY);
            }
        }
        let mutex = other.mutex(name.as_str()).lease(LEASE);
        let refused = mutex.try_acquire().await.expect("an answer");
        assert!(refused.is_none());
        is_renewed(&held).await;
        // A holder that dies: its lease ends on the others.
        let grant = held.detach().await.expect("detached");
        drop(holder);
        let next = soon("the lease ends", mutex.acquire()).await;
        let next = next.expect("a grant");
        rise(&[grant.fence(), next.fence()]);
        give_back(next).await;
        five.nodes()
            .iter()
            .for_each(|node| node.clock().set_right());
    }
}

/// A server that hangs costs nothing, on release neither. What it was asked before it hung, and
/// does after, leaves nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_server_costs_nothing_and_keeps_nothing() {
    let five = five();
    let client = client(&five);
    cycle(&client, "hung").await;
    five.nodes()[3].pause();
    let begun = Instant::now();
    for _ in 0..20 {
        cycle(&client, "hung").await;
    }
    let took = begun.elapsed();
    assert!(took < ms(2000), "20 cycles took {took:?}");
    five.nodes()[3].resume();
    nothing_is_left(&five, "hung").await;
    eventually("its vote counts again", async || {
        let fence = cycle(&client, "hung").await;
        let stored = five.nodes()[3].call(&["GET", "palisade:1:fence:{hung}"]);
        stored.text() == fence.get().to_string()
    })
    .await;
}

/// A partial grant is released on every server, and those that cannot be reached are released when
/// they can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_without_a_majority_leaves_nothing() {
    let five = five();
    let ways = Ways::to(&five);
    let client = ways.client("young=vote");
    cycle(&client, "partial").await;
    // Three replies are lost on their way back: the claim is on all five, and knows of two.
    for way in &ways.0[..3] {
        way.lose_reply_to(|request| contains(request, b"cut%2Dhere"));
    }
    let mutex = client.mutex("partial").reason("cut-here").lease(SIXTY);
    let failed = mutex.try_acquire().await.map(drop);
    let failed = failed.expect_err("two replies are no majority");
    assert_eq!(failed.kind(), ErrorKind::Unavailable, "{failed}");
    nothing_is_left(&five, "partial").await;
    cycle(&client, "partial").await;
}

/// A part of the votes is given back before the claim asks again: three such claims would keep each
/// other out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_of_the_votes_is_given_back() {
    let five = five();
    let client = client(&five);
    cycle_on_all(&client, &five, "part").await;
    for node in &five.nodes()[..3] {
        node.call(&["SET", "part", "another program's"]);
    }
    let mutex = client.mutex("part").lease(SIXTY);
    for _ in 0..10 {
        let refused = mutex.try_acquire().await.expect("an answer");
        assert!(refused.is_none(), "three of five are taken");
        eventually("the two others are free", async || {
            !five.nodes()[3..].iter().any(|node| has(node, "part"))
        })
        .await;
    }
    // While it waits, too: it never has a majority against another waiter.
    let waiting = wait_for(&mutex);
    five.nodes()[0].call(&["DEL", "part"]);
    let guard = gets_in(waiting).await;
    five.nodes()[1..3].iter().for_each(|node| {
        node.call(&["DEL", "part"]);
    });
    give_back(guard).await;
    nothing_is_left(&five, "part").await;
}

/// It is a mutex: majorities of readers, or for each permit, exclude nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_majority_cannot_decide_is_refused() {
    let five = five();
    let client = client(&five);
    let refused = [
        client.rwlock("kind").read().await.map(drop),
        client.semaphore("kind", 3).acquire().await.map(drop),
    ];
    for refused in refused {
        let refused = refused.expect_err("it is refused");
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    }
    let capability = client.capability();
    assert!(!capability.rwlock && !capability.semaphore);
    assert_eq!(capability.order, Order::None);
}

/// The release is lost on its way to two servers: it is repeated there in the background.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_is_cut_is_repeated() {
    let five = five();
    let ways = Ways::to(&five);
    let client = ways.client("young=vote");
    let mutex = client.mutex("cut").lease(SIXTY);
    let held = held_on_all(&mutex, &five, "cut").await;
    for way in &ways.0[..2] {
        way.refuse();
        way.reset();
    }
    assert_eq!(held.release().await.expect("an answer"), Released::Done);
    assert!(has(&five.nodes()[0], "cut"), "it was not reached");
    ways.0[..2].iter().for_each(|way| way.heal());
    nothing_is_left(&five, "cut").await;
}

/// Connections that are cut while a lock is held, two at a time: renewals go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_survives_cut_connections() {
    let five = five();
    let ways = Ways::to(&five);
    let held = ways
        .client("young=vote")
        .mutex("renewed")
        .lease(LEASE)
        .acquire()
        .await
        .expect("a grant");
    for pair in [[0, 1], [2, 3], [4, 0]] {
        pair.iter().for_each(|place| ways.0[*place].reset());
        is_renewed(&held).await;
    }
    // All at once, for a moment.
    ways.0.iter().for_each(|way| way.reset());
    is_renewed(&held).await;
    give_back(held).await;
}

/// A pause between T1 and T2 is part of the count: a grant that comes too late is none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_comes_after_its_lease_is_not_believed() {
    let five = five();
    let ways = Ways::to(&five);
    let slow = ways.client("young=vote");
    cycle(&slow, "late").await;
    let lease = ms(600);
    for way in &ways.0 {
        way.delay(Way::ToClient, ms(900), Duration::ZERO);
    }
    let mutex = slow.mutex("late").lease(lease).store_wait(ms(1500));
    let late = mutex.try_acquire().await.map(drop);
    let late = late.expect_err("not granted in time");
    assert_eq!(late.kind(), ErrorKind::Unavailable, "{late}");
    nothing_is_left(&five, "late").await;
}

/// A holder whose network is cut after the grant is told before another is admitted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_is_cut_off_is_told_first() {
    let five = five();
    let ways = Ways::to(&five);
    let cut = ways.client("young=vote");
    let held = cut
        .mutex("first")
        .lease(LEASE)
        .acquire()
        .await
        .expect("a grant");
    let held = Arc::new(held);
    let believer = Believer::watch(Arc::clone(&held));
    let other = client(&five);
    let waiting = wait_for(&other.mutex("first").lease(LEASE));
    ways.0.iter().for_each(|way| way.stall(Way::Both));
    let next = gets_in(waiting).await;
    let admitted = Instant::now();
    let last = believer.last_belief().expect("it believed at first");
    assert!(last < admitted, "both believed");
    rise(&[held.fence(), next.fence()]);
}

/// The three of the seeds: each gets a part of the votes, gives it back, and asks again at random.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_contenders_do_not_split_the_vote_for_ever() {
    let five = five();
    let contender = || {
        let client = client(&five);
        tokio::spawn(async move {
            for _ in 0..15 {
                cycle(&client, "split").await;
            }
        })
    };
    let contenders = [contender(), contender(), contender()];
    for contender in contenders {
        tokio::time::timeout(SIXTY, contender)
            .await
            .expect("in time")
            .expect("no panic");
    }
    nothing_is_left(&five, "split").await;
}

/// A server that has just started may have lost a grant: it votes when that would have ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn young_servers_do_not_vote() {
    let begun = Instant::now();
    let five = five();
    let careful = connect(format!("{}?longest_lease=4s", five.url()));
    let early = careful
        .mutex("young")
        .lease(ms(2000))
        .try_acquire()
        .await
        .map(drop);
    let early = early.expect_err("no server is old enough");
    assert_eq!(early.kind(), ErrorKind::Unavailable);
    assert!(early.to_string().contains("do not vote yet"), "{early}");
    let mutex = careful.mutex("young").lease(ms(2000)).store_wait(ms(1000));
    let held = soon("they are old enough", mutex.acquire())
        .await
        .expect("a grant");
    assert!(begun.elapsed() >= ms(4000), "after {:?}", begun.elapsed());
    give_back(held).await;
    let long = careful
        .mutex("young")
        .lease(ms(5000))
        .try_acquire()
        .await
        .map(drop);
    let long = long.expect_err("longer than the longest");
    assert_eq!(long.kind(), ErrorKind::Config, "{long}");
}

/// The URL is wrong about a server: it is said, and nothing is granted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_depend_on_each_other_are_refused() {
    let (one, two) = (Redis::start(), Redis::start());
    let (first, second) = (one.address(), two.address());
    let follows = format!("{} {}", first.ip(), first.port());
    let replica = Redis::with().set("replicaof", &follows).start();
    let member = Redis::with().clustered().start();
    let urls = [
        (
            format!("{first},localhost:{},{second}", first.port()),
            "are one server",
        ),
        (
            format!("{first},{second},{}", replica.address()),
            "is a replica",
        ),
        (
            format!("{first},{second},{}", member.address()),
            "is part of a cluster",
        ),
    ];
    for (hosts, why) in urls {
        let client = connect(format!("redlock://{hosts}?young=vote"));
        let refused = client.mutex("wrong").try_acquire().await.map(drop);
        let refused = refused.expect_err("it is refused");
        assert_eq!(refused.kind(), ErrorKind::Config, "{refused}");
        assert!(refused.to_string().contains(why), "{refused}");
        assert!(!has(&one, "wrong") && !has(&two, "wrong"));
    }
}

fn contains(request: &[u8], part: &[u8]) -> bool {
    request.windows(part.len()).any(|window| window == part)
}
