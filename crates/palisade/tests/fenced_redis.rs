//! Fenced keys on a real Redis: which writes they refuse, what they keep, and sabotaged twins in
//! which the checks fail.

#![cfg(feature = "redis")]

mod common;

use std::time::Duration;

use common::keys::{connect, fresh};
use palisade::fence::Fence;
use palisade::fence::redis::redis::aio::{
    ConnectionLike, ConnectionManager, MultiplexedConnection,
};
use palisade::fence::redis::redis::{self, cmd};
use palisade::fence::redis::{FencedKeys, Held, KeyError};
use palisade::{DetachedGrant, ErrorKind};
use palisade_testkit::proxy::{Protocol, Proxy};
use palisade_testkit::redis::{Cluster, Redis};
use palisade_testkit::shared;

const KEYS: FencedKeys = FencedKeys::new();
const BEYOND_DOUBLES: u64 = 1 << 53;

fn fence(number: u64) -> Fence {
    Fence::new(number).unwrap()
}

#[track_caller]
fn assert_stale<T: std::fmt::Debug>(result: Result<T, KeyError>, offered: u64, highest: u64) {
    match result {
        Err(KeyError::Stale {
            highest: seen,
            offered: by,
        }) => assert_eq!((seen, by), (fence(highest), fence(offered))),
        other => panic!("not refused as stale: {other:?}"),
    }
}

async fn value(redis: &mut MultiplexedConnection, key: &str) -> Option<String> {
    let entry = KEYS.get(redis, key).await.unwrap()?;
    entry.value.map(|value| String::from_utf8(value).unwrap())
}

async fn pttl(redis: &mut MultiplexedConnection, key: &str) -> i64 {
    cmd("PTTL").arg(key).query_async(redis).await.unwrap()
}

#[tokio::test]
async fn lower_is_refused_equal_and_higher_pass() {
    let (mut redis, key) = fresh("rules").await;
    assert_eq!(KEYS.get(&mut redis, &key).await.unwrap(), None);
    KEYS.set(&mut redis, &key, fence(9), "a").await.unwrap();
    KEYS.set(&mut redis, &key, fence(9), "b")
        .await
        .expect("one holder writes twice");
    KEYS.set(&mut redis, &key, fence(10), "c\0\r\n\u{e9}")
        .await
        .expect("the next holder; 10 is higher than 9, not as text");
    assert_stale(KEYS.set(&mut redis, &key, fence(9), "late").await, 9, 10);
    assert_stale(
        KEYS.set_for(&mut redis, &key, fence(9), "late", Duration::from_secs(9))
            .await,
        9,
        10,
    );
    assert_stale(KEYS.delete(&mut redis, &key, fence(9)).await, 9, 10);
    assert_stale(KEYS.install(&mut redis, &key, fence(9)).await, 9, 10);
    assert_stale(KEYS.check(&mut redis, &key, fence(9)).await, 9, 10);
    let entry = KEYS.get(&mut redis, &key).await.unwrap().unwrap();
    assert_eq!(
        (entry.value.as_deref(), entry.fence),
        (Some("c\0\r\n\u{e9}".as_bytes()), fence(10)),
        "a refusal changes nothing"
    );
    assert_eq!(pttl(&mut redis, &key).await, -1, "nor gives the key an end");
    assert!(matches!(
        KEYS.set(&mut redis, &key, Fence::NONE, "x").await,
        Err(KeyError::NoFence)
    ));
}

#[tokio::test]
async fn a_check_changes_nothing_and_an_install_stops_the_old_holder() {
    let (mut redis, key) = fresh("install").await;
    KEYS.check(&mut redis, &key, fence(5)).await.unwrap();
    assert_eq!(
        KEYS.get(&mut redis, &key).await.unwrap(),
        None,
        "a check leaves nothing behind"
    );
    KEYS.set(&mut redis, &key, fence(5), "7").await.unwrap();
    KEYS.check(&mut redis, &key, fence(6)).await.unwrap();
    KEYS.set(&mut redis, &key, fence(5), "7")
        .await
        .expect("a check by 6 has stopped no writer");
    KEYS.install(&mut redis, &key, fence(6)).await.unwrap();
    assert_stale(KEYS.set(&mut redis, &key, fence(5), "6").await, 5, 6);
    assert_eq!(value(&mut redis, &key).await.as_deref(), Some("7"));
}

