//! What is said of a grant that is gone. No store keeps a record of a release, since that would cost
//! a write each. What can be told apart without one is told apart, and where two causes cannot be,
//! both are said.

#![cfg(all(
    feature = "sqlite",
    feature = "redis",
    feature = "etcd",
    feature = "zookeeper",
    feature = "postgres",
    feature = "mysql"
))]

use std::time::Duration;

use palisade::store::Detach;
use palisade::{
    Client, DetachedGrant, Error, ErrorKind, Exclusive, Guard, GuardMode, LossReason, Released,
    Shared,
};
use palisade_conformance::eventually;
use palisade_testkit::etcd::Etcd;
use palisade_testkit::mariadb::MariaDb;
use palisade_testkit::postgres::Postgres;
use palisade_testkit::redis::{Five, Redis};
use palisade_testkit::shared::name;
use palisade_testkit::zookeeper::ZooKeeper;

const LEASE: Duration = Duration::from_secs(30);
/// The shortest that all of them take.
const SHORT: Duration = Duration::from_secs(4);

/// Two stores of one kind, and two clients of the first.
struct Pair {
    what: String,
    ours: Client,
    again: Client,
    theirs: Client,
}

fn connect(url: &str) -> Client {
    Client::connect(url).expect("a good URL")
}

impl Pair {
    fn new(ours: &str, theirs: &str) -> Pair {
        let client = connect(ours);
        let capability = client.capability();
        Pair {
            what: format!("{} {}", capability.store, capability.format),
            ours: client,
            again: connect(ours),
            theirs: connect(theirs),
        }
    }

    fn has_readers(&self) -> bool {
        self.ours.capability().rwlock
    }
}

/// One server of each kind.
struct Servers {
    redis: Redis,
    five: Five,
    etcd: Etcd,
    zookeeper: ZooKeeper,
    postgres: Postgres,
    mariadb: MariaDb,
    folder: tempfile::TempDir,
}

impl Servers {
    fn start() -> Servers {
        Servers {
            redis: Redis::start(),
            five: Five::start_as(&Redis::with()),
            etcd: Etcd::start(),
            zookeeper: ZooKeeper::with().long_sessions().start(),
            postgres: Postgres::start(),
            mariadb: MariaDb::start(),
            folder: tempfile::tempdir().expect("a folder"),
        }
    }

    /// Every format of theirs, in the order of the other servers. A grant that cannot be detached
    /// cannot be presented again: ZooKeeper's plain format is not among them.
    fn urls(&self) -> Vec<String> {
        let (etcd, zookeeper) = (self.etcd.address(), self.zookeeper.address());
        let (postgres, mariadb) = (self.postgres.url(), self.mariadb.url());
        vec![
            format!("sqlite:{}", self.folder.path().join("locks.db").display()),
            self.redis.url(),
            format!("{}?format=simple", self.redis.url()),
            format!("{}?format=redisson&prefix=redisson:", self.redis.url()),
            format!("{}?format=redisson&fair=yes&prefix=fair:", self.redis.url()),
            format!("{}?young=vote", self.five.url()),
            format!("etcd://{etcd}"),
            format!("etcd://{etcd}/plain?format=plain"),
            format!("zk://{zookeeper}"),
            format!("zk://{zookeeper}/kazoo?format=kazoo"),
            postgres.clone(),
            format!("{postgres}?format=simple"),
            format!("{postgres}?format=shedlock"),
            mariadb.clone(),
            format!("{mariadb}?format=simple&zone=utc"),
            format!("{mariadb}?format=shedlock"),
        ]
    }

    /// Takes all data away, and goes on.
    fn empty(&self) {
        for file in ["locks.db", "locks.db-wal", "locks.db-shm"] {
            let _ = std::fs::remove_file(self.folder.path().join(file));
        }
        for redis in self.five.nodes().iter().chain([&self.redis]) {
            redis.call(&["FLUSHALL"]);
        }
        self.etcd.kill();
        std::fs::remove_dir_all(self.etcd.dir().join("data")).expect("removed");
        self.etcd.restart();
        self.zookeeper.kill();
        std::fs::remove_dir_all(self.zookeeper.dir().join("data/version-2")).expect("removed");
        self.zookeeper.restart();
        self.postgres.sql(
            "drop schema palisade cascade; drop schema public cascade; \
             create schema public authorization locker",
        );
        self.mariadb
            .sql("drop database locks; create database locks");
    }
}

/// The servers live as long as the pairs.
struct Stores {
    pairs: Vec<Pair>,
    _servers: [Servers; 2],
}

fn stores() -> Stores {
    let servers = [Servers::start(), Servers::start()];
    let [ours, theirs] = servers.each_ref().map(Servers::urls);
    let memory = ["ours", "theirs"].map(|side| format!("memory:{}", name(side)));
    let mut pairs = vec![Pair::new(&memory[0], &memory[1])];
    pairs.extend(
        ours.iter()
            .zip(&theirs)
            .map(|(one, other)| Pair::new(one, other)),
    );
    // A format that is added later is tested here, too.
    for capability in palisade::stores::capabilities() {
        let what = format!("{} {}", capability.store, capability.format);
        let is_among = pairs.iter().any(|pair| pair.what == what);
        assert_eq!(is_among, capability.detach != Detach::Never, "{what}");
    }
    Stores {
        pairs,
        _servers: servers,
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
        let what = &pair.what;
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
        says(&pair.what, &over, LossReason::Ended, both);
    }
}

/// Other readers hold beside a reader: they took nothing from it.
#[tokio::test]
async fn a_reader_that_has_released_was_not_taken_over_by_other_readers() {
    let stores = stores();
    for pair in stores.pairs.iter().filter(|pair| pair.has_readers()) {
        let lock = pair.ours.rwlock("book").lease(LEASE).detachable();
        let other = lock.read().await.expect("a reader");
        let grant = detached(lock.read().await.expect("a reader")).await;
        release::<Shared>(&pair.ours, &grant).await;
        let twice = refused::<Shared>(&pair.again, &grant).await;
        let both = "was released, or its lease ran out";
        says(&pair.what, &twice, LossReason::Ended, both);
        assert!(other.is_held(), "{}", pair.what);
    }
}

/// A server that has lost its data cannot tell its own grant from another server's.
#[tokio::test]
async fn an_emptied_server_has_no_record_of_a_grant() {
    let servers = Servers::start();
    let mut grants = Vec::new();
    for url in servers.urls() {
        let client = connect(&url);
        // Its revisions come to stand above those of a server that has just begun.
        for _ in 0..20 {
            let guard = held(&client, "before", LEASE).await;
            assert_eq!(guard.release().await.expect("released"), Released::Done);
        }
        grants.push((detached(held(&client, "emptied", LEASE).await).await, url));
    }
    servers.empty();
    for (grant, url) in &grants {
        let unknown = refused::<Exclusive>(&connect(url), grant).await;
        says(
            url,
            &unknown,
            LossReason::Unknown,
            "the store lost its data",
        );
    }
}
