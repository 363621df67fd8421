//! The traps of a lock table in PostgreSQL: a stale clock, lost pushes, races of creation, strict
//! isolation, rows that are locked from outside, missing rights.

#![cfg(feature = "postgres")]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::in_line;
use common::ms;
use common::postgres::{
    LONG, connect, gets_in, give_back, lock_row, number, rise, rows, sessions, soon, wait_for,
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
    server.sql("CREATE TABLE unlocked (at timestamptz)");
    let outside = {
        let server = Arc::clone(&server);
        let lock = "BEGIN; SELECT 1 FROM palisade.lock WHERE name = 'n' FOR UPDATE; SELECT pg_sleep(1); \
                    INSERT INTO unlocked VALUES (clock_timestamp()); COMMIT";
        std::thread::spawn(move || drop(server.sql(lock)))
    };
    let sleeps = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    eventually("the row is locked", async || {
        tokio::task::block_in_place(|| server.sql(sleeps)) == "1"
    })
    .await;
    let lock = locks.mutex("n").lease(LONG).auto_renew(false);
    let guard = soon("granted", lock.acquire()).await.expect("granted");
    outside.join().expect("no panic");
    let granted = server.sql(
        "SELECT since > at, expiry - since = interval '2 minutes' FROM palisade.lock_holder, unlocked",
    );
    assert_eq!(granted, "t|t");
    give_back(guard).await;
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
    let clients: Vec<_> = (0..16).map(|_| connect(server.url())).collect();
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
    // They go on in the level that they need: none had to be sent again.
    let log = std::fs::read_to_string(server.dir().join("log")).expect("a log");
    assert!(!log.contains("could not serialize"), "{log}");
}

/// Twenty clients meet an empty database at once, and then an older version.
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
    // An older version: its tables are there, and none of this one's routines.
    server.sql(
        "UPDATE palisade.lock_version SET version = 0; \
         DROP PROCEDURE palisade.lock_step_1; DROP PROCEDURE palisade.lock_sweep_1",
    );
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
    assert_eq!(
        server.sql("SELECT max(version) FROM palisade.lock_version"),
        "1"
    );
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

/// A user with a schema of its own may create no schema, and need not.
#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_is_there_is_used() {
    let server = Postgres::start();
    server.sql("CREATE ROLE app LOGIN PASSWORD 'apppw'; CREATE SCHEMA mine AUTHORIZATION app");
    let url = format!(
        "postgres://app:apppw@{}/locks?schema=mine",
        server.address()
    );
    let lock = connect(&url).mutex("n");
    give_back(soon("first use", lock.acquire()).await.expect("created")).await;
    let lock = connect(url.replace("mine", "none")).mutex("n");
    let refused = soon("an answer", lock.try_acquire())
        .await
        .expect_err("no rights");
    assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
}

/// The fence rises through an emptied table and through a restart, and a grant and a place in line survive
/// the restart.
#[tokio::test(flavor = "multi_thread")]
async fn fences_rise_and_grants_survive_a_restart() {
    let server = Postgres::start();
    let (locks, other) = (connect(server.url()), connect(server.url()));
    let first = soon("granted", locks.mutex("n").lease(LONG).acquire())
        .await
        .expect("free");
    let waiter = wait_for(&other.mutex("n").lease(LONG));
    in_line(&locks, "n", 1).await;
    tokio::task::block_in_place(|| server.restart());
    assert!(first.is_held());
    eventually("verified", async || first.verify().await.is_ok()).await;
    let mut fences = vec![number(&first)];
    give_back(first).await;
    let next = gets_in(waiter).await;
    fences.push(number(&next));
    give_back(next).await;
    server.sql("TRUNCATE palisade.lock, palisade.lock_holder, palisade.lock_waiter");
    let last = soon("granted", locks.mutex("n").acquire())
        .await
        .expect("free");
    fences.push(number(&last));
    rise(&fences);
    give_back(last).await;
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
    // As if other clients waited.
    server.sql(
        "INSERT INTO palisade.lock_waiter (name, owner, mode, permits, since, expiry, lease, min_hold, once_per, claim, inbox)
         SELECT 'n', 'x', 'exclusive', 0, now(), now(), '1 minute', '0', '0',
           decode(lpad(to_hex(i), 32, '0'), 'hex'), 'none' FROM generate_series(1, 2000) i",
    );
    let renew = "UPDATE palisade.lock_waiter SET expiry = now() + interval '5 s'";
    server.sql(renew);
    let begun = Instant::now();
    let busy = locks.mutex("n").try_acquire().await.expect("an answer");
    assert!(
        busy.is_none() && begun.elapsed() < ms(500),
        "{:?}",
        begun.elapsed()
    );
    server.sql(renew);
    let begun = Instant::now();
    give_back(guard).await;
    assert!(begun.elapsed() < ms(500), "{:?}", begun.elapsed());
    let held = server.sql("SELECT encode(claim, 'hex') FROM palisade.lock_holder");
    assert_eq!(held, format!("{:032x}", 1));
    assert_eq!(rows(&server), [1, 1, 1999]);
    assert!(size(&server) < 5 << 20, "{} bytes", size(&server));
}