#[tokio::test]
async fn a_deleted_value_is_not_brought_back_by_a_stale_holder() {
    let (mut redis, key) = fresh("delete").await;
    assert!(
        !KEYS.delete(&mut redis, &key, fence(4)).await.unwrap(),
        "there was none"
    );
    KEYS.set(&mut redis, &key, fence(5), "7").await.unwrap();
    assert!(KEYS.delete(&mut redis, &key, fence(6)).await.unwrap());
    assert!(
        !KEYS.delete(&mut redis, &key, fence(6)).await.unwrap(),
        "again is harmless"
    );
    assert_stale(KEYS.set(&mut redis, &key, fence(5), "7").await, 5, 6);
    let entry = KEYS.get(&mut redis, &key).await.unwrap().unwrap();
    assert_eq!((entry.value, entry.fence), (None, fence(6)));
    let left = pttl(&mut redis, &key).await;
    assert!(
        (86_300_000..=86_400_000).contains(&left),
        "the fence stays for a day: {left}"
    );
    KEYS.set(&mut redis, &key, fence(6), "8").await.unwrap();
    assert_eq!(
        pttl(&mut redis, &key).await,
        -1,
        "and for as long as there is a value again"
    );
}

#[tokio::test]
async fn fences_do_not_lose_digits() {
    let (mut redis, key) = fresh("digits").await;
    let rising = [
        1,
        9,
        10,
        99,
        100,
        BEYOND_DOUBLES - 1,
        BEYOND_DOUBLES,
        BEYOND_DOUBLES + 1,
        i64::MAX as u64 - 1,
        i64::MAX as u64,
    ];
    for pair in rising.windows(2) {
        KEYS.set(&mut redis, &key, fence(pair[1]), "x")
            .await
            .unwrap();
        assert_stale(
            KEYS.set(&mut redis, &key, fence(pair[0]), "late").await,
            pair[0],
            pair[1],
        );
        assert_eq!(
            KEYS.get(&mut redis, &key).await.unwrap().unwrap().fence,
            fence(pair[1])
        );
    }
}

/// The check as it is often written. The same numbers must catch it, or the test above proves
/// nothing.
#[tokio::test]
async fn the_sabotaged_twin_compares_doubles_and_lets_a_stale_write_pass() {
    const TWIN: &str = "local highest = redis.call('HGET', KEYS[1], 'fence')
        if highest and tonumber(ARGV[1]) < tonumber(highest) then return 0 end
        redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'value', ARGV[2])
        return 1";
    let (mut redis, key) = fresh("twin").await;
    for (number, passes) in [
        (100, 1),
        (99, 0),
        (BEYOND_DOUBLES + 1, 1),
        (BEYOND_DOUBLES, 1),
    ] {
        let answer = cmd("EVAL")
            .arg(TWIN)
            .arg(1)
            .arg(&key)
            .arg(number)
            .arg("x")
            .query_async(&mut redis)
            .await;
        assert_eq!(answer, Ok(passes), "{number}");
    }
}

/// Reads a piece count, is paused while another holder takes the lock and writes, and then writes its
/// own result.
async fn after_the_pause(key: &str, fenced: bool) -> String {
    let mut ours = connect(shared::redis().url()).await;
    let mut theirs = ours.clone();
    KEYS.set(&mut ours, key, fence(33), "7").await.unwrap();
    let seen: u32 = value(&mut ours, key).await.unwrap().parse().unwrap();
    // The pause: the lease ends, the next holder gets 34, and sells five.
    KEYS.install(&mut theirs, key, fence(34)).await.unwrap();
    KEYS.set(&mut theirs, key, fence(34), "2").await.unwrap();
    let late = (seen - 1).to_string();
    if fenced {
        assert_stale(KEYS.set(&mut ours, key, fence(33), late).await, 33, 34);
    } else {
        cmd("HSET")
            .arg(key)
            .arg("value")
            .arg(late)
            .exec_async(&mut ours)
            .await
            .unwrap();
    }
    value(&mut ours, key).await.unwrap()
}

