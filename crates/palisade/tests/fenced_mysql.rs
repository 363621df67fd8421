//! Rows in MySQL and MariaDB that refuse the write of a holder that was paused past its lease, and
//! requests that are done once.

#![cfg(feature = "mysql")]

use std::sync::Arc;
use std::time::Duration;

use palisade::fence::Fence;
use palisade::fence::mysql::mysql_async::prelude::Queryable;
use palisade::fence::mysql::mysql_async::{Conn, IsolationLevel, Opts, TxOpts, Value};
use palisade::fence::mysql::{FencedTable, Mark, MarkedTable, Request, Requests, RowError, Writes};
use palisade_conformance::eventually;
use palisade_testkit::mariadb::MariaDb;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

const TASKS: u64 = 16;
const LEVELS: [IsolationLevel; 3] = [
    IsolationLevel::ReadCommitted,
    IsolationLevel::RepeatableRead,
    IsolationLevel::Serializable,
];

/// What a connection counts: the rows that were changed, or those that were found.
const COUNTS: [&str; 2] = ["client_found_rows=false", "client_found_rows=true"];

async fn open(server: &MariaDb, counts: &str) -> Conn {
    let opts = Opts::from_url(&format!("{}?{counts}", server.url())).expect("a good URL");
    Conn::new(opts).await.expect("connected")
}

async fn database(server: &MariaDb) {
    let tables = "\
        CREATE TABLE stock (item VARCHAR(99) PRIMARY KEY, pieces BIGINT, fence BIGINT NOT NULL DEFAULT 0, mark CHAR(32));
        CREATE TABLE written (at INT AUTO_INCREMENT PRIMARY KEY, fence BIGINT);
        INSERT INTO stock (item, pieces) VALUES ('bolt', 7)";
    server.sql(tables);
}

fn fence(number: u64) -> Fence {
    Fence::new(number).expect("a fence")
}

fn stock() -> FencedTable {
    FencedTable::new("stock", "item", "fence").expect("good names")
}

