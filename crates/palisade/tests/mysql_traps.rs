//! MySQL and MariaDB: what a verb costs, and the traps of the server that a lock must not fall into.
#![cfg(feature = "mysql")]

mod common;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use palisade::store::Wakes;
use palisade::{Client, ErrorKind, Released};
use palisade_conformance::eventually;
use palisade_testkit::mariadb::MariaDb;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// So long that no test waits for its end.
const LONG: Duration = Duration::from_secs(120);

const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(6))";

async fn client(server: &MariaDb) -> Client {
    palisade::connect(server.url()).await.expect("a good URL")
}

async fn cycle(client: &Client, name: &str) {
    let guard = client.mutex(name).acquire().await.expect("acquired");
    assert_eq!(guard.release().await.expect("released"), Released::Done);
}

/// The requests that clients have sent so far.
fn requests(server: &MariaDb) -> u64 {
    let said = server.sql("SHOW GLOBAL STATUS LIKE 'Questions'");
    let number = said.split_whitespace().last().expect("a number");
    number.parse().expect("a number")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_verb_is_one_request_and_nothing_is_left() {
    const CYCLES: u64 = 300;
    let server = MariaDb::start();
    let locks = client(&server).await;
    cycle(&locks, "warm").await;
    let before = requests(&server);
    for number in 0..CYCLES {
        cycle(&locks, &format!("name-{}", number % 100)).await;
    }
    // This test asks, too.
    let sent = requests(&server) - before;
    assert!(
        (2 * CYCLES..2 * CYCLES + 8).contains(&sent),
        "{sent} requests for {CYCLES} cycles"
    );
    assert_eq!(server.sql("SELECT COUNT(*) FROM palisade_claim"), "0");
    let held = locks.mutex("held").acquire().await.expect("acquired");
    assert_eq!(server.sql("CALL palisade_1_sweep(0, 1000)"), "101");
    assert_eq!(
        server.sql("SELECT name FROM palisade_line"),
        "held",
        "what is held stays"
    );
    assert_eq!(held.release().await.expect("released"), Released::Done);
}

/// The clock is read after the row was locked.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_waited_for_the_row_gets_its_whole_lease() {
    let server = MariaDb::start();
    let locks = client(&server).await;
    cycle(&locks, "row").await;
    std::thread::scope(|scope| {
        let locker = scope.spawn(|| {
            server.sql(
                "START TRANSACTION; SELECT 1 FROM palisade_line WHERE name = 'row' FOR UPDATE; DO SLEEP(1); COMMIT",
            )
        });
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async {
                eventually("the row is locked", async || {
                    server.sql(
                        "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'DO SLEEP%'",
                    ) == "1"
                })
                .await;
                let begun = Instant::now();
                let guard = locks.mutex("row").auto_renew(false).acquire().await;
                let guard = guard.expect("acquired");
                assert!(begun.elapsed() > Duration::from_millis(300), "it waited");
                let age = server.sql(&format!("SELECT {NOW} - since FROM palisade_line"));
                let age: u64 = age.parse().expect("a number");
                assert!(age < 400_000, "granted {age} µs ago by the server's clock");
                guard.release().await.expect("released");
            })
        });
        locker.join().expect("unlocked");
    });
}

/// The worst case: the lease is over before the row is the claim's own, and another claim that
/// waited for the row has it by then.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_waited_past_its_lease_does_not_say_that_it_holds() {
    let server = MariaDb::start();
    let locks = client(&server).await;
    cycle(&locks, "row").await;
    let claim = |id: u8, pause: u64| {
        let server = &server;
        let call = format!(
            "CALL palisade_1_do_claim('row', UNHEX(REPEAT('{id:02}', 16)), 'mutex', 0, 'exclusive', 0, 0, 'x', NULL, 300000, 0, 0)"
        );
        move || {
            std::thread::sleep(Duration::from_millis(pause));
            server.sql(&call)
        }
    };
    let (answers, held) = tokio::task::block_in_place(|| {
        std::thread::scope(|scope| {
            let locker = scope.spawn(|| {
                server.sql(
                    "START TRANSACTION; SELECT 1 FROM palisade_line WHERE name = 'row' FOR UPDATE; DO SLEEP(1.2); COMMIT",
                )
            });
            let sleeps =
                "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'DO SLEEP%'";
            while server.sql(sleeps) != "1" {}
            let claims = [claim(11, 0), claim(22, 500)].map(|claim| scope.spawn(claim));
            let answers = claims.map(|claim| claim.join().expect("an answer"));
            let held = server.sql("SELECT HEX(claim) FROM palisade_line WHERE state = 'held'");
            locker.join().expect("unlocked");
            (answers, held)
        })
    });
    let says = |at: usize| answers[at].starts_with("held");
    assert_eq!(
        (says(0), says(1)),
        (held.starts_with("11"), held.starts_with("22")),
        "{answers:?} {held}"
    );
}

