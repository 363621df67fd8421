//! Rows that a transaction of the user locks, on servers: without waiting, with a limit, past locked
//! rows, in a deadlock, without an index.

#![cfg(all(feature = "postgres", feature = "mysql"))]

use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade::row_lock::mysql::mysql_async::prelude::Queryable;
use palisade::row_lock::mysql::mysql_async::{Conn, Transaction, TxOpts};
use palisade::row_lock::postgres::AdvisoryLock;
use palisade::row_lock::postgres::tokio_postgres::{self, Client, NoTls};
use palisade::row_lock::{RowLockError, mysql, postgres};
use palisade_conformance::eventually;
use palisade_testkit::mariadb::MariaDb;
use palisade_testkit::postgres::Postgres;

/// The shortest wait that MySQL can count.
const WAIT: Duration = Duration::from_secs(1);

const ROWS: &str = "INSERT INTO stock VALUES ('bolt', 100), ('nut', 100), ('screw', 100)";

async fn pg(server: &Postgres) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls)
        .await
        .expect("connected");
    tokio::spawn(connection);
    client
}

fn pg_stock(server: &Postgres) -> postgres::LockedTable {
    server.sql("CREATE TABLE stock (item text PRIMARY KEY, pieces int)");
    server.sql("ALTER TABLE stock OWNER TO locker");
    server.sql(ROWS);
    postgres::LockedTable::new("stock", "item").expect("good names")
}

async fn my(server: &MariaDb) -> Conn {
    Conn::from_url(server.url()).await.expect("connected")
}

fn my_stock(server: &MariaDb) -> mysql::LockedTable {
    server.sql("CREATE TABLE stock (item VARCHAR(99) PRIMARY KEY, pieces INT)");
    server.sql(ROWS);
    mysql::LockedTable::new("stock", "item").expect("good names")
}

async fn begun(conn: &mut Conn) -> Transaction<'_> {
    let begun = conn.start_transaction(TxOpts::default()).await;
    begun.expect("begun")
}

/// Until another transaction waits for a lock.
async fn pg_waits(server: &Postgres) {
    eventually("it waits", async || {
        server.sql("SELECT count(*) FROM pg_locks WHERE NOT granted") == "1"
    })
    .await;
}

/// The tables about transactions would not do: the server renews them only after a tenth of a second
/// in which they were not read.
async fn my_waits(server: &MariaDb) {
    let waits = "SELECT variable_value FROM information_schema.global_status \
                 WHERE variable_name = 'Innodb_row_lock_current_waits'";
    eventually("it waits", async || server.sql(waits) == "1").await;
}

/// The second buyer waits for the commit of the first, and sees what it has left.
#[tokio::test]
async fn a_row_is_locked_until_the_commit_on_postgres() {
    let server = Arc::new(Postgres::start());
    let stock = pg_stock(&server);
    let (mut first, mut second) = (pg(&server).await, pg(&server).await);
    let transaction = first.transaction().await.expect("begun");
    let mut row = stock
        .lock(&transaction, &"bolt", &["pieces"])
        .await
        .expect("locked");
    assert_eq!(row.row().get::<_, i32>("pieces"), 100);
    let next = {
        let stock = stock.clone();
        tokio::spawn(async move {
            let transaction = second.transaction().await.expect("begun");
            let row = stock.lock(&transaction, &"bolt", &["pieces"]).await;
            row.expect("locked").row().get::<_, i32>("pieces")
        })
    };
    pg_waits(&server).await;
    row.update(&[("pieces", &40)]).await.expect("written");
    let inside = row
        .transaction()
        .query_one("SELECT pieces FROM stock WHERE item = 'bolt'", &[]);
    assert_eq!(inside.await.expect("read").get::<_, i32>(0), 40);
    assert!(!next.is_finished(), "the row was not locked");
    transaction.commit().await.expect("committed");
    assert_eq!(next.await.expect("no panic"), 40);
}

