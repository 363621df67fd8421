//! The case of Kleppmann's that no deadline catches, and its twin with a restart: two clients
//! believe, and the stale write is refused.

#![cfg(feature = "redis")]

mod common;

use std::time::Duration;

use common::redlock::{SIXTY, Ways, five};
use palisade::fence::file::{FencedFile, WriteError};
use palisade::{ErrorKind, Guard};
use palisade_testkit::redis::Five;

/// Longer than the test: the deadline of the first holder is far away.
const LEASE: Duration = Duration::from_secs(50);

/// A file that takes no stale write, in a folder of its own.
fn resource() -> (tempfile::TempDir, FencedFile) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = FencedFile::new(folder.path().join("orders")).expect("a file");
    (folder, file)
}

/// Client 1 holds A, B and C; D and E cannot be reached.
async fn first_holder(five: &Five) -> (Ways, Guard) {
    let ways = Ways::only(five, &[0, 1, 2]);
    let mutex = ways.client("young=vote").mutex("orders").lease(LEASE);
    let held = mutex.acquire().await.expect("a grant of A, B and C");
    (ways, held)
}

/// Client 2 reaches C, D and E.
fn second(five: &Five, words: &str) -> (Ways, palisade::Mutex) {
    let ways = Ways::only(five, &[2, 3, 4]);
    let mutex = ways.client(words).mutex("orders").lease(LEASE);
    (ways, mutex)
}

/// Both believe, and only the later one can write.
fn only_the_later_writes(first: &Guard, second: &Guard) {
    assert!(first.is_held() && second.is_held(), "both believe");
    let (_folder, file) = resource();
    file.write(second.fence(), b"by client 2")
        .expect("the later grant");
    let stale = file.write(first.fence(), b"by client 1");
    assert!(matches!(stale, Err(WriteError::Stale { .. })), "{stale:?}");
    assert_eq!(
        file.read().expect("read").as_deref(),
        Some(&b"by client 2"[..])
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_jumps_makes_two_believers_and_one_writer() {
    let five = five();
    let (_ways, first) = first_holder(&five).await;
    let (_others, mutex) = second(&five, "young=vote");
    let refused = mutex.try_acquire().await.expect("an answer");
    assert!(refused.is_none(), "C is client 1's");
    five.nodes()[2].clock().set_ahead(SIXTY);
    let second = mutex.try_acquire().await.expect("an answer");
    only_the_later_writes(&first, &second.expect("C, D and E"));
}

/// C has lost its data, and client 1's fence with it: client 2's is higher by the servers' clocks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_makes_two_believers_only_where_young_servers_vote() {
    let five = five();
    let (_ways, first) = first_holder(&five).await;
    five.nodes()[2].restart_empty();
    // By default C is too young to vote, and two others are no majority.
    let (_careful_ways, careful) = second(&five, "longest_lease=50s");
    let refused = careful.try_acquire().await.map(drop);
    let refused = refused.expect_err("C does not vote");
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert!(first.is_held());
    let (_others, mutex) = second(&five, "young=vote");
    let second = mutex.try_acquire().await.expect("an answer");
    only_the_later_writes(&first, &second.expect("C, D and E"));
}