/// Twenty clients meet an empty database; a newer version is refused.
#[tokio::test(flavor = "multi_thread")]
async fn many_clients_create_the_tables_at_once() {
    let server = MariaDb::start();
    let mut tasks = Vec::new();
    for number in 0..20 {
        let locks = client(&server).await;
        tasks.push(tokio::spawn(async move {
            cycle(&locks, &format!("first-{number}")).await;
        }));
    }
    for task in tasks {
        task.await.expect("created and used");
    }
    let locks = client(&server).await;
    assert!(!locks.create_schema().await.expect("an answer"));
    server.sql("INSERT INTO palisade_version VALUES (2)");
    let refused = client(&server).await.mutex("later").acquire().await;
    let refused = refused.expect_err("a newer version");
    assert_eq!(refused.kind(), ErrorKind::Protocol, "{refused}");
    assert!(refused.to_string().contains("version 2"), "{refused}");
}

/// A user who may not create tables is told what to do.
#[tokio::test(flavor = "multi_thread")]
async fn missing_rights_name_the_way_out() {
    let server = MariaDb::start();
    server.sql(
        "CREATE USER worker@'%' IDENTIFIED BY 'workpw'; \
         GRANT SELECT, INSERT, UPDATE, DELETE, EXECUTE ON locks.* TO worker@'%'",
    );
    let url = format!("mysql://worker:workpw@{}/locks", server.address());
    let locks = palisade::connect(&url).await.expect("a good URL");
    let refused = locks.mutex("a").try_acquire().await.expect_err("no rights");
    assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
    assert!(refused.to_string().contains("palisade schema"), "{refused}");
    let admin = client(&server).await;
    assert!(admin.create_schema().await.expect("created"));
    cycle(&locks, "a").await;
    let wrong = format!("mysql://worker:secret-word@{}/locks", server.address());
    let wrong = palisade::connect(&wrong).await.expect("a good URL");
    let refused = wrong.mutex("a").try_acquire().await.expect_err("wrong");
    assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
    assert!(!format!("{refused:?}").contains("secret-word"));
}

