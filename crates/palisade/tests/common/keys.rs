//! Connections for the tests of keys beside a lock.

use std::time::Duration;

use palisade::fence::redis::redis::aio::MultiplexedConnection;
use palisade::fence::redis::redis::{AsyncConnectionConfig, Client};
use palisade_testkit::shared;

pub async fn connect(url: String) -> MultiplexedConnection {
    // A loaded machine is not a fault.
    let patient = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(20)));
    Client::open(url)
        .unwrap()
        .get_multiplexed_async_connection_with_config(&patient)
        .await
        .unwrap()
}

/// A connection to the server of all tests, and a key that no other test has.
pub async fn fresh(about: &str) -> (MultiplexedConnection, String) {
    (connect(shared::redis().url()).await, shared::name(about))
}
