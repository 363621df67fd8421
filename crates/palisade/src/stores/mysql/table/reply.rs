//! Reads the replies of the routines.

use std::time::Duration;

use mysql_async::prelude::FromValue;
use mysql_async::{FromValueError, Row};

use super::super::settings::Settings;
use super::Spot;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::line::ClaimError;
use crate::store::{
    Answer, Busy, Claim, ClaimId, Grant, Holder, Lease, LineView, Place, Released, Revoked,
    Standing, Waiter,
};
use crate::stores::sql::{gone, kind, mode, span};

/// What a waiter has seen when its bell rang, or did not in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::stores::mysql) struct Seen {
    pub(in crate::stores::mysql) rang: bool,
    /// The fence by which the claim holds now.
    pub(in crate::stores::mysql) fence: Option<Fence>,
}

/// Reads the answer to a claim, and where it waits if it does.
pub(in crate::stores::mysql) fn answer(rows: &[Row], claim: &Claim) -> Result<(Answer, Spot)> {
    let row = first(rows)?;
    let answer = match &*text(row, 0)? {
        "held" => Answer::Granted(grant(row, claim)?),
        "waits" => {
            let spot = spot(row)?;
            return Ok((Answer::Queued(place(row, claim, spot)?), spot));
        }
        "sealed" => Answer::Sealed,
        "soon" => Answer::Busy(Busy {
            too_soon: true,
            ..busy(row)?
        }),
        "busy" => Answer::Busy(busy(row)?),
        "kind" => {
            let in_use = kind(Some(&*text(row, 4)?), value(row, 1)?).ok_or_else(unexpected)?;
            let asked = claim.kind;
            return Err(ClaimError::KindConflict { in_use, asked }.of(&claim.name));
        }
        "fences" => return Err(ClaimError::FencesSpent.of(&claim.name)),
        _ => return Err(unexpected()),
    };
    Ok((answer, Spot::default()))
}

/// Reads the answer to a change.
pub(in crate::stores::mysql) fn standing(rows: &[Row], claim: &Claim) -> Result<(Standing, Spot)> {
    let row = first(rows)?;
    Ok(match &*text(row, 0)? {
        "held" => (Standing::Held(grant(row, claim)?), Spot::default()),
        "waits" => {
            let spot = spot(row)?;
            (Standing::Waiting(place(row, claim, spot)?), spot)
        }
        why => (
            Standing::Gone(gone(why).ok_or_else(unexpected)?),
            Spot::default(),
        ),
    })
}

/// Reads the answers to a list of renewals; `None` for one whose row is locked.
pub(in crate::stores::mysql) fn renewed<'a>(
    rows: &[Row],
    claims: impl ExactSizeIterator<Item = &'a Claim>,
) -> Result<Vec<Option<(Standing, Spot)>>> {
    let replies = text(first(rows)?, 0)?;
    let replies: Vec<&str> = replies.lines().collect();
    if replies.len() != claims.len() {
        return Err(unexpected());
    }
    replies
        .into_iter()
        .zip(claims)
        .map(|(reply, claim)| match reply.starts_with("locked,") {
            true => Ok(None),
            false => renewal(reply, claim).map(Some).ok_or_else(unexpected),
        })
        .collect()
}

/// One renewal: answer, fence, ahead, ask_in, bell and flag.
fn renewal(reply: &str, claim: &Claim) -> Option<(Standing, Spot)> {
    let mut words = reply.split(',');
    let mut word = || words.next();
    let (answer, fence, ahead, ask_in, bell, flag) =
        (word()?, word()?, word()?, word()?, word()?, word()?);
    Some(match answer {
        "held" => {
            let fence = Fence::new(fence.parse().ok()?)?;
            let lease = Lease::of(claim.lease);
            (Standing::Held(Grant { fence, lease }), Spot::default())
        }
        "waits" => {
            let spot = Spot {
                bell: ClaimId::parse(bell),
                ahead: ahead.parse().ok(),
                many: flag == "1",
            };
            let place = Place {
                ahead: spot.ahead,
                ask_in: ask_in.parse().ok().and_then(span),
                lease: Lease::of(claim.wait_lease()),
                holder: None,
            };
            (Standing::Waiting(place), spot)
        }
        why => (Standing::Gone(gone(why)?), Spot::default()),
    })
}