/// What `palisade schema --print` writes makes the same routines in a session of any mode.
#[tokio::test(flavor = "multi_thread")]
async fn printed_statements_suit_any_session() {
    for mode in ["ORACLE", "NO_BACKSLASH_ESCAPES,ANSI_QUOTES"] {
        let server = MariaDb::start();
        server.sql(&format!("SET GLOBAL sql_mode = '{mode}'"));
        let locks = client(&server).await;
        server.sql(&locks.schema().expect("tables"));
        assert!(!locks.create_schema().await.expect("there already"));
        // Of those that are renewed together, each has a line of the answer.
        let locks: Vec<_> = ["a", "b", "c"]
            .map(|name| locks.mutex(name).lease(Duration::from_secs(2)))
            .into();
        let mut guards = Vec::new();
        for lock in &locks {
            guards.push(lock.acquire().await.expect("free"));
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
        for guard in guards {
            assert_eq!(guard.release().await.expect("released"), Released::Done);
        }
    }
}

/// Held locks need no connection of their own, and claims that wait no more than `waits=` says.
#[tokio::test(flavor = "multi_thread")]
async fn connections_are_bounded() {
    let server = MariaDb::start();
    let url = format!("{}?waits=3", server.url());
    let (holder, waiter) = (
        client(&server).await,
        palisade::connect(&url).await.expect("a good URL"),
    );
    let mut guards = Vec::new();
    for number in 0..40 {
        let lock = holder.mutex(format!("n{number}")).lease(LONG);
        guards.push(lock.acquire().await.expect("free"));
    }
    let sessions = |state: &str| {
        let count = format!(
            "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'locker' AND COALESCE(state, '') LIKE '{state}'"
        );
        server.sql(&count).parse::<usize>().expect("a number")
    };
    assert!(sessions("%") <= 8, "{}", sessions("%"));
    let before = sessions("%");
    let tasks: Vec<_> = (0..40)
        .map(|number| {
            let lock = waiter.mutex(format!("n{number}")).lease(LONG);
            tokio::spawn(async move { lock.acquire().await })
        })
        .collect();
    eventually("all wait", async || {
        server.sql("SELECT COUNT(*) FROM palisade_claim WHERE state = 'waits'") == "40"
    })
    .await;
    eventually("three wait for a bell", async || sessions("User lock") == 3).await;
    assert!(sessions("%") <= before + 8 + 3, "{}", sessions("%"));
    // Those without a connection are woken, too.
    for guard in guards {
        assert_eq!(guard.release().await.expect("released"), Released::Done);
    }
    for task in tasks {
        let guard = tokio::time::timeout(Duration::from_secs(20), task).await;
        let guard = guard.expect("in time").expect("no panic").expect("granted");
        assert_eq!(guard.release().await.expect("released"), Released::Done);
    }
}

/// The last fence outlives the use of its name by ten minutes, however long the grant was held.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_fence_outlives_a_long_hold() {
    let minutes = |count: u64| Duration::from_secs(60 * count);
    let server = MariaDb::with().clock().start();
    let locks = client(&server).await;
    let lock = locks.mutex("n").lease(minutes(120)).auto_renew(false);
    let guard = lock.acquire().await.expect("free");
    server.clock().set_ahead(minutes(60));
    assert_eq!(guard.release().await.expect("released"), Released::Done);
    let kept_at = |at: u64| {
        server.clock().set_ahead(minutes(at));
        server.sql("CALL palisade_1_sweep(600000000, 200)");
        server.sql("SELECT COUNT(*) FROM palisade_line")
    };
    assert_eq!([60, 69, 72].map(kept_at), ["1", "1", "0"]);
}

/// Other names for database and tables; and what a person reads there.
#[tokio::test(flavor = "multi_thread")]
async fn the_tables_are_where_the_url_says_and_can_be_read() {
    let server = MariaDb::start();
    server.sql("CREATE DATABASE other; GRANT ALL ON other.* TO locker@'%'");
    let url = format!("{}?schema=other&table=jobs", server.url());
    let here = palisade::connect(&url).await.expect("a good URL");
    let there = client(&server).await;
    let lock = here.mutex("nightly").lease(LONG).reason("the report");
    let guard = lock.acquire().await.expect("free");
    // Another table has other locks.
    cycle(&there, "nightly").await;
    let row = server.sql(&format!(
        "SELECT name, state, kind, reason, fence, since > {NOW} - 60000000, expiry - since FROM other.jobs_line"
    ));
    assert_eq!(
        row,
        format!(
            "nightly\theld\tmutex\tthe report\t{}\t1\t120000000",
            guard.fence()
        )
    );
    // The times as dates, as on the page.
    let dates = server.sql(
        "SELECT FROM_UNIXTIME(since DIV 1000000) > NOW() - INTERVAL 1 MINUTE, \
           FROM_UNIXTIME(expiry DIV 1000000) > NOW() + INTERVAL 1 MINUTE FROM other.jobs_line WHERE state = 'held'",
    );
    assert_eq!(dates, "1\t1");
    assert_eq!(guard.release().await.expect("released"), Released::Done);
    for bad in ["schema=a-b", "table=1a", "table=a%60b"] {
        let url = format!("{}?{bad}", server.url());
        let refused = Client::connect(&url).expect_err(bad);
        assert_eq!(refused.kind(), ErrorKind::Config, "{refused}");
    }
}

