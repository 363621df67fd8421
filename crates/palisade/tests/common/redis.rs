//! What the tests of Redis share: holders and waiters that live through a fault, and what the
//! server says of itself.

use std::collections::BTreeMap;
use std::time::Duration;

use palisade_testkit::redis::Redis;

#[allow(unused_imports, reason = "each test binary uses its own part")]
pub use super::actors::*;

/// So long that no test waits for its end: who gets a lock before did not wait for a lease.
pub const LONG: Duration = Duration::from_secs(120);

/// The key of a name.
pub fn key(name: &str) -> String {
    format!("palisade:1:{{{name}}}")
}

/// How often the server has run each command.
pub fn commands(redis: &Redis) -> BTreeMap<String, u64> {
    let text = redis.call(&["INFO", "commandstats"]).text();
    let read = |line: &str| {
        let (name, facts) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((name.to_owned(), facts.split(',').next()?.parse().ok()?))
    };
    text.lines().filter_map(read).collect()
}

/// How often the clients of this library have sent each command: scripts' own commands are the
/// line's business, and so is what this test asks itself.
pub fn sent(redis: &Redis, before: &BTreeMap<String, u64>, wanted: &[&str]) -> Vec<u64> {
    let now = commands(redis);
    let count = |of: &BTreeMap<String, u64>, name: &str| of.get(name).copied().unwrap_or_default();
    wanted
        .iter()
        .map(|name| count(&now, name) - count(before, name))
        .collect()
}

/// The fields of a key: how many entries of the line are left.
pub fn fields(redis: &Redis, name: &str) -> i64 {
    redis.call(&["HLEN", &key(name)]).int().unwrap_or_default()
}

/// Hears the messages of a channel as a peer would.
pub async fn listener(
    node: &Redis,
    verb: &str,
    channel: &str,
) -> tokio::sync::mpsc::UnboundedReceiver<String> {
    let (tell, heard) = tokio::sync::mpsc::unbounded_channel();
    let (pushes, mut pushed) = tokio::sync::mpsc::unbounded_channel::<redis::PushInfo>();
    let client = redis::Client::open(format!(
        "{}/?protocol=resp3",
        node.url().trim_end_matches("/0")
    ))
    .expect("a URL");
    let config = redis::AsyncConnectionConfig::new().set_push_sender(pushes);
    let mut connection = client
        .get_multiplexed_async_connection_with_config(&config)
        .await
        .expect("connected");
    let subscribed: redis::Value = redis::cmd(verb)
        .arg(channel)
        .query_async(&mut connection)
        .await
        .expect("subscribed");
    drop(subscribed);
    tokio::spawn(async move {
        let _open = connection;
        while let Some(push) = pushed.recv().await {
            let is_message = matches!(
                push.kind,
                redis::PushKind::Message | redis::PushKind::SMessage
            );
            if let (true, Some(redis::Value::BulkString(payload))) = (is_message, push.data.last())
                && tell
                    .send(String::from_utf8_lossy(payload).into_owned())
                    .is_err()
            {
                return;
            }
        }
    });
    heard
}