/// What an event reads does not grow with the line: not the hand-off, and not a claim or a renewal behind
/// those whose place is counted. The plans are from when the tables were small.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_on_a_deep_line_reads_no_more() {
    let server = Postgres::start();
    let locks = connect(server.url());
    locks.create_schema().await.expect("created");
    server.sql(
        "CREATE FUNCTION reads() RETURNS bigint LANGUAGE sql AS $$
           SELECT sum(pg_stat_get_xact_tuples_returned(oid) + pg_stat_get_xact_tuples_fetched(oid)) FROM pg_class
             WHERE relnamespace = 'palisade'::regnamespace AND relkind IN ('r', 'i') $$;
         CREATE TABLE measured (depth int, verb text, rows bigint);
         CREATE PROCEDURE event(verb text, name text, claim text) LANGUAGE plpgsql AS $$
           DECLARE numbers bigint[]; words text[];
           BEGIN
             CALL palisade.lock_step_1(ARRAY[verb], ARRAY[name], ARRAY[decode(md5(claim), 'hex')], ARRAY[NULL::bigint],
               ARRAY['mutex'], ARRAY[0], ARRAY['exclusive'], ARRAY[0], ARRAY['x'], ARRAY[NULL], ARRAY[60000000], ARRAY[true],
               ARRAY[0], ARRAY[0], ARRAY['release'], ARRAY[0], 'inbox', '2000', numbers, words);
           END $$",
    );
    server.sql(
        "DO $$
         DECLARE depth int; verb text; before bigint;
         BEGIN
           CALL event('claim', 'small', 'a');
           ANALYZE palisade.lock, palisade.lock_holder, palisade.lock_waiter, palisade.lock_gone;
           FOR i IN 1..8 LOOP
             CALL event('claim', 'warm', 'a'); CALL event('claim', 'warm', 'b'); CALL event('renew', 'warm', 'b');
             CALL event('release', 'warm', 'a'); CALL event('release', 'warm', 'b');
           END LOOP;
           FOREACH depth IN ARRAY ARRAY[16, 1000] LOOP
             CALL event('claim', 'deep' || depth, 'holder');
             INSERT INTO palisade.lock_waiter (name, owner, mode, permits, since, expiry, lease, min_hold, once_per, claim, inbox)
               SELECT 'deep' || depth, 'x', 'exclusive', 0, now(), clock_timestamp() + interval '5 s', '1 hour', '0', '0',
                 decode(md5(depth || ' ' || i), 'hex'), 'none' FROM generate_series(1, depth) i;
             FOREACH verb IN ARRAY ARRAY['claim', 'renew', 'release'] LOOP
               before := reads();
               CALL event(verb, 'deep' || depth, CASE verb WHEN 'release' THEN 'holder' ELSE 'last' END);
               INSERT INTO measured VALUES (depth, verb, reads() - before);
             END LOOP;
           END LOOP;
         END $$",
    );
    let rows = |depth: u32, verb: &str| {
        let rows = server.sql(&format!(
            "SELECT rows FROM measured WHERE depth = {depth} AND verb = '{verb}'"
        ));
        rows.parse::<u32>().expect("a number")
    };
    assert_eq!(rows(1000, "release"), rows(16, "release"));
    // Each counts up to 64 before it, in the index and in the table.
    for verb in ["claim", "renew"] {
        let (few, many) = (rows(16, verb), rows(1000, verb));
        assert!(many <= few + 2 * 65, "{verb}: {few} rows, and then {many}");
    }
}

