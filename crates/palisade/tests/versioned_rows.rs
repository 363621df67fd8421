//! Rows of tables that change only if the writer has seen their current version.

#![cfg(all(feature = "postgres", feature = "mysql"))]

use palisade::versioned::Version;
use palisade::versioned::mysql::mysql_async::{self, Conn, Opts};
use palisade::versioned::postgres::tokio_postgres::{self, Client, IsolationLevel, NoTls};
use palisade::versioned::sql::{RowSwapped, SwapError};
use palisade::versioned::{mysql, postgres};
use palisade_conformance::eventually;
use palisade_testkit::mariadb::MariaDb;
use palisade_testkit::postgres::Postgres;
use tokio::task::JoinSet;

const WRITERS: usize = 8;
const ROUNDS: usize = 10;

/// What a connection of MySQL counts: the rows that were changed, or those that were found.
const COUNTS: [&str; 2] = ["client_found_rows=false", "client_found_rows=true"];

async fn pg(server: &Postgres) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls)
        .await
        .expect("connected");
    tokio::spawn(connection);
    client
}

async fn my(server: &MariaDb, counts: &str) -> Conn {
    let opts = Opts::from_url(&format!("{}?{counts}", server.url())).expect("a good URL");
    Conn::new(opts).await.expect("connected")
}

/// The version is of 32 bits in one and of 64 bits in the other.
fn pg_table(server: &Postgres) -> postgres::VersionedTable {
    server.sql(
        "CREATE TABLE stock (item text PRIMARY KEY, pieces int, version int DEFAULT 1);
         ALTER TABLE stock OWNER TO locker;
         INSERT INTO stock VALUES ('bolt', 0)",
    );
    postgres::VersionedTable::new("stock", "item", "version").expect("good names")
}

fn my_table(server: &MariaDb) -> mysql::VersionedTable {
    server.sql(
        "CREATE TABLE stock (item VARCHAR(99) PRIMARY KEY, pieces INT UNIQUE, version BIGINT DEFAULT 1);
         INSERT INTO stock (item, pieces) VALUES ('bolt', 0)",
    );
    mysql::VersionedTable::new("stock", "item", "version").expect("good names")
}

fn version(number: u64) -> Version {
    Version::new(number)
}

#[tokio::test]
async fn a_swap_needs_the_version_that_is_there_on_postgres() {
    let server = Postgres::start();
    let stock = pg_table(&server);
    let shop = pg(&server).await;
    let swap = async |key: &str, expected: Option<u64>, pieces: i32| {
        stock
            .swap(&shop, &key, expected.map(version), &[("pieces", &pieces)])
            .await
    };
    let done = |number| RowSwapped::Done(version(number));
    let conflict = |now: Option<u64>| RowSwapped::Conflict(now.map(version));
    assert_eq!(
        swap("nut", Some(1), 1).await.expect("an answer"),
        conflict(None)
    );
    assert_eq!(swap("nut", None, 1).await.expect("an answer"), done(1));
    assert_eq!(
        swap("nut", None, 2).await.expect("an answer"),
        conflict(Some(1))
    );
    assert_eq!(swap("nut", Some(1), 3).await.expect("an answer"), done(2));
    for stale in [0, 1, 3, u64::MAX] {
        let answer = swap("nut", Some(stale), 9).await.expect("an answer");
        assert_eq!(answer, conflict(Some(2)), "{stale}");
    }
    let seen = stock.get(&shop, &"nut", &["pieces"]).await.expect("read");
    let seen = seen.expect("a row");
    assert_eq!((seen.row.get::<_, i32>(0), seen.version), (3, version(2)));
    assert!(
        stock
            .get(&shop, &"nail", &[])
            .await
            .expect("read")
            .is_none()
    );
    let bad = stock.get(&shop, &"nut", &["pieces; --"]).await;
    assert!(matches!(bad, Err(SwapError::Name(_))), "{bad:?}");
    server.sql("UPDATE stock SET version = NULL WHERE item = 'nut'");
    let corrupt = stock.get(&shop, &"nut", &[]).await;
    assert!(
        matches!(corrupt, Err(SwapError::Corrupt { found: None })),
        "{corrupt:?}"
    );
    server
        .sql("ALTER TABLE stock DROP CONSTRAINT stock_pkey; INSERT INTO stock VALUES ('bolt', 5)");
    let twice = stock.get(&shop, &"bolt", &[]).await;
    assert!(matches!(twice, Err(SwapError::NotUnique)), "{twice:?}");
}

