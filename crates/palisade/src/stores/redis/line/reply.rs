//! Reads the replies of the scripts, and their pushes.

use std::time::Duration;

use redis::Value;

use super::super::failure::{is_refused, refused, unexpected};
use crate::error::Result;
use crate::fence::Fence;
use crate::line::ClaimError;
use crate::name::Name;
use crate::store::{
    Answer, Busy, Claim, ClaimId, Gone, Grant, Holder, Kind, Lease, LineView, Marks, Mode, Place,
    Released, Revoked, Standing, Waiter,
};

/// The highest fence that the scripts give.
const MAX_FENCE: f64 = 9_007_199_254_740_991.0;

/// A push to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::stores::redis) enum Push {
    /// It waited, and holds now.
    Granted(Fence),
    /// It waited or held, and was turned away or revoked.
    Gone(Gone),
}

/// Reads the answer to a claim.
pub(in crate::stores::redis) fn claim_answer(reply: &Value, claim: &Claim) -> Result<Answer> {
    if let Some(fence) = number(reply) {
        return Ok(Answer::Granted(grant(fence, claim)?));
    }
    if let Some(text) = bytes(reply) {
        return match text {
            [b'Q', place @ ..] => Ok(Answer::Queued(self::place(place, claim)?)),
            [b'B', busy @ ..] => Ok(Answer::Busy(self::busy(busy)?)),
            _ => Err(unexpected()),
        };
    }
    let parts = parts(reply)?;
    match word(parts) {
        Some(b"S") => Ok(Answer::Sealed),
        Some(b"K") => {
            let in_use = kind(text(parts, 1)?)?;
            Err(ClaimError::KindConflict {
                in_use,
                asked: claim.kind,
            }
            .of(&claim.name))
        }
        Some(b"M") => Err(ClaimError::ModeMisfit {
            kind: claim.kind,
            mode: claim.mode,
        }
        .of(&claim.name)),
        Some(b"F") => Err(ClaimError::FencesSpent.of(&claim.name)),
        _ => Err(unexpected()),
    }
}

/// Reads the answer to a renewal, a downgrade or a proclamation.
pub(in crate::stores::redis) fn standing(reply: &Value, claim: &Claim) -> Result<Standing> {
    if let Some(fence) = number(reply) {
        return Ok(Standing::Held(grant(fence, claim)?));
    }
    match bytes(reply) {
        Some([b'Q', place @ ..]) => Ok(Standing::Waiting(self::place(place, claim)?)),
        Some(why) => Ok(Standing::Gone(gone(why).ok_or_else(unexpected)?)),
        None => Err(refused(reply)),
    }
}

/// Reads the answer to a release.
pub(in crate::stores::redis) fn released(reply: &Value) -> Result<Released> {
    match number(reply) {
        Some(1) => Ok(Released::Done),
        Some(0) => Ok(Released::AlreadyLost),
        Some(_) => Err(unexpected()),
        None => Err(refused(reply)),
    }
}

/// Reads the answer to a revocation.
pub(in crate::stores::redis) fn revoked(reply: &Value) -> Result<Revoked> {
    match (number(reply), bytes(reply)) {
        (Some(other), _) => Ok(Revoked::OtherHolder {
            fence: fence(other)?,
        }),
        (None, Some(b"D")) => Ok(Revoked::Done),
        (None, Some(b"N")) => Ok(Revoked::NotHeld),
        _ => Err(refused(reply)),
    }
}

/// Reads the answer to clearing marks.
pub(in crate::stores::redis) fn cleared(reply: &Value) -> Result<bool> {
    match number(reply) {
        Some(cleared) => Ok(cleared == 1),
        None => Err(refused(reply)),
    }
}

