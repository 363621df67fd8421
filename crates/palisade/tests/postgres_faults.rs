//! PostgreSQL under faults, while a lock is held and waited for: no phantom holder, the holder told in
//! time, fences that rise, and no connection used again that has failed.

#![cfg(feature = "postgres")]

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::postgres::{
    LONG, connect, gets_in, give_back, is_told, lock_row, number, rise, rows, soon, wait_for,
};
use common::{in_line, ms};
use palisade::ErrorKind;
use palisade::fence::postgres::tokio_postgres::{NoTls, connect as connect_to};
use palisade_conformance::eventually;
use palisade_testkit::postgres::Postgres;
use palisade_testkit::proxy::{Proxy, Way};

fn url(address: SocketAddr) -> String {
    format!("postgres://locker:lockpw@{address}/locks")
}

/// The reply to a claim is lost, and the server cannot be reached then: the claim may be there, and it
/// is withdrawn.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_reply_was_lost_is_withdrawn() {
    let server = Postgres::start();
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
    assert_eq!(rows(&server)[1], 1, "it was applied");
    proxy.heal();
    eventually("withdrawn", async || rows(&server)[1] == 0).await;
    give_back(
        soon("free", connect(server.url()).mutex("n").acquire())
            .await
            .expect("free"),
    )
    .await;
}

/// A row that is locked from outside is in one batch with others: these are renewed, and other names
/// can be claimed and released meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_row_costs_none_of_its_batch() {
    let server = Arc::new(Postgres::start());
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
    let blocked = wait_for(&locks.mutex("other-07-stuck"));
    let begun = Instant::now();
    while begun.elapsed() < ms(4500) {
        let cycle = Instant::now();
        give_back(
            soon("free", locks.mutex("free").acquire())
                .await
                .expect("free"),
        )
        .await;
        assert!(cycle.elapsed() < ms(1500), "{:?}", cycle.elapsed());
        tokio::time::sleep(ms(50)).await;
    }
    assert!(others.iter().all(palisade::Guard::is_held), "all renewed");
    is_told(&stuck).await;
    outside.join().expect("no panic");
    give_back(gets_in(blocked).await).await;
    for guard in others {
        give_back(guard).await;
    }
}

/// A caller whose row is locked is not polled any more. Another that meets a locked row does not wait
/// for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_waits_for_a_row_unpolled_holds_up_no_other() {
    let server = Arc::new(Postgres::start());
    let locks = connect(format!("{}?request_timeout=3s", server.url()));
    for name in ["one", "two"] {
        give_back(
            soon("warm", locks.mutex(name).acquire())
                .await
                .expect("free"),
        )
        .await;
    }
    let one = locks.mutex("one");
    let outside = lock_row(&server, "one", ms(1500));
    let mut unpolled = std::pin::pin!(one.acquire());
    let early = tokio::time::timeout(ms(900), unpolled.as_mut()).await;
    assert!(early.is_err(), "the row is locked");
    outside.join().expect("no panic");
    let outside = lock_row(&server, "two", ms(1000));
    let begun = Instant::now();
    let guard = soon("granted", locks.mutex("two").acquire())
        .await
        .expect("free");
    assert!(begun.elapsed() < ms(2500), "{:?}", begun.elapsed());
    give_back(guard).await;
    outside.join().expect("no panic");
    give_back(soon("granted", unpolled).await.expect("free")).await;
}

/// One claim has a text that the database cannot hold. Those that are sent with it are granted.
#[tokio::test(flavor = "multi_thread")]
async fn a_text_that_does_not_fit_fails_its_own_claim_only() {
    let server = Postgres::start();
    server.sql("CREATE DATABASE narrow OWNER locker ENCODING LATIN1 LOCALE 'C' TEMPLATE template0");
    let locks = connect(format!(
        "postgres://locker:lockpw@{}/narrow",
        server.address()
    ));
    locks.create_schema().await.expect("created");
    for _ in 0..5 {
        let claims: Vec<_> = (0..20)
            .map(|number| {
                let lock = locks.mutex(format!("n{number}"));
                let lock = lock.reason(if number == 7 { "\u{6f22}" } else { "fits" });
                tokio::spawn(async move { lock.try_acquire().await })
            })
            .collect();
        for (number, claim) in claims.into_iter().enumerate() {
            match soon("an answer", claim).await.expect("no panic") {
                Ok(guard) if number != 7 => give_back(guard.expect("free")).await,
                Err(error) if number == 7 => {
                    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
                    assert!(error.to_string().contains("UTF8"), "{error}");
                }
                other => panic!("{number}: {other:?}"),
            }
        }
    }
}