/// A lock that is entered again is one claim in the tables: its holds are counted in the client, and
/// cost no request.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_entered_again_is_one_row() {
    let server = MariaDb::start();
    let locks = client(&server).await;
    let (me, lock) = (locks.identity("me"), locks.mutex("n").lease(LONG));
    let outer = lock.acquire_as(&me).await.expect("free");
    let row = "SELECT state, fence, expiry FROM palisade_line";
    let before = server.sql(row);
    let inner = lock.acquire_as(&me).await.expect("again");
    assert_eq!(inner.fence(), outer.fence());
    assert_eq!(server.sql(row), before);
    assert_eq!(inner.release().await.expect("released"), Released::Done);
    assert_eq!(server.sql(row), before, "it is still held");
    assert_eq!(outer.release().await.expect("released"), Released::Done);
    assert!(server.sql(row).starts_with("free"));
}

/// New names at once, where the server's default would lock gaps.
#[tokio::test(flavor = "multi_thread")]
async fn new_names_at_once_do_not_deadlock() {
    let server = MariaDb::start();
    server.sql("SET GLOBAL tx_isolation = 'REPEATABLE-READ'");
    let deadlocks = || server.sql("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'");
    let before = deadlocks();
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let locks = client(&server).await;
        tasks.push(tokio::spawn(async move {
            for name in 0..64 {
                cycle(&locks, &format!("new-{name}")).await;
            }
        }));
    }
    for task in tasks {
        task.await.expect("no deadlock reaches the user");
    }
    assert_eq!(deadlocks(), before);
}

/// A server whose transactions are serializable: no error reaches the user.
#[tokio::test(flavor = "multi_thread")]
async fn strict_isolation_of_the_server_does_no_harm() {
    let server = MariaDb::start();
    server.sql(
        "SET GLOBAL tx_isolation = 'SERIALIZABLE'; \
         SET GLOBAL init_connect = 'SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE'",
    );
    let deadlocks = || server.sql("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'");
    let before = deadlocks();
    let mut tasks = Vec::new();
    for _ in 0..16 {
        let locks = client(&server).await;
        tasks.push(tokio::spawn(async move {
            for name in ["n", "n", "other", "n"] {
                cycle(&locks, name).await;
                let reader = locks.rwlock("rw").read().await.expect("granted");
                assert_eq!(reader.release().await.expect("released"), Released::Done);
            }
        }));
    }
    for task in tasks {
        task.await.expect("no error reaches the user");
    }
    assert_eq!(deadlocks(), before);
}

/// An error inside a routine leaves no transaction open, and the locks go on afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_verb_leaves_no_transaction() {
    let server = MariaDb::start();
    let locks = client(&server).await;
    let guard = locks.mutex("broken").acquire().await.expect("acquired");
    server.sql("RENAME TABLE palisade_claim TO elsewhere");
    assert!(locks.mutex("broken").try_acquire().await.is_err());
    // The claim that failed is withdrawn meanwhile, which fails as well.
    eventually("no transaction is open", async || {
        // The server shows the same again to those who ask sooner.
        tokio::time::sleep(Duration::from_millis(200)).await;
        server.sql("SELECT COUNT(*) FROM information_schema.innodb_trx") == "0"
    })
    .await;
    server.sql("RENAME TABLE elsewhere TO palisade_claim");
    assert_eq!(guard.release().await.expect("released"), Released::Done);
    cycle(&locks, "broken").await;
}

/// A collation would take some of these for one name.
#[tokio::test(flavor = "multi_thread")]
async fn names_are_compared_by_their_bytes() {
    let server = MariaDb::start();
    let locks = client(&server).await;
    let mut guards = Vec::new();
    for name in ["a", "A", "á", "a ", "a\u{301}"] {
        let guard = locks.mutex(name).try_acquire().await.expect("an answer");
        guards.push(guard.unwrap_or_else(|| panic!("{name:?} is another's")));
    }
    assert_eq!(locks.list("").await.expect("an answer").len(), 5);
}

