//! Shows a lock, with its waiters where it is fair.

use redis::Value;

use super::reply::{holder, permit_holder, waiter};
use super::{Redisson, SHOW};
use crate::error::Result;
use crate::name::Name;
use crate::store::{Kind, LineView, Page};
use crate::stores::redis::unexpected;

pub(super) async fn show(store: &Redisson, name: &Name) -> Result<Page> {
    let call = store.call(&SHOW, &store.keys(name)?, None, None);
    let line = read(&store.backend.call(&call).await?.value, name).ok_or_else(unexpected)?;
    Ok(Page {
        lines: (!line.is_free()).then_some(line).into_iter().collect(),
        next: None,
    })
}

fn read(value: &Value, name: &Name) -> Option<LineView> {
    let Value::Array(parts) = value else {
        return None;
    };
    if let [Value::Int(limit), Value::Array(holders)] = parts.as_slice() {
        return read_semaphore(*limit, holders, name);
    }
    let [
        Value::Int(left),
        Value::Array(fields),
        Value::Array(waiters),
    ] = parts.as_slice()
    else {
        return None;
    };
    let mut line = LineView::free(name.as_str());
    let fields: Vec<_> = pairs(fields)?;
    if fields.iter().any(|(field, _)| *field == b"mode") {
        line.kind = Kind::RwLock;
    }
    line.holders = fields
        .iter()
        .filter(|(field, _)| *field != b"mode")
        .map(|(field, note)| holder(field, note, *left, line.kind))
        .collect();
    line.waiters = pairs(waiters)?
        .iter()
        .map(|(field, note)| waiter(field, note))
        .collect();
    Some(line)
}

fn read_semaphore(limit: i64, holders: &[Value], name: &Name) -> Option<LineView> {
    let mut line = LineView::free(name.as_str());
    line.kind = Kind::Semaphore {
        limit: u32::try_from(limit).ok()?,
    };
    for holder in holders {
        let Value::Array(parts) = holder else {
            return None;
        };
        let [
            Value::Int(left),
            Value::BulkString(field),
            Value::BulkString(note),
            Value::Int(permits),
        ] = parts.as_slice()
        else {
            return None;
        };
        line.holders
            .push(permit_holder(field, note, *left, *permits));
    }
    Some(line)
}

fn pairs(values: &[Value]) -> Option<Vec<(&[u8], &[u8])>> {
    values
        .chunks_exact(2)
        .map(|pair| match pair {
            [Value::BulkString(field), Value::BulkString(note)] => {
                Some((field.as_slice(), note.as_slice()))
            }
            _ => None,
        })
        .collect()
}
