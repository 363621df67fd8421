//! The etcd store on a real server: shared with `etcdctl lock`, and what a session is.
#![cfg(feature = "etcd")]

mod common;

use common::actors::connect;
use common::etcd::{Etcdctl, Metrics, SHORT, line_is};
use palisade::versioned::etcd::VersionedKeys;
use palisade::{Client, ErrorKind, LossReason, Released};
use palisade_conformance::PATIENCE;
use palisade_testkit::etcd::Etcd;

/// Without a path: names are what `etcdctl` is given.
fn client(server: &Etcd) -> Client {
    connect(format!("etcd://{}", server.address()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_shared_with_etcdctl() {
    let server = Etcd::start();
    let client = client(&server);
    // It holds, we wait.
    let theirs = Etcdctl::lock(&server, &["mixed"]);
    line_is(&client, "mixed", (1, 0)).await;
    assert!(
        client
            .mutex("mixed")
            .try_acquire()
            .await
            .expect("an answer")
            .is_none(),
        "etcdctl holds it"
    );
    assert!(
        client
            .rwlock("mixed")
            .try_read()
            .await
            .expect("an answer")
            .is_none(),
        "an unknown value is exclusive"
    );
    let lock = client.mutex("mixed");
    let waiting = tokio::spawn(async move { lock.acquire().await });
    line_is(&client, "mixed", (1, 1)).await;
    // Another of theirs waits behind us: one line, in order.
    let mut behind = Etcdctl::lock(&server, &["mixed", "true"]);
    line_is(&client, "mixed", (1, 2)).await;
    theirs.interrupt();
    let guard = tokio::time::timeout(PATIENCE, waiting)
        .await
        .expect("handed over")
        .expect("no panic")
        .expect("acquired");
    // A look at the line after ours: etcdctl would have run by then, had it been let in.
    line_is(&client, "mixed", (1, 1)).await;
    assert!(
        behind.0.try_wait().expect("asked").is_none(),
        "etcdctl ran beside our guard"
    );
    assert_eq!(guard.release().await.expect("released"), Released::Done);
    palisade_testkit::eventually("etcdctl has its turn", PATIENCE, || {
        match behind.0.try_wait().expect("asked") {
            Some(_) => Ok(()),
            None => Err("it waits".to_owned()),
        }
    });
    line_is(&client, "mixed", (0, 0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_is_killed_is_replaced() {
    let server = Etcd::start();
    let client = client(&server);
    let mut theirs = Etcdctl::lock(&server, &["--ttl=2", "killed"]);
    line_is(&client, "killed", (1, 0)).await;
    theirs.0.kill().expect("killed");
    let guard = client
        .mutex("killed")
        .acquire_timeout(PATIENCE)
        .await
        .expect("acquired");
    assert_eq!(guard.release().await.expect("released"), Released::Done);
}

/// A session lives by its other claims: a claim that is not renewed ends all the same, in its own
/// time.
#[tokio::test(flavor = "multi_thread")]
async fn an_unrenewed_claim_ends_though_its_session_lives() {
    let server = Etcd::start();
    let (ours, theirs) = (client(&server), client(&server));
    let kept = ours
        .mutex("kept")
        .lease(SHORT)
        .acquire()
        .await
        .expect("acquired");
    let unrenewed = ours
        .mutex("unrenewed")
        .lease(SHORT)
        .auto_renew(false)
        .acquire()
        .await
        .expect("acquired");
    let limited = ours
        .mutex("limited")
        .lease(SHORT)
        .max_hold(SHORT / 4)
        .acquire()
        .await
        .expect("acquired");
    assert_eq!(
        Metrics::of(&server).begun("LeaseGrant"),
        1,
        "one session for all"
    );
    for name in ["unrenewed", "limited"] {
        drop(
            theirs
                .mutex(name)
                .acquire_timeout(PATIENCE)
                .await
                .expect("freed, though its session lives"),
        );
    }
    assert!(!unrenewed.is_held() && !limited.is_held());
    assert_eq!(limited.lost().await, LossReason::MaxHold);
    assert!(kept.is_held(), "the others go on");
}

/// Two guards of one client contend, though they share a session.
#[tokio::test(flavor = "multi_thread")]
async fn guards_of_one_client_contend() {
    let server = Etcd::start();
    let client = client(&server);
    let first = client.mutex("one").acquire().await.expect("acquired");
    assert!(
        client
            .mutex("one")
            .try_acquire()
            .await
            .expect("an answer")
            .is_none()
    );
    drop(first);
    let second = client
        .mutex("one")
        .acquire_timeout(PATIENCE)
        .await
        .expect("acquired");
    assert_eq!(second.release().await.expect("released"), Released::Done);
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_say_what_to_do() {
    let server = Etcd::with().auth().start();
    let error = |url: String| async move {
        let client = palisade::connect(&url).await.expect("a client");
        client
            .mutex("name")
            .try_acquire()
            .await
            .map(|_| ())
            .expect_err("refused")
    };
    let address = server.address();
    for (url, words) in [
        (format!("etcd://{address}/lock"), "user and a password"),
        (
            format!("etcd://locker:wrong@{address}/lock"),
            "refused the user or the password",
        ),
        (
            format!("etcd://locker:lockpw@{address}/elsewhere"),
            "denies a right",
        ),
    ] {
        let error = error(url).await;
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains(words), "{error}");
        assert!(
            !format!("{error:?}").contains("lockpw"),
            "a secret: {error:?}"
        );
    }
    let error = error(format!("etcd://127.0.0.1:{}/lock?connect_timeout=300ms", 1)).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    for wrong in [
        "etcd://h/?ca=/x",
        "etcd://h/?format=other",
        "etcd://user@h/",
        "etcd://h/a?prefix=b",
    ] {
        let refused = palisade::connect(wrong)
            .await
            .map(|_| ())
            .expect_err("refused");
        assert_eq!(refused.kind(), ErrorKind::Config, "{wrong}: {refused}");
    }
}

/// More keys of other programs than one page reads, without a lock among them: the list goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_goes_on_behind_many_keys_of_other_programs() {
    let server = Etcd::start();
    let client = client(&server);
    let keys = VersionedKeys::connect(format!("etcd://{}", server.address())).expect("a good URL");
    for number in 0..1_001 {
        let key = format!("config-{number:04}");
        let _new = keys.swap(&key, None, "theirs").await.expect("written");
    }
    let _held = client.mutex("job").acquire().await.expect("a grant");
    let lines = client.list("").await.expect("a list");
    let names: Vec<_> = lines.into_iter().map(|line| line.name).collect();
    assert_eq!(names, ["job"]);
}
