//! MySQL and MariaDB under faults, while a lock is held and waited for: no phantom holder, the holder
//! told in time, fences that rise, and no connection used again that has failed.

#![cfg(feature = "mysql")]

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::actors::{
    Believer, connect, gets_in, is_told, number, rise, some_gets_in, soon, wait_for,
};
use common::{actors, in_line, ms};
use palisade::ErrorKind;
use palisade::fence::mysql::mysql_async::{self, prelude::Queryable};
use palisade_conformance::eventually;
use palisade_testkit::mariadb::MariaDb;
use palisade_testkit::proxy::{Proxy, Way};

/// So long that no test waits for its end.
const LONG: Duration = Duration::from_secs(120);

use actors::give_back;

fn url(address: SocketAddr) -> String {
    format!("mysql://locker:lockpw@{address}/locks")
}

fn count(server: &MariaDb, what: &str) -> u32 {
    let count = server.sql(&format!("SELECT COUNT(*) FROM {what}"));
    count.parse().expect("a number")
}

fn held(server: &MariaDb) -> u32 {
    count(server, "palisade_line WHERE state = 'held'")
}

/// Runs statements on a thread of their own, and returns once the last but one sleeps.
fn outside(server: &Arc<MariaDb>, statements: String) -> std::thread::JoinHandle<()> {
    let runs = Arc::clone(server);
    let thread = std::thread::spawn(move || drop(runs.sql(&statements)));
    let sleeps = "information_schema.processlist WHERE info LIKE 'DO SLEEP%'";
    while count(server, sleeps) == 0 {
        assert!(!thread.is_finished(), "the statements were over too soon");
    }
    thread
}

fn lock_row(server: &Arc<MariaDb>, name: &str, span: Duration) -> std::thread::JoinHandle<()> {
    let seconds = span.as_secs_f64();
    outside(
        server,
        format!(
            "START TRANSACTION; SELECT 1 FROM palisade_line WHERE name = '{name}' FOR UPDATE; \
             DO SLEEP({seconds}); COMMIT"
        ),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_reply_was_lost_is_withdrawn() {
    let server = MariaDb::start();
    let proxy = tokio::task::block_in_place(|| Proxy::start(server.address()));
    let locks = connect(url(proxy.address()));
    give_back(
        soon("warm", locks.mutex("n").acquire())
            .await
            .expect("free"),
    )
    .await;
    proxy.refuse();
    proxy.lose_reply();
    let mutex = locks.mutex("n").lease(LONG);
    let refused = soon("an answer", mutex.try_acquire()).await;
    assert_eq!(
        refused.expect_err("unreachable").kind(),
        ErrorKind::Unavailable
    );
    assert_eq!(held(&server), 1, "it was applied");
    proxy.heal();
    eventually("withdrawn", async || held(&server) == 0).await;
    let outside = connect(server.url());
    give_back(
        soon("free", outside.mutex("n").acquire())
            .await
            .expect("free"),
    )
    .await;
}

/// A claim has its row, and the next step of the same call waits for it too long. It is not sent again,
/// since its caller has left meanwhile: it is withdrawn.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_fails_after_its_grant_is_withdrawn() {
    let server = MariaDb::start();
    let locks = connect(server.url());
    give_back(
        soon("warm", locks.mutex("n").acquire())
            .await
            .expect("free"),
    )
    .await;
    let outside = async || {
        let url = format!("mysql://locker:lockpw@{}/locks", server.address());
        let conn = mysql_async::Pool::new(url.as_str()).get_conn().await;
        let mut conn = conn.expect("connected");
        conn.query_drop("START TRANSACTION").await.expect("begun");
        conn
    };
    let lock = "SELECT 1 FROM palisade_line WHERE name = 'n' FOR UPDATE";
    let runs = async |what: &str, sessions: u32| {
        let running = format!("information_schema.processlist WHERE info LIKE '{what}'");
        eventually(what, async || count(&server, &running) == sessions).await;
    };
    let claims = "UPDATE%palisade_line%SET s%";
    for _ in 0..20 {
        let (mut before, mut behind) = (outside().await, outside().await);
        before.query_drop(lock).await.expect("locked");
        let claim = wait_for(&locks.mutex("n").lease(LONG));
        runs(claims, 1).await;
        let behind = tokio::spawn(async move {
            behind.query_drop(lock).await.expect("locked");
            behind
        });
        runs(lock.replace('\'', "_").as_str(), 1).await;
        before.query_drop("COMMIT").await.expect("unlocked");
        let mut behind = soon("it has the row", behind).await.expect("no panic");
        let has_its_row = held(&server) == 1;
        claim.abort();
        // The withdrawal waits for the row, too.
        runs("UPDATE%palisade_line%SET since%", 0).await;
        behind.query_drop("COMMIT").await.expect("unlocked");
        eventually("withdrawn", async || held(&server) == 0).await;
        if has_its_row {
            return;
        }
        runs(claims, 0).await;
    }
    panic!("the claim never had its row before the other transaction");
}

/// A row that is locked from outside is in one batch with others: these are renewed, and other names
/// can be claimed and released meanwhile, although more tasks wait for the row than there are
/// connections.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_row_costs_none_of_its_batch() {
    let server = Arc::new(MariaDb::start());
    let locks = connect(server.url());
    let lease = ms(2500);
    let mut others = Vec::new();
    for number in 0..20 {
        let mutex = locks.mutex(format!("other-{number:02}")).lease(lease);
        others.push(soon("free", mutex.acquire()).await.expect("free"));
    }
    let stuck = locks.mutex("other-07-stuck").lease(lease);
    let stuck = soon("free", stuck.acquire()).await.expect("free");
    let outside = lock_row(&server, "other-07-stuck", ms(5500));
    let mut blocked: Vec<_> = (0..10)
        .map(|_| wait_for(&locks.mutex("other-07-stuck")))
        .collect();
    tokio::time::sleep(ms(4500)).await;
    assert!(others.iter().all(palisade::Guard::is_held), "all renewed");
    for guard in others {
        let begun = Instant::now();
        give_back(guard).await;
        assert!(begun.elapsed() < ms(2500), "{:?}", begun.elapsed());
    }
    is_told(&stuck).await;
    outside.join().expect("no panic");
    while !blocked.is_empty() {
        give_back(some_gets_in(&mut blocked).await).await;
    }
}