/// A hand-off is committed before its waiter is told, so that no commit waits for a push, and a
/// push that fails undoes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_push_that_fails_undoes_no_hand_off() {
    let server = Postgres::start();
    let (one, two) = (connect(server.url()), connect(server.url()));
    let guard = soon("free", one.mutex("n").lease(LONG).acquire())
        .await
        .expect("free");
    let waiter = wait_for(&two.mutex("n").lease(LONG));
    in_line(&one, "n", 1).await;
    // The heartbeat names the right inbox again.
    let failed = server.try_sql(
        "DO $$ DECLARE c bytea; numbers bigint[]; words text[]; BEGIN
           UPDATE palisade.lock_waiter SET inbox = repeat('x', 70);
           SELECT claim INTO c FROM palisade.lock_holder;
           CALL palisade.lock_step_1(ARRAY['release'], ARRAY['n'], ARRAY[c], ARRAY[NULL::bigint], ARRAY[''], ARRAY[0], ARRAY[''],
             ARRAY[0], ARRAY[''], ARRAY[NULL], ARRAY[0], ARRAY[false], ARRAY[0], ARRAY[0], ARRAY['release'], ARRAY[0], 'inbox',
             '2000', numbers, words);
         END $$",
    );
    let failed = failed.expect_err("no channel has so long a name");
    assert!(failed.contains("channel name too long"), "{failed}");
    let next = gets_in(waiter).await;
    assert!(next.fence() > guard.fence());
    give_back(next).await;
    drop(guard);
}

/// Other names for schema and tables; and what a person reads there.
#[tokio::test(flavor = "multi_thread")]
async fn the_tables_are_where_the_url_says_and_can_be_read() {
    let server = Postgres::start();
    let here = connect(format!("{}?schema=other&table=jobs", server.url()));
    let there = connect(server.url());
    let lock = here.mutex("nightly").lease(LONG).reason("the report");
    let guard = soon("free", lock.acquire()).await.expect("free");
    // Another table has other locks.
    let other = soon("free", there.mutex("nightly").try_acquire()).await;
    give_back(other.expect("an answer").expect("free")).await;
    let row = server.sql(
        "SELECT name, mode, reason, fence, since > now() - interval '1 minute', expiry - since > interval '1 minute' FROM other.jobs_holder",
    );
    assert_eq!(
        row,
        format!("nightly|exclusive|the report|{}|t|t", number(&guard))
    );
    let line = server.sql("SELECT name, kind, fence FROM other.jobs");
    assert_eq!(line, format!("nightly|mutex|{}", number(&guard)));
    give_back(guard).await;
    for bad in ["schema=a-b", "table=1a", "table=a%22b"] {
        let url = format!("{}?{bad}", server.url());
        let refused = palisade::Client::connect(&url).expect_err(bad);
        assert_eq!(refused.kind(), ErrorKind::Config, "{refused}");
    }
    let long = format!("{}?prefix={}", server.url(), "x".repeat(1001));
    let refused = palisade::Client::connect(&long).expect_err("too long");
    assert!(refused.to_string().contains("1000 bytes"), "{refused}");
    // The longest keys that are taken fit into the indexes, with text that cannot be compressed.
    let noise = |bytes: usize| -> String {
        std::iter::repeat_with(fastrand::alphanumeric)
            .take(bytes)
            .collect()
    };
    let long = connect(format!("{}?prefix={}", server.url(), noise(1000)));
    let names: String = std::iter::repeat_with(|| fastrand::char('\u{e000}'..'\u{f000}'))
        .take(170)
        .collect();
    let guard = soon("free", long.mutex(&names).lease(LONG).acquire())
        .await
        .expect("free");
    let waiter = wait_for(&long.mutex(&names));
    in_line(&long, &names, 1).await;
    give_back(guard).await;
    give_back(gets_in(waiter).await).await;
}