/// The sessions of the holder are gone, and with them its bell. The waiter neither spins
/// nor waits past the lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_bell_is_not_rung_in_a_loop() {
    let server = MariaDb::start();
    let (gone, waiter) = (client(&server).await, client(&server).await);
    let held = gone.mutex("bell").lease(Duration::from_secs(6));
    let guard = held.acquire().await.expect("acquired");
    let _detached = guard.detach().await.expect("detached");
    gone.shutdown().await;
    drop(gone);
    let begun = Instant::now();
    let waits = tokio::spawn({
        let waiter = waiter.clone();
        async move { waiter.mutex("bell").acquire().await }
    });
    eventually("it waits", async || {
        server.sql("SELECT COUNT(*) FROM palisade_claim WHERE state = 'waits'") == "1"
    })
    .await;
    let before = requests(&server);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let sent = requests(&server) - before;
    assert!(sent < 15, "{sent} requests in three seconds");
    let guard = waits.await.expect("no panic").expect("acquired");
    assert!(begun.elapsed() < Duration::from_secs(8), "past the lease");
    guard.release().await.expect("released");
}

/// A client that has detached a grant keeps no bell of it, and the one that adopts it has the bell.
#[tokio::test(flavor = "multi_thread")]
async fn a_detached_grant_takes_its_bell_along() {
    let server = MariaDb::start();
    let (one, other) = (client(&server).await, client(&server).await);
    let rings_in = || {
        server.sql("SELECT IS_USED_LOCK(CONCAT('palisade:', SHA1(claim))) FROM palisade_line WHERE name = 'n'")
    };
    let guard = one.mutex("n").lease(LONG).acquire().await.expect("free");
    let first = rings_in();
    assert_ne!(first, "NULL");
    let grant = guard.detach().await.expect("detached");
    // At once, unless a session ended meanwhile and the server has not noticed yet.
    eventually("given back", async || rings_in() == "NULL").await;
    let guard: palisade::Guard = other.adopt(&grant).await.expect("adopted");
    let second = rings_in();
    assert!(second != "NULL" && second != first, "{first} {second}");
    assert_eq!(guard.release().await.expect("released"), Released::Done);
}

/// A killed session is never used again: the next verb goes by another, and a waiter is granted.
#[tokio::test(flavor = "multi_thread")]
async fn killed_sessions_are_replaced() {
    let server = MariaDb::start();
    let (holder, waiter) = (client(&server).await, client(&server).await);
    let guard = holder.mutex("killed").acquire().await.expect("acquired");
    let waits = tokio::spawn({
        let waiter = waiter.clone();
        async move { waiter.mutex("killed").acquire().await }
    });
    eventually("it waits", async || {
        server.sql("SELECT COUNT(*) FROM palisade_claim WHERE state = 'waits'") == "1"
    })
    .await;
    let sessions =
        server.sql("SELECT id FROM information_schema.processlist WHERE user = 'locker'");
    for session in sessions.lines() {
        // It may have ended by itself.
        let _ = server.try_sql(&format!("KILL {session}"));
    }
    assert_eq!(guard.release().await.expect("released"), Released::Done);
    let guard = waits.await.expect("no panic").expect("acquired");
    assert!(guard.is_held());
    assert_eq!(guard.release().await.expect("released"), Released::Done);
}

/// Twenty clients meet an older version, which has none of the routines.
#[tokio::test(flavor = "multi_thread")]
async fn many_clients_meet_an_older_version() {
    let server = MariaDb::start();
    cycle(&client(&server).await, "first").await;
    server.sql(
        "UPDATE palisade_version SET version = 0; \
         DROP PROCEDURE palisade_1_do_claim; DROP PROCEDURE palisade_1_release",
    );
    let mut tasks = Vec::new();
    for number in 0..20 {
        let locks = client(&server).await;
        tasks.push(tokio::spawn(async move {
            cycle(&locks, &format!("first-{number}")).await;
        }));
    }
    for task in tasks {
        task.await.expect("created and used");
    }
    assert_eq!(server.sql("SELECT MAX(version) FROM palisade_version"), "1");
}

