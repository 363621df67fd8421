//! Nodes that are made and deleted at the same time go to ZooKeeper in one transaction, and each
//! has its own outcome.

#![cfg(feature = "zookeeper")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use common::actors::connect;
use common::zookeeper::{LIMIT, LONG, Tally, frames, line_of, nodes, number, op, proxy};
use palisade::{Client, ErrorKind, Guard, Released};
use palisade_conformance::eventually;
use palisade_testkit::proxy::{Proxy, Way};
use palisade_testkit::zookeeper::ZooKeeper;
use tokio::task::JoinHandle;

/// The numbers of a transaction's steps.
mod step {
    pub(super) const CREATE: i32 = 1;
    pub(super) const DELETE: i32 = 2;
}

/// One step: what it is, and the node whose child it makes or deletes.
type Step = (i32, String);

/// The steps of the transactions in these bytes. What is not whole yet is left.
fn transactions(bytes: &mut Vec<u8>) -> Vec<Vec<Step>> {
    let is_multi = |frame: &Vec<u8>| number(frame, 4) == Some(op::MULTI);
    frames(bytes)
        .iter()
        .filter(|frame| is_multi(frame))
        .map(|frame| steps(&frame[8..]))
        .collect()
}

fn steps(mut rest: &[u8]) -> Vec<Step> {
    fn buffer<'a>(rest: &mut &'a [u8]) -> &'a [u8] {
        let length = usize::try_from(number(rest, 0).expect("a length")).expect("a length");
        let (buffer, others) = rest[4..].split_at(length);
        *rest = others;
        buffer
    }
    let mut steps = Vec::new();
    while rest[4] == 0 {
        let kind = number(rest, 0).expect("a kind");
        rest = &rest[9..];
        let path = String::from_utf8(buffer(&mut rest).to_vec()).expect("a path");
        if kind == step::CREATE {
            let _value = buffer(&mut rest);
            // One entry of its rights.
            rest = &rest[8..];
            let (_scheme, _id) = (buffer(&mut rest), buffer(&mut rest));
        }
        // How it is made, or which version is deleted.
        rest = &rest[4..];
        steps.push((kind, path.rsplit_once('/').expect("a path").0.to_owned()));
    }
    steps
}

/// Sees the transactions of one client, until another fault takes its place.
fn seen(proxy: &Proxy) -> Arc<Mutex<Vec<Vec<Step>>>> {
    let seen: Arc<Mutex<Vec<Vec<Step>>>> = Arc::default();
    let (sees, piece) = (Arc::clone(&seen), Mutex::new(Vec::new()));
    proxy.lose_reply_to(move |bytes| {
        let mut piece = piece.lock().unwrap_or_else(PoisonError::into_inner);
        piece.extend(bytes);
        sees.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(transactions(&mut piece));
        false
    });
    seen
}

/// The length of the longest.
fn longest(seen: &Mutex<Vec<Vec<Step>>>) -> usize {
    seen.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .iter()
        .map(Vec::len)
        .max()
        .unwrap_or(0)
}

struct Scene {
    server: ZooKeeper,
    proxy: Proxy,
    client: Client,
}

impl Scene {
    /// With a session, and with the nodes of these names.
    async fn start(names: &[String]) -> Scene {
        let server = ZooKeeper::with().long_sessions().start();
        let proxy = proxy(&server);
        let client = connect(format!("zk://{}/lock", proxy.address()));
        let scene = Scene {
            server,
            proxy,
            client,
        };
        for name in names {
            release(
                scene
                    .acquire(name)
                    .await
                    .expect("no panic")
                    .expect("a grant"),
            )
            .await;
        }
        scene
    }

    fn acquire(&self, name: &str) -> JoinHandle<palisade::Result<Guard>> {
        let lock = self.client.mutex(name).lease(LONG).store_wait(LONG);
        tokio::spawn(async move { lock.acquire().await })
    }

    /// From now on answers come late, so that a request finds others in flight.
    fn answers_late(&self) {
        self.proxy
            .delay(Way::ToClient, Duration::from_millis(500), Duration::ZERO);
    }

    fn answers_soon(&self) {
        self.proxy
            .delay(Way::ToClient, Duration::ZERO, Duration::ZERO);
    }
}

async fn release(guard: Guard) {
    assert_eq!(guard.release().await.expect("an answer"), Released::Done);
}