/// A release that loses a deadlock is sent again.
#[tokio::test(flavor = "multi_thread")]
async fn a_deadlock_victim_goes_on() {
    let server = Postgres::start();
    // Long enough that the other side closes the circle first, and shorter than our patience. The
    // other side, a role of its own, is never the one that finds the deadlock.
    server.sql(
        "ALTER ROLE locker SET deadlock_timeout = '1s'; \
         CREATE ROLE other LOGIN PASSWORD 'otherpw' IN ROLE locker; \
         ALTER ROLE other SET deadlock_timeout = '10min'",
    );
    let locks = connect(server.url());
    let url = format!("postgresql://other:otherpw@{}/locks", server.address());
    let (other, connection) = connect_to(&url, NoTls).await.expect("reached");
    let connection = tokio::spawn(connection);
    let was_met = || server.log().contains("deadlock detected");
    let begun = Instant::now();
    // Once is enough, unless the other side is late on a busy machine.
    while !was_met() {
        assert!(begun.elapsed() < LONG, "there was no deadlock");
        let mutex = locks.mutex("n").lease(LONG);
        let guard = soon("free", mutex.acquire()).await.expect("free");
        let holder = "BEGIN; SELECT 1 FROM palisade.lock_holder WHERE name = 'n' FOR UPDATE";
        other.batch_execute(holder).await.expect("locked");
        let release = tokio::spawn(give_back(guard));
        // Its first attempts wait for less: this one has the line, and waits for the holder.
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'palisade' \
                     AND wait_event_type = 'Lock' AND now() - query_start > interval '0.4 s'";
        eventually("it waits", async || {
            tokio::task::block_in_place(|| server.sql(waits)) != "0"
        })
        .await;
        let line = "SELECT 1 FROM palisade.lock WHERE name = 'n' FOR UPDATE; COMMIT";
        soon("the other side goes on", other.batch_execute(line))
            .await
            .expect("not the victim");
        soon("released", release).await.expect("released");
    }
    drop(other);
    connection.await.expect("no panic").expect("closed");
    assert_eq!(rows(&server)[1..], [0, 0]);
}

/// The holder's client is cut off without a word. It is told before another holds the lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_is_cut_off_is_told_in_time() {
    let server = Postgres::start();
    let proxy = tokio::task::block_in_place(|| Proxy::start(server.address()));
    let (cut, other) = (connect(url(proxy.address())), connect(server.url()));
    let guard = soon("free", cut.mutex("n").lease(ms(2000)).acquire()).await;
    let guard = Arc::new(guard.expect("free"));
    let waiter = wait_for(&other.mutex("n"));
    in_line(&other, "n", 1).await;
    let believer = common::actors::Believer::watch(Arc::clone(&guard));
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

/// The waiter's connections die silently. It is granted all the same, and by new ones.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_connections_die_gets_in() {
    let server = Postgres::start();
    let proxy = tokio::task::block_in_place(|| Proxy::start(server.address()));
    let (cut, holder) = (connect(url(proxy.address())), connect(server.url()));
    let guard = soon("free", holder.mutex("n").lease(LONG).acquire()).await;
    let waiter = wait_for(&cut.mutex("n").lease(LONG));
    in_line(&holder, "n", 1).await;
    proxy.freeze();
    tokio::time::sleep(ms(300)).await;
    give_back(guard.expect("free")).await;
    let guard = gets_in(waiter).await;
    give_back(guard).await;
    assert_eq!(rows(&server)[1..], [0, 0]);
}

