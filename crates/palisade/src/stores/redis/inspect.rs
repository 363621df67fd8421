//! Lists lines bit by bit: `SCAN` on each primary in turn, then one pipeline for what was found.

use std::collections::BTreeSet;
use std::sync::Arc;

use redis::Value;

use super::client::lane::Purpose;
use super::client::link::told;
use super::line;
use super::shared::Shared;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::store::Page;

/// About how many keys a step looks at: so long the server is busy with it.
const STEP: u32 = 512;

/// One page: what one step of `SCAN` finds on one server. `after` is `<place of the server>:<cursor>`.
pub(super) async fn page(shared: &Arc<Shared>, prefix: &str, after: Option<&str>) -> Result<Page> {
    let bad = || Error::config("this page of the list is none that was given before");
    let (place, cursor): (usize, u64) = match after {
        None => (0, 0),
        Some(after) => {
            let (place, cursor) = after.split_once(':').ok_or_else(bad)?;
            (place.parse().map_err(|_| bad())?, cursor.parse().map_err(|_| bad())?)
        }
    };
    // So that the servers are known.
    shared.topology.find(shared, &shared.settings.key(&Name::new("x")?)).await?;
    let primaries = shared.topology.primaries();
    let Some(address) = primaries.get(place) else { return Ok(Page::default()) };
    let lane = shared.lane()?;
    let link = lane.link(address, Purpose::Requests).await.inspect_err(|_| shared.topology.forget())?;
    let mut scan = redis::cmd("SCAN");
    scan.arg(cursor).arg("MATCH").arg(shared.settings.pattern(prefix)).arg("COUNT").arg(STEP);
    let value = link.ask(scan).await.map_err(|error| told(&error, address))?;
    let (next, keys) = read(&value).ok_or_else(|| Error::protocol(format!("{address} answers a list that cannot be read")))?;
    // A key may be told twice.
    let named: BTreeSet<(Name, String)> = keys.into_iter().filter_map(|key| Some((shared.settings.name(&key)?, key))).collect();
    let named: Vec<(Name, String)> = named.into_iter().filter(|(name, _)| name.as_str().starts_with(prefix)).collect();
    let shown = shared.call_all(named.iter().map(|(_, key)| line::show(key)).collect(), Purpose::Requests, false).await;
    let mut lines = Vec::with_capacity(named.len());
    for ((name, _), value) in named.iter().zip(shown) {
        lines.extend(line::view(&value?, name)?);
    }
    let next = match next {
        0 if place + 1 < primaries.len() => Some(format!("{}:0", place + 1)),
        0 => None,
        cursor => Some(format!("{place}:{cursor}")),
    };
    Ok(Page { lines, next })
}

fn read(value: &Value) -> Option<(u64, Vec<String>)> {
    let Value::Array(parts) = value else { return None };
    let [Value::BulkString(cursor), Value::Array(keys)] = parts.as_slice() else { return None };
    let cursor = std::str::from_utf8(cursor).ok()?.parse().ok()?;
    let text = |key: &Value| match key {
        // A key that is no text is none of ours.
        Value::BulkString(key) => std::str::from_utf8(key).ok().map(str::to_owned),
        _ => None,
    };
    Some((cursor, keys.iter().filter_map(text).collect()))
}
