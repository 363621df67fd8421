//! Impossible options are refused before anything is sent, and the error says what to do.

use std::time::Duration;

use palisade::blocking::Wait;
use palisade::{Client, ErrorKind, Multi, Mutex};

fn locks() -> Client {
    palisade::connect("memory:").wait().expect("a client")
}

#[test]
fn impossible_options_are_refused() {
    let s = Duration::from_secs;
    type Wrong = fn(Mutex) -> Mutex;
    let wrong: [(&str, Wrong); 11] = [
        ("lease of 0ns", |lock| lock.lease(Duration::ZERO)),
        ("100ms to 86400s", |lock| {
            lock.lease(Duration::from_millis(99))
        }),
        ("100ms to 86400s", |lock| lock.lease(Duration::MAX)),
        ("max_hold", |lock| lock.max_hold(Duration::ZERO)),
        ("min_hold is longer than a year", |lock| {
            lock.min_hold(Duration::MAX)
        }),
        ("swap them", |lock| {
            lock.max_hold(Duration::from_secs(1))
                .min_hold(Duration::from_secs(2))
        }),
        ("at most two fifths", |lock| {
            lock.lease(Duration::from_secs(10))
                .stop_margin(Duration::from_secs(5))
        }),
        ("stopped before it begins", |lock| {
            lock.max_hold(Duration::from_secs(1))
                .stop_margin(Duration::from_secs(1))
        }),
        ("at least 1ms", |lock| {
            lock.spin(Duration::ZERO..Duration::from_secs(1))
        }),
        ("the shorter first", |lock| {
            lock.spin(Duration::from_secs(2)..Duration::from_secs(1))
        }),
        ("a stop margin of", |lock| {
            lock.lease(Duration::from_secs(1))
                .stop_margin(Duration::MAX)
        }),
    ];
    for (says, wrong) in wrong {
        let lock = wrong(locks().mutex("a"));
        let error = lock.acquire().wait().expect_err(says);
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(
            error.to_string().contains(says),
            "{says:?} is not in {error}"
        );
        assert_eq!(lock.check().expect_err(says).to_string(), error.to_string());
    }
    assert!(locks().mutex("a").once_per(Duration::ZERO).check().is_err());
    assert!(
        locks()
            .mutex("a")
            .lease(s(1))
            .max_hold(s(1))
            .min_hold(s(1))
            .check()
            .is_ok()
    );
}

/// Two clients of one store are two owners: the second member would wait for the first.
#[test]
fn a_multi_lock_of_one_name_by_two_clients_of_one_store_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let (file, link) = (dir.path().join("locks.db"), dir.path().join("link.db"));
    std::fs::write(&file, "").expect("a file");
    std::os::unix::fs::symlink(&file, &link).expect("a link");
    let sqlite = |path: &std::path::Path| format!("sqlite:{}", path.display());
    let multi = |one: &str, other: &str| {
        let [one, other] = [one, other].map(|url| Client::connect(url).expect("a good URL"));
        Multi::of([one.mutex("x").into(), other.mutex("x").into()])
    };
    let same = [
        ("memory:shared", "memory:shared"),
        (
            "redis+cluster://h:1,g:2",
            "redis+cluster://user:password@g:2,h:1?request_timeout=9s",
        ),
        (
            "redis://h",
            "redis://h:6379/0?format=palisade&prefix=palisade&names=escaped",
        ),
        ("redis+sentinel://h/main", "redis+sentinel://h:26379/main/0"),
        (
            "redis://h?format=simple",
            "redis://h?format=simple&names=exact",
        ),
        ("etcd://h/lock", "etcd://h:2379/lock?format=mutex"),
        (
            "postgres://u:p@h/d?schema=s",
            "postgresql://u:p@h:5432/d?schema=s",
        ),
        ("mysql://u:p@h/d", "mariadb://u:p@h:3306/d"),
        (
            "zk://h/lock",
            "zk://h:2181/lock?format=curator&names=escaped",
        ),
        (&sqlite(&file), &sqlite(&link)),
    ];
    for (one, other) in same {
        let error = multi(one, other).check().expect_err(one);
        assert_eq!(error.kind(), ErrorKind::Config, "{one} {other}");
        assert!(error.to_string().contains("twice"), "{error}");
    }
    let different = [
        ("memory:", "memory:"),
        ("memory:a", "memory:b"),
        ("redis://h/0", "redis://h/1"),
        ("redis://h", "redis://g"),
        ("redis://h", "redis://h?format=simple"),
        ("redis://h?prefix=a", "redis://h?prefix=b"),
        ("etcd://h/a", "etcd://h/b"),
        ("postgres://u:p@h/d?schema=a", "postgres://u:p@h/d?schema=b"),
        ("mysql://u:p@h/d?table=a", "mysql://u:p@h/d?table=b"),
        (&sqlite(&file), &sqlite(&dir.path().join("other.db"))),
    ];
    for (one, other) in different {
        multi(one, other)
            .check()
            .unwrap_or_else(|error| panic!("{one} {other}: {error}"));
    }
}