/// Reads the answer to a show; `None` for a line without holders, waiters and marks.
pub(in crate::stores::redis) fn view(reply: &Value, name: &Name) -> Result<Option<LineView>> {
    let [in_use, holders, waiters, marks] = parts(reply)? else {
        return Err(unexpected());
    };
    let kind = kind(bytes(in_use).ok_or_else(unexpected)?)?;
    let holders = parts(holders)?
        .iter()
        .map(|shown| holder(parts(shown)?))
        .collect::<Result<Vec<_>>>()?;
    let waiters = parts(waiters)?
        .iter()
        .map(|shown| waiter(parts(shown)?))
        .collect::<Result<Vec<_>>>()?;
    let marks = parts(marks)?;
    let line = LineView {
        kind,
        holders,
        waiters,
        marks: Marks {
            closed_for: span(marks, 0)?,
            ran_ago: span(marks, 1)?,
            due_in: span(marks, 2)?,
            done_for: span(marks, 3)?,
        },
        ..LineView::free(name.as_str())
    };
    Ok((!line.is_free()).then_some(line))
}

/// Reads a push and the claim that it is for; `None` for a message that no script of ours sent.
pub(in crate::stores::redis) fn push(payload: &[u8]) -> Option<(ClaimId, Push)> {
    let (what, rest) = payload.split_at_checked(1)?;
    let (claim, fence) = rest.split_at_checked(32)?;
    let claim = ClaimId::parse(str::from_utf8(claim).ok()?)?;
    let push = match what {
        b"g" => Push::Granted(fence_of(fence)?),
        why if fence.is_empty() => Push::Gone(gone(why)?),
        _ => return None,
    };
    Some((claim, push))
}

/// A fence as the scripts write numbers.
fn fence_of(bytes: &[u8]) -> Option<Fence> {
    let number = f64::from_le_bytes(bytes.try_into().ok()?);
    // The scripts count no further, since a double loses digits past this.
    let counted = number.fract() == 0.0 && (1.0..=MAX_FENCE).contains(&number);
    counted.then_some(number as u64).and_then(Fence::new)
}

fn grant(number: i64, claim: &Claim) -> Result<Grant> {
    Ok(Grant {
        fence: fence(number)?,
        lease: Lease::of(claim.lease),
    })
}

/// The place of a waiter, behind the letter: how many are ahead, and in how long to ask.
fn place(mut text: &[u8], claim: &Claim) -> Result<Place> {
    let (ahead, ask_in) = (next_number(&mut text)?, micros(next_number(&mut text)?));
    Ok(Place {
        ahead: u32::try_from(ahead).ok(),
        ask_in,
        lease: Lease::of(claim.wait_lease()),
        holder: None,
    })
}

/// Why a claim was turned away, behind the letter: whether it is too soon, in how long to ask, and
/// the first holder, if there is one.
fn busy(mut text: &[u8]) -> Result<Busy> {
    let (why, ask_in) = (next_number(&mut text)?, micros(next_number(&mut text)?));
    let holder = match text {
        [] => None,
        mut rest => {
            let [number, held, left] = [(); 3].map(|()| next_number(&mut rest));
            let space = rest
                .iter()
                .position(|byte| *byte == b' ')
                .ok_or_else(unexpected)?;
            let meta = Meta::read(&rest[space + 1..])?;
            Some(Holder {
                owner: meta.owner,
                reason: meta.reason,
                fence: fence(number?)?,
                mode: mode(&rest[..space])?,
                held: micros(held?),
                lease_left: micros(left?),
            })
        }
    };
    Ok(Busy {
        closed: why == 2 && holder.is_none(),
        holder,
        ask_in,
        too_soon: why == 1,
        woken: false,
    })
}

/// A whole number as the scripts write them.
fn next_number(text: &mut &[u8]) -> Result<i64> {
    let (number, rest) = text.split_first_chunk().ok_or_else(unexpected)?;
    *text = rest;
    let number = f64::from_le_bytes(*number);
    let whole = number.fract() == 0.0 && number.abs() <= MAX_FENCE;
    if whole {
        Ok(number as i64)
    } else {
        Err(unexpected())
    }
}

fn holder(parts: &[Value]) -> Result<Holder> {
    let meta = Meta::read(text(parts, 4)?)?;
    Ok(Holder {
        owner: meta.owner,
        reason: meta.reason,
        fence: fence(numbered(parts, 0)?)?,
        mode: mode(text(parts, 1)?)?,
        held: span(parts, 2)?,
        lease_left: span(parts, 3)?,
    })
}