#[tokio::test]
async fn the_late_write_of_a_paused_holder_is_refused_and_passes_without_the_check() {
    assert_eq!(after_the_pause(&shared::name("paused"), true).await, "2");
    assert_eq!(
        after_the_pause(&shared::name("paused-twin"), false).await,
        "6",
        "five pieces are sold twice"
    );
}

#[tokio::test]
async fn many_writers_leave_the_highest_fence_and_its_value() {
    let (mut redis, key) = fresh("many").await;
    let mut numbers: Vec<u64> = (1..=200).collect();
    fastrand::shuffle(&mut numbers);
    let writers: Vec<_> = numbers
        .into_iter()
        .map(|number| {
            let (mut redis, key) = (redis.clone(), key.clone());
            tokio::spawn(async move {
                KEYS.set(&mut redis, key, fence(number), number.to_string())
                    .await
                    .is_ok()
            })
        })
        .collect();
    let mut passed = 0;
    for writer in writers {
        passed += u32::from(writer.await.unwrap());
    }
    let entry = KEYS.get(&mut redis, &key).await.unwrap().unwrap();
    assert_eq!(
        (entry.value.as_deref(), entry.fence),
        (Some(&b"200"[..]), fence(200)),
        "{passed} passed"
    );
}

#[tokio::test]
async fn the_fence_outlives_the_end_of_the_value() {
    let (mut redis, key) = fresh("ends").await;
    let keys = KEYS.keep(Duration::from_millis(1500)).unwrap();
    keys.set_for(&mut redis, &key, fence(6), "7", Duration::from_millis(600))
        .await
        .unwrap();
    assert_eq!(value(&mut redis, &key).await.as_deref(), Some("7"));
    let left = pttl(&mut redis, &key).await;
    assert!((1501..=2100).contains(&left), "value and fence: {left}");
    tokio::time::sleep(Duration::from_millis(1000)).await;
    assert_eq!(value(&mut redis, &key).await, None, "the value has ended");
    assert_stale(keys.set(&mut redis, &key, fence(5), "late").await, 5, 6);
    assert!(
        !keys.delete(&mut redis, &key, fence(6)).await.unwrap(),
        "there is no value to delete"
    );
    let left = pttl(&mut redis, &key).await;
    assert!(
        (1101..=1500).contains(&left),
        "counted anew from this write: {left}"
    );
    tokio::time::sleep(Duration::from_millis(1600)).await;
    assert_eq!(
        keys.get(&mut redis, &key).await.unwrap(),
        None,
        "as documented, all is forgotten then"
    );
    keys.set(&mut redis, &key, fence(5), "late")
        .await
        .expect("also that there was a holder");
}

#[tokio::test]
async fn an_install_moves_neither_the_end_of_the_value_nor_that_of_the_fence_forward() {
    let (mut redis, key) = fresh("install-ends").await;
    let keys = KEYS.keep(Duration::from_secs(50)).unwrap();
    keys.install(&mut redis, &key, fence(1)).await.unwrap();
    assert!(
        (49_000..=50_000).contains(&pttl(&mut redis, &key).await),
        "no value: kept from now"
    );
    keys.set_for(&mut redis, &key, fence(1), "7", Duration::from_secs(100))
        .await
        .unwrap();
    keys.install(&mut redis, &key, fence(2)).await.unwrap();
    assert!(
        (149_000..=150_000).contains(&pttl(&mut redis, &key).await),
        "kept from the end of the value"
    );
    keys.set(&mut redis, &key, fence(2), "8").await.unwrap();
    keys.install(&mut redis, &key, fence(3)).await.unwrap();
    assert_eq!(pttl(&mut redis, &key).await, -1, "kept with the value");
    assert!(
        keys.keep_forever()
            .delete(&mut redis, &key, fence(3))
            .await
            .unwrap()
    );
    assert_eq!(pttl(&mut redis, &key).await, -1, "kept for ever");
    for bad in [Duration::ZERO, Duration::from_micros(999), Duration::MAX] {
        assert!(KEYS.keep(bad).is_err());
        let refused = keys.set_for(&mut redis, &key, fence(3), "x", bad).await;
        assert!(
            matches!(refused, Err(KeyError::Config(error)) if error.kind() == ErrorKind::Config)
        );
    }
}