async fn granted(asked: JoinHandle<palisade::Result<Guard>>) -> Guard {
    tokio::time::timeout(LIMIT, asked)
        .await
        .expect("in time")
        .expect("no panic")
        .expect("a grant")
}

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count)
        .map(|number| format!("{prefix}-{number}"))
        .collect()
}

/// The fence is the transaction that made the node: two of one name in one transaction would have
/// the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_claims_of_one_name_are_never_made_in_one_transaction() {
    const EACH: usize = 6;
    let names = names("shared", 8);
    let scene = Scene::start(&names).await;
    let seen = seen(&scene.proxy);
    scene
        .proxy
        .delay(Way::ToClient, Duration::from_millis(10), Duration::ZERO);
    let turns: Vec<_> = (0..EACH)
        .flat_map(|_| names.clone())
        .map(|name| {
            let lock = scene.client.mutex(&name).lease(LONG).store_wait(LONG);
            tokio::spawn(async move {
                let mut fences = Vec::new();
                for _ in 0..3 {
                    let guard = lock.acquire().await.expect("a grant");
                    fences.push(guard.fence());
                    release(guard).await;
                }
                (name, fences)
            })
        })
        .collect();
    let mut fences: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for turn in turns {
        let (name, of_turn) = tokio::time::timeout(LIMIT * 2, turn)
            .await
            .expect("in time")
            .expect("no panic");
        fences.entry(name).or_default().extend(of_turn);
    }
    assert!(longest(&seen) >= 4, "only {} went together", longest(&seen));
    for transaction in seen.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        let made: Vec<_> = transaction
            .iter()
            .filter(|(kind, _)| *kind == step::CREATE)
            .map(|(_, line)| line)
            .collect();
        assert_eq!(
            made.iter().collect::<BTreeSet<_>>().len(),
            made.len(),
            "{transaction:?}"
        );
    }
    for (name, fences) in fences {
        assert_eq!(fences.len(), EACH * 3);
        assert_eq!(
            fences.iter().collect::<BTreeSet<_>>().len(),
            fences.len(),
            "{name}: {fences:?}"
        );
    }
}

/// A line that was deleted, and one that is not ours to stand in, go together with others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_request_fails_alone() {
    let (first, good) = (names("first", 8), names("good", 12));
    let bad = ["gone".to_owned(), "denied".to_owned()];
    let scene = Scene::start(&[&first[..], &good, &bad].concat()).await;
    scene.server.cli(&["delete", "/lock/gone"]);
    scene
        .server
        .cli(&["setAcl", "/lock/denied", "world:anyone:r"]);
    let seen = seen(&scene.proxy);
    scene.answers_late();
    let mut asked: Vec<_> = first.iter().map(|name| scene.acquire(name)).collect();
    eventually("they are on their way", async || {
        nodes(&scene.server).len() >= 2
    })
    .await;
    let (gone, denied) = (scene.acquire("gone"), scene.acquire("denied"));
    asked.extend(good.iter().map(|name| scene.acquire(name)));
    let refused = tokio::time::timeout(LIMIT, denied)
        .await
        .expect("in time")
        .expect("no panic");
    assert_eq!(
        refused.expect_err("no right to it").kind(),
        ErrorKind::Denied
    );
    scene.answers_soon();
    let mut guards = vec![granted(gone).await];
    for asked in asked {
        guards.push(granted(asked).await);
    }
    let is_mixed = |steps: &Vec<Step>| {
        ["/lock/denied", "/lock/good-0"]
            .iter()
            .all(|line| steps.iter().any(|(_, of)| of == line))
    };
    assert!(
        seen.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .any(is_mixed),
        "they went together"
    );
    assert_eq!(
        nodes(&scene.server).len(),
        guards.len(),
        "one node for each, and none where it was denied"
    );
    for guard in guards {
        assert!(guard.is_held());
        release(guard).await;
    }
    eventually("no node is left", async || nodes(&scene.server).is_empty()).await;
}

/// It is too long for a transaction of several, and not for one of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_claim_goes_though_others_are_on_their_way() {
    let names = names("long", 8);
    let scene = Scene::start(&names).await;
    scene.answers_late();
    let others: Vec<_> = names
        .iter()
        .skip(1)
        .map(|name| scene.acquire(name))
        .collect();
    let lock = scene
        .client
        .mutex(&names[0])
        .lease(LONG)
        .store_wait(LONG)
        .reason("r".repeat(600_000));
    let long = tokio::spawn(async move { lock.acquire().await });
    for asked in others {
        release(granted(asked).await).await;
    }
    release(granted(long).await).await;
}

