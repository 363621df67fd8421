//! The format `palisade`: the line of one name in one hash, changed by Lua scripts that follow
//! [`crate::line`].
//!
//! # The hash
//!
//! - `s` is the state: `1`, a letter for the form, and the second until which the key was told to
//!   live.
//!   - `1i` idle: the last fence.
//!   - `1x` one exclusive holder: fence, since, began, lease, claim (32 bytes), kind (1 byte),
//!     meta.
//!   - `1w` the same with waiters: before the meta `alive_until`, head, holes, count.
//!   - `1g` everything else: a MessagePack list of last fence, kind, `alive_until`, head, holes,
//!     count, holders, mark, seal, tombstones.
//! - `q<seq>` is a waiter: since, began, lease, claim, then `<mode> <min_hold> <once_per> <meta>`.
//! - `c<claim>` is the `seq` of that waiter.
//!
//! A number is a little-endian double of 8 bytes, which has every digit of a whole number below
//! 2^53: a script reads and writes all of a state in one step each. Times and spans are
//! microseconds of the server's clock. An end is never stored, but a beginning and a span: see
//! `line.lua`. Kinds are `m`, `r`, `s<limit>`, modes `x`, `s`, `p<count>`; meta is
//! `<length>:<inbox><length>:<owner>`, and `+<reason>` if there is one.
//!
//! # The replies
//!
//! | reply | to | meaning |
//! |---|---|---|
//! | a fence | claim, renewal, change | the claim holds |
//! | `Q` ahead, ask_in | claim, renewal | the claim waits |
//! | `B` why, ask_in, holder | claim | busy: 1 too soon, 2 held or closed |
//! | `{S}`, `{K, kind}`, `{M}`, `{F}` | claim | sealed, other kind, mode does not fit, no fence left |
//! | `e`, `n`, `u`, `t`, `r`, `s`, `o` | renewal, change | gone: expired, ended, unknown, taken, revoked, sealed, too soon |
//! | 1, 0 | release | done, already lost |
//! | `D`, `N`, a fence | revocation | done, not held, another holder |
//! | 1, 0 | clearing of marks | there was a mark, there was none |
//! | `{?, why}` | all | the key is not a line of this version |
//!
//! A push is `g<claim><fence>` for a grant, or a letter of the fifth row and the claim.
//!
//! # The scripts
//!
//! Each script begins with `head.lua`. A `…_fast.lua` is the path of nearly all calls and returns
//! before `line.lua` makes its functions, which would cost as much again. A fast path must do what
//! the general path would have done: the tests compare both with [`crate::line::Line`].
//!
//! A claim and a release are also functions of one more script, which runs many of them on as many
//! keys: the same texts, so the same replies, and the fixed cost of a script is paid once.

mod reply;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::time::Duration;

pub(super) use reply::{Push, claim_answer, cleared, push, released, revoked, standing, view};

use super::client::{Call, Script};
use crate::fence::Fence;
use crate::store::{Claim, ClaimRef, Ending, Kind, Mode};

/// A script that is one verb, with the key and these words as its arguments.
macro_rules! script {
    ($words:literal, $($file:literal),+) => {
        Script::new(concat!(
            include_str!("head.lua"),
            "local key, ", $words, " = KEYS[1], unpack(ARGV)\n",
            include_str!("read_state.lua"),
            $(include_str!($file)),+
        ))
    };
}

/// The same verb as a function.
macro_rules! function {
    ($name:literal, $words:literal, $($file:literal),+) => {
        concat!("local function ", $name, "(key, ", $words, ")\n", include_str!("read_state.lua"), $(include_str!($file),)+ "end\n")
    };
}

macro_rules! claim {
    ($make:ident!($($name:literal)?)) => {
        $make!($($name,)? "how, wanted, min_hold, once_per", "claim_fast.lua", "line.lua", "claim.lua")
    };
}

macro_rules! release {
    ($make:ident!($($name:literal)?)) => {
        $make!($($name,)? "claim, fence, ending, keep", "release_fast.lua", "line.lua", "release.lua")
    };
}

static CLAIM: Script = claim!(script!()).batched_as(b'c', &BATCH);
static RENEW: Script = script!(
    "claim, fence, inbox",
    "renew_fast.lua",
    "line.lua",
    "renew.lua"
);
static RELEASE: Script = release!(script!()).batched_as(b'r', &BATCH);
static DOWNGRADE: Script = script!("claim, fence", "line.lua", "downgrade.lua");
static PROCLAIM: Script = script!("claim, fence, owner", "line.lua", "proclaim.lua");
// No claim makes these events: `claim` stays nil, and all claims are pushed to.
static REVOKE: Script = script!("fence, claim", "line.lua", "revoke.lua");
static CLEAR_MARKS: Script = script!("claim", "line.lua", "clear_marks.lua");
static SHOW: Script = script!("claim", "line.lua", "show.lua");

/// Several claims and releases at once, each on its own key.
static BATCH: Script = Script::new(concat!(
    include_str!("head.lua"),
    claim!(function!("claim")),
    release!(function!("release")),
    include_str!("batch.lua")
));