#[tokio::test]
async fn a_row_is_locked_until_the_commit_on_mysql() {
    let server = Arc::new(MariaDb::start());
    let stock = my_stock(&server);
    let (mut first, mut second) = (my(&server).await, my(&server).await);
    let mut transaction = begun(&mut first).await;
    let mut row = stock
        .lock(&mut transaction, "bolt".into(), &["pieces"])
        .await
        .expect("locked");
    assert_eq!(row.row().get::<i32, _>("pieces"), Some(100));
    let next = {
        let stock = stock.clone();
        tokio::spawn(async move {
            let mut transaction = begun(&mut second).await;
            // The snapshot is older than the lock, and is not what is read.
            let all = transaction.query_drop("SELECT * FROM stock").await;
            all.expect("read");
            let row = stock
                .lock(&mut transaction, "bolt".into(), &["pieces"])
                .await;
            row.expect("locked").row().get::<i32, _>("pieces")
        })
    };
    my_waits(&server).await;
    row.update(&[("pieces", 40.into())]).await.expect("written");
    // The same once more changes nothing, and is no error.
    row.update(&[("pieces", 40.into())]).await.expect("written");
    let inside = "SELECT pieces FROM stock WHERE item = 'bolt'";
    let inside: Option<i32> = row.transaction().query_first(inside).await.expect("read");
    assert_eq!(inside, Some(40));
    assert!(!next.is_finished(), "the row was not locked");
    transaction.commit().await.expect("committed");
    assert_eq!(next.await.expect("no panic"), Some(40));
}

/// NOWAIT and the limit leave the transaction as it was, and a row that is not there is not busy.
#[tokio::test]
async fn a_refused_lock_leaves_the_transaction_on_postgres() {
    let server = Postgres::start();
    let stock = pg_stock(&server);
    let (mut holder, mut other) = (pg(&server).await, pg(&server).await);
    let held = holder.transaction().await.expect("begun");
    let _held = stock.lock(&held, &"bolt", &[]).await.expect("locked");
    let transaction = other.transaction().await.expect("begun");
    let set = "SET LOCAL lock_timeout = '17s'";
    transaction.batch_execute(set).await.expect("set");
    let busy = stock.try_lock(&transaction, &"bolt", &[]).await;
    assert!(busy.expect("busy is no error").is_none());
    let begin = Instant::now();
    let late = stock
        .lock_timeout(&transaction, &"bolt", &[], WAIT)
        .await
        .expect_err("locked");
    assert!(
        matches!(late, RowLockError::Timeout) && late.may_retry(),
        "{late:?}"
    );
    assert!(begin.elapsed() >= WAIT);
    let free = stock.try_lock(&transaction, &"nut", &["pieces"]).await;
    assert_eq!(
        free.expect("an answer")
            .expect("free")
            .row()
            .get::<_, i32>(0),
        100
    );
    let screw = stock.lock_timeout(&transaction, &"screw", &[], WAIT).await;
    let mut screw = screw.expect("free");
    screw.update(&[("pieces", &7)]).await.expect("written");
    let limit = "SELECT current_setting('lock_timeout')";
    let limit = screw
        .transaction()
        .query_one(limit, &[])
        .await
        .expect("read");
    assert_eq!(limit.get::<_, &str>(0), "17s", "the limit was not set back");
    let none = stock.try_lock(&transaction, &"nail", &[]).await;
    assert!(matches!(none, Err(RowLockError::NoRow)), "{none:?}");
    transaction.commit().await.expect("committed");
    assert_eq!(
        server.sql("SELECT pieces FROM stock WHERE item = 'screw'"),
        "7"
    );
}

#[tokio::test]
async fn a_refused_lock_leaves_the_transaction_on_mysql() {
    let server = MariaDb::start();
    let stock = my_stock(&server);
    let (mut holder, mut other) = (my(&server).await, my(&server).await);
    let mut held = begun(&mut holder).await;
    let _held = stock
        .lock(&mut held, "bolt".into(), &[])
        .await
        .expect("locked");
    let set = "SET SESSION innodb_lock_wait_timeout = 60";
    other.query_drop(set).await.expect("set");
    let mut transaction = begun(&mut other).await;
    transaction
        .query_drop("UPDATE stock SET pieces = 7 WHERE item = 'screw'")
        .await
        .expect("written");
    let busy = stock.try_lock(&mut transaction, "bolt".into(), &[]).await;
    assert!(busy.expect("busy is no error").is_none());
    let begin = Instant::now();
    let late = stock
        .lock_timeout(&mut transaction, "bolt".into(), &[], WAIT / 3)
        .await
        .expect_err("locked");
    assert!(
        matches!(late, RowLockError::Timeout) && late.may_retry(),
        "{late:?}"
    );
    assert!(begin.elapsed() >= WAIT / 3);
    assert!(
        begin.elapsed() < 50 * WAIT,
        "not by the limit of the session"
    );
    let nut = stock.lock_timeout(&mut transaction, "nut".into(), &["pieces"], WAIT);
    assert_eq!(nut.await.expect("free").row().get(0), Some(100));
    let limit = "SELECT @@SESSION.innodb_lock_wait_timeout";
    let limit: Option<u32> = transaction.query_first(limit).await.expect("read");
    assert_eq!(limit, Some(60), "the limit was not set back");
    let none = stock.try_lock(&mut transaction, "nail".into(), &[]).await;
    assert!(matches!(none, Err(RowLockError::NoRow)), "{none:?}");
    transaction.commit().await.expect("committed");
    assert_eq!(
        server.sql("SELECT pieces FROM stock WHERE item = 'screw'"),
        "7"
    );
}

