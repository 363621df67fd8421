//! The traps of a lock table in PostgreSQL: a stale clock, lost pushes, races of creation, strict
//! isolation, rows that are locked from outside, missing rights.

#![cfg(feature = "postgres")]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::in_line;
use common::ms;
use common::postgres::{
    LONG, connect, gets_in, give_back, lock_row, rows, sessions, soon, wait_for,
};
use palisade::{ErrorKind, Released};
use palisade_conformance::eventually;
use palisade_testkit::postgres::Postgres;

/// The clock is read after the row is locked: a lease is granted in full, and not partly spent.
#[tokio::test(flavor = "multi_thread")]
async fn the_clock_is_read_after_the_lock() {
    let server = Arc::new(Postgres::start());
    let locks = connect(server.url());
    give_back(
        soon("first", locks.mutex("n").acquire())
            .await
            .expect("free"),
    )
    .await;
    let outside = lock_row(&server, "n", ms(1000));
    let guard = soon(
        "granted",
        locks.mutex("n").lease(ms(1500)).auto_renew(false).acquire(),
    )
    .await
    .expect("granted");
    let left = server.sql(
        "SELECT extract(epoch FROM expiry - clock_timestamp()) * 1000 FROM palisade.lock_holder",
    );
    let left: f64 = left.parse().expect("a number");
    assert!(left > 1000.0, "{left} ms are left of 1500");
    drop(guard);
    outside.join().expect("no panic");
}

/// A row that is locked from outside holds up its own name, and no other.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_locked_from_outside_costs_no_other_name() {
    let server = Arc::new(Postgres::start());
    let locks = connect(server.url());
    let lease = ms(1500);
    let one = soon("one", locks.mutex("a").lease(LONG).acquire())
        .await
        .expect("free");
    let other = soon("other", locks.mutex("b").lease(lease).acquire())
        .await
        .expect("free");
    let outside = lock_row(&server, "a", ms(4000));
    tokio::time::sleep(2 * lease).await;
    assert!(other.is_held() && one.is_held());
    outside.join().expect("no panic");
    assert_eq!(
        soon("released", other.release()).await.expect("an answer"),
        Released::Done
    );
    assert_eq!(
        soon("released", one.release()).await.expect("an answer"),
        Released::Done
    );
}

/// A client listens while one of its claims waits, and a while longer. No other does.
#[tokio::test(flavor = "multi_thread")]
async fn only_a_client_with_waiters_listens() {
    let server = Postgres::start();
    let (one, two) = (connect(server.url()), connect(server.url()));
    let guard = soon("granted", one.mutex("n").lease(LONG).acquire())
        .await
        .expect("free");
    assert_eq!(sessions(&server), 1);
    let waiter = wait_for(&two.mutex("n").lease(LONG));
    in_line(&one, "n", 1).await;
    let listens = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'palisade' \
                   AND query ~ 'LISTEN|idle_session_timeout'";
    eventually("listens", async || server.sql(listens) == "1").await;
    give_back(guard).await;
    give_back(gets_in(waiter).await).await;
    tokio::time::timeout(Duration::from_secs(30), async {
        while server.sql(listens) != "0" {
            tokio::time::sleep(ms(100)).await;
        }
    })
    .await
    .expect("the listener leaves when no claim has waited for long");
}

/// A hand-off is told by push: it does not wait for a heartbeat.
#[tokio::test(flavor = "multi_thread")]
async fn a_hand_off_takes_no_heartbeat() {
    let server = Postgres::start();
    let (one, two) = (connect(server.url()), connect(server.url()));
    let mut latencies = Vec::new();
    for round in 0..10 {
        let guard = soon("granted", one.mutex("n").lease(LONG).acquire())
            .await
            .expect("free");
        let waiter = wait_for(&two.mutex("n").lease(LONG));
        in_line(&one, "n", 1).await;
        // Also while the waiter only begins to listen.
        if round > 0 {
            tokio::time::sleep(ms(50)).await;
        }
        let begun = Instant::now();
        give_back(guard).await;
        let guard = gets_in(waiter).await;
        latencies.push(begun.elapsed());
        give_back(guard).await;
    }
    latencies.sort_unstable();
    let middle = latencies[latencies.len() / 2];
    assert!(middle < ms(500), "{latencies:?}");
    assert!(latencies[9] < ms(1300), "{latencies:?}");
}

/// A role whose transactions are serializable: no error reaches the user.
#[tokio::test(flavor = "multi_thread")]
async fn strict_isolation_of_the_role_does_no_harm() {
    let server = Postgres::start();
    server.sql("ALTER ROLE locker SET default_transaction_isolation = 'serializable'");
    let clients: Vec<_> = (0..8).map(|_| connect(server.url())).collect();
    let tasks: Vec<_> = clients
        .into_iter()
        .map(|client| {
            tokio::spawn(async move {
                for _ in 0..5 {
                    let guard = client.mutex("n").acquire().await.expect("granted");
                    assert_eq!(guard.release().await.expect("an answer"), Released::Done);
                }
            })
        })
        .collect();
    for task in tasks {
        soon("done", task).await.expect("no panic");
    }
}

/// Twenty clients meet an empty database at once.
#[tokio::test(flavor = "multi_thread")]
async fn twenty_clients_create_the_tables_at_once() {
    let server = Postgres::start();
    let tasks: Vec<_> = (0..20)
        .map(|number| {
            let client = connect(server.url());
            tokio::spawn(async move {
                let guard = client.mutex(format!("n{number}")).acquire().await?;
                guard.release().await
            })
        })
        .collect();
    for task in tasks {
        let released = soon("done", task).await.expect("no panic");
        assert_eq!(released.expect("granted"), Released::Done);
    }
    assert_eq!(server.sql("SELECT version FROM palisade.lock_version"), "1");
}

