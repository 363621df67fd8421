//! What the scripts of the format reply.

use std::time::Duration;

use redis::Value;

use super::wait::ask_in;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::store::{Claim, Gone, Grant, Holder, Kind, Lease, Mode, Place, Waiter};
use crate::stores::kit::token::value::read_labels;
use crate::stores::redis::simple::{gone, read_fence};
use crate::stores::redis::unexpected;

/// The reply to a claim or a renewal.
pub(super) enum Reply {
    Held(Grant),
    Gone(Gone),
    /// The claim is in the queue.
    Waiting(Place),
    /// The holder, and after how many ms time alone changes something.
    Taken(Option<Holder>, i64),
}

pub(super) fn read(value: &Value, claim: &Claim) -> Result<Reply> {
    if let Value::BulkString(fence) = value {
        return Ok(Reply::Held(Grant {
            fence: read_fence(fence).ok_or_else(unexpected)?,
            lease: Lease::of(claim.lease),
        }));
    }
    if let Some(why) = gone(value) {
        return Ok(Reply::Gone(why));
    }
    let Value::Array(parts) = value else {
        return Err(unexpected());
    };
    let named = |left, field: &[u8], note| {
        (!field.is_empty()).then(|| holder(field, note, left, claim.kind))
    };
    match parts.as_slice() {
        [Value::BulkString(mark), Value::BulkString(why)] if mark == b"?" => {
            Err(refused(why, claim))
        }
        [
            Value::BulkString(mark),
            Value::BulkString(why),
            Value::BulkString(asked),
            Value::BulkString(noted),
        ] if mark == b"?" && why == b"limit" => Err(Error::config(format!(
            "{} has {} permits now, and this claim is for one of {}; give the same number everywhere",
            claim.name,
            String::from_utf8_lossy(noted),
            String::from_utf8_lossy(asked),
        ))),
        [
            Value::Int(left),
            Value::BulkString(field),
            Value::BulkString(note),
        ] => Ok(Reply::Taken(named(*left, field, note), *left)),
        [
            Value::Int(left),
            Value::BulkString(field),
            Value::BulkString(note),
            Value::Int(permits),
        ] => {
            let holder = (!field.is_empty()).then(|| permit_holder(field, note, *left, *permits));
            Ok(Reply::Taken(holder, *left))
        }
        [
            Value::Int(left),
            Value::BulkString(field),
            Value::BulkString(note),
            Value::Int(place),
            Value::Int(ask),
        ] => Ok(match u32::try_from(*place) {
            Err(_) => Reply::Taken(named(*left, field, note), *ask),
            Ok(ahead) => Reply::Waiting(Place {
                ahead: Some(ahead),
                ask_in: (*ask >= 0).then(|| ask_in(*ask)),
                lease: Lease::of(claim.wait_lease()),
                holder: named(*left, field, note),
            }),
        }),
        _ => Err(unexpected()),
    }
}

/// A name that serves another object of Redisson, and was not touched.
fn refused(why: &[u8], claim: &Claim) -> Error {
    let name = &claim.name;
    match why {
        b"rwlock" => Error::config(format!(
            "{name} is a rwlock of Redisson now, and this claim is for a {}; take another name",
            claim.kind
        )),
        b"semaphore" => Error::config(format!(
            "{name} is a semaphore of Redisson, and this claim is for a {}; take another name",
            claim.kind
        )),
        b"mutex" => Error::config(format!(
            "{name} is a mutex of Redisson now, and this claim is for a {}; take another name",
            claim.kind
        )),
        b"plain" => Error::config(format!(
            "{name} has holders of an RSemaphore; leave out expirable=yes, or take another name"
        )),
        b"expirable" => Error::config(format!(
            "{name} is an RPermitExpirableSemaphore with holders; write format=redisson&expirable=yes, or take another name"
        )),
        b"fair" => Error::config(format!(
            "{name} is a fair lock of Redisson with waiters; write format=redisson&fair=yes, or take another name"
        )),
        _ => Error::protocol(format!(
            "the fences of {name} cannot be read: another program has written to the key redisson_lock_token of this name"
        )),
    }
}

/// A holder by its field and our note, which a peer does not have.
pub(super) fn holder(field: &[u8], note: &[u8], left: i64, kind: Kind) -> Holder {
    let (fence, owner, reason) = labels(field, note);
    let mode = match kind {
        Kind::RwLock if !field.ends_with(b":write") => Mode::Shared,
        _ => Mode::Exclusive,
    };
    Holder {
        owner,
        reason,
        fence: read_fence(fence).unwrap_or(Fence::NONE),
        mode,
        held: None,
        lease_left: u64::try_from(left).ok().map(Duration::from_millis),
    }
}

/// A holder of so many permits, in the same way.
pub(super) fn permit_holder(field: &[u8], note: &[u8], left: i64, permits: i64) -> Holder {
    Holder {
        mode: Mode::Permits(u32::try_from(permits).unwrap_or(u32::MAX)),
        ..holder(field, note, left, Kind::Mutex)
    }
}

/// A waiter of a fair lock, in the same way.
pub(super) fn waiter(field: &[u8], note: &[u8]) -> Waiter {
    let (_, owner, reason) = labels(field, note);
    Waiter {
        owner,
        reason,
        mode: Mode::Exclusive,
        waited: None,
    }
}

/// The number at the beginning of a note, the owner and the reason. The owner of a peer's claim is
/// its field: the id of a client, and the number of a thread.
fn labels<'a>(field: &[u8], note: &'a [u8]) -> (&'a [u8], String, Option<String>) {
    let number = note.split(|byte| *byte == b'.').next().unwrap_or_default();
    match std::str::from_utf8(note)
        .ok()
        .and_then(|note| note.split_once('.'))
    {
        Some((_, labels)) => {
            let (owner, reason) = read_labels(labels);
            (number, owner, reason)
        }
        None => (number, String::from_utf8_lossy(field).into_owned(), None),
    }
}