/// The listener cannot connect while the lock is handed over, so no push comes. It asks as soon as it
/// listens.
#[tokio::test(flavor = "multi_thread")]
async fn a_push_before_the_listener_is_there_is_made_up_for() {
    let server = Postgres::start();
    let proxy = tokio::task::block_in_place(|| Proxy::start(server.address()));
    let (late, holder) = (connect(url(proxy.address())), connect(server.url()));
    for round in 0..3 {
        let name = format!("n{round}");
        let late = if round == 0 {
            late.clone()
        } else {
            connect(url(proxy.address()))
        };
        give_back(
            soon("warm", late.mutex(&name).acquire())
                .await
                .expect("free"),
        )
        .await;
        let guard = soon("free", holder.mutex(&name).lease(LONG).acquire()).await;
        proxy.refuse();
        let waiter = wait_for(&late.mutex(&name).lease(LONG));
        in_line(&holder, &name, 1).await;
        give_back(guard.expect("free")).await;
        assert_eq!(rows(&server)[1], 1, "it was granted, and not told");
        let begun = Instant::now();
        proxy.heal();
        give_back(gets_in(waiter).await).await;
        assert!(begun.elapsed() < ms(1500), "{:?}", begun.elapsed());
    }
}

/// The server's queue of pushes is full. A hand-off is committed before it is told, so the release is no
/// error, and the waiter finds its grant by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_push_that_finds_the_queue_full_fails_no_release() {
    let server = Postgres::start();
    let (one, two) = (connect(server.url()), connect(server.url()));
    let guard = soon("free", one.mutex("n").lease(LONG).acquire()).await;
    let guard = guard.expect("free");
    let waiter = wait_for(&two.mutex("n").lease(LONG));
    in_line(&one, "n", 1).await;
    server.sql(
        "CREATE SCHEMA queue; GRANT USAGE ON SCHEMA queue TO locker; \
         CREATE FUNCTION queue.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN \
           RAISE EXCEPTION 'too many notifications in the NOTIFY queue' USING ERRCODE = '54000'; END $$; \
         ALTER ROLE locker SET search_path = queue, pg_catalog, public; \
         SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'locker'",
    );
    give_back(guard).await;
    let guard = gets_in(waiter).await;
    let log = std::fs::read_to_string(server.dir().join("log")).expect("a log");
    assert!(log.contains("too many notifications"), "{log}");
    give_back(guard).await;
}

/// Sessions end for being idle: the listener stays, and the others are opened anew at need.
#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_for_idle_sessions_ends_no_grant() {
    let server = Postgres::start();
    server.sql("ALTER ROLE locker SET idle_session_timeout = '700ms'");
    let (one, two) = (connect(server.url()), connect(server.url()));
    let guard = soon("free", one.mutex("n").lease(LONG).acquire()).await;
    let guard = guard.expect("free");
    let waiter = wait_for(&two.mutex("n").lease(LONG));
    in_line(&one, "n", 1).await;
    let listener = "SELECT pid FROM pg_stat_activity WHERE query ~ 'idle_session_timeout' AND application_name = 'palisade'";
    eventually("it listens", async || !server.sql(listener).is_empty()).await;
    let listens = server.sql(listener);
    tokio::time::sleep(ms(2500)).await;
    assert!(guard.is_held());
    assert_eq!(server.sql(listener), listens, "the listener stays");
    // A client that only holds has no connection now, and opens none.
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'palisade' \
                    AND query !~ 'idle_session_timeout' AND backend_start > now() - interval '1 minute'";
    eventually("no idle session", async || {
        let open: u32 = server.sql(sessions).parse().expect("a number");
        open <= 2
    })
    .await;
    let begun = Instant::now();
    give_back(guard).await;
    let guard = gets_in(waiter).await;
    assert!(begun.elapsed() < ms(1500), "pushed: {:?}", begun.elapsed());
    give_back(guard).await;
}

