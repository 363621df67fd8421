//! MySQL and MariaDB: what a verb costs, and the traps of the server that a lock must not fall into.
#![cfg(feature = "mysql")]

use std::time::{Duration, Instant};

use palisade::{Client, ErrorKind, Released};
use palisade_conformance::eventually;
use palisade_testkit::mariadb::MariaDb;

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

/// Trap 1: the clock is read after the row was locked.
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

/// Trap 7: twenty clients meet an empty database; a newer version is refused.
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

/// Trap 12: new names at once, where the server's default would lock gaps.
#[tokio::test(flavor = "multi_thread")]
async fn new_names_at_once_do_not_deadlock() {
    let server = MariaDb::start();
    server.sql("SET GLOBAL tx_isolation = 'REPEATABLE-READ'");
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
}

/// Trap 13: an error inside a routine leaves no transaction open, and the locks go on afterwards.
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

/// Trap 16: a collation would take some of these for one name.
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

/// Trap 17: the sessions of the holder are gone, and with them its bell. The waiter neither spins
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
