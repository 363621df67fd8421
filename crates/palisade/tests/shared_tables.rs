//! The formats `simple` and `shedlock` on tables that other programs have made, and what those
//! programs find there.

#![cfg(all(feature = "postgres", feature = "mysql"))]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::ms;
use common::postgres::{LONG, connect, soon};
use palisade::store::Revoked;
use palisade::{ErrorKind, Fence};
use palisade_testkit::mariadb::MariaDb;
use palisade_testkit::postgres::Postgres;

const OF_OTHERS_IN_POSTGRES: &str = "CREATE TABLE distributed_lock (id BIGSERIAL PRIMARY KEY, \
     lock_name VARCHAR(128) NOT NULL UNIQUE, owner_id VARCHAR(128) NOT NULL, expire_time TIMESTAMP NOT NULL, \
     create_time TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP); ALTER TABLE distributed_lock OWNER TO locker";

const OF_OTHERS_IN_MYSQL: &str = "CREATE TABLE locks.distributed_lock (id BIGINT NOT NULL AUTO_INCREMENT, \
     lock_name VARCHAR(128) NOT NULL, owner_id VARCHAR(128) NOT NULL, expire_time DATETIME NOT NULL, \
     create_time DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP, PRIMARY KEY (id), UNIQUE KEY uk_lock_name (lock_name)) \
     ENGINE=InnoDB DEFAULT CHARSET=utf8mb4";

const SHEDLOCK_IN_MYSQL: &str = "CREATE TABLE locks.shedlock (name VARCHAR(64) NOT NULL, lock_until TIMESTAMP(3) NOT NULL, \
     locked_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3), locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name))";