/// A deep line costs a claim no more, and the hand-off goes to the first.
#[tokio::test(flavor = "multi_thread")]
async fn a_deep_line_is_no_slower() {
    let server = MariaDb::start();
    let locks = client(&server).await;
    let guard = locks.mutex("n").lease(LONG).acquire().await.expect("free");
    // As if other clients waited.
    let renew = format!("UPDATE palisade_claim SET expiry = {NOW} + 5000000");
    server.sql(&format!(
        "INSERT INTO palisade_claim (name, state, seq, mode, permits, owner, since, expiry, lease, claim) \
         SELECT 'n', 'waits', 1000 + seq, 'exclusive', 0, 'x', {NOW}, 0, 60000000, \
           UNHEX(LPAD(HEX(seq), 32, '0')) FROM seq_1_to_2000; \
         UPDATE palisade_line SET waiting = 2000, tail = 4000 WHERE name = 'n'; {renew}"
    ));
    let begun = Instant::now();
    let busy = locks.mutex("n").try_acquire().await.expect("an answer");
    assert!(busy.is_none());
    assert!(
        begun.elapsed() < Duration::from_millis(500),
        "{:?}",
        begun.elapsed()
    );
    let waiter = {
        let mutex = locks.mutex("n").lease(LONG);
        tokio::spawn(async move { mutex.acquire().await })
    };
    eventually("it waits", async || {
        server.sql("SELECT waiting FROM palisade_line") == "2001"
    })
    .await;
    waiter.abort();
    server.sql(&renew);
    let begun = Instant::now();
    guard.release().await.expect("released");
    assert!(
        begun.elapsed() < Duration::from_millis(500),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(
        server.sql("SELECT HEX(claim) FROM palisade_line"),
        format!("{:032X}", 1)
    );
}

/// What an event reads does not grow with the line: not the hand-off, and not a claim or a renewal behind
/// those whose place is counted.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_on_a_deep_line_reads_no_more() {
    let server = MariaDb::start();
    let locks = client(&server).await;
    locks.create_schema().await.expect("created");
    let rows = |call: &str| {
        let said = server.sql(&format!(
            "UPDATE palisade_claim SET expiry = {NOW} + 5000000; FLUSH STATUS; {call}; \
             SELECT CONCAT('rows ', SUM(variable_value)) FROM information_schema.session_status WHERE variable_name LIKE 'HANDLER_READ%'"
        ));
        let rows = said.lines().find_map(|line| line.strip_prefix("rows "));
        rows.expect("a sum").parse::<u32>().expect("a number")
    };
    let costs = [16, 1000].map(|depth| {
        let claim = |id: &str| {
            format!(
                "CALL palisade_1_do_claim('deep{depth}', UNHEX(MD5('{id}')), 'mutex', 0, 'exclusive', 0, 1, 'x', NULL, 60000000, 0, 0)"
            )
        };
        rows(&claim("holder"));
        server.sql(&format!(
            "INSERT INTO palisade_claim (name, state, seq, mode, permits, owner, since, expiry, lease, claim) \
             SELECT 'deep{depth}', 'waits', seq, 'exclusive', 0, 'x', {NOW}, 0, 3600000000, \
               UNHEX(MD5(CONCAT({depth}, ' ', seq))) FROM seq_1_to_{depth}; \
             UPDATE palisade_line SET waiting = {depth}, tail = {depth} + 1 WHERE name = 'deep{depth}'; \
             ANALYZE TABLE palisade_claim, palisade_line"
        ));
        let name = format!("deep{depth}");
        let list = format!(
            "CALL palisade_1_renew(CONCAT(UNHEX('{:04x}'), UNHEX(MD5('last')), REPEAT('\\0', 9), '{name}'), 0)",
            name.len()
        );
        [
            rows(&claim("last")),
            rows(&list),
            rows(&format!(
                "CALL palisade_1_release('release', '{name}', UNHEX(MD5('holder')), NULL, 0)"
            )),
        ]
    });
    let [few, many] = costs;
    assert!(many[2] <= few[2] + 2, "a hand-off: {costs:?}");
    // Each counts up to 64 before it, and reads what it has counted.
    assert!(many[0] <= few[0] + 4 * 65, "a claim: {costs:?}");
    assert!(many[1] <= few[1] + 4 * 65, "a renewal: {costs:?}");
}