/// The answer to a transaction of many is lost, of claims and then of releases.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_with_a_lost_answer_finds_its_nodes() {
    let (first, many) = (names("first", 8), names("many", 12));
    let scene = Scene::start(&[&first[..], &many].concat()).await;
    let outside = connect(format!("zk://{}/lock", scene.server.address()));
    let is_of = |kind: i32| {
        move |bytes: &[u8]| {
            let is_it = |step: &Step| step.0 == kind && step.1.starts_with("/lock/many-");
            transactions(&mut bytes.to_vec())
                .iter()
                .any(|steps| steps.iter().filter(|step| is_it(step)).count() >= 4)
        }
    };
    // The first request goes alone; later ones go together.
    scene.answers_late();
    scene.proxy.lose_reply_to(is_of(step::CREATE));
    let warm: Vec<_> = first.iter().map(|name| scene.acquire(name)).collect();
    eventually("they are on their way", async || {
        nodes(&scene.server).len() >= 2
    })
    .await;
    let asked: Vec<_> = many.iter().map(|name| scene.acquire(name)).collect();
    eventually("the answer is lost", async || scene.proxy.lost() == 1).await;
    scene.answers_soon();
    let (mut guards, mut held) = (Vec::new(), Vec::new());
    for asked in asked {
        guards.push(granted(asked).await);
    }
    for warm in warm {
        held.push(granted(warm).await);
    }
    for (name, guard) in many.iter().zip(&guards) {
        assert_eq!(line_of(&scene.server, name).len(), 1, "{name}");
        let line = outside.show(name).await.expect("an answer").expect("held");
        assert_eq!(
            (line.holders.len(), line.holders[0].fence),
            (1, guard.fence()),
            "{name}"
        );
    }
    // The same for those who give back.
    scene.answers_late();
    scene.proxy.lose_reply_to(is_of(step::DELETE));
    let before = nodes(&scene.server).len();
    let mut given: Vec<_> = held
        .into_iter()
        .map(|guard| tokio::spawn(guard.release()))
        .collect();
    eventually("they are on their way", async || {
        nodes(&scene.server).len() <= before - 2
    })
    .await;
    given.extend(
        guards
            .into_iter()
            .map(|guard| tokio::spawn(guard.release())),
    );
    eventually("the answer is lost", async || scene.proxy.lost() == 2).await;
    scene.answers_soon();
    for name in &many {
        let next = outside
            .mutex(name)
            .lease(LONG)
            .acquire_timeout(LIMIT)
            .await
            .expect("it is free");
        release(next).await;
    }
    for given in given {
        let _done_or_unknown = tokio::time::timeout(LIMIT, given)
            .await
            .expect("in time")
            .expect("no panic")
            .expect("an answer");
    }
    eventually("no node is left", async || nodes(&scene.server).is_empty()).await;
}

/// Two thirds of the requests are saved at the best: each claim reads its line.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_share_their_requests() {
    const CYCLES: usize = 10;
    let names = names("busy", 64);
    let scene = Scene::start(&names).await;
    let tally = Tally::of(&scene.proxy);
    scene
        .proxy
        .delay(Way::ToClient, Duration::from_millis(10), Duration::ZERO);
    let tasks: Vec<_> = names
        .iter()
        .map(|name| {
            let lock = scene.client.mutex(name).lease(LONG);
            tokio::spawn(async move {
                for _ in 0..CYCLES {
                    release(lock.acquire().await.expect("a grant")).await;
                }
            })
        })
        .collect();
    for task in tasks {
        tokio::time::timeout(LIMIT, task)
            .await
            .expect("in time")
            .expect("no panic");
    }
    let cycles = (names.len() * CYCLES) as u64;
    // A hold that takes a tenth of a second has its node watched.
    let [watches] = tally.requests([op::GET_DATA]);
    let requests = tally.all() - watches;
    println!("{requests} requests for {cycles} cycles: {tally:?}");
    assert!(
        requests <= cycles * 3 / 2,
        "{requests} requests for {cycles} cycles: {tally:?}"
    );
}
