//! What sentinels say by themselves: that another server is the primary now. An old primary that still answers, because it was
//! only cut off for a while, is left by it at once.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_core::Stream;

use super::super::settings::Site;
use super::super::shared::Shared;
use super::address::Address;
use super::link::told;
use crate::error::{Error, Result};

/// A client that lives no longer than this hears nothing, and costs the sentinels nothing.
const SETTLED: Duration = Duration::from_secs(1);
/// Between two attempts to listen to one sentinel.
const AGAIN: Duration = Duration::from_secs(1);

const CHANNEL: &str = "+switch-master";

/// Listens to every sentinel from now on, on the client's runtime. Does nothing when it does already.
pub(crate) fn listen(shared: &Arc<Shared>) {
    let Site::Sentinel { sentinels, master } = &shared.settings.site else { return };
    if !shared.listens() {
        return;
    }
    for sentinel in sentinels {
        tokio::spawn(listen_to(Arc::downgrade(shared), sentinel.clone(), master.clone()));
    }
}

async fn listen_to(shared: Weak<Shared>, sentinel: Address, master: String) {
    tokio::time::sleep(SETTLED).await;
    while shared.strong_count() > 0 {
        if let Err(error) = hear(&shared, &sentinel, &master).await {
            tracing::debug!(%error, %sentinel, "a sentinel is not heard");
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Listens until the connection ends.
async fn hear(shared: &Weak<Shared>, sentinel: &Address, master: &str) -> Result<()> {
    let (client, limit) = match shared.upgrade() {
        Some(shared) => (shared.settings.sentinel_connection(sentinel)?, shared.settings.connect_timeout),
        None => return Ok(()),
    };
    let late = |_| Error::unavailable(format!("{sentinel} does not answer within the connect_timeout"));
    let subscribing = async {
        let mut subscribed = client.get_async_pubsub().await?;
        subscribed.subscribe(CHANNEL).await?;
        Ok(subscribed)
    };
    let subscribed = tokio::time::timeout(limit, subscribing).await.map_err(late)?;
    let mut messages = subscribed.map_err(|error| told(&error, sentinel))?.into_on_message();
    // What was said before we listened is asked for.
    if let Some(shared) = shared.upgrade() {
        shared.look_for_switch().await?;
    }
    while let Some(message) = poll_fn(|context| Pin::new(&mut messages).poll_next(context)).await {
        let Some(shared) = shared.upgrade() else { return Ok(()) };
        let text: String = message.get_payload().unwrap_or_default();
        if let Some((from, to)) = read(&text, master) {
            shared.switched(from, &to);
        }
    }
    Ok(())
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
        assert_eq!(to("m1 10.0.0.1 6379 ::1 6380"), Some(Address::new("::1", 6380)));
        for other in ["m10 10.0.0.1 6379 10.0.0.2 6380", "m1", "m1 a b c d", "m1 10.0.0.1 6379 10.0.0.2", ""] {
            assert_eq!(to(other), None, "{other}");
        }
    }
}
