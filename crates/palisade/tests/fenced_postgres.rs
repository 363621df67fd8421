//! Rows in PostgreSQL that refuse the write of a holder that was paused past its lease.

#![cfg(feature = "postgres")]

use palisade::fence::Fence;
use palisade::fence::postgres::tokio_postgres::{Client, NoTls, connect};
use palisade::fence::postgres::{FencedTable, RowError, Writes};
use palisade_testkit::postgres::Postgres;

async fn database(server: &Postgres) -> Client {
    let (client, connection) = connect(&server.url(), NoTls).await.expect("connected");
    tokio::spawn(connection);
    client
        .batch_execute(
            "CREATE TABLE stock (item text PRIMARY KEY, pieces int, fence bigint NOT NULL DEFAULT 0);
             INSERT INTO stock (item, pieces) VALUES ('bolt', 7)",
        )
        .await
        .expect("made");
    client
}

fn fence(number: u64) -> Fence {
    Fence::new(number).expect("a fence")
}

#[tokio::test]
async fn an_older_fence_is_refused() {
    let server = Postgres::start();
    let mut database = database(&server).await;
    let stock = FencedTable::new("stock", "item", "fence").expect("good names");
    let often = Writes::Often;
    let six: [(
        &str,
        &(dyn palisade::fence::postgres::tokio_postgres::types::ToSql + Sync),
    ); 1] = [("pieces", &6_i32)];
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
            &[("pieces", &0_i32)],
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
            &[("x = 1; --", &1_i32)],
        )
        .await;
    assert!(matches!(bad, Err(RowError::Name(_))), "{bad:?}");
}