fn waiter(parts: &[Value]) -> Result<Waiter> {
    let meta = Meta::read(text(parts, 2)?)?;
    Ok(Waiter {
        owner: meta.owner,
        reason: meta.reason,
        mode: mode(text(parts, 0)?)?,
        waited: span(parts, 1)?,
    })
}

/// The description of a claim, behind its inbox.
struct Meta {
    owner: String,
    reason: Option<String>,
}

impl Meta {
    fn read(meta: &[u8]) -> Result<Meta> {
        let utf8 = |text: &[u8]| String::from_utf8(text.to_vec()).map_err(|_| unexpected());
        let (_inbox, rest) = counted(meta).ok_or_else(unexpected)?;
        let (owner, rest) = counted(rest).ok_or_else(unexpected)?;
        let reason = match rest {
            [] => None,
            [b'+', reason @ ..] => Some(utf8(reason)?),
            _ => return Err(unexpected()),
        };
        Ok(Meta {
            owner: utf8(owner)?,
            reason,
        })
    }
}

/// Splits off a text that is behind its own length.
fn counted(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = text.iter().position(|byte| *byte == b':')?;
    let length = str::from_utf8(&text[..colon]).ok()?.parse().ok()?;
    text[colon + 1..].split_at_checked(length)
}

fn kind(text: &[u8]) -> Result<Kind> {
    match text {
        b"m" => Ok(Kind::Mutex),
        b"r" => Ok(Kind::RwLock),
        [b's', limit @ ..] => Ok(Kind::Semaphore {
            limit: small(limit)?,
        }),
        _ => Err(unexpected()),
    }
}

fn mode(text: &[u8]) -> Result<Mode> {
    match text {
        b"x" => Ok(Mode::Exclusive),
        b"s" => Ok(Mode::Shared),
        [b'p', count @ ..] => Ok(Mode::Permits(small(count)?)),
        _ => Err(unexpected()),
    }
}

fn small(digits: &[u8]) -> Result<u32> {
    str::from_utf8(digits)
        .ok()
        .and_then(|digits| digits.parse().ok())
        .ok_or_else(unexpected)
}

fn gone(why: &[u8]) -> Option<Gone> {
    match why {
        b"n" => Some(Gone::Ended),
        b"u" => Some(Gone::Unknown),
        b"t" => Some(Gone::Taken),
        b"r" => Some(Gone::Revoked),
        b"s" => Some(Gone::Sealed),
        b"o" => Some(Gone::TooSoon),
        _ => None,
    }
}

fn fence(number: i64) -> Result<Fence> {
    u64::try_from(number)
        .ok()
        .and_then(Fence::new)
        .filter(|fence| !fence.is_none())
        .ok_or_else(unexpected)
}

fn span(parts: &[Value], at: usize) -> Result<Option<Duration>> {
    numbered(parts, at).map(micros)
}

/// Microseconds; negative when not known.
fn micros(number: i64) -> Option<Duration> {
    u64::try_from(number).ok().map(Duration::from_micros)
}

fn numbered(parts: &[Value], at: usize) -> Result<i64> {
    parts.get(at).and_then(number).ok_or_else(unexpected)
}

fn text(parts: &[Value], at: usize) -> Result<&[u8]> {
    parts.get(at).and_then(bytes).ok_or_else(unexpected)
}

fn number(value: &Value) -> Option<i64> {
    if let Value::Int(number) = value {
        Some(*number)
    } else {
        None
    }
}

fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text.as_bytes()),
        _ => None,
    }
}

fn word(parts: &[Value]) -> Option<&[u8]> {
    parts.first().and_then(bytes)
}

/// The parts of an answer.
fn parts(value: &Value) -> Result<&[Value]> {
    match value {
        Value::Array(parts) if !is_refused(parts) => Ok(parts),
        other => Err(refused(other)),
    }
}