#[tokio::test]
async fn a_swap_needs_the_version_that_is_there_on_mysql() {
    let server = MariaDb::start();
    let stock = my_table(&server);
    for (counts, item) in COUNTS.into_iter().zip(["nut", "screw"]) {
        let mut shop = my(&server, counts).await;
        let mut swap = async |expected: Option<u64>, pieces: i32| {
            let columns = [("pieces", pieces.into())];
            stock
                .swap(&mut shop, item.into(), expected.map(version), &columns)
                .await
        };
        let done = |number| RowSwapped::Done(version(number));
        let conflict = |now: Option<u64>| RowSwapped::Conflict(now.map(version));
        assert_eq!(swap(Some(1), 1).await.expect("an answer"), conflict(None));
        assert_eq!(swap(None, 1).await.expect("an answer"), done(1), "{counts}");
        assert_eq!(
            swap(None, 2).await.expect("an answer"),
            conflict(Some(1)),
            "{counts}"
        );
        // The same value counts as a change, because the version is another.
        assert_eq!(
            swap(Some(1), 1).await.expect("an answer"),
            done(2),
            "{counts}"
        );
        for stale in [0, 1, 3, u64::MAX] {
            let answer = swap(Some(stale), 9).await.expect("an answer");
            assert_eq!(answer, conflict(Some(2)), "{counts}: {stale}");
        }
        let seen = stock.get(&mut shop, item.into(), &["pieces"]).await;
        let seen = seen.expect("read").expect("a row");
        assert_eq!((seen.row.get(0), seen.version), (Some(1), version(2)));
        // Another unique index refuses: that is no conflict of versions.
        let taken = [("pieces", 0.into())];
        let refused = stock.swap(&mut shop, "nail".into(), None, &taken).await;
        assert!(matches!(refused, Err(SwapError::Refused(_))), "{refused:?}");
        server.sql("UPDATE stock SET version = -1, pieces = NULL WHERE item <> 'bolt'");
        let corrupt = stock.get(&mut shop, item.into(), &[]).await;
        assert!(
            matches!(&corrupt, Err(SwapError::Corrupt { found: Some(found) }) if found == "-1"),
            "{corrupt:?}"
        );
    }
}

#[tokio::test]
async fn no_update_is_lost_on_postgres() {
    let server = Postgres::start();
    let stock = pg_table(&server).tries(200);
    let mut tasks = JoinSet::new();
    for _ in 0..WRITERS {
        let (shop, stock) = (pg(&server).await, stock.clone());
        tasks.spawn(async move {
            for _ in 0..ROUNDS {
                let done = stock.update(&shop, &"bolt", &["pieces"], |row| {
                    let pieces: i32 = row?.get("pieces");
                    Some(vec![("pieces", (pieces + 1).into())])
                });
                done.await.expect("done").expect("changed");
            }
        });
    }
    tasks.join_all().await;
    let all = WRITERS * ROUNDS;
    let row = server.sql("SELECT pieces, version FROM stock");
    assert_eq!(row, format!("{all}|{}", all + 1));
}

#[tokio::test]
async fn no_update_is_lost_on_mysql() {
    let server = MariaDb::start();
    let stock = my_table(&server).tries(200);
    let mut tasks = JoinSet::new();
    for number in 0..WRITERS {
        let (mut shop, stock) = (my(&server, COUNTS[number % 2]).await, stock.clone());
        tasks.spawn(async move {
            for _ in 0..ROUNDS {
                let done = stock.update(&mut shop, "bolt".into(), &["pieces"], |row| {
                    let pieces: i32 = row?.get("pieces")?;
                    Some(vec![("pieces", (pieces + 1).into())])
                });
                done.await.expect("done").expect("changed");
            }
        });
    }
    tasks.join_all().await;
    let all = WRITERS * ROUNDS;
    let row = server.sql("SELECT pieces, version FROM stock");
    assert_eq!(row, format!("{all}\t{}", all + 1));
}

/// Another writer is faster every time.
#[tokio::test]
async fn retries_are_bounded() {
    const FASTER: &str = "UPDATE stock SET version = version + 1";
    let (server, mut tried) = (Postgres::start(), 0);
    let stock = pg_table(&server).tries(3);
    let shop = pg(&server).await;
    let answer = stock.update(&shop, &"bolt", &["pieces"], |_| {
        tried += 1;
        server.sql(FASTER);
        Some(vec![("pieces", 1.into())])
    });
    let answer = answer.await.expect_err("never first");
    assert!(matches!(answer, SwapError::Contended { tries: 3 }) && answer.may_retry());
    assert_eq!(
        (tried, server.sql("SELECT pieces FROM stock").as_str()),
        (3, "0")
    );
    let (server, mut tried) = (MariaDb::start(), 0);
    let stock = my_table(&server).tries(3);
    let mut shop = my(&server, COUNTS[0]).await;
    let answer = stock.update(&mut shop, "bolt".into(), &["pieces"], |_| {
        tried += 1;
        server.sql(FASTER);
        Some(vec![("pieces", 1.into())])
    });
    let answer = answer.await.expect_err("never first");
    assert!(matches!(answer, SwapError::Contended { tries: 3 }) && answer.may_retry());
    assert_eq!(
        (tried, server.sql("SELECT pieces FROM stock").as_str()),
        (3, "0")
    );
}

