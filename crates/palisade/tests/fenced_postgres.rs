//! Rows in PostgreSQL that refuse the write of a holder that was paused past its lease, and requests
//! that are done once.

#![cfg(feature = "postgres")]

use std::sync::Arc;
use std::time::Duration;

use palisade::Exclusive;
use palisade::fence::Fence;
use palisade::fence::postgres::tokio_postgres::types::ToSql;
use palisade::fence::postgres::tokio_postgres::{Client, IsolationLevel, NoTls, connect};
use palisade::fence::postgres::{
    FencedTable, Mark, MarkedTable, Request, Requests, RowError, Writes,
};
use palisade_conformance::eventually;
use palisade_testkit::postgres::Postgres;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

type Value<'v> = &'v (dyn ToSql + Sync);

const TASKS: u64 = 16;
const LEVELS: [IsolationLevel; 3] = [
    IsolationLevel::ReadCommitted,
    IsolationLevel::RepeatableRead,
    IsolationLevel::Serializable,
];

async fn open(server: &Postgres) -> Client {
    let (client, connection) = connect(&server.url(), NoTls).await.expect("connected");
    tokio::spawn(connection);
    client
}

/// For each task one: in a build for tests, a login takes a while.
async fn open_all(server: &Postgres) -> Vec<Client> {
    let mut clients = Vec::new();
    for _ in 0..TASKS {
        clients.push(open(server).await);
    }
    clients
}

async fn database(server: &Postgres) -> Client {
    let client = open(server).await;
    client
        .batch_execute(
            "CREATE TABLE stock (item text PRIMARY KEY, pieces bigint, fence bigint NOT NULL DEFAULT 0, mark text);
             CREATE TABLE written (at serial PRIMARY KEY, fence bigint);
             INSERT INTO stock (item, pieces) VALUES ('bolt', 7)",
        )
        .await
        .expect("made");
    client
}

fn fence(number: u64) -> Fence {
    Fence::new(number).expect("a fence")
}

fn stock() -> FencedTable {
    FencedTable::new("stock", "item", "fence").expect("good names")
}

