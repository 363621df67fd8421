use std::time::Duration;

use palisade_testkit::mariadb::MariaDb;

use crate::{Trace, wait_for};

#[test]
fn a_mariadb_starts_answers_and_goes() {
    let mariadb = MariaDb::start();
    let trace = Trace::of(&mariadb);
    mariadb.sql("create table t (n int); insert into t values (42)");
    mariadb.kill();
    assert!(mariadb.try_sql("select 1").is_err());
    mariadb.restart();
    assert_eq!(mariadb.sql("select n from t"), "42");
    mariadb.pause();
    mariadb.resume();
    wait_for("an answer", || mariadb.try_sql("select 1").is_ok());
    mariadb.stop();
    mariadb.restart();
    drop(mariadb);
    assert!(!trace.dir.exists() && !palisade_testkit::is_alive(trace.pid));
}

#[test]
fn tls_and_a_clock_of_its_own() {
    let mariadb = MariaDb::with().tls().clock().start();
    assert_eq!(mariadb.sql("select @@have_ssl"), "YES");
    mariadb
        .clock()
        .set_back(Duration::from_secs(10 * 24 * 3600));
    let server: i64 = mariadb
        .sql("select unix_timestamp(sysdate())")
        .parse()
        .expect("seconds");
    let machine = std::time::UNIX_EPOCH
        .elapsed()
        .expect("after 1970")
        .as_secs()
        .cast_signed();
    assert!(
        (machine - server - 10 * 24 * 3600).abs() < 60,
        "{server} against {machine}"
    );
}