/// A row can be left as it is, and one that is not there can be made.
#[tokio::test]
async fn an_update_may_leave_a_row_and_may_make_one() {
    let server = Postgres::start();
    let stock = pg_table(&server);
    let shop = pg(&server).await;
    let left = stock.update(&shop, &"bolt", &["pieces"], |_| None).await;
    assert_eq!(left.expect("an answer"), None);
    let made = stock.update(&shop, &"nut", &["pieces"], |row| {
        assert!(row.is_none());
        Some(vec![("pieces", 5.into())])
    });
    assert_eq!(made.await.expect("an answer"), Some(version(1)));
    let rows = server.sql("SELECT item, pieces, version FROM stock ORDER BY item");
    assert_eq!(rows, "bolt|0|1\nnut|5|1");
}

/// Under REPEATABLE READ the database itself refuses, and says that the transaction may be run again.
#[tokio::test]
async fn a_transaction_with_an_old_snapshot_may_retry() {
    let server = Postgres::start();
    let stock = pg_table(&server);
    let mut shop = pg(&server).await;
    let begin = shop
        .build_transaction()
        .isolation_level(IsolationLevel::RepeatableRead);
    let transaction = begin.start().await.expect("begun");
    let seen = stock.get(&transaction, &"bolt", &[]).await.expect("read");
    server.sql("UPDATE stock SET version = version + 1");
    let expected = seen.map(|seen| seen.version);
    let refused = stock
        .swap(&transaction, &"bolt", expected, &[("pieces", &1)])
        .await
        .expect_err("changed since the snapshot");
    assert!(
        matches!(refused, SwapError::Refused(_)) && refused.may_retry(),
        "{refused:?}"
    );
}

/// The session is ended by an operator while the swap is under way.
#[tokio::test]
async fn a_swap_without_an_answer_is_called_so() {
    let server = std::sync::Arc::new(Postgres::start());
    let stock = pg_table(&server);
    let (shop, mut holder) = (pg(&server).await, pg(&server).await);
    let transaction = holder.transaction().await.expect("begun");
    let lock = "SELECT 1 FROM stock FOR UPDATE";
    transaction.execute(lock, &[]).await.expect("locked");
    let swap = tokio::spawn(async move {
        stock
            .swap(&shop, &"bolt", Some(version(1)), &[("pieces", &1)])
            .await
    });
    eventually("ended while it waited", async || {
        server.sql(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
             WHERE wait_event_type = 'Lock'",
        ) == "1"
    })
    .await;
    let answer = swap.await.expect("no panic").expect_err("no answer");
    assert!(
        matches!(answer, SwapError::Unanswered(_)) && !answer.may_retry(),
        "{answer:?}"
    );

    let server = MariaDb::start();
    let stock = my_table(&server);
    let mut shop = my(&server, COUNTS[0]).await;
    let mut holder = my(&server, COUNTS[0]).await;
    let transaction = holder.start_transaction(mysql_async::TxOpts::default());
    let mut transaction = transaction.await.expect("begun");
    mysql_async::prelude::Queryable::query_drop(&mut transaction, lock)
        .await
        .expect("locked");
    let waiter = shop.id();
    let swap = tokio::spawn(async move {
        let columns = [("pieces", 1.into())];
        stock
            .swap(&mut shop, "bolt".into(), Some(version(1)), &columns)
            .await
    });
    // The tables about transactions would not do: the server renews them only after a tenth of a
    // second in which they were not read.
    let waits = "SELECT variable_value FROM information_schema.global_status \
                 WHERE variable_name = 'Innodb_row_lock_current_waits'";
    eventually("it waits", async || server.sql(waits) == "1").await;
    server.sql(&format!("KILL CONNECTION {waiter}"));
    let answer = swap.await.expect("no panic").expect_err("no answer");
    assert!(
        matches!(answer, SwapError::Unanswered(_)) && !answer.may_retry(),
        "{answer:?}"
    );
}
