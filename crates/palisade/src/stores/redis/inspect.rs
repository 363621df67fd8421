//! Shows one line, or lists lines page by page: `SCAN` on each primary in turn, then one pipeline
//! for the keys that it found.

use std::collections::BTreeSet;
use std::sync::Arc;

use redis::Value;

use super::backend::Backend;
use super::client::{Purpose, TimedCall, final_error};
use super::line;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::store::{LineView, Page};

/// About how many keys one step scans: the server serves no other request meanwhile.
const STEP: u32 = 512;

pub(super) async fn show(backend: &Backend, name: &Name) -> Result<Page> {
    let called = backend
        .call(&line::show(&backend.settings.key(name)))
        .await?;
    Ok(Page {
        lines: line::view(&called.value, name)?.into_iter().collect(),
        next: None,
    })
}

/// One page: the result of one step of `SCAN` on one server. `after` is `<place of the
/// server>:<cursor>`.
pub(super) async fn list(
    backend: &Arc<Backend>,
    prefix: &str,
    after: Option<&str>,
) -> Result<Page> {
    let (client, settings) = (&backend.client, &backend.settings);
    let (place, cursor) = match after {
        None => (0, 0),
        Some(after) => read_token(after).ok_or_else(|| {
            Error::config("unknown page token; pass the `next` of the previous page")
        })?,
    };
    let primaries = client.primaries().await?;
    let Some(address) = primaries.get(place) else {
        return Ok(Page::default());
    };
    let server = client.server(address, Purpose::Requests).await?;
    let mut scan = redis::cmd("SCAN");
    scan.arg(cursor)
        .arg("MATCH")
        .arg(settings.pattern(prefix))
        .arg("COUNT")
        .arg(STEP);
    let value = server
        .ask(scan)
        .await
        .map_err(|error| final_error(&error, address))?;
    let (next, keys) = read_scan(&value)
        .ok_or_else(|| Error::protocol(format!("{address} answers a list that cannot be read")))?;
    // A set: SCAN may return a key twice.
    let named: BTreeSet<(Name, String)> = keys
        .into_iter()
        .filter_map(|key| Some((settings.name(&key)?, key)))
        .collect();
    let named: Vec<(Name, String)> = named
        .into_iter()
        .filter(|(name, _)| name.as_str().starts_with(prefix))
        .collect();
    let limit = client.settings().request_timeout;
    let show = |(_, key): &(Name, String)| TimedCall {
        call: line::show(key),
        limit,
    };
    let shown = named.iter().map(show).collect();
    let shown = client.call_all(shown, Purpose::Requests, false).await;
    let mut lines = Vec::with_capacity(named.len());
    for ((name, _), value) in named.iter().zip(shown) {
        let line = value.and_then(|value| line::view(&value, name));
        lines.extend(LineView::or_unreadable(
            name,
            line.map(|line| line.into_iter().collect()),
        )?);
    }
    let next = match next {
        0 if place + 1 < primaries.len() => Some(format!("{}:0", place + 1)),
        0 => None,
        cursor => Some(format!("{place}:{cursor}")),
    };
    Ok(Page { lines, next })
}

fn read_token(after: &str) -> Option<(usize, u64)> {
    let (place, cursor) = after.split_once(':')?;
    Some((place.parse().ok()?, cursor.parse().ok()?))
}

fn read_scan(value: &Value) -> Option<(u64, Vec<String>)> {
    let Value::Array(parts) = value else {
        return None;
    };
    let [Value::BulkString(cursor), Value::Array(keys)] = parts.as_slice() else {
        return None;
    };
    let cursor = std::str::from_utf8(cursor).ok()?.parse().ok()?;
    let text = |key: &Value| match key {
        // A key that is no text is none of ours.
        Value::BulkString(key) => std::str::from_utf8(key).ok().map(str::to_owned),
        _ => None,
    };
    Some((cursor, keys.iter().filter_map(text).collect()))
}