/// A Lua function `holds(state, claim, fence, now)`, for scripts that write to a key beside the
/// lock: whether this claim holds by this fence (decimal), alone, at this time (microseconds).
/// `state` is the field `s` of the lock's key.
#[cfg(test)]
pub(super) const HOLDS: &str = include_str!("holds.lua");

/// Asks for the name. Pushes to the claim go to this inbox. A claim that is already in line keeps
/// its place.
pub(super) fn claim(key: &str, claim: &Claim, inbox: &str) -> Call {
    let how = how(claim);
    let kind = how.as_bytes().get(1).copied().unwrap_or(b'!');
    // As the state of a held name has it: the script copies it.
    let mut wanted = (micros(claim.lease) as f64).to_le_bytes().to_vec();
    wanted.extend_from_slice(&claim.id.digits());
    wanted.push(kind);
    push_counted(&mut wanted, inbox);
    push_counted(&mut wanted, &claim.owner);
    if let Some(reason) = &claim.reason {
        wanted.push(b'+');
        wanted.extend_from_slice(reason.as_bytes());
    }
    let call = Call::new(&CLAIM, key).text(&how).bytes(&wanted);
    // No span asks for the same as a span of nothing.
    let [min_hold, once_per] = [claim.min_hold, claim.once_per]
        .map(|span| span.filter(|span| !span.is_zero()).map(micros));
    match (min_hold, once_per) {
        (None, None) => call,
        (Some(min_hold), None) => call.number(min_hold),
        (None, Some(once_per)) => call.text("").number(once_per),
        (Some(min_hold), Some(once_per)) => call.number(min_hold).number(once_per),
    }
}

/// Extends the lease of a claim that waits or holds. Pushes to it go to this inbox from now on.
pub(super) fn renew(key: &str, claim: &ClaimRef, inbox: &str) -> Call {
    by(Call::new(&RENEW, key), claim).bytes(&counted(inbox))
}

/// Ends a claim in whatever state it is.
pub(super) fn release(key: &str, claim: &ClaimRef, ending: Ending) -> Call {
    let call = by(Call::new(&RELEASE, key), claim);
    match ending {
        Ending::Release => call.text("r"),
        Ending::Undo => call.text("u"),
        Ending::Seal(keep) => call.text("s").number(micros(keep)),
    }
}

/// Turns a writer into a reader.
pub(super) fn downgrade(key: &str, claim: &ClaimRef) -> Call {
    by(Call::new(&DOWNGRADE, key), claim)
}

/// Gives a holder another owner: the value that it proclaims.
pub(super) fn proclaim(key: &str, claim: &ClaimRef, value: &str) -> Call {
    by(Call::new(&PROCLAIM, key), claim).bytes(&counted(value))
}

/// Ends another client's grant.
pub(super) fn revoke(key: &str, fence: Fence) -> Call {
    Call::new(&REVOKE, key).number(fence.get())
}

/// Clears the once-per mark, the seal and every min-hold.
pub(super) fn clear_marks(key: &str) -> Call {
    Call::new(&CLEAR_MARKS, key)
}

/// Shows the line. Changes nothing.
pub(super) fn show(key: &str) -> Call {
    Call::new(&SHOW, key)
}

fn by(call: Call, claim: &ClaimRef) -> Call {
    let call = call.bytes(&claim.claim.id.digits());
    match claim.fence {
        Some(fence) => call.number(fence.get()),
        None => call.text(""),
    }
}

/// A span as the scripts take it: never shorter than it is, and so short that no sum with a time
/// loses digits.
fn micros(span: Duration) -> u64 {
    const LONGEST: u64 = 10_u64.pow(15);
    span.as_secs()
        .saturating_mul(1_000_000)
        .saturating_add(span.subsec_nanos().div_ceil(1000).into())
        .min(LONGEST)
}

/// Whether the claim may queue (`q`) or not (`n`), its kind and its mode. `!` for a mode that does
/// not fit the kind.
fn how(claim: &Claim) -> Cow<'static, str> {
    let one_of = |queues, only_tries| if claim.queue { queues } else { only_tries };
    match (claim.kind, claim.mode) {
        (Kind::Mutex, Mode::Exclusive) => one_of("qmx", "nmx").into(),
        (Kind::RwLock, Mode::Exclusive) => one_of("qrx", "nrx").into(),
        (Kind::RwLock, Mode::Shared) => one_of("qrs", "nrs").into(),
        (Kind::Semaphore { limit }, Mode::Permits(count)) if (1..=limit).contains(&count) => {
            format!("{}s{limit} p{count}", one_of("q", "n")).into()
        }
        _ => "!".into(),
    }
}

/// Appends a text behind its own length, so that it may contain anything.
fn push_counted(words: &mut Vec<u8>, text: &str) {
    words.extend_from_slice(text.len().to_string().as_bytes());
    words.push(b':');
    words.extend_from_slice(text.as_bytes());
}

fn counted(text: &str) -> Vec<u8> {
    let mut counted = Vec::with_capacity(text.len() + 8);
    push_counted(&mut counted, text);
    counted
}