/// A lock that another program wrote is respected and shown. Only force ends it.
async fn a_peer_is_respected(url: &str, sql: impl Fn(&str) -> String) {
    let locks = connect(url);
    assert!(locks.show("theirs").await.expect("answered").is_none());
    sql(
        "INSERT INTO distributed_lock (lock_name, owner_id, expire_time) VALUES ('theirs', 'client_A', NOW() + INTERVAL '60' SECOND)",
    );
    let mutex = locks.mutex("theirs").lease(LONG);
    let busy = mutex.try_acquire().await.expect("answered");
    assert!(busy.is_none(), "the lock of a peer is taken");
    let line = locks.show("theirs").await.expect("answered");
    let holder = line.expect("held").holders.remove(0);
    assert_eq!(
        (holder.owner.as_str(), holder.fence),
        ("client_A", Fence::NONE)
    );
    let left = holder.lease_left.expect("known");
    assert!(left > ms(30_000) && left <= ms(61_000), "{left:?}");
    let wrong = Fence::new(7).expect("a fence");
    assert_eq!(
        locks.revoke("theirs", wrong).await.expect("answered"),
        Revoked::OtherHolder { fence: Fence::NONE }
    );
    let owner = "SELECT owner_id FROM distributed_lock WHERE lock_name = 'theirs'";
    assert_eq!(sql(owner).trim(), "client_A");
    assert_eq!(
        locks.revoke("theirs", Fence::NONE).await.expect("answered"),
        Revoked::Done
    );
    let guard = soon("free", mutex.acquire()).await.expect("free");
    // The statements of the peers see ours.
    let ours = sql(owner);
    assert!(ours.contains(&guard.fence().to_string()), "{ours}");
    let deleted =
        sql("DELETE FROM distributed_lock WHERE lock_name = 'theirs' AND owner_id = 'client_A'");
    assert!(!deleted.contains('1'), "{deleted}");
    let first = guard.fence();
    guard.release().await.expect("answered");
    assert_eq!(sql("SELECT COUNT(*) FROM distributed_lock").trim(), "0");
    // An expired lock of a peer is free, and a table that was emptied takes no fence back.
    sql(
        "INSERT INTO distributed_lock (lock_name, owner_id, expire_time) VALUES ('theirs', 'client_B', NOW() - INTERVAL '1' SECOND)",
    );
    let guard = soon("expired", mutex.acquire()).await.expect("free");
    assert!(guard.fence() > first);
    guard.release().await.expect("answered");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_others_in_postgres() {
    let server = Postgres::start();
    server.sql(OF_OTHERS_IN_POSTGRES);
    let url = format!("{}?format=simple&zone=server", server.url());
    a_peer_is_respected(&url, |text| server.sql(text)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_others_in_mysql() {
    let server = MariaDb::start();
    server.sql(OF_OTHERS_IN_MYSQL);
    let url = format!("{}?format=simple&zone=server", server.url());
    let sql = |text: &str| server.sql(&format!("USE locks; {text}"));
    a_peer_is_respected(&url, sql).await;
    // A column of whole seconds does not make a lease shorter.
    let locks = connect(&url);
    for _ in 0..5 {
        let guard = locks
            .mutex("n")
            .lease(ms(1500))
            .acquire()
            .await
            .expect("free");
        // Rounded up: it lasts for as long as its holder believes.
        let left =
            sql("SELECT TIMESTAMPDIFF(MICROSECOND, NOW(6), expire_time) FROM distributed_lock");
        let left: i64 = left.trim().parse().expect("a number");
        let until = Duration::from_micros(left.try_into().expect("not expired"));
        assert!(until >= guard.remaining() - ms(20), "{until:?}");
        guard.release().await.expect("answered");
    }
    // The collation of this table knows no case: to its programs these two are one lock.
    let one = locks.mutex("Job").acquire().await.expect("free");
    assert!(
        locks
            .mutex("job")
            .try_acquire()
            .await
            .expect("answered")
            .is_none()
    );
    let first = one.fence();
    one.release().await.expect("answered");
    let other = soon("free", locks.mutex("job").acquire())
        .await
        .expect("free");
    assert!(other.fence() > first);
    other.release().await.expect("answered");
    let space = locks
        .mutex("job ")
        .try_acquire()
        .await
        .expect_err("not compared");
    assert_eq!(space.kind(), ErrorKind::Config);
}

/// Without a unique key, two programs would both insert the same lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_without_a_unique_key_is_refused() {
    let (postgres, mariadb) = (Postgres::start(), MariaDb::start());
    let loose = "CREATE TABLE loose (lock_name VARCHAR(64) NOT NULL, region VARCHAR(64) NOT NULL, \
         owner_id VARCHAR(128) NOT NULL, expire_time TIMESTAMP NOT NULL, create_time TIMESTAMP NOT NULL, \
         PRIMARY KEY (lock_name, region))";
    postgres.sql(&format!("{loose}; ALTER TABLE loose OWNER TO locker"));
    mariadb.sql(&format!("USE locks; {loose}"));
    for url in [postgres.url(), mariadb.url()] {
        let locks = connect(format!("{url}?format=simple&table=loose&zone=utc"));
        let refused = locks
            .mutex("n")
            .try_acquire()
            .await
            .expect_err("two could hold");
        assert_eq!(refused.kind(), ErrorKind::Config, "{refused}");
        assert!(refused.to_string().contains("unique key"), "{refused}");
    }
}

/// A column without a time zone on a server outside of UTC: which clock the others write must be
/// said.
#[tokio::test(flavor = "multi_thread")]
async fn a_zone_is_not_guessed() {
    let postgres = Postgres::start();
    postgres.sql(OF_OTHERS_IN_POSTGRES);
    postgres.sql("ALTER DATABASE locks SET timezone = 'America/New_York'");
    let mariadb = MariaDb::start();
    mariadb.sql(OF_OTHERS_IN_MYSQL);
    mariadb.sql("SET GLOBAL time_zone = '-05:00'");
    for url in [postgres.url(), mariadb.url()] {
        let locks = connect(format!("{url}?format=simple"));
        let refused = locks.mutex("n").try_acquire().await.expect_err("not known");
        assert_eq!(refused.kind(), ErrorKind::Config, "{refused}");
        assert!(refused.to_string().contains("zone=server"), "{refused}");
    }
    let zoned = |url: String| format!("{url}?format=simple&zone=server");
    a_peer_is_respected(&zoned(postgres.url()), |text| postgres.sql(text)).await;
    let sql = |text: &str| mariadb.sql(&format!("USE locks; {text}"));
    a_peer_is_respected(&zoned(mariadb.url()), sql).await;
}

/// ShedLock writes UTC whatever the zone of its session is, and its columns convert.
#[tokio::test(flavor = "multi_thread")]
async fn shedlock_is_read_as_its_sessions_write_it() {
    let server = MariaDb::start();
    server.sql(SHEDLOCK_IN_MYSQL);
    server.sql("SET GLOBAL time_zone = '+02:00'");
    let locks = connect(format!("{}?format=shedlock", server.url()));
    let sql = |text: &str| server.sql(&format!("USE locks; {text}"));
    sql(
        "INSERT INTO shedlock VALUES ('job', UTC_TIMESTAMP(3) + INTERVAL 20 SECOND, UTC_TIMESTAMP(3), 'host-1')",
    );
    let line = locks.show("job").await.expect("answered").expect("held");
    assert_eq!(line.holders[0].owner, "host-1");
    let left = line.holders[0].lease_left.expect("known");
    assert!(left > ms(5_000) && left <= ms(20_000), "{left:?}");
    sql("UPDATE shedlock SET lock_until = UTC_TIMESTAMP(3)");
    let guard = soon("ended", locks.mutex("job").lease(LONG).acquire())
        .await
        .expect("free");
    // What ShedLock asks before it takes a lock.
    let free =
        "SELECT COUNT(*) FROM shedlock WHERE name = 'job' AND lock_until <= UTC_TIMESTAMP(3)";
    assert_eq!(sql(free).trim(), "0");
    guard.release().await.expect("answered");
    assert_eq!(sql(free).trim(), "1", "the row stays, and is free");
}

/// Twenty clients that find no table at the same time.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_use_of_many() {
    let (postgres, mariadb) = (Postgres::start(), MariaDb::start());
    for url in [
        format!("{}?format=simple", postgres.url()),
        format!("{}?format=shedlock", postgres.url()),
        format!("{}?format=simple&zone=utc", mariadb.url()),
        format!("{}?format=shedlock", mariadb.url()),
    ] {
        let one = |at: usize| {
            let locks = connect(&url);
            tokio::spawn(async move {
                let guard = locks.mutex(format!("n{at}")).acquire().await?;
                guard.release().await
            })
        };
        let clients: Vec<_> = (0..20).map(one).collect();
        for client in clients {
            let released = soon("first use", client).await.expect("no panic");
            released.unwrap_or_else(|error| panic!("{url}: {error}"));
        }
    }
}

/// A user who may not create tables uses those that an administrator has made.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_right_to_create() {
    let (postgres, mariadb) = (Postgres::start(), MariaDb::start());
    postgres.sql("CREATE ROLE app LOGIN PASSWORD 'apppw'");
    mariadb.sql("CREATE USER app@'%' IDENTIFIED BY 'apppw'; GRANT SELECT, INSERT, UPDATE, DELETE, EXECUTE ON locks.* TO app@'%'");
    for (owner, grants) in [
        (
            format!("{}?format=simple", postgres.url()),
            "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO app; \
             GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO app",
        ),
        (format!("{}?format=simple&zone=utc", mariadb.url()), ""),
    ] {
        let app = owner.replace("locker:lockpw", "app:apppw");
        let refused = connect(&app)
            .mutex("n")
            .try_acquire()
            .await
            .expect_err("no table");
        assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
        assert!(refused.to_string().contains("palisade schema"), "{refused}");
        let admin = connect(&owner);
        // What `palisade schema --print` prints.
        let statements = admin.schema().expect("tables");
        if owner.starts_with("postgres") {
            postgres.sql(&statements);
            postgres.sql(grants);
        } else {
            mariadb.sql(&statements);
        }
        assert!(!admin.create_schema().await.expect("there already"));
        let guard = connect(&app).mutex("n").acquire().await.expect("granted");
        guard.release().await.expect("answered");
    }
}

