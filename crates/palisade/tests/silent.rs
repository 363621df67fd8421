//! A store that accepts a connection and never answers.

#![cfg(all(
    feature = "redis",
    feature = "etcd",
    feature = "zookeeper",
    feature = "postgres",
    feature = "mysql"
))]

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
    for url in [
        format!("redis://{address}"),
        format!("redis://{address}?format=simple"),
        format!("etcd://{address}/lock"),
        format!("etcd://{address}/lock?format=plain"),
        format!("zk://{address}/lock"),
        format!("zk://{address}/lock?format=plain"),
        format!("postgres://u:p@{address}/d"),
        format!("mysql://u:p@{address}/d"),
    ] {
        let error = Client::connect(&url)
            .expect("a good URL")
            .mutex("x")
            .acquire_timeout(Duration::from_millis(700))
            .await
            .expect_err("no answer");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{url}: {error}");
        assert!(error.to_string().contains('x'), "{url}: {error}");
    }
}
