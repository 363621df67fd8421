//! Asks a sentinel which server is the primary, and subscribes to all of them: they tell when
//! another server becomes the primary. An old primary that still answers, because it was only cut
//! off for a while, is left at once.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::{RedisError, Value};

use super::super::address::Address;
use super::super::connection::connect;
use super::super::failure::final_error;
use super::super::settings::{ClientSettings, Site};
use super::super::{Client, PushHandler};
use crate::error::{Error, Result};

/// How long a client lives before it subscribes: a short-lived one costs the sentinels nothing.
const SETTLED: Duration = Duration::from_secs(1);
/// Between two attempts to subscribe to one sentinel.
const AGAIN: Duration = Duration::from_secs(1);

const CHANNEL: &str = "+switch-master";

/// The primary, as one sentinel knows it.
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

/// Subscribes to every sentinel, unless that was done before.
pub(super) fn listen(client: &Arc<Client>) {
    let Site::Sentinel { sentinels, master } = &client.settings.site else {
        return;
    };
    if client.hears_sentinels.swap(true, Ordering::AcqRel) {
        return;
    }
    for sentinel in sentinels {
        tokio::spawn(listen_to(
            Arc::downgrade(client),
            sentinel.clone(),
            master.clone(),
        ));
    }
}

async fn listen_to(client: Weak<Client>, sentinel: Address, master: String) {
    tokio::time::sleep(SETTLED).await;
    while client.strong_count() > 0 {
        if let Err(error) = subscribe(&client, &sentinel, &master).await {
            tracing::debug!(%error, %sentinel, "cannot subscribe to a sentinel");
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Listens until the connection ends.
async fn subscribe(client: &Weak<Client>, sentinel: &Address, master: &str) -> Result<()> {
    let Some(strong) = client.upgrade() else {
        return Ok(());
    };
    let limit = strong.settings.connect_timeout;
    let late = |_| {
        Error::unavailable(format!(
            "{sentinel} does not answer within the connect_timeout"
        ))
    };
    let subscribing = async {
        let settings = &strong.settings;
        let events: Arc<dyn PushHandler> = Arc::new(SentinelEvents {
            client: Weak::clone(client),
            master: master.to_owned(),
        });
        let connection = connect(
            sentinel,
            settings.tls.as_ref(),
            &settings.sentinel_login,
            Some(events),
        )
        .await?;
        connection
            .request(&redis::cmd("SUBSCRIBE").arg(CHANNEL).get_packed_command())
            .await?
            .extract_error()?;
        Ok(connection)
    };
    let subscribed = tokio::time::timeout(limit, subscribing)
        .await
        .map_err(late)?;
    let connection = subscribed.map_err(|error| final_error(&error, sentinel))?;
    // A switch may have happened before the subscription.
    strong.check_primary().await?;
    drop(strong);
    connection.ended().await;
    Ok(())
}

/// Handles the pushes of one sentinel.
struct SentinelEvents {
    client: Weak<Client>,
    master: String,
}

impl PushHandler for SentinelEvents {
    fn message(&self, _channel: &[u8], payload: &[u8]) {
        let switch = std::str::from_utf8(payload)
            .ok()
            .and_then(|text| read(text, &self.master));
        if let (Some(client), Some((from, to))) = (self.client.upgrade(), switch) {
            client.switched(from, &to);
        }
    }
}

/// Reads `<name> <old host> <old port> <new host> <new port>`.
fn read(text: &str, master: &str) -> Option<(Address, Address)> {
    let mut words = text.strip_prefix(master)?.strip_prefix(' ')?.split(' ');
    let mut address = || Some(Address::new(words.next()?, words.next()?.parse().ok()?));
    Some((address()?, address()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_of_this_primary_is_read() {
        let to = |text| read(text, "m1").map(|(_, to)| to);
        assert_eq!(
            to("m1 10.0.0.1 6379 ::1 6380"),
            Some(Address::new("::1", 6380))
        );
        for other in [
            "m10 10.0.0.1 6379 10.0.0.2 6380",
            "m1",
            "m1 a b c d",
            "m1 10.0.0.1 6379 10.0.0.2",
            "",
        ] {
            assert_eq!(to(other), None, "{other}");
        }
    }
}