/// The clock is read after the row is locked: a lease is granted in full, and not partly spent.
#[tokio::test(flavor = "multi_thread")]
async fn the_clock_is_read_after_the_lock() {
    let postgres = Arc::new(Postgres::start());
    let mariadb = Arc::new(MariaDb::start());
    let expired = "INSERT INTO distributed_lock (lock_name, owner_id, expire_time) VALUES ('n', 'x', '2020-01-01')";
    let lock = "SELECT 1 FROM distributed_lock WHERE lock_name = 'n' FOR UPDATE";

    let locks = connect(format!("{}?format=simple", postgres.url()));
    locks.create_schema().await.expect("created");
    postgres.sql(expired);
    let (server, statements) = (
        Arc::clone(&postgres),
        format!("BEGIN; {lock}; SELECT pg_sleep(1.6); COMMIT"),
    );
    let outside = std::thread::spawn(move || drop(server.sql(&statements)));
    let sleeps = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    while postgres.sql(sleeps) == "0" {
        assert!(!outside.is_finished(), "the row was not locked");
    }
    let guard = soon(
        "granted",
        locks.mutex("n").lease(ms(4000)).auto_renew(false).acquire(),
    )
    .await;
    let left = postgres.sql(
        "SELECT (extract(epoch FROM expire_time - clock_timestamp()) * 1000)::int FROM distributed_lock",
    );
    drop(guard.expect("granted"));
    outside.join().expect("no panic");
    assert!(
        left.parse::<i64>().expect("a number") > 3300,
        "{left} ms are left of 4000"
    );

    let locks = connect(format!("{}?format=simple&zone=utc", mariadb.url()));
    locks.create_schema().await.expect("created");
    mariadb.sql(&format!("USE locks; {expired}"));
    let statements = format!("USE locks; BEGIN; {lock}; SELECT SLEEP(1); COMMIT");
    let server = Arc::clone(&mariadb);
    let outside = std::thread::spawn(move || drop(server.sql(&statements)));
    let sleeps = "SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User sleep'";
    while mariadb.sql(sleeps).trim() == "0" {
        assert!(!outside.is_finished(), "the row was not locked");
    }
    let guard = soon(
        "granted",
        locks.mutex("n").lease(ms(1500)).auto_renew(false).acquire(),
    )
    .await;
    let left = mariadb.sql(
        "SELECT TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expire_time) DIV 1000 FROM locks.distributed_lock",
    );
    drop(guard.expect("granted"));
    outside.join().expect("no panic");
    assert!(
        left.trim().parse::<i64>().expect("a number") > 1000,
        "{left} ms are left of 1500"
    );
}