/// Where the server undoes the transaction when a wait runs out, busy is not said of one that goes
/// on.
#[tokio::test]
async fn a_transaction_that_was_undone_is_not_said_to_go_on() {
    let undoing = "--innodb-rollback-on-timeout=ON";
    let server = MariaDb::with().arg(undoing).start();
    let stock = my_stock(&server);
    let (mut holder, mut other) = (my(&server).await, my(&server).await);
    let mut held = begun(&mut holder).await;
    let _held = stock
        .lock(&mut held, "bolt".into(), &[])
        .await
        .expect("locked");
    let mut transaction = begun(&mut other).await;
    transaction
        .query_drop("UPDATE stock SET pieces = 7 WHERE item = 'screw'")
        .await
        .expect("written");
    let late = stock
        .lock_timeout(&mut transaction, "bolt".into(), &[], WAIT)
        .await
        .expect_err("locked");
    assert!(
        matches!(late, RowLockError::Victim(_)) && late.may_retry(),
        "{late:?}"
    );
    transaction.rollback().await.expect("rolled back");
    assert_eq!(
        server.sql("SELECT pieces FROM stock WHERE item = 'screw'"),
        "100"
    );
}

/// Each worker gets jobs that no other has, and none waits.
#[tokio::test]
async fn workers_pass_locked_rows() {
    const JOBS: &str = "CREATE TABLE job (id INT PRIMARY KEY, state CHAR(4) NOT NULL)";
    const NEW: &str = "INSERT INTO job VALUES (1, 'done'), (2, 'new'), (3, 'new'), (4, 'new')";
    let server = Postgres::start();
    server.sql(&format!(
        "{JOBS}; {NEW}; CREATE INDEX ON job (state, id); ALTER TABLE job OWNER TO locker"
    ));
    let jobs = postgres::LockedTable::new("job", "id").expect("good names");
    let mut workers = [pg(&server).await, pg(&server).await, pg(&server).await];
    let mut taken: Vec<Vec<i32>> = Vec::new();
    let mut open = Vec::new();
    for worker in &mut workers {
        let transaction = worker.transaction().await.expect("begun");
        let new: [(&str, &(dyn tokio_postgres::types::ToSql + Sync)); 1] = [("state", &"new")];
        let locked = jobs.lock_free(&transaction, &new, &["id"], 2).await;
        let ids = locked
            .expect("no wait")
            .rows()
            .iter()
            .map(|row| row.get(0))
            .collect();
        taken.push(ids);
        open.push(transaction);
    }
    assert_eq!(taken, [vec![2, 3], vec![4], vec![]]);

    let server = MariaDb::start();
    server.sql(&format!(
        "{JOBS}; {NEW}; CREATE INDEX todo ON job (state, id)"
    ));
    let jobs = mysql::LockedTable::new("job", "id").expect("good names");
    let mut workers = [my(&server).await, my(&server).await, my(&server).await];
    let mut taken: Vec<Vec<i32>> = Vec::new();
    let mut open = Vec::new();
    for worker in &mut workers {
        let mut transaction = begun(worker).await;
        let new = [("state", "new".into())];
        let locked = jobs.lock_free(&mut transaction, &new, &["id"], 2).await;
        let ids = locked
            .expect("no wait")
            .rows()
            .iter()
            .filter_map(|row| row.get(0))
            .collect();
        taken.push(ids);
        open.push(transaction);
    }
    assert_eq!(taken, [vec![2, 3], vec![4], vec![]]);
}

