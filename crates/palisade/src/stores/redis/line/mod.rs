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
//! both with [`crate::line::Line`]. But for one thing: a release by one who is sure that it holds is done before anybody has looked at
//! the time, `release_sure.lua`, so a lease that ended while it was on its way is not noticed.
//!
//! A claim and a release are also functions of one more script, which does many of them on as many keys: the same texts, so the
//! same answers, and what a script costs by itself is paid once.

mod reply;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub(super) use reply::{Push, claim_answer, push, released, revoked, standing, view};

use super::client::script::{Call, Script, digits, push_number};
use crate::fence::Fence;
use crate::lease::{BootClock, Clock};
use crate::store::{Claim, ClaimRef, Ending, Kind, Mode};

/// A script that is one verb: what it is given are the key and these words. What is done before the time is known comes first.
macro_rules! script {
    ($words:literal, [$($early:literal),*], $($file:literal),+) => {
        Script::new(concat!(
            include_str!("open.lua"),
            "local key, ", $words, " = KEYS[1], unpack(ARGV)\n",
            include_str!("look.lua"),
            $(include_str!($early),)*
            include_str!("time.lua"),
            $(include_str!($file)),+
        ))
    };
}

/// The same verb as a function, which is called when the time is known.
macro_rules! function {
    ($name:literal, $words:literal, [$($early:literal),*], $($file:literal),+) => {
        concat!(
            "local function ", $name, "(key, ", $words, ")\n",
            include_str!("look.lua"),
            $(include_str!($early),)*
            $(include_str!($file),)+
            "end\n"
        )
    };
}

macro_rules! claim {
    ($make:ident!($($name:literal)?)) => {
        $make!($($name,)? "how, wanted, min_hold, once_per", [], "claim_fast.lua", "line.lua", "claim.lua")
    };
}

macro_rules! release {
    ($make:ident!($($name:literal)?)) => {
        $make!($($name,)? "claim, fence, ending, keep", ["release_sure.lua"], "release_fast.lua", "line.lua", "release.lua")
    };
}

static CLAIM: Script = claim!(script!()).together(b'c', &TOGETHER);
static RENEW: Script = script!("claim, fence, inbox", [], "renew_fast.lua", "line.lua", "renew.lua");
static RELEASE: Script = release!(script!()).together(b'r', &TOGETHER);
static DOWNGRADE: Script = script!("claim, fence", [], "line.lua", "downgrade.lua");
static PROCLAIM: Script = script!("claim, fence, owner", [], "line.lua", "proclaim.lua");
static REVOKE: Script = script!("fence", [], "nobody.lua", "line.lua", "revoke.lua");
static SHOW: Script = script!("_", [], "nobody.lua", "line.lua", "show.lua");

/// Several of those verbs at once, each on its own key.
static TOGETHER: Script = Script::new(concat!(
    include_str!("open.lua"),
    include_str!("time.lua"),
    claim!(function!("claim")),
    release!(function!("release")),
    include_str!("together.lua")
));

/// A Lua function `holds(state, claim, fence, now)`, for scripts that write to a key beside the lock: whether this claim holds
/// by this fence (decimal), alone, at this time (microseconds). `state` is the field `s` of the lock's key.
#[cfg(test)]
pub(super) const HOLDS: &str = include_str!("holds.lua");

/// Asks for the name. Whoever must hear of the claim later hears it in this inbox. `is_new`: the claim was never sent, and so it is not
/// in line yet; the call itself says otherwise when it is sent [again](Call::again).
pub(super) fn claim(key: &str, claim: &Claim, inbox: &str, is_new: bool) -> Call {
    let how = How::of(claim, is_new);
    let call = Call::new(&CLAIM, key);
    let call = match how {
        How::Plain(how) if how.starts_with('f') => call.text_but_again(how, b'q'),
        _ => call.text(how.as_str()),
    };
    // As it stands in the state of a name that it holds: there is nothing more to be put together.
    let call = call.written(WANTED + meta_length(claim, inbox), |words| {
        words.extend_from_slice(&(micros(claim.lease) as f64).to_le_bytes());
        words.extend_from_slice(&claim.id.digits());
        words.push(how.kind());
        write_meta(words, claim, inbox);
    });
    // No span asks for the same as a span of nothing.
    let [min_hold, once_per] = [claim.min_hold, claim.once_per].map(|span| span.filter(|span| !span.is_zero()).map(micros));
    match (min_hold, once_per) {
        (None, None) => call,
        (Some(min_hold), None) => call.number(min_hold),
        (None, Some(once_per)) => call.text("").number(once_per),
        (Some(min_hold), Some(once_per)) => call.number(min_hold).number(once_per),
    }
}