/// A user without rights is told how an administrator can help. A newer version is refused.
#[tokio::test(flavor = "multi_thread")]
async fn missing_rights_and_newer_versions_are_told() {
    let server = Postgres::start();
    server.sql("CREATE ROLE app LOGIN PASSWORD 'apppw'");
    let url = format!("postgres://app:apppw@{}/locks", server.address());
    let refused = connect(&url)
        .mutex("n")
        .try_acquire()
        .await
        .expect_err("no rights");
    assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
    assert!(refused.to_string().contains("palisade schema"), "{refused}");

    let wrong = format!("postgres://app:SENTINEL@{}/locks", server.address());
    let refused = connect(&wrong)
        .mutex("n")
        .try_acquire()
        .await
        .expect_err("a wrong password");
    assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
    assert!(!format!("{refused} {refused:?}").contains("SENTINEL"));

    let owner = connect(server.url());
    assert!(owner.create_schema().await.expect("created"));
    assert!(!owner.create_schema().await.expect("there already"));
    server.sql("UPDATE palisade.lock_version SET version = 2; DROP PROCEDURE palisade.lock_step_1");
    let refused = owner
        .mutex("n")
        .try_acquire()
        .await
        .expect_err("a newer version");
    assert_eq!(refused.kind(), ErrorKind::Protocol, "{refused}");
    assert!(refused.to_string().contains("upgrade"), "{refused}");
}

/// The fence rises through an emptied table and through a restart, and a grant survives the restart.
#[tokio::test(flavor = "multi_thread")]
async fn fences_rise_and_grants_survive_a_restart() {
    let server = Postgres::start();
    let locks = connect(server.url());
    let first = soon("granted", locks.mutex("n").lease(LONG).acquire())
        .await
        .expect("free");
    server.restart();
    assert!(first.is_held());
    let before = first.fence();
    eventually("verified", async || first.verify().await.is_ok()).await;
    give_back(first).await;
    server.sql("TRUNCATE palisade.lock, palisade.lock_holder, palisade.lock_waiter");
    let next = soon("granted", locks.mutex("n").acquire())
        .await
        .expect("free");
    assert!(next.fence() > before, "{:?} {before:?}", next.fence());
    give_back(next).await;
}

/// Sessions that are killed cost neither the holder its lock nor the waiter its place for long.
#[tokio::test(flavor = "multi_thread")]
async fn killed_sessions_are_replaced() {
    let server = Postgres::start();
    let (one, two) = (connect(server.url()), connect(server.url()));
    let guard = soon("granted", one.mutex("n").lease(LONG).acquire())
        .await
        .expect("free");
    let waiter = wait_for(&two.mutex("n").lease(LONG));
    in_line(&one, "n", 1).await;
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'palisade'");
    assert!(guard.is_held());
    give_back(guard).await;
    give_back(gets_in(waiter).await).await;
    assert_eq!(rows(&server)[1..], [0, 0]);
}

/// Each verb is one request in each state, and many cycles leave one row and little space.
#[tokio::test(flavor = "multi_thread")]
async fn a_verb_is_one_call_and_cycles_leave_nothing() {
    const CYCLES: u64 = 300;
    let server = Postgres::start();
    server.sql("ALTER DATABASE locks SET track_functions = 'all'");
    let locks = connect(server.url());
    for _ in 0..CYCLES {
        give_back(
            soon("granted", locks.mutex("n").acquire())
                .await
                .expect("free"),
        )
        .await;
    }
    drop(locks);
    let calls =
        "SELECT coalesce(sum(calls), 0) FROM pg_stat_user_functions WHERE funcname = 'lock_step_1'";
    eventually("counted", async || {
        server.sql(calls).parse::<u64>().expect("a number") >= 2 * CYCLES
    })
    .await;
    assert_eq!(
        server.sql(calls).parse::<u64>().expect("a number"),
        2 * CYCLES
    );
    assert_eq!(rows(&server), [1, 0, 0]);
}

/// A deep line: a place in it costs the same, and the hand-off goes to the first.
#[tokio::test(flavor = "multi_thread")]
async fn a_deep_line_is_no_slower() {
    let server = Postgres::start();
    let locks = connect(server.url());
    let guard = soon("granted", locks.mutex("n").lease(LONG).acquire())
        .await
        .expect("free");
    // As if other clients waited, for long.
    server.sql(
        "INSERT INTO palisade.lock_waiter (name, owner, mode, permits, since, expiry, lease, min_hold, once_per, claim, inbox)
         SELECT 'n', 'x', 'exclusive', 0, now(), now() + interval '1 minute', '1 minute', '0', '0',
           decode(lpad(to_hex(i), 32, '0'), 'hex'), 'none' FROM generate_series(1, 1000) i",
    );
    let begun = Instant::now();
    let busy = locks.mutex("n").try_acquire().await.expect("an answer");
    assert!(
        busy.is_none() && begun.elapsed() < ms(500),
        "{:?}",
        begun.elapsed()
    );
    let begun = Instant::now();
    give_back(guard).await;
    assert!(begun.elapsed() < ms(500), "{:?}", begun.elapsed());
    let held = server.sql("SELECT encode(claim, 'hex') FROM palisade.lock_holder");
    assert_eq!(held, format!("{:032x}", 1));
    assert_eq!(rows(&server), [1, 1, 999]);
}