/// A statement that waits too long for a row is rolled back whole.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_locked_for_too_long_leaves_no_half_work() {
    let server = Arc::new(MariaDb::start());
    let locks = connect(format!("{}?request_timeout=2500ms", server.url()));
    let guard = soon("free", locks.rwlock("n").lease(LONG).read())
        .await
        .expect("free");
    let writer = connect(server.url()).rwlock("n").lease(LONG);
    let waiter = tokio::spawn(async move { writer.write().await });
    in_line(&locks, "n", 1).await;
    let claims =
        "SELECT state, HEX(claim), fence FROM palisade_claim WHERE name = 'n' ORDER BY seq";
    let before = server.sql(claims);
    // The waiter's row, so that the hand-off fails when the holder's row is already gone.
    let outside = outside(
        &server,
        "START TRANSACTION; SELECT 1 FROM palisade_claim WHERE name = 'n' AND state = 'waits' FOR UPDATE; \
         DO SLEEP(3); COMMIT"
            .to_owned(),
    );
    let begun = Instant::now();
    let released = tokio::spawn(guard.release());
    while begun.elapsed() < ms(2200) {
        assert_eq!(server.sql(claims), before);
        tokio::time::sleep(ms(100)).await;
    }
    outside.join().expect("no panic");
    let released = soon("released", released).await.expect("no panic");
    let next = soon("it gets in", waiter).await.expect("no panic");
    let next = next.expect("granted");
    assert!(released.is_ok() || next.is_held(), "{released:?}");
    next.release().await.expect("an answer");
    assert_eq!(count(&server, "palisade_claim"), 0);
}