/// Reads the answer to a release.
pub(in crate::stores::mysql) fn released(rows: &[Row]) -> Result<Released> {
    match &*text(first(rows)?, 0)? {
        "done" => Ok(Released::Done),
        "lost" => Ok(Released::AlreadyLost),
        _ => Err(unexpected()),
    }
}

/// Reads the answer to a revocation.
pub(in crate::stores::mysql) fn revoked(rows: &[Row]) -> Result<Revoked> {
    let row = first(rows)?;
    match &*text(row, 0)? {
        "done" => Ok(Revoked::Done),
        "free" => Ok(Revoked::NotHeld),
        "other" => Ok(Revoked::OtherHolder {
            fence: fence(row, 1)?,
        }),
        _ => Err(unexpected()),
    }
}

/// Reads the answer to clearing marks.
pub(in crate::stores::mysql) fn cleared(rows: &[Row]) -> Result<bool> {
    match &*text(first(rows)?, 0)? {
        "done" => Ok(true),
        "none" => Ok(false),
        _ => Err(unexpected()),
    }
}

/// Reads what a waiter has seen.
pub(in crate::stores::mysql) fn seen(rows: &[Row]) -> Result<Seen> {
    let row = first(rows)?;
    let fence: Option<u64> = value(row, 1)?;
    Ok(Seen {
        // NULL when the statement was interrupted.
        rang: value::<Option<i64>>(row, 0)? == Some(1),
        fence: fence.and_then(Fence::new),
    })
}

/// Reads a number.
pub(in crate::stores::mysql) fn count(rows: &[Row]) -> Option<i64> {
    value(rows.first()?, 0).ok()
}

/// Reads lines with their claims, and the key of the last one. A line that cannot be read is shown
/// with its error.
pub(in crate::stores::mysql) fn views(
    rows: &[Row],
    settings: &Settings,
) -> Result<(Vec<LineView>, Option<Vec<u8>>, usize)> {
    let mut views = Vec::new();
    let (mut last, mut keys) = (None, 0);
    let mut rest = rows;
    while let Some(row) = rest.first() {
        let key: Vec<u8> = value(row, 1)?;
        let same = |row: &Row| value::<Vec<u8>>(row, 1).is_ok_and(|other| other == key);
        let size = rest.iter().take_while(|row| same(row)).count().max(1);
        let (line, behind) = rest.split_at(size);
        rest = behind;
        keys += 1;
        if let Some(name) = settings.name(&key) {
            let view = view(name.as_str(), line).map(|view| vec![view]);
            views.extend(
                LineView::or_unreadable(&name, view)?
                    .into_iter()
                    .filter(|view| !view.is_free()),
            );
        }
        last = Some(key);
    }
    Ok((views, last, keys))
}

