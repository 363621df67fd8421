//! PostgreSQL behind PgBouncer, which lends a session for each transaction: no push can come, and
//! waiters ask again and again.

#![cfg(feature = "postgres")]

mod common;

use std::time::Instant;

use common::postgres::{LONG, connect, gets_in, give_back, rows, soon, wait_for};
use common::{in_line, ms};
use palisade::store::Wakes;
use palisade_testkit::pgbouncer::PgBouncer;
use palisade_testkit::postgres::Postgres;

/// It is found out at the login, and `ping` and the capability say so.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_is_found_out() {
    let server = Postgres::start();
    let pooler = PgBouncer::start(&server);
    let (direct, pooled) = (connect(server.url()), connect(pooler.url()));
    let role = |pong: palisade::Pong| pong.server.role;
    let said = soon("an answer", direct.ping()).await.expect("it answers");
    assert_eq!(role(said).as_deref(), Some("primary"));
    let said = soon("an answer", pooled.ping()).await.expect("it answers");
    assert_eq!(role(said).as_deref(), Some("primary, behind a pooler"));
    assert_eq!(direct.capability().wakes, Wakes::Push);
    assert_eq!(pooled.capability().wakes, Wakes::Poll);
}

/// Waiters behind it get in soon after the release, also of a client that is not behind it, and no
/// session of the pool is left listening.
#[tokio::test(flavor = "multi_thread")]
async fn the_table_works_by_polling() {
    let server = Postgres::start();
    let pooler = PgBouncer::start(&server);
    let (direct, pooled) = (connect(server.url()), connect(pooler.url()));
    for round in 0..3 {
        let guard = soon("free", direct.mutex("n").lease(LONG).acquire()).await;
        let waiter = wait_for(&pooled.mutex("n").lease(LONG));
        in_line(&direct, "n", 1).await;
        let begun = Instant::now();
        give_back(guard.expect("free")).await;
        let guard = gets_in(waiter).await;
        assert!(begun.elapsed() < ms(1500), "{round}: {:?}", begun.elapsed());
        give_back(guard).await;
    }
    let clients: Vec<_> = (0..6).map(|_| connect(pooler.url())).collect();
    let tasks = clients.iter().flat_map(|client| {
        ["a", "b"].map(|name| {
            let mutex = client.mutex(name);
            tokio::spawn(async move {
                for _ in 0..5 {
                    give_back(mutex.acquire().await.expect("granted")).await;
                }
            })
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        tokio::time::timeout(3 * common::actors::SOON, task)
            .await
            .expect("in time")
            .expect("no panic");
    }
    assert_eq!(rows(&server)[1..], [0, 0]);
    let listens =
        "SELECT count(*) FROM pg_stat_activity WHERE usename = 'locker' AND query ~ '^LISTEN'";
    assert_eq!(server.sql(listens), "0");
}

/// The pooler is restarted while a lock is held and waited for.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_pooler_ends_no_grant() {
    let server = Postgres::start();
    let pooler = PgBouncer::start(&server);
    let (one, two) = (connect(pooler.url()), connect(pooler.url()));
    let guard = soon("free", one.mutex("n").lease(LONG).acquire()).await;
    let guard = guard.expect("free");
    let waiter = wait_for(&two.mutex("n").lease(LONG));
    in_line(&one, "n", 1).await;
    tokio::task::block_in_place(|| pooler.restart());
    assert!(guard.is_held());
    give_back(guard).await;
    give_back(gets_in(waiter).await).await;
    assert_eq!(rows(&server)[1..], [0, 0]);
}