#[tokio::test]
async fn a_foreign_key_is_not_touched() {
    let (mut redis, key) = fresh("foreign").await;
    let others: [(&[&str], &str); 4] = [
        (&["SET", &key, "7"], "string"),
        (&["RPUSH", &key, "7"], "list"),
        (&["HSET", &key, "value", "7", "fence", "1"], "hash"),
        (
            &["HSET", &key, "palisade", "fenced:2", "fence", "1"],
            "fenced:2",
        ),
    ];
    for (words, what) in others {
        shared::redis().call(&["DEL", &key]);
        shared::redis().call(words);
        let before = shared::redis().call(&["DUMP", &key]);
        for refused in [
            KEYS.set(&mut redis, &key, fence(9), "x").await,
            KEYS.install(&mut redis, &key, fence(9)).await,
            KEYS.check(&mut redis, &key, fence(9)).await,
            KEYS.delete(&mut redis, &key, fence(9)).await.map(drop),
            KEYS.get(&mut redis, &key).await.map(drop),
        ] {
            let error = refused.unwrap_err();
            assert!(
                matches!(&error, KeyError::Foreign { found } if found == what),
                "{error:?}"
            );
            assert!(error.to_string().contains("use another key"), "{error}");
        }
        assert_eq!(shared::redis().call(&["DUMP", &key]), before, "{what}");
    }
}

#[tokio::test]
async fn a_damaged_fence_is_never_taken_for_zero() {
    let (mut redis, key) = fresh("corrupt").await;
    for bad in [
        "",
        "0",
        "007",
        "-1",
        "1e3",
        " 1",
        "1\n",
        "9223372036854775808",
        "18446744073709551616",
    ] {
        shared::redis().call(&[
            "HSET", &key, "palisade", "fenced:1", "fence", bad, "value", "7",
        ]);
        for refused in [
            KEYS.set(&mut redis, &key, Fence::MAX, "x").await,
            KEYS.get(&mut redis, &key).await.map(drop),
        ] {
            assert!(
                matches!(refused, Err(KeyError::Corrupt { found }) if found == bad),
                "{bad:?}"
            );
        }
    }
    shared::redis().call(&["HDEL", &key, "fence"]);
    assert!(matches!(
        KEYS.set(&mut redis, &key, Fence::MAX, "x").await,
        Err(KeyError::Corrupt { .. })
    ));
    assert_eq!(shared::redis().call(&["HGET", &key, "value"]).text(), "7");
}

#[tokio::test]
async fn flushed_scripts_are_sent_again() {
    let server = Redis::start();
    let mut redis = connect(server.url()).await;
    KEYS.set(&mut redis, "a", fence(1), "x")
        .await
        .expect("a server that has never seen the script");
    server.call(&["SCRIPT", "FLUSH"]);
    KEYS.set(&mut redis, "a", fence(2), "y")
        .await
        .expect("a server that has lost the script");
    server.call(&["SCRIPT", "FLUSH"]);
    assert_eq!(
        KEYS.get(&mut redis, "a").await.unwrap().unwrap().fence,
        fence(2)
    );
    KEYS.set(&mut redis, "a", fence(3), "z").await.unwrap();
    let before = (calls(&server, "evalsha"), calls(&server, "eval"));
    KEYS.set(&mut redis, "a", fence(3), "z").await.unwrap();
    assert_eq!(
        (calls(&server, "evalsha"), calls(&server, "eval")),
        (before.0 + 1, before.1),
        "one round trip when it is known"
    );
}

fn calls(server: &Redis, command: &str) -> u64 {
    let stats = server.call(&["INFO", "commandstats"]).text();
    let line = stats
        .lines()
        .find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")))
        .unwrap();
    line.split(',').next().unwrap().parse().unwrap()
}