/// One of two that lock in opposite orders is ended, is told so, and succeeds when it runs again.
#[tokio::test]
async fn a_deadlock_has_one_victim_that_may_retry_on_postgres() {
    let server = Arc::new(Postgres::start());
    let stock = pg_stock(&server);
    let met = Arc::new(tokio::sync::Barrier::new(2));
    let tasks = [["bolt", "nut"], ["nut", "bolt"]].map(|items| {
        let (server, stock, met) = (Arc::clone(&server), stock.clone(), Arc::clone(&met));
        tokio::spawn(async move {
            let (mut shop, mut victim) = (pg(&server).await, 0);
            loop {
                let transaction = shop.transaction().await.expect("begun");
                let sold = async {
                    for (at, item) in items.iter().enumerate() {
                        if at == 1 && victim == 0 {
                            met.wait().await;
                        }
                        let mut row = stock.lock(&transaction, item, &["pieces"]).await?;
                        let left = row.row().get::<_, i32>(0) - 1;
                        row.update(&[("pieces", &left)]).await?;
                    }
                    Ok::<(), postgres::RowLockError>(())
                };
                match sold.await {
                    Ok(()) => {
                        transaction.commit().await.expect("committed");
                        return victim;
                    }
                    Err(error @ RowLockError::Victim(_)) if error.may_retry() => victim += 1,
                    Err(error) => panic!("{error:?}"),
                }
            }
        })
    });
    let mut victims = 0;
    for task in tasks {
        victims += task.await.expect("no panic");
    }
    assert_eq!(victims, 1);
    assert_eq!(
        server.sql("SELECT pieces FROM stock ORDER BY item"),
        "98\n98\n100"
    );
}

#[tokio::test]
async fn a_deadlock_has_one_victim_that_may_retry_on_mysql() {
    let server = Arc::new(MariaDb::start());
    let stock = my_stock(&server);
    let met = Arc::new(tokio::sync::Barrier::new(2));
    let tasks = [["bolt", "nut"], ["nut", "bolt"]].map(|items| {
        let (server, stock, met) = (Arc::clone(&server), stock.clone(), Arc::clone(&met));
        tokio::spawn(async move {
            let (mut shop, mut victim) = (my(&server).await, 0);
            loop {
                let mut transaction = begun(&mut shop).await;
                let sold = async {
                    for (at, item) in items.into_iter().enumerate() {
                        if at == 1 && victim == 0 {
                            met.wait().await;
                        }
                        let row = stock.lock(&mut transaction, item.into(), &["pieces"]);
                        let mut row = row.await?;
                        let left = row.row().get::<i32, _>(0).expect("a number") - 1;
                        row.update(&[("pieces", left.into())]).await?;
                    }
                    Ok::<(), mysql::RowLockError>(())
                };
                match sold.await {
                    Ok(()) => {
                        transaction.commit().await.expect("committed");
                        return victim;
                    }
                    Err(error @ RowLockError::Victim(_)) if error.may_retry() => victim += 1,
                    Err(error) => panic!("{error:?}"),
                }
                transaction.rollback().await.expect("rolled back");
            }
        })
    });
    let mut victims = 0;
    for task in tasks {
        victims += task.await.expect("no panic");
    }
    assert_eq!(victims, 1);
    assert_eq!(
        server.sql("SELECT pieces FROM stock ORDER BY item"),
        "98\n98\n100"
    );
}

/// What the module says of tables without a unique index, and of rows that are not there.
#[tokio::test]
async fn without_an_index_more_is_locked_than_was_asked_for() {
    let server = Postgres::start();
    let stock = pg_stock(&server);
    server.sql("ALTER TABLE stock DROP CONSTRAINT stock_pkey; INSERT INTO stock VALUES ('nut', 5)");
    let (mut first, mut second) = (pg(&server).await, pg(&server).await);
    let ours = first.transaction().await.expect("begun");
    let twice = stock.lock(&ours, &"nut", &[]).await;
    assert!(
        matches!(twice, Err(RowLockError::NotUnique { rows: 2 })),
        "{twice:?}"
    );
    let theirs = second.transaction().await.expect("begun");
    // The rows that match, and no others.
    assert!(
        stock
            .try_lock(&theirs, &"bolt", &[])
            .await
            .expect("an answer")
            .is_some()
    );
    assert!(
        stock
            .try_lock(&theirs, &"nut", &[])
            .await
            .expect("an answer")
            .is_none()
    );

    let server = MariaDb::start();
    let stock = my_stock(&server);
    let (mut first, mut second) = (my(&server).await, my(&server).await);
    for (index, free) in [("PRIMARY KEY", true), ("none", false)] {
        if !free {
            server.sql("ALTER TABLE stock DROP PRIMARY KEY");
        }
        let mut ours = begun(&mut first).await;
        let _bolt = stock
            .lock(&mut ours, "bolt".into(), &[])
            .await
            .expect("locked");
        let mut theirs = begun(&mut second).await;
        let nut = stock.try_lock(&mut theirs, "nut".into(), &[]).await;
        assert_eq!(nut.expect("an answer").is_some(), free, "{index}");
        theirs.rollback().await.expect("rolled back");
        ours.rollback().await.expect("rolled back");
    }
}

