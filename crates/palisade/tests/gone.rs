//! What is said of a grant that is gone. No store keeps a record of a release, since that would cost
//! a write each. What can be told apart without one is told apart, and where two causes cannot be,
//! both are said.

#![cfg(all(
    feature = "sqlite",
    feature = "redis",
    feature = "etcd",
    feature = "zookeeper"
))]

use std::time::Duration;

use palisade::{
    Client, DetachedGrant, Error, ErrorKind, Exclusive, Guard, GuardMode, LossReason, Released,
    Shared,
};
use palisade_conformance::eventually;
use palisade_testkit::etcd::Etcd;
use palisade_testkit::redis::Redis;
use palisade_testkit::shared::name;
use palisade_testkit::zookeeper::ZooKeeper;

const LEASE: Duration = Duration::from_secs(30);
/// The shortest that all of them take.
const SHORT: Duration = Duration::from_secs(4);

/// Two stores of one kind, and two clients of the first.
struct Pair {
    what: &'static str,
    ours: Client,
    again: Client,
    theirs: Client,
    /// Whether the mutex's readers exclude its holder: there is a read side to hold.
    has_readers: bool,
}

impl Pair {
    fn new(what: &'static str, ours: &str, theirs: &str) -> Pair {
        let connect = |url: &str| Client::connect(url).expect("a good URL");
        Pair {
            what,
            ours: connect(ours),
            again: connect(ours),
            theirs: connect(theirs),
            has_readers: what != "redis simple",
        }
    }
}

/// The servers live as long as the pairs.
struct Stores {
    pairs: Vec<Pair>,
    _redis: [Redis; 2],
    _etcd: [Etcd; 2],
    _zookeeper: [ZooKeeper; 2],
    _folder: tempfile::TempDir,
}

/// A server that takes long sessions.
fn patient() -> ZooKeeper {
    ZooKeeper::with().long_sessions().start()
}

fn stores() -> Stores {
    let redis = [Redis::start(), Redis::start()];
    let etcd = [Etcd::start(), Etcd::start()];
    let zookeeper = [patient(), patient()];
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| format!("sqlite:{}", folder.path().join(name).display());
    let plain = redis.each_ref().map(Redis::url);
    let simple = plain.each_ref().map(|url| format!("{url}?format=simple"));
    let of_etcd = etcd
        .each_ref()
        .map(|server| format!("etcd://{}", server.address()));
    let of_zookeeper = zookeeper
        .each_ref()
        .map(|server| format!("zk://{}", server.address()));
    let memory = ["ours", "theirs"].map(|side| format!("memory:{}", name(side)));
    let pairs = vec![
        Pair::new("memory", &memory[0], &memory[1]),
        Pair::new("sqlite", &file("ours.db"), &file("theirs.db")),
        Pair::new("redis", &plain[0], &plain[1]),
        Pair::new("redis simple", &simple[0], &simple[1]),
        Pair::new("etcd", &of_etcd[0], &of_etcd[1]),
        Pair::new("zookeeper", &of_zookeeper[0], &of_zookeeper[1]),
    ];
    Stores {
        pairs,
        _redis: redis,
        _etcd: etcd,
        _zookeeper: zookeeper,
        _folder: folder,
    }
}

async fn held(client: &Client, name: &str, lease: Duration) -> Guard {
    let lock = client.mutex(name).lease(lease).detachable();
    lock.acquire().await.expect("acquired")
}

async fn detached<M: GuardMode>(guard: Guard<M>) -> DetachedGrant {
    let detached = guard.detach().await;
    detached.map_err(|refused| refused.error).expect("detached")
}

async fn refused<M: GuardMode>(client: &Client, grant: &DetachedGrant) -> Error {
    let adopted = client.adopt::<M>(grant).await;
    adopted.map(drop).expect_err("the grant is gone")
}

async fn release<M: GuardMode>(client: &Client, grant: &DetachedGrant) {
    let guard = client.adopt::<M>(grant).await.expect("adopted");
    assert_eq!(guard.release().await.expect("released"), Released::Done);
}

#[track_caller]
fn says(what: &str, error: &Error, reason: LossReason, text: &str) {
    assert_eq!(error.kind(), ErrorKind::Lost(reason), "{what}: {error}");
    assert!(error.to_string().contains(text), "{what}: {error}");
}