/// A release that loses a deadlock is sent again.
#[tokio::test(flavor = "multi_thread")]
async fn a_deadlock_victim_goes_on() {
    let server = Arc::new(MariaDb::start());
    let locks = connect(server.url());
    let other = connect(server.url());
    server.sql("CREATE TABLE weight (n INT); INSERT INTO weight SELECT seq FROM seq_1_to_2000");
    let deadlocks = || server.sql("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'");
    let before = deadlocks();
    for _ in 0..3 {
        let guard = soon("free", locks.mutex("n").lease(LONG).acquire())
            .await
            .expect("free");
        let waiter = wait_for(&other.mutex("n").lease(LONG));
        in_line(&locks, "n", 1).await;
        // It has changed more, so it is the other side that the server ends.
        let outside = outside(
            &server,
            "START TRANSACTION; UPDATE weight SET n = n + 1; \
             SELECT 1 FROM palisade_claim WHERE name = 'n' FOR UPDATE; DO SLEEP(0.4); \
             SELECT 1 FROM palisade_line WHERE name = 'n' FOR UPDATE; COMMIT"
                .to_owned(),
        );
        give_back(guard).await;
        give_back(gets_in(waiter).await).await;
        outside.join().expect("no deadlock there");
    }
    assert_ne!(deadlocks(), before, "there was no deadlock");
    assert_eq!(count(&server, "palisade_claim"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_is_cut_off_is_told_in_time() {
    let server = MariaDb::start();
    let proxy = tokio::task::block_in_place(|| Proxy::start(server.address()));
    let (cut, other) = (connect(url(proxy.address())), connect(server.url()));
    let guard = soon("free", cut.mutex("n").lease(ms(2000)).acquire()).await;
    let guard = Arc::new(guard.expect("free"));
    let waiter = wait_for(&other.mutex("n"));
    in_line(&other, "n", 1).await;
    let believer = Believer::watch(Arc::clone(&guard));
    proxy.swallow(Way::Both);
    let next = gets_in(waiter).await;
    let granted = Instant::now();
    is_told(&guard).await;
    let last = believer.last_belief().expect("it held");
    assert!(last < granted, "two holders at the same time");
    proxy.heal();
    let again = wait_for(&cut.mutex("n"));
    let fence = number(&next);
    give_back(next).await;
    let again = gets_in(again).await;
    rise(&[number(&guard), fence, number(&again)]);
    give_back(again).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_connections_die_gets_in() {
    let server = MariaDb::start();
    let proxy = tokio::task::block_in_place(|| Proxy::start(server.address()));
    let (cut, holder) = (connect(url(proxy.address())), connect(server.url()));
    let guard = soon("free", holder.mutex("n").lease(LONG).acquire()).await;
    let waiter = wait_for(&cut.mutex("n").lease(LONG));
    in_line(&holder, "n", 1).await;
    proxy.freeze();
    tokio::time::sleep(ms(300)).await;
    give_back(guard.expect("free")).await;
    give_back(gets_in(waiter).await).await;
    // The release may have been sent on a connection that died, and is sent again.
    eventually("nothing is left", async || {
        (held(&server), count(&server, "palisade_claim")) == (0, 0)
    })
    .await;
}

/// The first use meets a server that does not answer: it is not stuck when the server does again.
#[tokio::test(flavor = "multi_thread")]
async fn a_first_use_that_hangs_is_bounded() {
    let server = MariaDb::start();
    let proxy = tokio::task::block_in_place(|| Proxy::start(server.address()));
    let url = format!(
        "{}?request_timeout=500ms&connect_timeout=1s",
        url(proxy.address())
    );
    let locks = connect(url);
    // It logs in, and asks for the tables: that question is lost.
    proxy.lose_if(|reply| {
        reply.windows(14).any(|word| word == b"doesn't exist!")
            || reply.windows(5).any(|word| word == b"42S02")
    });
    let first = wait_for(&locks.mutex("n"));
    eventually("the answer is lost", async || proxy.lost() > 0).await;
    proxy.heal();
    give_back(gets_in(first).await).await;
}

/// A restart of the server keeps the grant and the place in line.
#[tokio::test(flavor = "multi_thread")]
async fn fences_rise_and_grants_survive_a_restart() {
    let server = MariaDb::start();
    let (one, two) = (connect(server.url()), connect(server.url()));
    let first = soon("free", one.mutex("n").lease(LONG).acquire())
        .await
        .expect("free");
    let waiter = wait_for(&two.mutex("n").lease(LONG));
    in_line(&one, "n", 1).await;
    tokio::task::block_in_place(|| server.restart());
    assert!(first.is_held());
    eventually("verified", async || first.verify().await.is_ok()).await;
    let mut fences = vec![number(&first)];
    give_back(first).await;
    let next = gets_in(waiter).await;
    fences.push(number(&next));
    give_back(next).await;
    server.sql("DELETE FROM palisade_line");
    let last = soon("free", one.mutex("n").acquire()).await.expect("free");
    fences.push(number(&last));
    rise(&fences);
    give_back(last).await;
}

/// The server ends idle sessions after a second, but not those of a client that asked it not to.
#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_for_idle_sessions_ends_no_grant() {
    let server = MariaDb::start();
    server.sql("SET GLOBAL wait_timeout = 1");
    let (one, two) = (connect(server.url()), connect(server.url()));
    let guard = soon("free", one.mutex("n").lease(LONG).acquire())
        .await
        .expect("free");
    let waiter = wait_for(&two.mutex("n").lease(LONG));
    in_line(&one, "n", 1).await;
    let sessions =
        "SELECT id FROM information_schema.processlist WHERE user = 'locker' ORDER BY id LIMIT 1";
    let session = server.sql(sessions);
    tokio::time::sleep(ms(2500)).await;
    assert_eq!(server.sql(sessions), session);
    give_back(guard).await;
    give_back(gets_in(waiter).await).await;
}

/// A server that becomes read-only is named. Where the URL names another, that one is used: the grant
/// is lost, its holder is told, and fences rise.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_server_is_left_for_another() {
    let (old, new) = (MariaDb::start(), MariaDb::start());
    let both = format!(
        "mysql://locker:lockpw@{},{}/locks",
        old.address(),
        new.address()
    );
    let (one, alone) = (connect(&both), connect(old.url()));
    let guard = soon("free", one.mutex("n").lease(ms(2500)).acquire())
        .await
        .expect("free");
    old.sql("SET GLOBAL read_only = 1");
    let refused = soon("refused", alone.mutex("other").try_acquire()).await;
    let refused = refused.expect_err("read-only");
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert!(refused.to_string().contains("read-only"), "{refused}");
    is_told(&guard).await;
    let next = soon("granted", one.mutex("n").acquire())
        .await
        .expect("on the other");
    rise(&[number(&guard), number(&next)]);
    assert_eq!(held(&new), 1);
    give_back(next).await;
    old.sql("SET GLOBAL read_only = 0");
    eventually("it takes writes", async || {
        match alone.mutex("other").try_acquire().await {
            Ok(Some(guard)) => guard.release().await.is_ok(),
            _ => false,
        }
    })
    .await;
}

/// The server dies, and another takes over that missed its last writes.
#[tokio::test(flavor = "multi_thread")]
async fn a_failover_that_loses_writes_is_told() {
    let (old, new) = (MariaDb::start(), MariaDb::start());
    let both = format!(
        "mysql://locker:lockpw@{},{}/locks",
        old.address(),
        new.address()
    );
    let (one, two) = (connect(&both), connect(&both));
    let guard = soon("free", one.mutex("n").lease(ms(3000)).acquire())
        .await
        .expect("free");
    let waiter = wait_for(&two.mutex("n").lease(LONG));
    in_line(&one, "n", 1).await;
    old.kill();
    is_told(&guard).await;
    let next = gets_in(waiter).await;
    rise(&[number(&guard), number(&next)]);
    give_back(next).await;
}

/// No grant that was confirmed is missing after a crash.
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_loses_no_confirmed_grant() {
    let server = Arc::new(MariaDb::start());
    let locks = connect(server.url());
    give_back(
        soon("warm", locks.mutex("warm").acquire())
            .await
            .expect("free"),
    )
    .await;
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let locks = locks.clone();
            tokio::spawn(async move {
                let mut held = Vec::new();
                for round in 0.. {
                    let name = format!("n-{task}-{round}");
                    match locks.mutex(&name).lease(LONG).try_acquire().await {
                        Ok(Some(guard)) => held.push((name, guard)),
                        _ => break,
                    }
                }
                held
            })
        })
        .collect();
    eventually("some are granted", async || held(&server) > 100).await;
    tokio::task::block_in_place(|| server.kill());
    let mut held = Vec::new();
    for task in tasks {
        held.extend(soon("the task ends", task).await.expect("no panic"));
    }
    tokio::task::block_in_place(|| server.restart());
    assert!(held.len() > 50, "{}", held.len());
    let there =
        server.sql("SELECT CONCAT(name, ' ', fence) FROM palisade_line WHERE state = 'held'");
    let there: std::collections::HashSet<&str> = there.lines().collect();
    for (name, guard) in &held {
        let row = format!("{name} {}", number(guard));
        assert!(there.contains(row.as_str()), "{row} is missing");
    }
}