/// In the hour that a daylight-saving zone has twice, the clock goes on.
#[tokio::test(flavor = "multi_thread")]
async fn daylight_saving_does_not_turn_the_clock_back() {
    let server = MariaDb::start();
    let zone = std::process::Command::new("mysql_tzinfo_to_sql")
        .args(["/usr/share/zoneinfo/Europe/Berlin", "Europe/Berlin"])
        .output()
        .expect("mysql_tzinfo_to_sql");
    assert!(zone.status.success(), "{zone:?}");
    let zone = String::from_utf8(zone.stdout).expect("text");
    server.sql(&format!("USE mysql; {zone}"));
    server.sql("SET GLOBAL time_zone = 'Europe/Berlin'");
    let locks = client(&server).await;
    cycle(&locks, "warm").await;
    // 02:30 on 29 October 2023, twice: before the clocks go back, and an hour later.
    for (name, at) in [("summer", 1_698_539_400), ("winter", 1_698_543_000)] {
        let wall = server.sql(&format!(
            "SET time_zone = 'Europe/Berlin', timestamp = {at}; SELECT TIME(NOW()); \
             CALL palisade_1_do_claim('{name}', UNHEX('{at:032X}'), 'mutex', 0, 'exclusive', 0, 0, 'x', NULL, 60000000, 0, 0)"
        ));
        assert!(wall.starts_with("02:30:00"), "{wall}");
        let line = server.sql(&format!(
            "SELECT since, expiry - since FROM palisade_line WHERE name = '{name}'"
        ));
        assert_eq!(line, format!("{at}000000\t60000000"));
    }
    // And a client's own sessions have no zone at all.
    let guard = locks.mutex("n").lease(LONG).acquire().await.expect("free");
    server.sql("SET GLOBAL time_zone = '+09:00'");
    let other = client(&server).await;
    assert!(
        other
            .mutex("n")
            .try_acquire()
            .await
            .expect("an answer")
            .is_none()
    );
    let line = other.show("n").await.expect("an answer").expect("in use");
    let left = line.holders[0].lease_left.expect("known");
    assert!(left <= LONG && left > LONG / 2, "{left:?}");
    assert_eq!(guard.release().await.expect("released"), Released::Done);
}

/// A proxy that may lend a session for each statement shows at the login, and waiters ask
/// again and again.
#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_is_found_out() {
    let server = MariaDb::start();
    let (direct, proxied) = (client(&server).await, {
        let address = greets_as_another(server.address()).await;
        let url = format!("mysql://locker:lockpw@{address}/locks");
        palisade::connect(&url).await.expect("a good URL")
    });
    let pong = direct.ping().await.expect("it answers");
    assert_eq!(
        (pong.server.role, direct.capability().wakes),
        (None, Wakes::Watch)
    );
    let pong = proxied.ping().await.expect("it answers");
    assert_eq!(pong.server.role.as_deref(), Some("behind a proxy"));
    assert_eq!(proxied.capability().wakes, Wakes::Poll);
    let guard = direct.mutex("n").lease(LONG).acquire().await.expect("free");
    let waiter = {
        let mutex = proxied.mutex("n").lease(LONG);
        tokio::spawn(async move { mutex.acquire().await })
    };
    eventually("it waits", async || {
        server.sql("SELECT COUNT(*) FROM palisade_claim WHERE state = 'waits'") == "1"
    })
    .await;
    let waits = server.sql("SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User lock' AND user = 'locker'");
    assert_eq!(waits, "0", "no connection waits for a bell");
    guard.release().await.expect("released");
    let guard = waiter.await.expect("no panic").expect("granted");
    guard.release().await.expect("released");
}

/// A proxy whose greeting names another session than the server's.
async fn greets_as_another(server: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut server = TcpStream::connect(server).await?;
                let mut greeting = vec![0; 4];
                server.read_exact(&mut greeting).await?;
                greeting.resize(4 + usize::from(greeting[0]), 0);
                server.read_exact(&mut greeting[4..]).await?;
                // Behind the protocol's number comes the version, and behind that the session.
                let end = greeting[5..]
                    .iter()
                    .position(|byte| *byte == 0)
                    .expect("a version");
                greeting[5 + end + 3] ^= 0x55;
                client.write_all(&greeting).await?;
                tokio::io::copy_bidirectional(&mut client, &mut server).await
            });
        }
    });
    address
}

