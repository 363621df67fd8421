//! A store that accepts a connection and never answers.

#![cfg(all(feature = "redis", feature = "etcd", feature = "zookeeper"))]

use std::net::TcpListener;
use std::time::Duration;

use palisade::{Client, ErrorKind};

/// The wait ends before any answer, so it is unknown whether the name is busy. `Timeout` would say
/// that it is.
#[tokio::test]
async fn a_wait_that_ends_without_any_answer_is_unavailable() {
    // The kernel accepts connections for it; they are never read.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("an address");
    for scheme in ["redis", "etcd", "zk"] {
        for format in ["", "?format=plain", "?format=simple"] {
            let Ok(client) = Client::connect(format!("{scheme}://{address}{format}")) else {
                continue;
            };
            let error = client
                .mutex("x")
                .acquire_timeout(Duration::from_millis(700))
                .await
                .expect_err("no answer");
            assert_eq!(
                error.kind(),
                ErrorKind::Unavailable,
                "{scheme}:{format}: {error}"
            );
            assert!(
                error.to_string().contains('x'),
                "{scheme}:{format}: {error}"
            );
        }
    }
}