/// The tables cannot grow any more. A claim that needs room says so, and what is held stays.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_named_and_ends_no_grant() {
    let server = MariaDb::with()
        .arg("--innodb-file-per-table=0")
        .arg("--innodb-data-file-path=ibdata1:12M:autoextend:max:20M")
        .start();
    let locks = connect(server.url());
    let guard = soon("free", locks.mutex("held").lease(LONG).acquire()).await;
    let guard = guard.expect("free");
    server.sql("CREATE TABLE ballast (t LONGBLOB) ENGINE=InnoDB");
    for size in [1_000_000, 100_000, 20_000, 8_000] {
        let insert = format!("INSERT INTO ballast VALUES (REPEAT('x', {size}))");
        while server.try_sql(&insert).is_ok() {}
    }
    let mut refused = None;
    for number in 0..500 {
        let name = format!("new-{number}-{}", "x".repeat(400));
        match locks.mutex(name).try_acquire().await {
            Ok(_) => {}
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    let refused = refused.expect("the disk is full");
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert!(refused.to_string().contains("full"), "{refused}");
    assert!(guard.is_held() && guard.verify().await.expect("an answer"));
}

/// Routines that an administrator has dropped are created again.
#[tokio::test(flavor = "multi_thread")]
async fn dropped_routines_are_created_again() {
    let server = MariaDb::start();
    let locks = connect(server.url());
    give_back(
        soon("free", locks.mutex("n").acquire())
            .await
            .expect("free"),
    )
    .await;
    server.sql("DROP PROCEDURE palisade_1_do_claim");
    give_back(
        soon("granted", locks.mutex("n").acquire())
            .await
            .expect("free"),
    )
    .await;
}