/// The last fence outlives its lock by ten minutes, however long it was held, also if it has expired.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_fence_outlives_a_long_hold() {
    let minutes = |count: u64| ms(60_000 * count);
    let (postgres, mariadb) = (
        Postgres::with().clock().start(),
        MariaDb::with().clock().start(),
    );
    for (url, sweep) in [
        (
            format!("{}?format=simple", postgres.url()),
            "CALL distributed_lock_step_1('sweep', '', '', 0, '', 0, 1, 'utc', '2000', NULL, NULL, NULL, NULL)",
        ),
        (
            format!("{}?format=simple&zone=utc", mariadb.url()),
            "CALL distributed_lock_step_1('sweep', '', '', 0, '', 0, 1, 'utc')",
        ),
    ] {
        let sql = |text: &str| {
            if url.starts_with("postgres") {
                postgres.sql(text)
            } else {
                mariadb.sql(text)
            }
        };
        let sweep_at = |at: u64| {
            postgres.clock().set_ahead(minutes(at));
            mariadb.clock().set_ahead(minutes(at));
            sql(sweep);
            sql("SELECT COUNT(*) FROM distributed_lock_fence_1")
        };
        take_and_leave(&url, &[("released", 120), ("expired", 60)]).await;
        assert_eq!(sweep_at(59), "2");
        let released = "DELETE FROM distributed_lock WHERE lock_name = 'released'";
        sql(released);
        assert_eq!([61, 68, 75].map(sweep_at), ["2", "2", "0"], "{url}");
        postgres.clock().set_right();
        mariadb.clock().set_right();
    }
}

/// Takes locks for so many minutes, and leaves them.
async fn take_and_leave(url: &str, locks: &[(&str, u64)]) {
    let client = connect(url);
    for (name, minutes) in locks {
        let lock = client.mutex(*name).lease(ms(60_000 * minutes));
        let guard = soon("free", lock.acquire()).await.expect("free");
        guard.detach().await.expect("detached");
    }
}