/// A lock that is entered again is one claim in the tables: its holds are counted in the client, and
/// cost no request.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_entered_again_is_one_row() {
    let server = Postgres::start();
    let locks = connect(server.url());
    let (me, lock) = (locks.identity("me"), locks.mutex("n").lease(LONG));
    let outer = soon("free", lock.acquire_as(&me)).await.expect("free");
    let row = "SELECT * FROM palisade.lock_holder";
    let before = server.sql(row);
    let inner = soon("again", lock.acquire_as(&me)).await.expect("again");
    assert_eq!(inner.fence(), outer.fence());
    assert_eq!(server.sql(row), before);
    give_back(inner).await;
    assert_eq!(server.sql(row), before, "it is still held");
    give_back(outer).await;
    assert_eq!(server.sql(row), "");
}

/// The size of all tables with their indexes, in bytes.
fn size(server: &Postgres) -> u64 {
    let size = "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c \
                JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'palisade' AND c.relkind = 'r'";
    server.sql(size).parse().expect("a number")
}

/// One hand-off is told once, although the release had to wait for the row.
#[tokio::test(flavor = "multi_thread")]
async fn a_hand_off_that_waited_for_the_row_is_told_once() {
    let server = Arc::new(Postgres::start());
    let (one, two) = (connect(server.url()), connect(server.url()));
    let guard = soon("free", one.mutex("n").lease(LONG).acquire())
        .await
        .expect("free");
    let waiter = wait_for(&two.mutex("n").lease(LONG));
    in_line(&one, "n", 1).await;
    let inbox = server.sql("SELECT inbox FROM palisade.lock_waiter");
    let hears = {
        let server = Arc::clone(&server);
        let listen = format!("LISTEN \"{inbox}\"; COMMIT; SELECT pg_sleep(2.5)");
        std::thread::spawn(move || server.sql(&listen))
    };
    let listens = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    eventually("it listens, too", async || server.sql(listens) == "1").await;
    let outside = {
        let server = Arc::clone(&server);
        let lock = "BEGIN; SELECT 1 FROM palisade.lock WHERE name = 'n' FOR UPDATE; SELECT pg_sleep(0.8); COMMIT";
        std::thread::spawn(move || drop(server.sql(lock)))
    };
    eventually("the row is locked", async || server.sql(listens) == "2").await;
    give_back(guard).await;
    let next = gets_in(waiter).await;
    outside.join().expect("no panic");
    let heard = hears.join().expect("no panic");
    let pushes: Vec<&str> = heard
        .lines()
        .filter(|line| line.contains("granted"))
        .collect();
    assert_eq!(pushes.len(), 1, "{heard}");
    assert!(pushes[0].contains(&next.fence().to_string()), "{heard}");
    give_back(next).await;
}

/// Many clients that hold and do not wait: none of them listens, so no hand-off wakes them.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_hold_are_not_woken() {
    let server = Postgres::start();
    let clients: Vec<_> = (0..30).map(|_| connect(server.url())).collect();
    let mut guards = Vec::new();
    for (number, client) in clients.iter().enumerate() {
        let mutex = client.mutex(format!("n{number}")).lease(LONG);
        guards.push(soon("free", mutex.acquire()).await.expect("free"));
    }
    assert_eq!(sessions(&server), clients.len());
    // However many locks one of them holds.
    for number in 0..40 {
        let mutex = clients[0].mutex(format!("more{number}")).lease(LONG);
        guards.push(soon("free", mutex.acquire()).await.expect("free"));
    }
    assert!(sessions(&server) <= clients.len() + 1);
    let listens = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'palisade' \
                   AND query ~ 'LISTEN|idle_session_timeout'";
    assert_eq!(server.sql(listens), "0");
}