#[tokio::test]
async fn a_row_that_is_not_there_is_no_lock_on_mysql() {
    let server = Arc::new(MariaDb::start());
    let stock = my_stock(&server);
    let (mut first, mut second) = (my(&server).await, my(&server).await);
    let mut ours = begun(&mut first).await;
    let mut theirs = begun(&mut second).await;
    for transaction in [&mut ours, &mut theirs] {
        let none = stock.lock(transaction, "nail".into(), &[]).await;
        assert!(matches!(none, Err(RowLockError::NoRow)), "{none:?}");
    }
    let insert = "INSERT INTO stock VALUES ('nail', 1)";
    let (one, two) = tokio::join!(ours.query_drop(insert), theirs.query_drop(insert));
    let failed: Vec<_> = [one, two].into_iter().filter_map(Result::err).collect();
    let [failed] = <[_; 1]>::try_from(failed).expect("one of the two");
    let failed = mysql::RowLockError::from(failed);
    assert!(matches!(failed, RowLockError::Victim(_)), "{failed:?}");
}

/// A transaction that is dropped, and a session that ends, leave no lock.
#[tokio::test]
async fn what_is_dropped_is_free_again() {
    let server = Postgres::start();
    let stock = pg_stock(&server);
    let (mut holder, mut other) = (pg(&server).await, pg(&server).await);
    let theirs = other.transaction().await.expect("begun");
    for gone in [false, true] {
        let ours = holder.transaction().await.expect("begun");
        let _row = stock.lock(&ours, &"bolt", &[]).await.expect("locked");
        assert!(
            stock
                .try_lock(&theirs, &"bolt", &[])
                .await
                .expect("an answer")
                .is_none()
        );
        drop(ours);
        if gone {
            drop(holder);
            holder = pg(&server).await;
        }
        let row = stock.lock_timeout(&theirs, &"bolt", &[], 20 * WAIT).await;
        drop(row.expect("free"));
        // Theirs keeps the row: it is given back for the next round.
        if !gone {
            theirs
                .batch_execute("COMMIT; BEGIN")
                .await
                .expect("committed");
        }
    }
}

#[tokio::test]
async fn a_name_is_locked_until_the_end_of_the_transaction() {
    let server = Postgres::start();
    let (mut holder, mut other) = (pg(&server).await, pg(&server).await);
    let locks = [
        AdvisoryLock::named("monthly report"),
        AdvisoryLock::number(i64::MIN),
        AdvisoryLock::pair(-1, i32::MAX),
        AdvisoryLock::number(i64::from(i32::MAX)),
    ];
    let mut ours = holder.transaction().await.expect("begun");
    for lock in &locks {
        lock.lock(&ours).await.expect("locked").transaction();
    }
    let theirs = other.transaction().await.expect("begun");
    for lock in &locks {
        let busy = lock.try_lock(&theirs).await;
        assert!(busy.expect("an answer").is_none(), "{lock:?}");
        let late = lock.lock_timeout(&theirs, Duration::from_millis(30)).await;
        assert!(
            matches!(late, Err(RowLockError::Timeout)),
            "{lock:?}: {late:?}"
        );
    }
    // As SQL locks it.
    let same = "SELECT pg_try_advisory_lock(hashtextextended('monthly report', 0))";
    assert_eq!(server.sql(same), "f");
    // One that was taken in a savepoint ends with it.
    let savepoint = ours.transaction().await.expect("begun");
    let inner = AdvisoryLock::named("inner");
    let _ = inner.lock(&savepoint).await.expect("locked");
    assert!(inner.try_lock(&theirs).await.expect("an answer").is_none());
    savepoint.rollback().await.expect("rolled back");
    assert!(inner.try_lock(&theirs).await.expect("an answer").is_some());
    ours.commit().await.expect("committed");
    for lock in &locks {
        assert!(
            lock.try_lock(&theirs).await.expect("an answer").is_some(),
            "{lock:?}"
        );
        // A transaction may lock it again: it is released once, at the end.
        let _ = lock.lock_timeout(&theirs, WAIT).await.expect("its own");
    }
}