#[test]
fn bad_names_are_refused_when_used() {
    for bad in ["", &"x".repeat(513)] {
        let error = locks().mutex(bad).acquire().wait().expect_err("a bad name");
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(locks().show(bad).wait().is_err());
        assert!(locks().multi(["good", bad]).acquire().wait().is_err());
    }
    assert!(
        locks()
            .mutex("x".repeat(512))
            .try_acquire()
            .wait()
            .expect("a good name")
            .is_some()
    );
}

#[test]
fn long_waits_are_not_capped_and_do_not_overflow() {
    let locks = locks();
    let guard = locks.mutex("a").acquire().wait().expect("acquired");
    let lock = locks.mutex("a");
    let waiting = std::thread::spawn(move || lock.acquire_timeout(Duration::MAX).wait());
    while locks
        .show("a")
        .wait()
        .expect("an answer")
        .expect("held")
        .waiters
        .is_empty()
    {
        std::thread::yield_now();
    }
    drop(guard);
    assert!(waiting.join().expect("no panic").is_ok());
}

#[test]
fn urls_choose_the_store() {
    let shared = || {
        palisade::connect("memory:options-test")
            .wait()
            .expect("a client")
    };
    let guard = shared().mutex("a").acquire().wait().expect("acquired");
    assert!(
        shared()
            .mutex("a")
            .try_acquire()
            .wait()
            .expect("an answer")
            .is_none(),
        "one name, one store"
    );
    assert!(
        locks()
            .mutex("a")
            .try_acquire()
            .wait()
            .expect("an answer")
            .is_some(),
        "memory: is private"
    );
    drop(guard);
    for (url, says) in [
        ("", "store URL"),
        ("nosuch://host", "memory"),
        ("memory:?drift=7", "drift"),
        ("memory:?replicas=2", "replicas"),
        ("memory://host", "memory:NAME"),
    ] {
        let error = palisade::connect(url).wait().expect_err(url);
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(
            error.to_string().contains(says),
            "{says:?} is not in {error}"
        );
    }
}

#[test]
fn a_secret_is_not_shown() {
    let locks = locks();
    let guard = locks.mutex("a").acquire().wait().expect("acquired");
    let value = guard.value();
    let shown = format!(
        "{guard:?} {:?} {:?} {:?}",
        locks,
        locks.show("a").wait(),
        locks.list("").wait()
    );
    assert!(value.len() == 32 && !shown.contains(&value), "{shown}");
    let detached = guard
        .detach()
        .wait()
        .map_err(palisade::Error::from)
        .expect("detached");
    assert!(!format!("{detached:?}").contains(&value));
    let json = serde_json::to_string(&detached).expect("json");
    assert!(json.contains(&value), "it is what the next process needs");
    let read: palisade::DetachedGrant = serde_json::from_str(&json).expect("json");
    let adopted = locks
        .adopt::<palisade::Exclusive>(&read)
        .wait()
        .expect("adopted");
    assert!(
        locks.adopt::<palisade::Shared>(&read).wait().is_err(),
        "another mode"
    );
    drop(adopted);
    let broken = json.replace(&value, "short");
    let read: palisade::DetachedGrant = serde_json::from_str(&broken).expect("json");
    assert!(
        locks
            .adopt::<palisade::Exclusive>(&read)
            .wait()
            .expect_err("a broken grant")
            .to_string()
            .contains("32 hex")
    );
}
