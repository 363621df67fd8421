//! The format `palisade`: the line of one name in one hash, changed by Lua scripts that follow [`crate::line`].
//!
//! # The hash
//!
//! - `s` is the state: `1`, a letter for the form, and a number that says until which second the key was told to live.
//!   - `1i` idle: the last fence.
//!   - `1x` one exclusive holder: fence, since, began, lease, claim (32 bytes), kind (1 byte), meta.
//!   - `1w` the same with waiters: before the meta `sure`, head, holes, count.
//!   - `1g` everything else: a MessagePack list of last fence, kind, sure, head, holes, count, holders, mark, seal, tombstones.
//! - `q<seq>` is a waiter: since, began, lease, claim, then `<mode> <min_hold> <once_per> <meta>`.
//! - `c<claim>` is the `seq` of that waiter.
//!
//! A number is a little-endian double of 8 bytes, which has every digit of a whole number below 2^53: a script reads and writes
//! all of a state in one step each, where decimal digits had to be cut out, parsed and printed one by one. Times and spans are
//! microseconds of the server's clock. An end is never written down, but since when and for how long: see `line.lua`. Kinds are `m`,
//! `r`, `s<limit>`, modes `x`, `s`, `p<count>`; meta is `<length>:<inbox><length>:<owner>`, and `+<reason>` if there is one.
//!
//! Each script begins with `open.lua`. A `…_fast.lua` is what nearly all calls need and returns before `line.lua` makes its functions,
//! which would cost as much again. What a fast path does must be what the general path would have done: the tests compare
//! both with [`crate::line::Line`].

mod reply;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub(super) use reply::{Push, claim_answer, push, released, revoked, standing, view};

use super::script::{Call, Script};
use crate::fence::Fence;
use crate::store::{Claim, ClaimRef, Ending, Kind, Mode};

macro_rules! script {
    ($($file:literal),+) => { Script::new(concat!($(include_str!($file)),+)) };
}

static CLAIM: Script = script!("open.lua", "claim_fast.lua", "line.lua", "claim.lua");
static RENEW: Script = script!("open.lua", "renew_fast.lua", "line.lua", "renew.lua");
static RELEASE: Script = script!("open.lua", "release_fast.lua", "line.lua", "release.lua");
static DOWNGRADE: Script = script!("open.lua", "claimant.lua", "line.lua", "downgrade.lua");
static REVOKE: Script = script!("open.lua", "nobody.lua", "line.lua", "revoke.lua");
static SHOW: Script = script!("open.lua", "nobody.lua", "line.lua", "show.lua");

/// A Lua function `holds(state, claim, fence, now)`, for scripts that write to a key beside the lock: whether this claim holds
/// by this fence (decimal), alone, at this time (microseconds). `state` is the field `s` of the lock's key.
#[cfg(test)]
pub(super) const HOLDS: &str = include_str!("holds.lua");

/// Asks for the name. Whoever must hear of the claim later hears it in this inbox.
pub(super) fn claim(key: &str, claim: &Claim, inbox: &str) -> Call {
    let call = Call::new(&CLAIM, key).text(claim.id.reveal()).text(digits(claim.lease)).text(how(claim)).text(meta(claim, inbox));
    // No span asks for the same as a span of nothing.
    let [min_hold, once_per] = [claim.min_hold, claim.once_per].map(|span| span.filter(|span| !span.is_zero()).map(digits));
    match (min_hold, once_per) {
        (None, None) => call,
        (Some(min_hold), None) => call.text(min_hold),
        (min_hold, Some(once_per)) => call.text(min_hold.unwrap_or_default()).text(once_per),
    }
}

/// Extends the lease of a claim that waits or holds. From now on it is told in this inbox.
pub(super) fn renew(key: &str, claim: &ClaimRef, inbox: &str) -> Call {
    by(Call::new(&RENEW, key), claim).text(counted(inbox))
}

/// Ends a claim in whatever state it is.
pub(super) fn release(key: &str, claim: &ClaimRef, ending: Ending) -> Call {
    let call = by(Call::new(&RELEASE, key), claim);
    match ending {
        Ending::Release => call.text("r"),
        Ending::Undo => call.text("u"),
        Ending::Seal(keep) => call.text("s").text(digits(keep)),
    }
}

/// Turns a writer into a reader.
pub(super) fn downgrade(key: &str, claim: &ClaimRef) -> Call {
    by(Call::new(&DOWNGRADE, key), claim)
}

/// Ends somebody else's grant.
pub(super) fn revoke(key: &str, fence: Fence) -> Call {
    Call::new(&REVOKE, key).number(fence.get())
}

/// Shows the line. Changes nothing.
pub(super) fn show(key: &str) -> Call {
    Call::new(&SHOW, key)
}

fn by(call: Call, claim: &ClaimRef) -> Call {
    call.text(claim.claim.id.reveal()).text(claim.fence.map(|fence| fence.get().to_string()).unwrap_or_default())
}

/// A span as the scripts take it: never shorter than it is, and so short that no sum with a time loses digits.
fn digits(span: Duration) -> String {
    const LONGEST: u128 = 10_u128.pow(15);
    span.as_nanos().div_ceil(1000).min(LONGEST).to_string()
}

/// Whether it may stand in line, its kind and its mode. Not what [`Line`](crate::line::Line) calls a misfit: that is a `!`.
fn how(claim: &Claim) -> String {
    let queue = if claim.queue { 'q' } else { 'n' };
    match (claim.kind, claim.mode) {
        (Kind::Mutex, Mode::Exclusive) => format!("{queue}mx"),
        (Kind::RwLock, Mode::Exclusive) => format!("{queue}rx"),
        (Kind::RwLock, Mode::Shared) => format!("{queue}rs"),
        (Kind::Semaphore { limit }, Mode::Permits(count)) if (1..=limit).contains(&count) => format!("{queue}s{limit} p{count}"),
        _ => "!".to_owned(),
    }
}

fn meta(claim: &Claim, inbox: &str) -> String {
    let mut meta = counted(inbox) + &counted(&claim.owner);
    if let Some(reason) = &claim.reason {
        meta.push('+');
        meta.push_str(reason);
    }
    meta
}

/// A text behind its own length, so that it may contain anything.
fn counted(text: &str) -> String {
    format!("{}:{text}", text.len())
}