/// One line: the same rules as [`Line::view`](crate::line::Line::view).
fn view(name: &str, rows: &[Row]) -> Result<LineView> {
    let row = first(rows)?;
    let now: i64 = value(row, 0)?;
    let left = |until: i64| span(until - now).filter(|left| !left.is_zero());
    let ago = |since: i64| span((now - since).max(0));
    let in_use: Option<String> = value(row, 3)?;
    let mut view = LineView {
        kind: kind(in_use.as_deref(), value(row, 4)?).ok_or_else(unexpected)?,
        ..LineView::free(name)
    };
    let [mark_at, mark_span, sealed_until] = [value(row, 10)?, value(row, 11)?, value(row, 12)?];
    if let Some(due_in) = left(i64::min(mark_at, now) + mark_span) {
        view.marks.due_in = Some(due_in);
        view.marks.ran_ago = ago(mark_at);
    }
    view.marks.done_for = left(sealed_until);
    if &*text(row, 2)? == "held" {
        let expiry: i64 = value(row, 9)?;
        if expiry > now {
            view.holders.push(Holder {
                owner: text(row, 6)?,
                reason: value(row, 7)?,
                fence: fence(row, 5)?,
                mode: crate::store::Mode::Exclusive,
                held: ago(value(row, 8)?),
                lease_left: left(expiry),
            });
        }
    }
    for row in rows {
        let Some(state) = value::<Option<String>>(row, 13)? else {
            continue;
        };
        let mode = mode(&text(row, 15)?, value(row, 16)?).ok_or_else(unexpected)?;
        let (owner, reason) = (text(row, 17)?, value(row, 18)?);
        let [since, expiry, keep_until] = [value(row, 19)?, value(row, 20)?, value(row, 21)?];
        let is_held = state == "held" && expiry > now;
        if state == "waits" && expiry > now {
            let waited = ago(since);
            view.waiters.push(Waiter {
                owner,
                reason,
                mode,
                waited,
            });
        } else if is_held || (matches!(&*state, "held" | "closed") && keep_until > now) {
            view.holders.push(Holder {
                owner,
                reason,
                fence: fence(row, 14)?,
                mode,
                held: ago(since),
                lease_left: Some(left(expiry).filter(|_| is_held).unwrap_or_default()),
            });
            view.marks.closed_for = view.marks.closed_for.max(left(keep_until));
        }
    }
    // Holders and those that are gone come as two groups.
    view.holders.sort_by_key(|holder| holder.fence);
    Ok(view)
}

fn grant(row: &Row, claim: &Claim) -> Result<Grant> {
    Ok(Grant {
        fence: fence(row, 1)?,
        lease: Lease::of(claim.lease),
    })
}

/// The place of a waiter: ahead, ask_in.
fn place(row: &Row, claim: &Claim, spot: Spot) -> Result<Place> {
    Ok(Place {
        ahead: spot.ahead,
        ask_in: ask_in(row)?,
        lease: Lease::of(claim.wait_lease()),
        holder: None,
    })
}

fn spot(row: &Row) -> Result<Spot> {
    let bell: Option<Vec<u8>> = value(row, 4)?;
    let bell = bell.and_then(|bell| bell.try_into().ok());
    Ok(Spot {
        bell: bell.map(|bell| ClaimId::from_bits(u128::from_be_bytes(bell))),
        ahead: value::<Option<u32>>(row, 2)?,
        many: value::<i64>(row, 5)? == 1,
    })
}

fn ask_in(row: &Row) -> Result<Option<Duration>> {
    Ok(value::<Option<i64>>(row, 3)?.and_then(span))
}

/// Why a claim was turned away: flag, and the first holder if there is one.
fn busy(row: &Row) -> Result<Busy> {
    let holder = match value::<Option<String>>(row, 6)? {
        None => None,
        Some(word) => Some(Holder {
            owner: text(row, 11)?,
            reason: value(row, 12)?,
            fence: fence(row, 8)?,
            mode: mode(&word, value(row, 7)?).ok_or_else(unexpected)?,
            held: span(value(row, 9)?),
            lease_left: span(value(row, 10)?),
        }),
    };
    let is_admitted = value::<i64>(row, 5)? == 2;
    Ok(Busy {
        closed: holder.is_none() && !is_admitted && &*text(row, 0)? == "busy",
        holder,
        ask_in: ask_in(row)?,
        too_soon: false,
        woken: false,
    })
}

fn first(rows: &[Row]) -> Result<&Row> {
    rows.first().ok_or_else(unexpected)
}

fn fence(row: &Row, at: usize) -> Result<Fence> {
    Fence::new(value(row, at)?)
        .filter(|fence| !fence.is_none())
        .ok_or_else(unexpected)
}

fn text(row: &Row, at: usize) -> Result<String> {
    value(row, at)
}

fn value<T: FromValue>(row: &Row, at: usize) -> Result<T> {
    match row.get_opt(at) {
        Some(Ok(value)) => Ok(value),
        Some(Err(FromValueError(_))) | None => Err(unexpected()),
    }
}

/// A reply that this version does not know.
fn unexpected() -> Error {
    Error::protocol(
        "the reply of the lock routines cannot be read; is Palisade the same version everywhere, and does no other program write to its tables?",
    )
}