/// A server that becomes read-only is named, and used again once it takes writes. Meanwhile a holder whose
/// lease ends is told, and one with a long lease holds on.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_server_is_named() {
    let server = Postgres::start();
    let locks = connect(server.url());
    give_back(
        soon("free", locks.mutex("n").acquire())
            .await
            .expect("free"),
    )
    .await;
    let [short, long] = [("short", ms(3000)), ("long", LONG)].map(|(name, lease)| {
        let mutex = locks.mutex(name).lease(lease);
        async move { soon("free", mutex.acquire()).await.expect("free") }
    });
    let (short, long) = tokio::join!(short, long);
    let other = connect(server.url());
    let waiters = ["short", "long"].map(|name| wait_for(&other.mutex(name).lease(LONG)));
    in_line(&locks, "short", 1).await;
    in_line(&locks, "long", 1).await;
    let set = |word: &str| {
        server.sql(&format!(
            "ALTER ROLE locker SET default_transaction_read_only = {word}"
        ));
        server
            .sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'locker'");
    };
    set("on");
    let refused = soon("refused", locks.mutex("n").try_acquire()).await;
    let refused = refused.expect_err("read-only");
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert!(refused.to_string().contains("read-only"), "{refused}");
    is_told(&short).await;
    assert!(long.is_held());
    set("off");
    eventually("it takes writes", async || {
        match locks.mutex("n").try_acquire().await {
            Ok(Some(guard)) => guard.release().await.is_ok(),
            _ => false,
        }
    })
    .await;
    let [after_short, after_long] = waiters;
    let next = gets_in(after_short).await;
    rise(&[number(&short), number(&next)]);
    give_back(next).await;
    assert!(!after_long.is_finished() && long.is_held());
    give_back(long).await;
    give_back(gets_in(after_long).await).await;
}

/// A standby that missed the last writes is promoted: the grant among them is forgotten, its holder is
/// told, and fences rise.
#[tokio::test(flavor = "multi_thread")]
async fn a_failover_that_loses_writes_is_told() {
    let primary = Postgres::start();
    let early = connect(primary.url());
    let first = soon("free", early.mutex("n").acquire())
        .await
        .expect("free");
    let mut fences = vec![number(&first)];
    give_back(first).await;
    let standby = tokio::task::block_in_place(|| primary.standby());
    standby.stop_following();
    let both = format!(
        "postgres://locker:lockpw@{},{}/locks",
        primary.address(),
        standby.address()
    );
    let (one, two) = (connect(&both), connect(&both));
    let lost = soon("free", one.mutex("n").lease(ms(3000)).acquire()).await;
    let lost = lost.expect("free");
    let waiter = wait_for(&two.mutex("n").lease(LONG));
    in_line(&one, "n", 1).await;
    fences.push(number(&lost));
    primary.kill();
    tokio::task::block_in_place(|| standby.promote());
    is_told(&lost).await;
    let next = gets_in(waiter).await;
    fences.push(number(&next));
    rise(&fences);
    let pong = soon("an answer", one.ping()).await.expect("it answers");
    assert_eq!(pong.server.role.as_deref(), Some("primary"));
    give_back(next).await;
}

/// The server is killed while many cycles run: no grant that was confirmed is missing afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_loses_no_confirmed_grant() {
    let server = Arc::new(Postgres::start());
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
                    let mutex = locks.mutex(format!("n-{task}-{round}")).lease(LONG);
                    match mutex.try_acquire().await {
                        Ok(Some(guard)) => held.push((format!("n-{task}-{round}"), guard)),
                        _ => break,
                    }
                }
                held
            })
        })
        .collect();
    let granted = "SELECT count(*) FROM palisade.lock_holder";
    eventually("some are granted", async || {
        server.sql(granted).parse::<u32>().expect("a number") > 100
    })
    .await;
    tokio::task::block_in_place(|| server.kill());
    let mut held = Vec::new();
    for task in tasks {
        held.extend(soon("the task ends", task).await.expect("no panic"));
    }
    tokio::task::block_in_place(|| server.restart());
    assert!(held.len() > 50, "{}", held.len());
    let there = server.sql("SELECT name || ' ' || fence FROM palisade.lock_holder");
    let there: std::collections::HashSet<&str> = there.lines().collect();
    for (name, guard) in &held {
        // Names are escaped in the tables, but these have nothing to escape.
        let row = format!("{name} {}", number(guard));
        assert!(there.contains(row.as_str()), "{row} is missing");
    }
}

