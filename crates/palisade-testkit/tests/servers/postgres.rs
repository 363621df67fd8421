use std::time::Duration;

use palisade_testkit::postgres::Postgres;

use crate::{Trace, wait_for};

#[test]
fn a_postgres_starts_answers_and_goes() {
    let postgres = Postgres::start();
    let trace = Trace::of(&postgres);
    postgres.sql("create table t (n int); insert into t values (42)");
    postgres.kill();
    assert!(postgres.try_sql("select 1").is_err());
    postgres.restart();
    assert_eq!(postgres.sql("select n from t"), "42");
    postgres.stop();
    postgres.restart();
    assert_eq!(postgres.sql("select n from t"), "42");
    drop(postgres);
    assert!(!trace.dir.exists() && !palisade_testkit::is_alive(trace.pid));
}

#[test]
fn a_pause_stops_also_the_children_that_answer() {
    let postgres = Postgres::start();
    postgres.sql("create table beats (at timestamptz)");
    // Beats every 50 ms, in a child of the server.
    let beat = "do $$ begin for i in 1..1200 loop insert into beats values (clock_timestamp()); commit; \
                perform pg_sleep(0.05); end loop; end $$";
    std::thread::scope(|scope| {
        scope.spawn(|| postgres.try_sql(beat));
        wait_for("a beat", || {
            postgres.sql("select count(*) from beats") != "0"
        });
        postgres.pause();
        std::thread::sleep(Duration::from_secs(2));
        postgres.resume();
        wait_for("beats after the pause", || {
            let gap = "select coalesce(max(gap), 0) from (select extract(epoch from at - lag(at) over (order by at)) gap from beats) g";
            postgres.sql(gap).parse::<f64>().expect("seconds") > 1.5
        });
        postgres.kill();
    });
}

#[test]
fn tls_and_a_clock_of_its_own() {
    let postgres = Postgres::with().tls().clock().start();
    let in_tls = "select ssl from pg_stat_ssl where pid = pg_backend_pid()";
    assert_eq!(postgres.sql(in_tls), "t");
    postgres
        .clock()
        .set_ahead(Duration::from_secs(10 * 24 * 3600));
    let server: i64 = postgres
        .sql("select extract(epoch from clock_timestamp())::bigint")
        .parse()
        .expect("seconds");
    let machine = std::time::UNIX_EPOCH
        .elapsed()
        .expect("after 1970")
        .as_secs()
        .cast_signed();
    assert!(
        (server - machine - 10 * 24 * 3600).abs() < 60,
        "{server} against {machine}"
    );
}