/// An old snapshot keeps the dead versions of a hot row; when it ends, the name is as fast as before.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_recovers_from_an_old_snapshot() {
    let server = Arc::new(Postgres::start());
    let locks = connect(server.url());
    let cycles = async |count: usize| {
        for _ in 0..count {
            give_back(
                soon("free", locks.mutex("n").acquire())
                    .await
                    .expect("free"),
            )
            .await;
        }
    };
    // How many pages one look at the row reads.
    let pages = || {
        let plan = server.sql(
            "SET enable_seqscan = off; EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, SUMMARY OFF, FORMAT JSON) \
             SELECT FROM palisade.lock WHERE name = 'n'",
        );
        let hits = plan
            .split("\"Shared Hit Blocks\": ")
            .nth(1)
            .expect("buffers");
        let hits: String = hits.chars().take_while(char::is_ascii_digit).collect();
        hits.parse::<u32>().expect("a number")
    };
    cycles(50).await;
    let before = pages();
    let snapshot = {
        let server = Arc::clone(&server);
        std::thread::spawn(move || {
            server.sql(
                "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM palisade.lock; \
                 SELECT pg_sleep(3); COMMIT",
            )
        })
    };
    let sleeps = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    eventually("it has a snapshot", async || server.sql(sleeps) == "1").await;
    while !snapshot.is_finished() {
        cycles(50).await;
    }
    snapshot.join().expect("no panic");
    cycles(50).await;
    let after = pages();
    assert!(after <= before + 8, "{before} pages before, {after} after");
    assert_eq!(rows(&server), [1, 0, 0]);
}

/// Names are compared by their bytes.
#[tokio::test(flavor = "multi_thread")]
async fn names_are_compared_by_their_bytes() {
    let server = Postgres::start();
    let locks = connect(server.url());
    let mut guards = Vec::new();
    for name in ["a", "A", "á", "a ", "a\u{301}"] {
        let guard = locks.mutex(name).try_acquire().await.expect("an answer");
        guards.push(guard.unwrap_or_else(|| panic!("{name:?} is another's")));
    }
    assert_eq!(locks.list("").await.expect("an answer").len(), 5);
}