/// A role whose commits do not wait for the disk: its grants do.
#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_does_not_wait_for_the_disk_loses_no_grant() {
    let server = Postgres::start();
    server.sql("ALTER ROLE locker SET synchronous_commit = off");
    // So that nothing is written by itself meanwhile.
    server.sql("ALTER SYSTEM SET wal_writer_delay = '10s'");
    server.sql("SELECT pg_reload_conf()");
    let (lines, rows) = (
        connect(server.url()),
        connect(format!("{}?format=simple", server.url())),
    );
    lines.create_schema().await.expect("created");
    rows.create_schema().await.expect("created");
    for (locks, table) in [(lines, "palisade.lock_holder"), (rows, "distributed_lock")] {
        let guard = soon("free", locks.mutex("n").lease(LONG).acquire()).await;
        let guard = guard.expect("free");
        tokio::task::block_in_place(|| {
            server.kill();
            server.restart();
        });
        let kept = server.sql(&format!("SELECT count(*) FROM {table}"));
        assert_eq!(kept, "1", "{table}");
        assert!(guard.is_held());
        give_back(guard).await;
    }
}

/// The table cannot grow any more. A claim that needs room says so, and what is held stays.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_named_and_ends_no_grant() {
    let server = Postgres::start();
    let locks = connect(server.url());
    let guard = soon("free", locks.mutex("held").lease(LONG).acquire()).await;
    let guard = guard.expect("free");
    // Larger than a file of the log, whose writes must go on.
    server.sql("ALTER TABLE palisade.lock ALTER seal_by SET STORAGE PLAIN; INSERT INTO palisade.lock (name, seal_by) SELECT i, repeat('x', 5700)::bytea FROM generate_series(1, 3500) i");
    let size = server.sql("SELECT pg_relation_size('palisade.lock')");
    let size: u64 = size.parse().expect("a number");
    assert!(size > 17 << 20, "{size}");
    // A part of a page more: the kernel writes that part, as a disk does that gets full.
    let limit = format!("--fsize={}:", size + 100);
    let backends = "SELECT pid FROM pg_stat_activity WHERE usename = 'locker'";
    for pid in server.sql(backends).lines() {
        limit_files(pid, &limit);
    }
    let mut refused = None;
    for number in 0..400 {
        match locks
            .mutex(format!("new-{number}-{}", "x".repeat(400)))
            .try_acquire()
            .await
        {
            Ok(Some(guard)) => give_back(guard).await,
            Ok(None) => panic!("held"),
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    let refused = refused.expect("the disk is full");
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert!(refused.to_string().contains("53100"), "{refused}");
    assert_eq!(server.sql("SELECT name FROM palisade.lock_holder"), "held");
    drop(guard);
}

/// Limits how long files a process may write. Only its own user may do that.
fn limit_files(pid: &str, limit: &str) {
    let run = |words: &[&str]| {
        let command = std::process::Command::new(words[0])
            .args(&words[1..])
            .output();
        command.is_ok_and(|done| done.status.success())
    };
    let prlimit = ["prlimit", "--pid", pid, limit];
    let as_user = ["--reuid=postgres", "--regid=postgres", "--clear-groups"];
    let as_user = [&["setpriv"], &as_user[..], &["--"]].concat();
    assert!(
        run(&prlimit) || run(&[&as_user[..], &prlimit[..]].concat()),
        "prlimit {limit}"
    );
}

/// Sessions in time zones an hour apart see the same lease.
#[tokio::test(flavor = "multi_thread")]
async fn time_zones_of_sessions_do_not_matter() {
    let server = Postgres::start();
    server.sql("ALTER ROLE locker SET timezone = 'Europe/Berlin'");
    let one = connect(server.url());
    let guard = soon("free", one.mutex("n").lease(LONG).acquire()).await;
    let guard = guard.expect("free");
    server.sql("ALTER ROLE locker SET timezone = 'Europe/London'");
    let two = connect(server.url());
    assert!(
        two.mutex("n")
            .try_acquire()
            .await
            .expect("an answer")
            .is_none()
    );
    let line = two.show("n").await.expect("an answer").expect("in use");
    let left = line.holders[0].lease_left.expect("known");
    assert!(
        left <= LONG && left > LONG - Duration::from_secs(30),
        "{left:?}"
    );
    give_back(guard).await;
}
