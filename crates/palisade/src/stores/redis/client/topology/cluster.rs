//! Asks a server of a cluster which server has which slots.

use std::ops::Range;

use redis::{RedisError, Value};

use super::super::address::Address;
use super::super::connection::connect;
use super::super::failure::final_error;
use super::super::settings::ClientSettings;
use crate::error::{Error, Result};

/// How many slots a cluster has.
const SLOTS: usize = 16384;

/// The slot of a key: of the text in its first braces, if there is any.
pub(super) fn slot(key: &str) -> usize {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map(|(tag, _)| tag)
        .filter(|tag| !tag.is_empty());
    usize::from(crc16::State::<crc16::XMODEM>::calculate(
        tag.unwrap_or(key).as_bytes(),
    )) % SLOTS
}

/// Slots that one primary has.
pub(super) struct SlotRange {
    pub(super) slots: Range<usize>,
    pub(super) primary: Address,
}

/// The slots of each primary, as one server knows them.
pub(super) async fn slots(settings: &ClientSettings, server: &Address) -> Result<Vec<SlotRange>> {
    let failed = |error: RedisError| match final_error(&error, server) {
        told if error
            .detail()
            .is_some_and(|detail| detail.contains("cluster support disabled")) =>
        {
            Error::bad_url(format!(
                "{server} is not part of a cluster; write redis://{server}"
            ))
            .with_source(told)
        }
        told => told,
    };
    let connection = connect(server, settings.tls.as_ref(), &settings.login, None)
        .await
        .map_err(failed)?;
    let answer = connection
        .request(&redis::cmd("CLUSTER").arg("SLOTS").get_packed_command())
        .await;
    let slots = answer.and_then(Value::extract_error).map_err(failed)?;
    let ranges = read(&slots, server)
        .ok_or_else(|| Error::protocol(format!("{server} answers slots that cannot be read")))?;
    match ranges.is_empty() {
        true => Err(Error::unavailable(format!(
            "{server} knows no slots; its cluster is not ready"
        ))),
        false => Ok(ranges),
    }
}

fn read(value: &Value, asked: &Address) -> Option<Vec<SlotRange>> {
    let Value::Array(ranges) = value else {
        return None;
    };
    let mut read = Vec::with_capacity(ranges.len());
    for range in ranges {
        let Value::Array(parts) = range else {
            return None;
        };
        let [Value::Int(from), Value::Int(to), Value::Array(primary), ..] = parts.as_slice() else {
            return None;
        };
        let (from, to) = (usize::try_from(*from).ok()?, usize::try_from(*to).ok()?);
        let [host, Value::Int(port), ..] = primary.as_slice() else {
            return None;
        };
        let host = match host {
            Value::BulkString(host) => std::str::from_utf8(host).ok()?,
            _ => "",
        };
        // A server without a name of its own is the one that was asked.
        let host = if host.is_empty() || host == "?" {
            &asked.host
        } else {
            host
        };
        if from > to || to >= SLOTS {
            return None;
        }
        read.push(SlotRange {
            slots: from..to + 1,
            primary: Address::new(host, u16::try_from(*port).ok()?),
        });
    }
    Some(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the Redis documentation has them.
    #[test]
    fn slots_are_those_of_the_server() {
        assert_eq!(slot("123456789"), 0x31C3);
        assert_eq!(slot("foo"), 12182);
        assert_eq!(slot("{user1000}.following"), slot("{user1000}.followers"));
        assert_eq!(
            slot("foo{}{bar}"),
            usize::from(crc16::State::<crc16::XMODEM>::calculate(b"foo{}{bar}")) % SLOTS
        );
        assert_eq!(slot("foo{{bar}}zap"), slot("{bar"));
        assert_eq!(slot("palisade:1:{orders}"), slot("orders"));
    }
}
