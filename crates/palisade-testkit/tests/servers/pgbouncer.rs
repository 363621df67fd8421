use palisade_testkit::pgbouncer::PgBouncer;
use palisade_testkit::postgres::Postgres;

use crate::Trace;

#[test]
fn a_pgbouncer_starts_and_goes() {
    let postgres = Postgres::start();
    let pooler = PgBouncer::start(&postgres);
    let trace = Trace::of(&pooler);
    let sessions = "select count(*) from pg_stat_activity where usename = 'locker'";
    assert_eq!(postgres.sql(sessions), "1", "its probe came through it");
    drop(pooler);
    assert!(!trace.dir.exists() && !palisade_testkit::is_alive(trace.pid));
}