#[tokio::test]
async fn an_older_fence_is_refused() {
    let server = Postgres::start();
    let mut database = database(&server).await;
    let stock = stock();
    let often = Writes::Often;
    let six: [(&str, Value<'_>); 1] = [("pieces", &6_i64)];
    stock
        .update(&database, &"bolt", fence(33), often, &six)
        .await
        .expect("ours");
    stock
        .update(&database, &"bolt", fence(33), often, &six)
        .await
        .expect("twice");
    let twice = stock
        .update(&database, &"bolt", fence(33), Writes::Once, &six)
        .await;
    assert!(matches!(twice, Err(RowError::Stale { .. })), "{twice:?}");
    stock
        .install(&database, &"bolt", fence(34))
        .await
        .expect("later");
    let transaction = database.transaction().await.expect("begun");
    let stale = stock
        .update(
            &transaction,
            &"bolt",
            fence(33),
            often,
            &[("pieces", &0_i64)],
        )
        .await;
    let Err(RowError::Stale { highest, offered }) = stale else {
        panic!("{stale:?}")
    };
    assert_eq!((highest, offered), (fence(34), fence(33)));
    transaction.commit().await.expect("committed");
    assert_eq!(server.sql("SELECT pieces, fence FROM stock"), "6|34");
    let none = stock
        .update(&database, &"nut", fence(35), often, &six)
        .await;
    assert!(matches!(none, Err(RowError::NoRow)), "{none:?}");
    let none = stock
        .update(&database, &"bolt", Fence::NONE, often, &six)
        .await;
    assert!(matches!(none, Err(RowError::NoFence)), "{none:?}");
    let bad = stock
        .update(
            &database,
            &"bolt",
            fence(35),
            often,
            &[("x = 1; --", &1_i64)],
        )
        .await;
    assert!(matches!(bad, Err(RowError::Name(_))), "{bad:?}");
}

#[tokio::test]
async fn a_holder_that_was_paused_past_its_lease_is_refused() {
    let server = Postgres::start();
    let database = database(&server).await;
    let locks = palisade::connect(server.url()).await.expect("a good URL");
    let lock = locks.mutex("bolt").lease(Duration::from_millis(300));
    let paused = lock.clone().auto_renew(false);
    let paused = paused.acquire().await.expect("free");
    let next = lock.acquire().await.expect("after the lease");
    // A row that is not there yet knows no fence: it refuses from the next holder's write on.
    for key in ["bolt", "nut"] {
        let often = Writes::Often;
        stock()
            .upsert(&database, &key, next.fence(), often, &[("pieces", &6_i64)])
            .await
            .expect("the next holder");
        for writes in [Writes::Once, often] {
            let values: [(&str, Value<'_>); 1] = [("pieces", &99_i64)];
            for refused in [
                stock()
                    .update(&database, &key, paused.fence(), writes, &values)
                    .await,
                stock()
                    .upsert(&database, &key, paused.fence(), writes, &values)
                    .await,
            ] {
                assert!(
                    matches!(refused, Err(RowError::Stale { highest, .. }) if highest == next.fence()),
                    "{refused:?}"
                );
            }
        }
    }
    assert_eq!(server.sql("SELECT DISTINCT pieces FROM stock"), "6");
}

#[tokio::test]
async fn what_is_no_fence_is_not_taken_for_one() {
    let server = Postgres::start();
    let database = database(&server).await;
    let stock = stock();
    stock
        .install(&database, &"bolt", Fence::MAX)
        .await
        .expect("the highest there is");
    let refused = stock
        .install(&database, &"bolt", fence(i64::MAX as u64 - 1))
        .await;
    assert!(
        matches!(refused, Err(RowError::Stale { .. })),
        "{refused:?}"
    );
    assert_eq!(
        stock.highest(&database, &"bolt").await.expect("read"),
        Some(Fence::MAX)
    );
    server.sql("ALTER TABLE stock ALTER fence DROP NOT NULL, ALTER fence TYPE numeric; UPDATE stock SET fence = NULL");
    let corrupt = stock.highest(&database, &"bolt").await;
    assert!(
        matches!(corrupt, Err(RowError::Corrupt { found: None })),
        "{corrupt:?}"
    );
    server.sql("UPDATE stock SET fence = 9223372036854775808");
    let corrupt = stock.highest(&database, &"bolt").await;
    assert!(
        matches!(&corrupt, Err(RowError::Corrupt { found: Some(found) }) if found == "9223372036854775808"),
        "{corrupt:?}"
    );
}

/// Writes with this fence, unless it is refused. The transaction has read the row before any other
/// has written it.
async fn write(
    database: &mut Client,
    level: IsolationLevel,
    key: &str,
    number: u64,
    ready: &Barrier,
) {
    let (value, mut first) = (number as i64, true);
    loop {
        let begin = database.build_transaction().isolation_level(level);
        let transaction = begin.start().await.expect("begun");
        transaction
            .query("SELECT pieces FROM stock WHERE item = $1", &[&key])
            .await
            .expect("read");
        if first {
            ready.wait().await;
            first = false;
        }
        let columns: [(&str, Value<'_>); 1] = [("pieces", &value)];
        let written = async {
            stock()
                .upsert(&transaction, &key, fence(number), Writes::Once, &columns)
                .await?;
            let note = "INSERT INTO written (fence) VALUES ($1)";
            transaction.execute(note, &[&value]).await?;
            transaction.commit().await?;
            Ok::<_, RowError>(())
        };
        match written.await {
            Ok(()) => return,
            Err(RowError::Stale { highest, .. }) => return assert!(highest.get() > number),
            Err(error) if error.may_retry() => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// What was written has rising fences, and the highest fence is the last.
async fn many_writers(
    server: &Postgres,
    clients: Vec<Client>,
    level: IsolationLevel,
    key: &'static str,
) -> Vec<Client> {
    let ready = Arc::new(Barrier::new(TASKS as usize));
    let mut tasks = JoinSet::new();
    for (number, mut database) in (1..=TASKS).zip(clients) {
        let ready = Arc::clone(&ready);
        tasks.spawn(async move {
            write(&mut database, level, key, number, &ready).await;
            database
        });
    }
    let mut clients = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        clients.push(ended.expect("no task fails"));
    }
    let row = server.sql(&format!(
        "SELECT pieces, fence FROM stock WHERE item = '{key}'"
    ));
    assert_eq!(row, format!("{TASKS}|{TASKS}"), "{level:?} {key}");
    let written = server.sql("SELECT fence FROM written ORDER BY at");
    let written: Vec<u64> = written
        .lines()
        .map(|line| line.parse().expect("a fence"))
        .collect();
    assert!(
        written.is_sorted() && written.last() == Some(&TASKS),
        "{level:?} {key}: {written:?}"
    );
    server.sql("TRUNCATE written; UPDATE stock SET fence = 0");
    clients
}

#[tokio::test]
async fn writers_at_once_leave_the_highest_fence() {
    let server = Postgres::start();
    let _tables = database(&server).await;
    let mut clients = open_all(&server).await;
    for level in LEVELS {
        clients = many_writers(&server, clients, level, "bolt").await;
    }
    for (level, key) in LEVELS.into_iter().zip(["nut", "screw", "nail"]) {
        clients = many_writers(&server, clients, level, key).await;
    }
}

#[tokio::test]
async fn one_grant_makes_a_row_once() {
    let server = Postgres::start();
    let _tables = database(&server).await;
    let mut tasks = JoinSet::new();
    for number in 1..=TASKS as i64 {
        let database = open(&server).await;
        tasks.spawn(async move {
            stock()
                .upsert(
                    &database,
                    &"nut",
                    fence(33),
                    Writes::Once,
                    &[("pieces", &number)],
                )
                .await
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
    assert_eq!(made, 1);
}

#[tokio::test]
async fn only_the_last_mark_can_write() {
    let server = Postgres::start();
    let mut database = database(&server).await;
    let locks = palisade::connect("memory:").await.expect("a good URL");
    let stock = MarkedTable::new("stock", "item", "mark").expect("good names");
    let lock = locks.mutex("bolt");
    let guard = lock.acquire().await.expect("free");
    let first = Mark::by(&guard);
    assert_ne!(first.as_str(), guard.value(), "the value is a secret");
    let grant = guard.detach().await.expect("detached");
    assert_eq!(Mark::by_grant(&grant).expect("exclusive"), first);
    locks
        .adopt::<Exclusive>(&grant)
        .await
        .expect("held")
        .release()
        .await
        .expect("released");
    let second = Mark::by(&lock.acquire().await.expect("free"));
    let values: [(&str, Value<'_>); 1] = [("pieces", &6_i64)];

    let refused = stock.update(&database, &"bolt", &first, &values).await;
    assert!(
        matches!(refused, Err(RowError::NotMarked { found: None })),
        "{refused:?}"
    );
    stock
        .mark(&database, &"bolt", &first)
        .await
        .expect("marked");
    for _ in 0..2 {
        stock
            .update(&database, &"bolt", &first, &values)
            .await
            .expect("it is marked");
    }
    stock
        .mark(&database, &"bolt", &second)
        .await
        .expect("marked");
    let transaction = database.transaction().await.expect("begun");
    let refused = stock
        .update(&transaction, &"bolt", &first, &[("pieces", &99_i64)])
        .await;
    let Err(RowError::NotMarked { found }) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(found.as_deref(), Some(second.as_str()));
    transaction.commit().await.expect("committed");
    assert_eq!(server.sql("SELECT pieces FROM stock"), "6");
    for refused in [
        stock.mark(&database, &"nut", &first).await,
        stock.update(&database, &"nut", &first, &values).await,
    ] {
        assert!(matches!(refused, Err(RowError::NoRow)), "{refused:?}");
    }
    let refused = stock.update(&database, &"bolt", &second, &[]).await;
    assert!(matches!(refused, Err(RowError::Name(_))), "{refused:?}");
}

/// Runs a request to its end: what it did, or what the first of its id did.
async fn request(database: &mut Client, level: IsolationLevel, id: &str, mine: &str) -> String {
    let requests = Requests::new("request").expect("a good name");
    loop {
        let begin = database.build_transaction().isolation_level(level);
        let transaction = begin.start().await.expect("begun");
        let done: Result<String, RowError> = async {
            match requests.begin(&transaction, id).await? {
                Request::New => {}
                Request::Repeated(result) => return Ok(result.expect("finished")),
            }
            let sell = "UPDATE stock SET pieces = pieces - 1 WHERE item = 'bolt'";
            transaction.execute(sell, &[]).await?;
            requests.finish(&transaction, id, mine).await?;
            transaction.commit().await?;
            Ok(mine.to_owned())
        }
        .await;
        match done {
            Err(error) if error.may_retry() => {}
            done => return done.expect("done, or done before"),
        }
    }
}

#[tokio::test]
async fn a_repeated_request_gets_the_first_result() {
    let server = Postgres::start();
    let mut database = database(&server).await;
    let mut clients = open_all(&server).await;
    let requests = Requests::new("request").expect("a good name");
    database
        .batch_execute(&requests.create_statement())
        .await
        .expect("created");
    for (level, left) in LEVELS.into_iter().zip(["6", "5", "4"]) {
        let id = format!("{level:?}");
        // The first one fails while the others wait for it.
        let failing = database.transaction().await.expect("begun");
        let first = requests.begin(&failing, &id).await.expect("begun");
        assert_eq!(first, Request::New);
        let mut tasks = JoinSet::new();
        for (number, mut database) in std::mem::take(&mut clients).into_iter().enumerate() {
            let id = id.clone();
            tasks.spawn(async move {
                let result = request(&mut database, level, &id, &format!("by {number}")).await;
                (database, result)
            });
        }
        eventually("all wait", async || {
            server.sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
                == TASKS.to_string()
        })
        .await;
        failing.rollback().await.expect("rolled back");
        let results: Vec<String>;
        (clients, results) = tasks.join_all().await.into_iter().unzip();
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
    let server = Postgres::start();
    let mut database = database(&server).await;
    let requests = Requests::new("request").expect("a good name");
    database
        .batch_execute(&requests.create_statement())
        .await
        .expect("created");
    for (id, expected) in [
        ("a", Request::New),
        ("A", Request::New),
        ("a ", Request::New),
        ("a", Request::Repeated(None)),
    ] {
        let transaction = database.transaction().await.expect("begun");
        let begun = requests.begin(&transaction, id).await.expect("begun");
        assert_eq!(begun, expected, "{id:?}");
        transaction.commit().await.expect("committed");
    }
    let transaction = database.transaction().await.expect("begun");
    for bad in ["", &"x".repeat(256)] {
        let refused = requests.begin(&transaction, bad).await;
        assert!(matches!(refused, Err(RowError::Name(_))), "{refused:?}");
    }
    let refused = requests.finish(&transaction, "b", "done").await;
    assert!(matches!(refused, Err(RowError::NoRow)), "{refused:?}");
    for _ in 0..2 {
        requests
            .finish(&transaction, "a", "done")
            .await
            .expect("stored");
    }
}
