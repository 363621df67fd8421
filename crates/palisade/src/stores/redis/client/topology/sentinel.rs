//! Asks a sentinel which server is the primary.

use redis::{RedisError, Value};

use super::super::address::Address;
use super::super::connection::connect;
use super::super::failure::final_error;
use super::super::settings::ClientSettings;
use crate::error::{Error, Result};

pub(super) async fn primary(
    settings: &ClientSettings,
    sentinel: &Address,
    master: &str,
) -> Result<Address> {
    let failed = |error: RedisError| match final_error(&error, sentinel) {
        told if error.code() == Some("ERR")
            && error
                .detail()
                .is_some_and(|detail| detail.contains("unknown command")) =>
        {
            Error::bad_url(format!(
                "{sentinel} is not a sentinel; write redis://{sentinel}"
            ))
            .with_source(told)
        }
        told => told,
    };
    let connection = connect(
        sentinel,
        settings.tls.as_ref(),
        &settings.sentinel_login,
        None,
    )
    .await
    .map_err(failed)?;
    let ask = redis::cmd("SENTINEL")
        .arg("GET-MASTER-ADDR-BY-NAME")
        .arg(master)
        .get_packed_command();
    let answer = connection
        .request(&ask)
        .await
        .and_then(Value::extract_error)
        .map_err(failed)?;
    let unknown = || {
        Error::bad_url(format!(
            "the sentinel {sentinel} knows no primary by the name in the URL; see SENTINEL MASTERS"
        ))
    };
    let address: Option<(String, u16)> = redis::from_redis_value(answer).map_err(|_| {
        Error::protocol(format!(
            "the sentinel {sentinel} names a primary that cannot be read"
        ))
    })?;
    address
        .map(|(host, port)| Address::new(&host, port))
        .ok_or_else(unknown)
}
