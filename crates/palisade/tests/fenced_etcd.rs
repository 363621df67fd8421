//! Writes in etcd that the lock itself admits, on real servers.

#![cfg(feature = "etcd")]

mod common;

use common::actors::connect;
use common::etcd::{LIMIT, LONG, SHORT, keys, proxy};
use palisade::fence::etcd::{FencedKeys, Held, KeyError};
use palisade::store::Revoked;
use palisade::{ErrorKind, Released};
use palisade_testkit::certs;
use palisade_testkit::etcd::{Cluster, Etcd};
use palisade_testkit::proxy::Way;

/// The value of a key, by the word of etcd's own tool.
fn value(server: &Etcd, key: &str) -> String {
    server
        .etcdctl(&["get", key, "--print-value-only"])
        .trim()
        .to_owned()
}

fn url(server: &Etcd) -> String {
    format!("etcd://{}/lock", server.address())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_holder_writes() {
    let server = Etcd::start();
    let (locks, shop) = (
        connect(url(&server)),
        FencedKeys::connect(url(&server)).expect("a good URL"),
    );
    // A name that is mapped, and a prefix: the URL knows both.
    let guard = locks.mutex("stock/bolt").acquire().await.expect("a grant");
    let held = Held::by(&guard).expect("a lock in etcd");
    shop.check(&held).await.expect("held");
    shop.put(&held, "stock", "7").await.expect("written");
    assert_eq!(value(&server, "stock"), "7");
    assert_eq!(shop.get("stock").await.expect("read"), Some(b"7".to_vec()));
    shop.write(
        &held,
        &[
            ("stock", Some("6")),
            ("reserved", Some("1")),
            ("nothing", None),
        ],
    )
    .await
    .expect("written");
    assert!(shop.delete(&held, "reserved").await.expect("deleted"));
    assert!(
        !shop
            .delete(&held, "reserved")
            .await
            .expect("nothing to delete")
    );
    assert_eq!(shop.get("reserved").await.expect("read"), None);
    // The same by hand, for another client.
    let by_hand = held.clone().prefix("/lock");
    shop.put(&by_hand, "stock", "5").await.expect("written");
    assert_eq!(
        keys(&server),
        [String::from_utf8(by_hand.lock_key()).expect("text")]
    );
    // A released grant is over, even without a later holder.
    assert_eq!(guard.release().await.expect("an answer"), Released::Done);
    for refused in [
        shop.put(&held, "stock", "4").await,
        shop.check(&held).await,
        shop.write(&held, &[("stock", None::<&str>)]).await,
    ] {
        assert!(matches!(refused, Err(KeyError::NotHeld)), "{refused:?}");
    }
    assert!(matches!(
        shop.delete(&held, "stock").await,
        Err(KeyError::NotHeld)
    ));
    assert_eq!(value(&server, "stock"), "5");
}

/// Revoked, expired, or followed by another: the stale holder's write is refused, by the server and
/// not by a clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_holder_is_refused() {
    let server = Etcd::start();
    let proxy = proxy(&server);
    let (locks, shop) = (
        connect(url(&server)),
        FencedKeys::connect(url(&server)).expect("a good URL"),
    );
    // An operator forces it open.
    let guard = locks
        .mutex("stock")
        .lease(LONG)
        .acquire()
        .await
        .expect("a grant");
    let held = Held::by(&guard).expect("a lock in etcd");
    shop.put(&held, "left", "7").await.expect("written");
    assert_eq!(
        locks
            .revoke("stock", guard.fence())
            .await
            .expect("an answer"),
        Revoked::Done
    );
    assert!(matches!(
        shop.put(&held, "left", "6").await,
        Err(KeyError::NotHeld)
    ));
    // A holder that is cut off, and whose writes still find their way: its lease ends, and another
    // comes.
    let cut_off = connect(format!("etcd://{}/lock", proxy.address()));
    let guard = cut_off
        .mutex("stock")
        .lease(SHORT)
        .acquire()
        .await
        .expect("a grant");
    let held = Held::by(&guard).expect("a lock in etcd");
    shop.put(&held, "left", "5").await.expect("written");
    proxy.stall(Way::Both);
    let next = locks
        .mutex("stock")
        .acquire_timeout(LIMIT)
        .await
        .expect("a grant");
    assert!(matches!(
        shop.put(&held, "left", "4").await,
        Err(KeyError::NotHeld)
    ));
    let ours = Held::by(&next).expect("a lock in etcd");
    assert_eq!(shop.get("left").await.expect("read"), Some(b"5".to_vec()));
    shop.put(&ours, "left", "3").await.expect("written");
    assert_eq!(value(&server, "left"), "3");
    // The lease is revoked under the holder: refused before it can have heard of it.
    for lease in common::etcd::leases(&server) {
        server.etcdctl(&["lease", "revoke", &lease]);
    }
    assert!(matches!(
        shop.put(&ours, "left", "2").await,
        Err(KeyError::NotHeld)
    ));
    assert_eq!(value(&server, "left"), "3");
}

