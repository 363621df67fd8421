//! What the scripts of the format reply. Redlock asks the same of each of its servers.

use std::time::Duration;

use redis::Value;

use crate::store::Gone;

/// The token and the time left in a reply `{token, ms left}`; no time for a lock without an end.
pub(in crate::stores) fn token_and_left(parts: &[Value]) -> Option<(&[u8], Option<Duration>)> {
    let [Value::BulkString(token), Value::Int(left)] = parts else {
        return None;
    };
    let left = u64::try_from(*left).ok().map(Duration::from_millis);
    Some((token, left))
}

/// Why a renewal did not find its grant, by the number that its script replies.
pub(in crate::stores) fn gone(reply: &Value) -> Option<Gone> {
    match reply {
        Value::Int(0) => Some(Gone::Unknown),
        Value::Int(1) => Some(Gone::Taken),
        Value::Int(2) => Some(Gone::Revoked),
        Value::Int(3) => Some(Gone::Ended),
        _ => None,
    }
}