/// The reply is lost; the same write on another connection is done once.
#[tokio::test]
async fn after_a_lost_reply_the_same_is_written_again() {
    let server = Redis::start();
    let address = server.address();
    // It runs a runtime of its own while it starts.
    let proxy = tokio::task::spawn_blocking(move || Proxy::speaking(Protocol::Redis, address))
        .await
        .unwrap();
    let client = redis::Client::open(format!("redis://{}", proxy.address())).unwrap();
    let mut redis = ConnectionManager::new(client).await.unwrap();
    KEYS.set(&mut redis, "a", fence(1), "x").await.unwrap();
    proxy.lose_reply_to(|request| request.windows(7).any(|word| word == b"EVALSHA"));
    let lost = KEYS.set(&mut redis, "a", fence(2), "y").await;
    assert!(matches!(&lost, Err(KeyError::Redis(_))), "{lost:?}");
    assert_eq!(
        server.call(&["HGET", "a", "value"]).text(),
        "y",
        "it was done"
    );
    let again = async || KEYS.set(&mut redis.clone(), "a", fence(2), "y").await;
    // The manager needs a moment to reconnect.
    let mut answer = again().await;
    for _ in 0..50 {
        if answer.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        answer = again().await;
    }
    answer.unwrap();
    let entry = KEYS.get(&mut redis, "a").await.unwrap().unwrap();
    assert_eq!(
        (entry.value.as_deref(), entry.fence),
        (Some(&b"y"[..]), fence(2))
    );
}

/// A lock in Redis, changed by the scripts of the store: `set_if_held` must understand it.
struct Lock {
    name: String,
    key: String,
}

/// A script that is given its key and these words.
macro_rules! line_script {
    ($words:literal, $($file:literal),+) => {
        concat!(
            include_str!("../src/stores/redis/line/head.lua"),
            "local key, ", $words, " = KEYS[1], unpack(ARGV)\n",
            include_str!("../src/stores/redis/line/read_state.lua"),
            $(include_str!(concat!("../src/stores/redis/line/", $file))),+
        )
    };
}

impl Lock {
    fn new(about: &str) -> Lock {
        let name = shared::name(about);
        Lock {
            key: format!("palisade:1:{{{name}}}"),
            name,
        }
    }

    async fn run<C: ConnectionLike>(
        &self,
        redis: &mut C,
        script: &str,
        args: &[&[u8]],
    ) -> redis::Value {
        cmd("EVAL")
            .arg(script)
            .arg(1)
            .arg(&self.key)
            .arg(args)
            .query_async(redis)
            .await
            .unwrap()
    }

    /// Claims the name for one holder, and returns the grant. `how` is an argument of the script.
    async fn claim<C: ConnectionLike>(
        &self,
        redis: &mut C,
        number: u64,
        lease: Duration,
        how: &str,
    ) -> DetachedGrant {
        let script = line_script!(
            "how, wanted, min_hold, once_per",
            "claim_fast.lua",
            "line.lua",
            "claim.lua"
        );
        let (claim, micros) = (format!("{number:032x}"), lease.as_micros() as f64);
        let wanted = [
            &micros.to_le_bytes(),
            claim.as_bytes(),
            &how.as_bytes()[1..2],
            b"1:i2:me",
        ]
        .concat();
        let redis::Value::Int(fence) = self.run(redis, script, &[how.as_bytes(), &wanted]).await
        else {
            panic!("not granted")
        };
        let grant = serde_json::json!({
            "name": self.name, "store": "redis", "claim": claim, "kind": "mutex", "mode": "exclusive",
            "fence": fence.to_string(), "lease_ms": 1000, "owner": "me",
        });
        serde_json::from_value(grant).unwrap()
    }

    async fn revoke<C: ConnectionLike>(&self, redis: &mut C, grant: &DetachedGrant) {
        let script = line_script!("fence, claim", "line.lua", "revoke.lua");
        let said = self
            .run(redis, script, &[grant.fence().to_string().as_bytes()])
            .await;
        assert_eq!(said, redis::Value::BulkString(b"D".to_vec()));
    }
}

const LONG: Duration = Duration::from_secs(60);

async fn assert_not_held(redis: &mut MultiplexedConnection, held: &Held, key: &str) {
    let before = shared::redis().call(&["DUMP", key]);
    let refused = KEYS.set_if_held(redis, key, held, "late").await;
    assert!(matches!(refused, Err(KeyError::NotHeld)), "{refused:?}");
    let refused = KEYS.delete_if_held(redis, key, held).await;
    assert!(matches!(refused, Err(KeyError::NotHeld)), "{refused:?}");
    assert_eq!(shared::redis().call(&["DUMP", key]), before);
}