/// The next claim of this client stands where the last one stood; what that one was allowed is not
/// for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_earlier_grant_by_the_same_key_writes_nothing() {
    let server = Etcd::start();
    let (locks, shop) = (
        connect(url(&server)),
        FencedKeys::connect(url(&server)).expect("a good URL"),
    );
    let mut earlier: Option<Held> = None;
    for round in 0..3 {
        let guard = locks
            .mutex("stock")
            .lease(LONG)
            .acquire()
            .await
            .expect("a grant");
        let held = Held::by(&guard).expect("a lock in etcd");
        shop.put(&held, "round", round.to_string())
            .await
            .expect("written");
        if let Some(earlier) = &earlier {
            assert_eq!(earlier.lock_key(), held.lock_key(), "one key serves both");
            assert!(matches!(
                shop.put(earlier, "round", "late").await,
                Err(KeyError::NotHeld)
            ));
        }
        assert_eq!(value(&server, "round"), round.to_string());
        assert_eq!(
            guard.release().await.expect("an answer"),
            palisade::Released::Done
        );
        assert!(matches!(
            shop.put(&held, "round", "late").await,
            Err(KeyError::NotHeld)
        ));
        earlier = Some(held);
    }
}

/// As the locks: TLS, a login, and several members, of which one is down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_url_is_that_of_the_locks() {
    let three = std::thread::spawn(Cluster::secured)
        .join()
        .expect("a cluster");
    let url = format!(
        "etcds://locker:lockpw@{}/lock?ca={}",
        three.addresses(),
        certs().ca.display()
    );
    let (locks, shop) = (
        connect(&url),
        FencedKeys::connect(&url).expect("a good URL"),
    );
    let guard = locks
        .mutex("stock")
        .lease(LONG)
        .acquire()
        .await
        .expect("a grant");
    let held = Held::by(&guard).expect("a lock in etcd");
    shop.put(&held, "lock-data", "1")
        .await
        .expect_err("the user has no right to this key");
    shop.put(&held, "lock/data", "1").await.expect("written");
    for node in three.nodes() {
        node.kill();
        let written = async {
            while let Err(error) = shop.put(&held, "lock/data", "2").await {
                let KeyError::Etcd(error) = error else {
                    panic!("{error}")
                };
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            }
        };
        tokio::time::timeout(LIMIT, written)
            .await
            .expect("two of three are enough");
        node.restart();
    }
    assert_eq!(
        shop.get("lock/data").await.expect("read"),
        Some(b"2".to_vec())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_work_is_refused_with_what_to_do() {
    let elsewhere = palisade::connect("memory:")
        .await
        .expect("a client")
        .mutex("x")
        .acquire()
        .await
        .expect("a grant");
    let refused = Held::by(&elsewhere).expect_err("not in etcd");
    assert!(refused.to_string().contains("memory"), "{refused}");
    for wrong in ["redis://127.0.0.1", "etcd://h?ca=/x", "etcd://"] {
        let refused = FencedKeys::connect(wrong).expect_err("refused");
        assert_eq!(refused.kind(), ErrorKind::Config, "{wrong}: {refused}");
    }
    let server = Etcd::start();
    let guard = connect(url(&server))
        .mutex("x")
        .acquire()
        .await
        .expect("a grant");
    let held = Held::by(&guard).expect("a lock in etcd");
    server.kill();
    let shop =
        FencedKeys::connect(format!("{}?connect_timeout=300ms", url(&server))).expect("a good URL");
    let error = shop
        .put(&held, "x", "1")
        .await
        .expect_err("no server answers");
    assert!(error.to_string().contains("do the same again"), "{error}");
    assert!(
        !format!("{held:?} {error:?} {shop:?}")
            .contains(&String::from_utf8(held.lock_key()).expect("text")),
        "a secret"
    );
}
