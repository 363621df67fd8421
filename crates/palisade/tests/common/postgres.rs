//! What the tests of PostgreSQL share.

use std::thread::JoinHandle;
use std::time::Duration;

use palisade_testkit::postgres::Postgres;

#[allow(unused_imports, reason = "each test binary uses its own part")]
pub use super::actors::*;

/// So long that no test waits for its end: who gets a lock before did not wait for a lease.
pub const LONG: Duration = Duration::from_secs(120);

/// Keeps the row of a name locked from outside, for so long from the moment this returns.
pub fn lock_row(server: &std::sync::Arc<Postgres>, name: &str, span: Duration) -> JoinHandle<()> {
    let holder = std::sync::Arc::clone(server);
    let seconds = span.as_secs_f64();
    let statements = format!(
        "BEGIN; SELECT 1 FROM palisade.lock WHERE name = '{name}' FOR UPDATE; \
         SELECT pg_sleep({seconds}); COMMIT"
    );
    let thread = std::thread::spawn(move || drop(holder.sql(&statements)));
    let sleeps = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    while server.sql(sleeps) == "0" {
        assert!(!thread.is_finished(), "the row was not locked");
    }
    thread
}

/// How many sessions of this library the server has.
pub fn sessions(server: &Postgres) -> usize {
    let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'palisade'";
    server.sql(count).parse().expect("a number")
}

/// How many rows the tables have: names, holders, waiters.
pub fn rows(server: &Postgres) -> [usize; 3] {
    ["lock", "lock_holder", "lock_waiter"].map(|table| {
        let count = server.sql(&format!("SELECT count(*) FROM palisade.{table}"));
        count.parse().expect("a number")
    })
}