#[tokio::test]
async fn a_holder_writes_and_an_expired_one_does_not_even_without_a_next_holder() {
    let (mut redis, lock) = (connect(shared::redis().url()).await, Lock::new("expired"));
    let grant = lock
        .claim(&mut redis, 1, Duration::from_millis(1000), "nmx")
        .await;
    let held = Held::by_grant(&grant).unwrap();
    let key = held.key("stock");
    KEYS.set_if_held(&mut redis, &key, &held, "7")
        .await
        .unwrap();
    KEYS.set_if_held(&mut redis, &key, &held, "6")
        .await
        .unwrap();
    let entry = KEYS.get(&mut redis, &key).await.unwrap().unwrap();
    assert_eq!(
        (entry.value.as_deref(), entry.fence),
        (Some(&b"6"[..]), grant.fence())
    );
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert_not_held(&mut redis, &held, &key).await;
    // The twin: the fence alone has seen no later holder, and lets the write pass.
    KEYS.set(&mut redis, &key, grant.fence(), "5")
        .await
        .unwrap();
}

/// The guard of a real client, with and without a prefix, with exact names, alone and with a waiter
/// behind it.
#[tokio::test]
async fn the_guard_of_a_client_writes_until_it_is_given_back() {
    let mut redis = connect(shared::redis().url()).await;
    let as_it_is: fn(Held) -> Held = |held| held;
    for (words, told) in [
        ("", as_it_is),
        ("?prefix=app", |held| held.prefix("app")),
        ("?names=exact", |held| held.exact_name()),
    ] {
        let locks = palisade::connect(shared::redis().url() + words)
            .await
            .unwrap();
        let name = shared::name("orders/42");
        let guard = locks.mutex(&name).acquire().await.unwrap();
        let held = told(Held::by(&guard).unwrap());
        let key = held.key("stock");
        KEYS.set_if_held(&mut redis, &key, &held, "7")
            .await
            .unwrap();
        let waiter = tokio::spawn({
            let lock = locks.mutex(&name);
            async move { lock.acquire().await }
        });
        palisade_conformance::eventually("a waiter in line", async || {
            locks
                .show(&name)
                .await
                .unwrap()
                .is_some_and(|line| line.waiters.len() == 1)
        })
        .await;
        KEYS.set_if_held(&mut redis, &key, &held, "6")
            .await
            .unwrap();
        assert_eq!(guard.release().await.unwrap(), palisade::Released::Done);
        assert_not_held(&mut redis, &held, &key).await;
        drop(waiter.await.unwrap().unwrap());
    }
}

#[tokio::test]
async fn a_revoked_holder_does_not_write() {
    let (mut redis, lock) = (connect(shared::redis().url()).await, Lock::new("revoked"));
    // The one-holder form of the state, and the general one of a writer of a rwlock after a
    // revocation.
    for (number, how) in [(1, "nmx"), (2, "nrx")] {
        let grant = lock.claim(&mut redis, number, LONG, how).await;
        let held = Held::by_grant(&grant).unwrap();
        let key = held.key(how);
        KEYS.set_if_held(&mut redis, &key, &held, "7")
            .await
            .unwrap();
        lock.revoke(&mut redis, &grant).await;
        assert_not_held(&mut redis, &held, &key).await;
    }
}