/// Many cycles on many names leave little, and the sweeper leaves what is held.
#[tokio::test(flavor = "multi_thread")]
async fn many_cycles_and_names_leave_little() {
    let count = if std::env::var_os("PALISADE_SOAK").is_some() {
        100_000
    } else {
        10_000
    };
    let server = MariaDb::start();
    // The size does not depend on it, and the disk is spared.
    server.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 0");
    let locks = client(&server).await;
    let held = locks
        .mutex("held")
        .lease(LONG)
        .acquire()
        .await
        .expect("free");
    for names in [64, count / 4] {
        let tasks: Vec<_> = (0..32)
            .map(|task| {
                let locks = locks.clone();
                tokio::spawn(async move {
                    for number in (task..count / 2).step_by(32) {
                        cycle(&locks, &format!("n{}", number % names)).await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("no panic");
        }
    }
    assert_eq!(server.sql("SELECT COUNT(*) FROM palisade_claim"), "0");
    let size = server.sql(
        "SELECT SUM(data_length + index_length) FROM information_schema.tables WHERE table_name LIKE 'palisade%'",
    );
    let size: u64 = size.parse().expect("a number");
    assert!(size < 10 << 20, "{size} bytes");
    while server.sql("CALL palisade_1_sweep(0, 1000)") == "1000" {}
    assert_eq!(server.sql("SELECT name FROM palisade_line"), "held");
    assert_eq!(held.release().await.expect("released"), Released::Done);
}

/// Two clients renew the same names, each in its own order.
#[tokio::test(flavor = "multi_thread")]
async fn renewals_of_the_same_names_do_not_deadlock() {
    let server = MariaDb::start();
    let deadlocks = || server.sql("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'");
    let before = deadlocks();
    common::actors::renew_in_opposite_orders(server.url()).await;
    assert_eq!(deadlocks(), before);
}

/// What the pages say: each verb is one request, in each state.
#[tokio::test(flavor = "multi_thread")]
async fn each_verb_is_one_request() {
    const TIMES: u64 = 20;
    let server = MariaDb::start();
    let (locks, other) = (client(&server).await, client(&server).await);
    cycle(&locks, "warm").await;
    cycle(&other, "warm").await;
    let guard = locks.mutex("n").lease(LONG).acquire().await.expect("free");
    let check = |what: &str, before: u64, each: u64| {
        let sent = requests(&server) - before;
        // This test asks, too.
        let wanted = each * TIMES..each * TIMES + 8;
        assert!(
            wanted.contains(&sent),
            "{what}: {sent} requests for {TIMES}"
        );
    };
    let before = requests(&server);
    for _ in 0..TIMES {
        assert!(
            other
                .mutex("n")
                .try_acquire()
                .await
                .expect("an answer")
                .is_none()
        );
    }
    check("busy", before, 1);
    let before = requests(&server);
    for _ in 0..TIMES {
        assert!(other.show("n").await.expect("an answer").is_some());
    }
    check("show", before, 1);
    let before = requests(&server);
    for _ in 0..TIMES {
        assert_eq!(other.list("").await.expect("an answer").len(), 1);
    }
    check("list", before, 1);
    let before = requests(&server);
    for _ in 0..TIMES {
        guard.verify().await.expect("held");
    }
    check("verify", before, 1);
    let before = requests(&server);
    for _ in 0..TIMES {
        let write = other.rwlock("rw").write().await.expect("free");
        let read = write.downgrade().await.expect("downgraded");
        read.release().await.expect("released");
    }
    check("write, downgrade, release", before, 3);
    assert_eq!(guard.release().await.expect("released"), Released::Done);
}

/// A node of a Galera cluster is refused by name.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_a_cluster_is_refused() {
    // It has the settings of a node, and no cluster.
    let server = MariaDb::with()
        .arg("--wsrep-on=ON")
        .arg("--binlog-format=ROW")
        .start();
    let locks = client(&server).await;
    let refused = locks.mutex("n").try_acquire().await.expect_err("refused");
    assert_eq!(refused.kind(), ErrorKind::Config, "{refused}");
    assert!(refused.to_string().contains("wsrep_on"), "{refused}");
}
