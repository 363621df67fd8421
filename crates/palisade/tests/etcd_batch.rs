//! Claims and releases in etcd that go in one transaction, where many are in flight.

#![cfg(feature = "etcd")]

mod common;

use std::collections::HashSet;
use std::future::Future;

use common::actors::connect;
use common::etcd::{LONG, Metrics, client, keys};
use palisade::{Fence, Released};
use palisade_testkit::etcd::Etcd;

/// Runs so many at the same time.
async fn at_once<F: Future<Output = T> + Send + 'static, T: Send + 'static>(
    tasks: impl IntoIterator<Item = F>,
) -> Vec<T> {
    let tasks: Vec<_> = tasks.into_iter().map(tokio::spawn).collect();
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.expect("no panic"));
    }
    results
}

/// Many names: few requests, and each cycle is as it would be alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_names_cost_fewer_requests_than_verbs() {
    const TASKS: u64 = 64;
    const CYCLES: u64 = 20;
    let server = Etcd::start();
    for format in ["mutex", "plain"] {
        let client = connect(format!("etcd://{}/lock?format={format}", server.address()));
        drop(
            client
                .mutex("warm")
                .lease(LONG)
                .acquire()
                .await
                .expect("a grant"),
        );
        let before = Metrics::of(&server);
        at_once((0..TASKS).map(|task| {
            let lock = client.mutex(format!("{format}-{task}")).lease(LONG);
            async move {
                let mut last = Fence::NONE;
                for _ in 0..CYCLES {
                    let guard = lock.acquire().await.expect("a grant");
                    assert!(guard.fence() > last, "{:?} after {last:?}", guard.fence());
                    last = guard.fence();
                    assert_eq!(guard.release().await.expect("an answer"), Released::Done);
                }
            }
        }))
        .await;
        let after = Metrics::of(&server);
        let requests: u64 = ["Txn", "DeleteRange"]
            .iter()
            .map(|method| after.begun(method) - before.begun(method))
            .sum();
        let verbs = 2 * TASKS * CYCLES;
        println!("{format}: {requests} requests for {verbs} verbs");
        assert!(
            requests < verbs / 2,
            "{requests} requests for {verbs} verbs"
        );
    }
    assert_eq!(keys(&server), [""; 0]);
}

/// Of one name each has a place and a fence of its own, however many ask at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_claims_of_one_name_never_go_together() {
    let server = Etcd::start();
    let client = client(&server);
    for _ in 0..3 {
        let all = at_once((0..120).map(|task| {
            let (permits, readers) = (
                client.semaphore("permits", 1000).lease(LONG),
                client.rwlock("readers").lease(LONG),
            );
            async move {
                if task % 2 == 0 {
                    let guard = permits.acquire().await.expect("a grant");
                    (guard.fence(), None, Some(guard))
                } else {
                    let guard = readers.read().await.expect("a grant");
                    (guard.fence(), Some(guard), None)
                }
            }
        }))
        .await;
        let permits: HashSet<_> = all
            .iter()
            .filter(|(.., permit)| permit.is_some())
            .map(|(fence, ..)| *fence)
            .collect();
        let readers: HashSet<_> = all
            .iter()
            .filter(|(_, reader, _)| reader.is_some())
            .map(|(fence, ..)| *fence)
            .collect();
        assert_eq!(
            (permits.len(), readers.len()),
            (60, 60),
            "no two have the same"
        );
        drop(all);
        palisade_conformance::eventually("all are given back", async || keys(&server).is_empty())
            .await;
    }
}