#[tokio::test]
async fn a_replaced_holder_does_not_write_even_if_the_next_never_wrote() {
    let (mut redis, lock) = (connect(shared::redis().url()).await, Lock::new("taken"));
    let old = lock
        .claim(&mut redis, 1, Duration::from_millis(200), "nmx")
        .await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let new = lock.claim(&mut redis, 2, LONG, "nmx").await;
    let (old, new) = (Held::by_grant(&old).unwrap(), Held::by_grant(&new).unwrap());
    let key = old.key("stock");
    assert_not_held(&mut redis, &old, &key).await;
    assert_eq!(
        KEYS.get(&mut redis, &key).await.unwrap(),
        None,
        "the next holder has written nothing here"
    );
    KEYS.set_if_held(&mut redis, &key, &new, "7").await.unwrap();
    assert!(KEYS.delete_if_held(&mut redis, &key, &new).await.unwrap());
    assert_stale(
        KEYS.set(&mut redis, &key, old.fence(), "late").await,
        old.fence().get(),
        new.fence().get(),
    );
    shared::redis().call(&["DEL", &lock.key]);
    assert_not_held(&mut redis, &new, &key).await; // the lock's key is lost
    shared::redis().call(&["SET", &lock.key, "x"]);
    assert_not_held(&mut redis, &new, &key).await; // or is something else
}

/// The server has lost its data, so that an older grant holds: the fence still refuses the write.
#[tokio::test]
async fn a_holder_with_an_older_fence_than_was_seen_is_stale() {
    let (mut redis, lock) = (connect(shared::redis().url()).await, Lock::new("older"));
    let grant = lock.claim(&mut redis, 1, LONG, "nmx").await;
    let held = Held::by_grant(&grant).unwrap();
    let key = held.key("stock");
    let later = fence(grant.fence().get() + 1);
    KEYS.install(&mut redis, &key, later).await.unwrap();
    assert_stale(
        KEYS.set_if_held(&mut redis, &key, &held, "late").await,
        grant.fence().get(),
        later.get(),
    );
}

#[tokio::test]
async fn only_exclusive_grants_in_redis_and_keys_in_their_slot_are_accepted() {
    let (mut redis, lock) = (connect(shared::redis().url()).await, Lock::new("slot"));
    let grant = lock.claim(&mut redis, 1, LONG, "nmx").await;
    let held = Held::by_grant(&grant).unwrap();
    for key in ["stock", "{stock}", "stock{}"] {
        let refused = KEYS
            .set_if_held(&mut redis, key, &held, "7")
            .await
            .unwrap_err();
        assert!(
            matches!(&refused, KeyError::Config(error) if error.kind() == ErrorKind::Config),
            "{refused:?}"
        );
        assert!(refused.to_string().contains(&held.key(key)), "{refused}");
    }
    assert!(
        !format!("{held:?}").contains(&format!("{:032x}", 1)),
        "the claim is a secret"
    );
    let changed = |field: &str, value: serde_json::Value| {
        let mut grant = serde_json::to_value(&grant).unwrap();
        grant[field] = value;
        Held::by_grant(&serde_json::from_value(grant).unwrap())
            .unwrap_err()
            .to_string()
    };
    assert!(changed("store", "sqlite".into()).contains("sqlite"));
    assert!(changed("mode", "shared".into()).contains("exclusive"));
    let guard = palisade::connect("memory:")
        .await
        .unwrap()
        .mutex("a")
        .acquire()
        .await
        .unwrap();
    assert!(Held::by(&guard).unwrap_err().to_string().contains("memory"));
}

#[tokio::test]
async fn a_cluster_serves_both_forms() {
    let cluster: &Cluster = shared::redis_cluster();
    let nodes: Vec<_> = cluster.nodes().iter().map(|node| node.url()).collect();
    let mut redis = redis::cluster::ClusterClient::new(nodes)
        .unwrap()
        .get_async_connection()
        .await
        .unwrap();
    for number in 1..=20 {
        let lock = Lock::new("cluster");
        let grant = lock.claim(&mut redis, number, LONG, "nmx").await;
        let held = Held::by_grant(&grant).unwrap();
        let key = held.key("stock");
        KEYS.set_if_held(&mut redis, &key, &held, "7")
            .await
            .unwrap();
        assert_stale(
            KEYS.set(&mut redis, &key, fence(1), "late").await,
            1,
            grant.fence().get(),
        );
        lock.revoke(&mut redis, &grant).await;
        assert!(matches!(
            KEYS.set_if_held(&mut redis, &key, &held, "late").await,
            Err(KeyError::NotHeld)
        ));
        assert_eq!(
            KEYS.get(&mut redis, &key)
                .await
                .unwrap()
                .unwrap()
                .value
                .as_deref(),
            Some(&b"7"[..])
        );
    }
}