fn pieces(number: u64) -> [(&'static str, Value); 1] {
    [("pieces", number.into())]
}

#[tokio::test]
async fn an_older_fence_is_refused_and_the_same_values_are_not() {
    let server = MariaDb::start();
    database(&server).await;
    for (counts, item) in COUNTS.into_iter().zip(["nut", "screw"]) {
        let (mut database, often) = (open(&server, counts).await, Writes::Often);
        let (stock, key) = (stock(), || Value::from(item));
        let missing = stock
            .update(&mut database, key(), fence(33), often, &pieces(6))
            .await;
        assert!(matches!(missing, Err(RowError::NoRow)), "{missing:?}");
        // The second time, nothing is changed.
        for _ in 0..2 {
            stock
                .upsert(&mut database, key(), fence(33), often, &pieces(6))
                .await
                .expect("ours");
            stock
                .update(&mut database, key(), fence(33), often, &pieces(6))
                .await
                .expect("ours");
            stock
                .install(&mut database, key(), fence(33))
                .await
                .expect("ours");
        }
        let once = Writes::Once;
        for refused in [
            stock
                .update(&mut database, key(), fence(33), once, &pieces(6))
                .await,
            stock
                .upsert(&mut database, key(), fence(33), once, &pieces(6))
                .await,
        ] {
            assert!(
                matches!(refused, Err(RowError::Stale { highest, .. }) if highest == fence(33)),
                "{counts}: {refused:?}"
            );
        }
        stock
            .update(&mut database, key(), fence(34), once, &pieces(5))
            .await
            .expect("later");
        for writes in [once, often] {
            for refused in [
                stock
                    .update(&mut database, key(), fence(33), writes, &pieces(99))
                    .await,
                stock
                    .upsert(&mut database, key(), fence(33), writes, &pieces(99))
                    .await,
            ] {
                assert!(
                    matches!(refused, Err(RowError::Stale { highest, .. }) if highest == fence(34)),
                    "{counts}: {refused:?}"
                );
            }
        }
        let read: Option<(u64, u64)> = database
            .exec_first("SELECT pieces, fence FROM stock WHERE item = ?", (item,))
            .await
            .expect("read");
        assert_eq!(read, Some((5, 34)));
    }
}

#[tokio::test]
async fn what_cannot_work_is_refused() {
    let server = MariaDb::start();
    database(&server).await;
    let mut database = open(&server, COUNTS[0]).await;
    let (stock, often) = (stock(), Writes::Often);
    let none = stock
        .upsert(&mut database, "bolt".into(), Fence::NONE, often, &pieces(6))
        .await;
    assert!(matches!(none, Err(RowError::NoFence)), "{none:?}");
    let bad = [("x` = 1; --", Value::from(1))];
    let refused = stock
        .update(&mut database, "bolt".into(), fence(35), often, &bad)
        .await;
    assert!(matches!(refused, Err(RowError::Name(_))), "{refused:?}");
    stock
        .install(&mut database, "bolt".into(), Fence::MAX)
        .await
        .expect("the highest there is");
    let below = fence(i64::MAX as u64 - 1);
    let refused = stock.install(&mut database, "bolt".into(), below).await;
    assert!(
        matches!(refused, Err(RowError::Stale { .. })),
        "{refused:?}"
    );
    server.sql(
        "ALTER TABLE stock MODIFY fence BIGINT UNSIGNED; UPDATE stock SET fence = 9223372036854775808",
    );
    let corrupt = stock
        .install(&mut database, "bolt".into(), Fence::MAX)
        .await;
    assert!(
        matches!(&corrupt, Err(RowError::Corrupt { found: Some(found) }) if found == "9223372036854775808"),
        "{corrupt:?}"
    );
    server.sql("UPDATE stock SET fence = NULL");
    let corrupt = stock.install(&mut database, "bolt".into(), fence(1)).await;
    assert!(
        matches!(corrupt, Err(RowError::Corrupt { found: None })),
        "{corrupt:?}"
    );
    server.sql("UPDATE stock SET fence = 0; ALTER TABLE stock ADD UNIQUE (pieces)");
    let other = stock
        .upsert(&mut database, "nut".into(), fence(1), often, &pieces(7))
        .await;
    assert!(matches!(other, Err(RowError::NoRow)), "{other:?}");
    assert_eq!(server.sql("SELECT item, fence FROM stock"), "bolt\t0");
}

#[tokio::test]
async fn a_holder_that_was_paused_past_its_lease_is_refused() {
    let server = MariaDb::start();
    database(&server).await;
    let mut database = open(&server, COUNTS[1]).await;
    let locks = palisade::connect(server.url()).await.expect("a good URL");
    let lock = locks.mutex("bolt").lease(Duration::from_millis(300));
    let paused = lock.clone().auto_renew(false);
    let paused = paused.acquire().await.expect("free");
    let next = lock.acquire().await.expect("after the lease");
    let often = Writes::Often;
    stock()
        .install(&mut database, "bolt".into(), next.fence())
        .await
        .expect("the next holder");
    let refused = stock()
        .update(
            &mut database,
            "bolt".into(),
            paused.fence(),
            often,
            &pieces(99),
        )
        .await;
    assert!(
        matches!(refused, Err(RowError::Stale { highest, offered })
            if (highest, offered) == (next.fence(), paused.fence())),
        "{refused:?}"
    );
    assert_eq!(server.sql("SELECT pieces FROM stock"), "7");
}

/// The transaction's snapshot still has our own fence, when the row has the next holder's.
#[tokio::test]
async fn an_old_snapshot_is_not_asked() {
    let server = MariaDb::start();
    database(&server).await;
    let (mut ours, mut theirs) = (
        open(&server, COUNTS[0]).await,
        open(&server, COUNTS[0]).await,
    );
    let (stock, often) = (stock(), Writes::Often);
    stock
        .install(&mut ours, "bolt".into(), fence(33))
        .await
        .expect("ours");
    let mut level = TxOpts::default();
    level.with_isolation_level(IsolationLevel::RepeatableRead);
    let mut transaction = ours.start_transaction(level).await.expect("begun");
    let seen: Option<u64> = transaction
        .query_first("SELECT fence FROM stock")
        .await
        .expect("read");
    assert_eq!(seen, Some(33));
    stock
        .install(&mut theirs, "bolt".into(), fence(34))
        .await
        .expect("the next holder");
    let refused = stock
        .update(
            &mut transaction,
            "bolt".into(),
            fence(33),
            often,
            &pieces(99),
        )
        .await;
    assert!(
        matches!(refused, Err(RowError::Stale { highest, .. }) if highest == fence(34)),
        "{refused:?}"
    );
}

/// All have read the row before the first of them writes. What was written has rising fences, and
/// the highest fence is the last.
async fn many_writers(server: &Arc<MariaDb>, level: IsolationLevel, key: &'static str) {
    let ready = Arc::new(Barrier::new(TASKS as usize));
    let mut tasks = JoinSet::new();
    for number in 1..=TASKS {
        let ready = Arc::clone(&ready);
        let mut database = open(server, COUNTS[number as usize % 2]).await;
        tasks.spawn(async move {
            let mut first = true;
            loop {
                let mut options = TxOpts::default();
                options.with_isolation_level(level);
                let begun = database.start_transaction(options).await;
                let mut transaction = begun.expect("begun");
                let read = "SELECT pieces FROM stock WHERE item = ?";
                let read = transaction.exec_drop(read, (key,)).await;
                if first {
                    ready.wait().await;
                    first = false;
                }
                let done = async {
                    read?;
                    stock()
                        .upsert(
                            &mut transaction,
                            key.into(),
                            fence(number),
                            Writes::Once,
                            &pieces(number),
                        )
                        .await?;
                    let note = "INSERT INTO written (fence) VALUES (?)";
                    transaction.exec_drop(note, (number,)).await?;
                    Ok::<_, RowError>(())
                };
                match done.await {
                    Ok(()) => return transaction.commit().await.expect("committed"),
                    Err(RowError::Stale { highest, .. }) => {
                        assert!(highest.get() > number);
                        return transaction.rollback().await.expect("rolled back");
                    }
                    Err(error) if error.may_retry() => {
                        transaction.rollback().await.expect("rolled back");
                        // Sixteen that try again at once are in each other's way again.
                        let pause = Duration::from_millis(fastrand::u64(1..30));
                        tokio::time::sleep(pause).await;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no task fails");
    }
    let row = server.sql(&format!(
        "SELECT pieces, fence FROM stock WHERE item = '{key}'"
    ));
    assert_eq!(row, format!("{TASKS}\t{TASKS}"), "{level:?} {key}");
    let written = server.sql("SELECT fence FROM written ORDER BY at");
    let written = written.lines().map(|line| line.parse().expect("a fence"));
    let written: Vec<u64> = written.collect();
    assert!(
        written.is_sorted() && written.last() == Some(&TASKS),
        "{level:?} {key}: {written:?}"
    );
    server.sql("TRUNCATE written; UPDATE stock SET fence = 0");
}

#[tokio::test]
async fn writers_at_once_leave_the_highest_fence() {
    let server = Arc::new(MariaDb::start());
    database(&server).await;
    for level in LEVELS {
        many_writers(&server, level, "bolt").await;
    }
    for (level, key) in LEVELS.into_iter().zip(["nut", "screw", "nail"]) {
        many_writers(&server, level, key).await;
    }
}

#[tokio::test]
async fn one_grant_makes_a_row_once() {
    let server = Arc::new(MariaDb::start());
    database(&server).await;
    for (counts, key) in COUNTS.into_iter().zip(["nut", "screw"]) {
        let mut tasks = JoinSet::new();
        for number in 1..=TASKS {
            let mut database = open(&server, counts).await;
            tasks.spawn(async move {
                loop {
                    let made = stock()
                        .upsert(
                            &mut database,
                            key.into(),
                            fence(33),
                            Writes::Once,
                            &pieces(number),
                        )
                        .await;
                    match made {
                        Err(error) if error.may_retry() => {}
                        made => return made,
                    }
                }
            });
        }
        let mut made = 0;
        while let Some(ended) = tasks.join_next().await {
            match ended.expect("no task fails") {
                Ok(()) => made += 1,
                Err(RowError::Stale { highest, .. }) => assert_eq!(highest, fence(33)),
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(made, 1, "{counts}");
    }
}

#[tokio::test]
async fn only_the_last_mark_can_write() {
    let server = MariaDb::start();
    database(&server).await;
    let locks = palisade::connect("memory:").await.expect("a good URL");
    let stock = MarkedTable::new("stock", "item", "mark").expect("good names");
    let mut marks = Vec::new();
    for _ in 0..4 {
        let guard = locks.mutex("bolt").acquire().await.expect("free");
        marks.push(Mark::by(&guard));
    }
    for (counts, marks) in COUNTS.into_iter().zip(marks.chunks(2)) {
        let (first, second) = (&marks[0], &marks[1]);
        let mut database = open(&server, counts).await;
        let refused = stock
            .update(&mut database, "bolt".into(), first, &pieces(6))
            .await;
        assert!(
            matches!(refused, Err(RowError::NotMarked { .. })),
            "{refused:?}"
        );
        // The second time, nothing is changed.
        for _ in 0..2 {
            stock
                .mark(&mut database, "bolt".into(), first)
                .await
                .expect("marked");
            stock
                .update(&mut database, "bolt".into(), first, &pieces(6))
                .await
                .expect("it is marked");
        }
        stock
            .mark(&mut database, "bolt".into(), second)
            .await
            .expect("marked");
        for written in [99, 6] {
            let refused = stock
                .update(&mut database, "bolt".into(), first, &pieces(written))
                .await;
            let Err(RowError::NotMarked { found }) = refused else {
                panic!("{refused:?}")
            };
            assert_eq!(found.as_deref(), Some(second.as_str()));
        }
        assert_eq!(server.sql("SELECT pieces FROM stock"), "6");
        for refused in [
            stock.mark(&mut database, "nut".into(), first).await,
            stock
                .update(&mut database, "nut".into(), first, &pieces(6))
                .await,
        ] {
            assert!(matches!(refused, Err(RowError::NoRow)), "{refused:?}");
        }
    }
}

/// Runs a request to its end: what it did, or what the first of its id did.
async fn request(database: &mut Conn, level: IsolationLevel, id: &str, mine: &str) -> String {
    let requests = Requests::new("request").expect("a good name");
    loop {
        let mut options = TxOpts::default();
        options.with_isolation_level(level);
        let begun = database.start_transaction(options).await;
        let mut transaction = begun.expect("begun");
        let done: Result<String, RowError> = async {
            // The snapshot is older than the end of the first.
            transaction.query_drop("SELECT pieces FROM stock").await?;
            match requests.begin(&mut transaction, id).await? {
                Request::New => {}
                Request::Repeated(result) => return Ok(result.expect("finished")),
            }
            let sell = "UPDATE stock SET pieces = pieces - 1 WHERE item = 'bolt'";
            transaction.query_drop(sell).await?;
            requests.finish(&mut transaction, id, mine).await?;
            Ok(mine.to_owned())
        }
        .await;
        match done {
            Err(error) if error.may_retry() => transaction.rollback().await.expect("rolled back"),
            done => {
                transaction.commit().await.expect("committed");
                return done.expect("done, or done before");
            }
        }
    }
}

#[tokio::test]
async fn a_repeated_request_gets_the_first_result() {
    let server = Arc::new(MariaDb::start());
    database(&server).await;
    let mut database = open(&server, COUNTS[0]).await;
    let requests = Requests::new("request").expect("a good name");
    let create = requests.create_statement();
    database.query_drop(create).await.expect("created");
    for (level, left) in LEVELS.into_iter().zip(["6", "5", "4"]) {
        let id = format!("{level:?}");
        // The first one fails while the others wait for it.
        let mut failing = database
            .start_transaction(TxOpts::default())
            .await
            .expect("begun");
        let first = requests.begin(&mut failing, &id).await.expect("begun");
        assert_eq!(first, Request::New);
        let mut tasks = JoinSet::new();
        for number in 1..=TASKS {
            let id = id.clone();
            let mut database = open(&server, COUNTS[number as usize % 2]).await;
            tasks.spawn(async move {
                request(&mut database, level, &id, &format!("by {number}")).await
            });
        }
        eventually("all wait", async || {
            server.sql(
                "SELECT variable_value FROM information_schema.global_status \
                 WHERE variable_name = 'Innodb_row_lock_current_waits'",
            ) == TASKS.to_string()
        })
        .await;
        failing.rollback().await.expect("rolled back");
        let results = tasks.join_all().await;
        assert!(
            results.iter().all(|result| *result == results[0]),
            "{level:?}: {results:?}"
        );
        assert_eq!(server.sql("SELECT pieces FROM stock"), left, "{level:?}");
        let later = request(&mut database, level, &id, "later").await;
        assert_eq!(later, results[0]);
    }
}

#[tokio::test]
async fn a_request_that_was_not_finished_is_not_done_again() {
    let server = MariaDb::start();
    database(&server).await;
    let requests = Requests::new("request").expect("a good name");
    server.sql(&requests.create_statement());
    for counts in COUNTS {
        let mut database = open(&server, counts).await;
        for (id, expected) in [
            ("a", Request::New),
            ("A", Request::New),
            ("a ", Request::New),
            ("a", Request::Repeated(None)),
        ] {
            let mut transaction = database
                .start_transaction(TxOpts::default())
                .await
                .expect("begun");
            let begun = requests.begin(&mut transaction, id).await.expect("begun");
            assert_eq!(begun, expected, "{counts}: {id:?}");
            transaction.commit().await.expect("committed");
        }
        let mut transaction = database
            .start_transaction(TxOpts::default())
            .await
            .expect("begun");
        for bad in ["", &"x".repeat(256)] {
            let refused = requests.begin(&mut transaction, bad).await;
            assert!(matches!(refused, Err(RowError::Name(_))), "{refused:?}");
        }
        let refused = requests.finish(&mut transaction, "b", "done").await;
        assert!(matches!(refused, Err(RowError::NoRow)), "{refused:?}");
        // The second time, nothing is changed.
        for _ in 0..2 {
            requests
                .finish(&mut transaction, "a", "done")
                .await
                .expect("stored");
        }
        transaction.rollback().await.expect("rolled back");
        server.sql("DELETE FROM request");
    }
}