/// Many cycles on many names: little space, and the sweeper leaves what is held.
#[tokio::test(flavor = "multi_thread")]
async fn many_cycles_and_names_leave_little() {
    let count = if std::env::var_os("PALISADE_SOAK").is_some() {
        100_000
    } else {
        10_000
    };
    let server = Postgres::start();
    // The size does not depend on it, and the disk is spared.
    server.sql("ALTER SYSTEM SET fsync = off");
    server.sql("SELECT pg_reload_conf()");
    let locks = connect(server.url());
    let held = soon("free", locks.mutex("held").lease(LONG).acquire())
        .await
        .expect("free");
    let run = async |names: usize| {
        let tasks: Vec<_> = (0..64)
            .map(|task| {
                let locks = locks.clone();
                tokio::spawn(async move {
                    for number in (task..count / 2).step_by(64) {
                        let name = format!("n{}", number % names);
                        let guard = locks.mutex(name).acquire().await.expect("granted");
                        guard.release().await.expect("an answer");
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("no panic");
        }
    };
    run(64).await;
    assert_eq!(rows(&server), [65, 1, 0]);
    assert!(size(&server) < 10 << 20, "{} bytes", size(&server));
    run(count / 2).await;
    // As if all of it was long ago. A name that is held is older than the others.
    server.sql("UPDATE palisade.lock SET fence = CASE name WHEN 'held' THEN 1 ELSE 2 END");
    let mut calls = 0;
    while server.sql("CALL palisade.lock_sweep_1(NULL)") == "t" {
        calls += 1;
        assert!(calls <= count / 1000, "it does not end");
    }
    assert_eq!(server.sql("SELECT name FROM palisade.lock"), "held");
    give_back(held).await;
}

/// The last fence outlives the use of its name by ten minutes, however long the grant was held.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_fence_outlives_a_long_hold() {
    let minutes = |count: u64| Duration::from_secs(60 * count);
    let server = Postgres::with().clock().start();
    let locks = connect(server.url());
    let lock = locks.mutex("n").lease(minutes(120)).auto_renew(false);
    let guard = soon("free", lock.acquire()).await.expect("free");
    server.clock().set_ahead(minutes(60));
    give_back(guard).await;
    let kept_at = |at: u64| {
        server.clock().set_ahead(minutes(at));
        server.sql("CALL palisade.lock_sweep_1(NULL)");
        rows(&server)[0]
    };
    assert_eq!([60, 69, 72].map(kept_at), [1, 1, 0]);
}

/// Names in use do not keep the sweeper from those that are not.
#[tokio::test(flavor = "multi_thread")]
async fn held_names_do_not_fill_the_sweep() {
    let server = Postgres::start();
    let locks = connect(server.url());
    give_back(
        soon("free", locks.mutex("zz-idle").acquire())
            .await
            .expect("free"),
    )
    .await;
    server.sql(
        "INSERT INTO palisade.lock (name, fence) SELECT 'held-' || i, 1 FROM generate_series(1, 3000) i; \
         INSERT INTO palisade.lock_holder (name, fence, owner, mode, permits, since, expiry, lease, keep_until, claim) \
         SELECT name, 1, 'x', 'exclusive', 0, now(), now() + interval '1 hour', '1 hour', '-infinity', '' \
         FROM palisade.lock WHERE name LIKE 'held-%'; \
         DELETE FROM palisade.lock WHERE name = 'zz-idle'; \
         INSERT INTO palisade.lock (name, fence) VALUES ('zz-idle', 1)",
    );
    assert_eq!(server.sql("CALL palisade.lock_sweep_1(NULL)"), "f");
    assert_eq!(rows(&server)[..2], [3000, 3000]);
}

/// Two clients renew the same names, each in its own order.
#[tokio::test(flavor = "multi_thread")]
async fn renewals_of_the_same_names_do_not_deadlock() {
    let server = Postgres::start();
    // Before the wait for a row ends.
    server.sql("ALTER ROLE locker SET deadlock_timeout = '20ms'");
    common::actors::renew_in_opposite_orders(server.url()).await;
    let log = std::fs::read_to_string(server.dir().join("log")).expect("a log");
    assert!(!log.contains("deadlock detected"), "{log}");
}

/// What the pages say: each verb is one request, in each state.
#[tokio::test(flavor = "multi_thread")]
async fn each_verb_is_one_request() {
    const TIMES: usize = 10;
    let server = Postgres::start();
    server.sql("ALTER ROLE locker SET log_statement = 'all'");
    let requests = || {
        let log = std::fs::read_to_string(server.dir().join("log")).expect("a log");
        log.matches("LOG:  execute ").count() + log.matches("LOG:  statement: ").count()
    };
    let (locks, other) = (connect(server.url()), connect(server.url()));
    for client in [&locks, &other] {
        let guard = soon("free", client.mutex("warm").acquire()).await;
        give_back(guard.expect("free")).await;
    }
    let guard = soon("free", locks.mutex("n").lease(LONG).acquire()).await;
    let guard = guard.expect("free");
    let costs = async |what: &str, each: usize, verb: &dyn Fn() -> Verb| {
        let before = requests();
        for _ in 0..TIMES {
            soon(what, verb()).await;
        }
        assert_eq!(requests() - before, each * TIMES, "{what}");
    };
    let busy = other.mutex("n");
    costs("busy", 1, &|| {
        let busy = busy.clone();
        Box::pin(async move { assert!(busy.try_acquire().await.expect("an answer").is_none()) })
    })
    .await;
    costs("show", 1, &|| {
        let other = other.clone();
        Box::pin(async move { assert!(other.show("n").await.expect("an answer").is_some()) })
    })
    .await;
    costs("list", 1, &|| {
        let other = other.clone();
        Box::pin(async move { assert_eq!(other.list("").await.expect("an answer").len(), 1) })
    })
    .await;
    let lock = other.rwlock("rw");
    costs("write, downgrade, release", 3, &|| {
        let lock = lock.clone();
        Box::pin(async move {
            let guard = lock.write().await.expect("free").downgrade().await;
            guard
                .expect("downgraded")
                .release()
                .await
                .expect("released");
        })
    })
    .await;
    guard.verify().await.expect("held");
    let before = requests();
    for _ in 0..TIMES {
        soon("verified", guard.verify()).await.expect("held");
    }
    assert_eq!(requests() - before, TIMES, "verify");
    give_back(guard).await;
}

type Verb = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;
