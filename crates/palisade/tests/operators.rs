//! What an operator is told on real servers: which server answers, under which key a name is, and
//! why a grant is gone.

#![cfg(all(feature = "redis", feature = "etcd", feature = "zookeeper"))]

use std::time::Duration;

use palisade::{Client, ErrorKind, Guard, LossReason, Released};
use palisade_testkit::etcd::Etcd;
use palisade_testkit::redis::Redis;
use palisade_testkit::zookeeper::ZooKeeper;

const LEASE: Duration = Duration::from_secs(60);

fn connect(url: impl AsRef<str>) -> Client {
    Client::connect(url).expect("a good URL")
}

fn etcd_url(etcd: &Etcd) -> String {
    format!("etcd://{}", etcd.address())
}

async fn held(client: &Client, name: &str) -> Guard {
    let lock = client.mutex(name).lease(LEASE).detachable();
    lock.acquire().await.expect("acquired")
}

/// `connect` finds none of them; a ping finds each, and shows no password.
#[tokio::test]
async fn a_ping_finds_a_wrong_password_missing_rights_and_a_wrong_address() {
    let redis = Redis::with()
        .acl("locker on >s3cr3t ~* &* +@all")
        .acl("reader on >s3cr3t ~* &* +@read +@connection +role")
        .start();
    let address = redis.address();
    let pong = connect(redis.url()).ping().await.expect("it answers");
    assert_eq!(pong.server.role.as_deref(), Some("master"), "{pong:?}");
    assert_eq!(pong.server.address, Some(address.to_string()), "{pong:?}");
    for (login, kind) in [
        ("locker:s3cr3t-typo", ErrorKind::Denied),
        ("reader:s3cr3t", ErrorKind::Denied),
    ] {
        let client = connect(format!("redis://{login}@{address}"));
        let error = client.ping().await.expect_err("not let in");
        assert_eq!(error.kind(), kind, "{login}: {error}");
        assert!(
            !format!("{error} {error:?}").contains("s3cr3t"),
            "{error:?}"
        );
    }
    redis.kill();
    let error = connect(redis.url())
        .ping()
        .await
        .expect_err("nothing there");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

/// The server's own word for its role, and the address of the server that answers.
#[tokio::test]
async fn a_ping_names_etcd_and_zookeeper() {
    let etcd = Etcd::start();
    let pong = connect(etcd_url(&etcd)).ping().await.expect("it answers");
    let server = pong.server;
    assert_eq!(
        (&*server.product, server.role.as_deref()),
        ("etcd", Some("leader"))
    );
    assert_eq!(server.address, Some(etcd.address().to_string()));

    let zookeeper = ZooKeeper::start();
    let url = format!("zk://{}", zookeeper.address());
    let server = connect(url).ping().await.expect("it answers").server;
    assert_eq!(
        (&*server.product, server.role.as_deref()),
        ("zookeeper", Some("standalone"))
    );
}

/// The key that the library names is the one that the server has.
#[tokio::test]
async fn a_name_has_the_key_that_the_store_shows() {
    let names = ["plain", "orders/42"];
    let redis = Redis::start();
    let etcd = Etcd::start();
    let zookeeper = ZooKeeper::with().long_sessions().start();
    for name in names {
        for format in ["palisade", "simple"] {
            let client = connect(format!("{}?format={format}", redis.url()));
            let key = client.key(name).expect("a name").expect("a key");
            let guard = held(&client, name).await;
            assert_eq!(
                redis.call(&["EXISTS", &key]).int(),
                Some(1),
                "{format}: {key}"
            );
            assert_eq!(guard.release().await.expect("released"), Released::Done);
        }
        let client = connect(format!("{}/locks", etcd_url(&etcd)));
        let key = client.key(name).expect("a name").expect("a key");
        let guard = held(&client, name).await;
        let found = etcd.etcdctl(&["get", "--prefix", "--keys-only", &key]);
        assert!(found.contains(&key), "{key}: {found}");
        assert_eq!(guard.release().await.expect("released"), Released::Done);

        let client = connect(format!("zk://{}/locks", zookeeper.address()));
        let key = client.key(name).expect("a name").expect("a path");
        let guard = held(&client, name).await;
        let found = zookeeper.cli(&["ls", &key]);
        assert!(found.contains("lock-"), "{key}: {found}");
        assert_eq!(guard.release().await.expect("released"), Released::Done);
    }
    assert_eq!(connect("memory:").key("plain").expect("a name"), None);
}

/// A Redis that was emptied has forgotten the grant: its lease has not run out, and no other claim
/// has taken the name.
#[tokio::test]
async fn a_flushed_server_has_forgotten_the_grant() {
    let redis = Redis::start();
    for format in ["palisade", "simple"] {
        let client = connect(format!("{}?format={format}", redis.url()));
        let guard = held(&client, "flushed").await;
        redis.call(&["FLUSHALL"]);
        let error = guard.renew().await.expect_err("it is gone");
        assert_eq!(
            error.kind(),
            ErrorKind::Lost(LossReason::Forgotten),
            "{format}"
        );
        assert!(error.to_string().contains("flushed"), "{error}");
        // The same by a question instead of a renewal.
        let guard = held(&client, "flushed").await;
        redis.call(&["FLUSHALL"]);
        assert!(!guard.verify().await.expect("an answer"));
        assert_eq!(guard.lost().await, LossReason::Forgotten, "{format}");
    }
}

/// The format `simple` takes a name as it is. One that is the key of another lock's fence is
/// refused.
#[tokio::test]
async fn a_name_that_is_the_fence_of_another_lock_is_refused() {
    let redis = Redis::start();
    let client = connect(format!("{}?format=simple", redis.url()));
    let guard = held(&client, "orders").await;
    let fence = redis.call(&["GET", "palisade:1:fence:{orders}"]);
    let lock = client.mutex("palisade:1:fence:{orders}");
    let error = lock.try_acquire().await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("take another name"), "{error}");
    assert_eq!(redis.call(&["GET", "palisade:1:fence:{orders}"]), fence);
    assert_eq!(guard.release().await.expect("released"), Released::Done);
}