/// The lease, the claim and its kind, before the meta.
const WANTED: usize = 8 + 32 + 1;

/// Extends the lease of a claim that waits or holds. From now on it is told in this inbox.
pub(super) fn renew(key: &str, claim: &ClaimRef, inbox: &str) -> Call {
    counted(by(Call::new(&RENEW, key), claim), inbox)
}

/// Ends a claim in whatever state it is. `next_first`: if it can be had, the next in line hears of it before whoever releases.
pub(super) fn release(key: &str, claim: &ClaimRef, ending: Ending, next_first: bool) -> Call {
    let call = by(Call::new(&RELEASE, key), claim);
    let is_sure = claim.fence.is_some() && claim.sure_until.is_some_and(|until| BootClock.now() < until);
    match (ending, is_sure) {
        // Sent again, it may have been on its way for longer than that.
        (Ending::Release, true) if next_first => call.text_but_again("N", b'n'),
        (Ending::Release, true) => call.text_but_again("R", b'r'),
        (Ending::Release, false) if next_first => call.text("n"),
        (Ending::Release, false) => call.text("r"),
        (Ending::Undo, _) => call.text("u"),
        (Ending::Seal(keep), _) => call.text("s").number(micros(keep)),
    }
}

/// Turns a writer into a reader.
pub(super) fn downgrade(key: &str, claim: &ClaimRef) -> Call {
    by(Call::new(&DOWNGRADE, key), claim)
}

/// Gives a holder another owner: what it proclaims.
pub(super) fn proclaim(key: &str, claim: &ClaimRef, value: &str) -> Call {
    counted(by(Call::new(&PROCLAIM, key), claim), value)
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
    let id = claim.claim.id.digits();
    let call = call.written(id.len(), |words| words.extend_from_slice(&id));
    match claim.fence {
        Some(fence) => call.number(fence.get()),
        None => call.text(""),
    }
}

/// A span as the scripts take it: never shorter than it is, and so short that no sum with a time loses digits.
fn micros(span: Duration) -> u64 {
    const LONGEST: u64 = 10_u64.pow(15);
    span.as_secs().saturating_mul(1_000_000).saturating_add(span.subsec_nanos().div_ceil(1000).into()).min(LONGEST)
}

/// Whether it may stand in line and whether it is new there, its kind and its mode. Not what [`Line`](crate::line::Line) calls a misfit: that is a `!`.
enum How {
    Plain(&'static str),
    Permits(String),
}

impl How {
    fn of(claim: &Claim, is_new: bool) -> How {
        let one_of = |[once, new, again]: [&'static str; 3]| match (claim.queue, is_new) {
            (false, _) => once,
            (true, true) => new,
            (true, false) => again,
        };
        match (claim.kind, claim.mode) {
            (Kind::Mutex, Mode::Exclusive) => How::Plain(one_of(["nmx", "fmx", "qmx"])),
            (Kind::RwLock, Mode::Exclusive) => How::Plain(one_of(["nrx", "frx", "qrx"])),
            (Kind::RwLock, Mode::Shared) => How::Plain(one_of(["nrs", "frs", "qrs"])),
            // Where it is new makes no difference to these.
            (Kind::Semaphore { limit }, Mode::Permits(count)) if (1..=limit).contains(&count) => {
                How::Permits(format!("{}s{limit} p{count}", if claim.queue { 'q' } else { 'n' }))
            }
            _ => How::Plain("!"),
        }
    }

    fn as_str(&self) -> &str {
        match self {
            How::Plain(how) => how,
            How::Permits(how) => how,
        }
    }

    /// The letter of the kind.
    fn kind(&self) -> u8 {
        self.as_str().as_bytes().get(1).copied().unwrap_or(b'!')
    }
}

fn write_meta(words: &mut Vec<u8>, claim: &Claim, inbox: &str) {
    write_counted(words, inbox);
    write_counted(words, &claim.owner);
    if let Some(reason) = &claim.reason {
        words.push(b'+');
        words.extend_from_slice(reason.as_bytes());
    }
}

fn meta_length(claim: &Claim, inbox: &str) -> usize {
    counted_length(inbox) + counted_length(&claim.owner) + claim.reason.as_ref().map_or(0, |reason| reason.len() + 1)
}

fn counted(call: Call, text: &str) -> Call {
    call.written(counted_length(text), |words| write_counted(words, text))
}

/// A text behind its own length, so that it may contain anything.
fn write_counted(words: &mut Vec<u8>, text: &str) {
    push_number(words, text.len() as u64);
    words.push(b':');
    words.extend_from_slice(text.as_bytes());
}

fn counted_length(text: &str) -> usize {
    digits(text.len() as u64) + 1 + text.len()
}