#[tokio::test]
async fn a_released_grant_a_taken_one_and_a_foreign_one_are_told_apart() {
    for pair in &stores().pairs {
        let what = pair.what;
        // The first server's fences are ahead of the second's, where they count revisions.
        for _ in 0..20 {
            let guard = held(&pair.ours, "before", LEASE).await;
            assert_eq!(guard.release().await.expect("released"), Released::Done);
        }
        let grant = detached(held(&pair.ours, "carried", LEASE).await).await;
        let foreign = refused::<Exclusive>(&pair.theirs, &grant).await;
        says(
            what,
            &foreign,
            LossReason::Unknown,
            "another server gave it",
        );

        release::<Exclusive>(&pair.ours, &grant).await;
        let twice = refused::<Exclusive>(&pair.ours, &grant).await;
        says(
            what,
            &twice,
            LossReason::Released,
            "this client has released",
        );
        // Another client cannot know it.
        let both = "was released, or its lease ran out";
        let twice = refused::<Exclusive>(&pair.again, &grant).await;
        says(what, &twice, LossReason::Ended, both);

        let _next = held(&pair.ours, "carried", LEASE).await;
        let taken = refused::<Exclusive>(&pair.again, &grant).await;
        says(
            what,
            &taken,
            LossReason::Taken,
            "another claim holds it now",
        );
    }
}

#[tokio::test]
async fn a_grant_whose_lease_ran_out_was_perhaps_released() {
    let stores = stores();
    let mut grants = Vec::new();
    for pair in &stores.pairs {
        grants.push(detached(held(&pair.ours, "brief", SHORT).await).await);
    }
    for (pair, grant) in stores.pairs.iter().zip(&grants) {
        eventually("its lease is over", async || {
            let line = pair.again.show("brief").await.expect("an answer");
            line.is_none_or(|line| line.holders.is_empty())
        })
        .await;
        let over = refused::<Exclusive>(&pair.ours, grant).await;
        let both = "was released, or its lease ran out";
        says(pair.what, &over, LossReason::Ended, both);
    }
}

/// Other readers hold beside a reader: they took nothing from it.
#[tokio::test]
async fn a_reader_that_has_released_was_not_taken_over_by_other_readers() {
    let stores = stores();
    for pair in stores.pairs.iter().filter(|pair| pair.has_readers) {
        let lock = pair.ours.rwlock("book").lease(LEASE).detachable();
        let other = lock.read().await.expect("a reader");
        let grant = detached(lock.read().await.expect("a reader")).await;
        release::<Shared>(&pair.ours, &grant).await;
        let twice = refused::<Shared>(&pair.again, &grant).await;
        let both = "was released, or its lease ran out";
        says(pair.what, &twice, LossReason::Ended, both);
        assert!(other.is_held(), "{}", pair.what);
    }
}

/// A server that has lost its data cannot tell its own grant from another server's.
#[tokio::test]
async fn an_emptied_server_has_no_record_of_a_grant() {
    let (redis, etcd) = (Redis::start(), Etcd::start());
    let zookeeper = patient();
    let folder = tempfile::tempdir().expect("a folder");
    let urls = [
        format!("sqlite:{}", folder.path().join("locks.db").display()),
        redis.url(),
        format!("{}?format=simple", redis.url()),
        format!("etcd://{}", etcd.address()),
        format!("zk://{}", zookeeper.address()),
    ];
    let connect = |url: &String| Client::connect(url).expect("a good URL");
    let mut grants = Vec::new();
    for url in &urls {
        let client = connect(url);
        // Its revisions come to stand above those of a server that has just begun.
        for _ in 0..20 {
            let guard = held(&client, "before", LEASE).await;
            assert_eq!(guard.release().await.expect("released"), Released::Done);
        }
        grants.push(detached(held(&client, "emptied", LEASE).await).await);
    }
    for file in ["locks.db", "locks.db-wal", "locks.db-shm"] {
        let _ = std::fs::remove_file(folder.path().join(file));
    }
    redis.call(&["FLUSHALL"]);
    etcd.kill();
    std::fs::remove_dir_all(etcd.dir().join("data")).expect("removed");
    etcd.restart();
    zookeeper.kill();
    std::fs::remove_dir_all(zookeeper.dir().join("data/version-2")).expect("removed");
    zookeeper.restart();
    for (url, grant) in urls.iter().zip(&grants) {
        let unknown = refused::<Exclusive>(&connect(url), grant).await;
        says(
            url,
            &unknown,
            LossReason::Unknown,
            "the store lost its data",
        );
    }
}
