//! The format `table`: the calls of the routines, and their replies.
//!
//! `line.sql` and `claim_rows.sql` are the tables. `step.sql` is one event of [`crate::line`] on a
//! locked line, and the other routines are the verbs: each has short paths for a line with one
//! exclusive holder, which do what `step` would have done. The tests compare all of them with
//! [`crate::line::Line`].
//!
//! # Bells
//!
//! A claim that waits or holds has a bell: a lock of `GET_LOCK`, which its client's session takes
//! with the claim and gives back after the release is committed. A waiter waits for the bell of the
//! claim before it. The bell only wakes; the line decides.

mod reply;

use std::sync::Arc;
use std::time::Duration;

use mysql_async::Value;

pub(super) use self::reply::{
    Seen, answer, cleared, count, released, renewed, revoked, seen, standing, views,
};
use super::client::Statement;
use super::schema::Schema;
use crate::fence::Fence;
use crate::store::{Change, Claim, ClaimId, ClaimRef, Ending};
use crate::stores::sql::{kind_word, micros, mode_word};

/// How many lines one page has.
pub(super) const PAGE: usize = 200;

/// Where a claim waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Spot {
    /// The claim whose bell it waits for.
    pub(super) bell: Option<ClaimId>,
    pub(super) ahead: Option<u32>,
    /// Whether other claims may let it in as well, which ring other bells.
    pub(super) many: bool,
}

/// The texts of the calls.
pub(super) struct Texts {
    claim: Arc<str>,
    renew: Arc<str>,
    release: Arc<str>,
    change: Arc<str>,
    wait: Arc<str>,
    sweep: Arc<str>,
    ring: Arc<str>,
    show: Arc<str>,
    list: Arc<str>,
}

/// The columns of lines with their claims. One statement, so that it sees one state of them.
macro_rules! lines {
    ($which:literal) => {
        concat!(
            "SELECT {now}, l.name, l.state, l.kind, l.permits, l.fence, l.owner, l.reason, l.since, l.expiry, \
             l.mark_at, l.mark_span, l.seal_until, \
             c.state, c.fence, c.mode, c.permits, c.owner, c.reason, c.since, c.expiry, c.keep_until FROM ",
            $which,
            " ORDER BY l.name, c.state, IF(c.state = 'waits', c.seq, c.fence)"
        )
    };
}

impl Texts {
    pub(super) fn of(schema: &Schema) -> Texts {
        Texts {
            claim: schema.text("CALL {do_claim}(?,?,?,?,?,?,?,?,?,?,?,?)"),
            renew: schema.text("CALL {renew}(?,?)"),
            release: schema.text("CALL {release}(?,?,?,?,?)"),
            change: schema.text("CALL {change}(?,?,?,?,?)"),
            wait: schema.text("CALL {wait}(?,?,?,?)"),
            sweep: schema.text("CALL {sweep}(?,?)"),
            ring: schema.text("DO RELEASE_LOCK({bell}(?))"),
            show: schema.text(lines!(
                "{line} AS l LEFT JOIN {claim} AS c ON c.name = l.name AND c.state <> ? WHERE l.name = ?"
            )),
            list: schema.text(lines!(
                "(SELECT * FROM {line} WHERE name > ? AND name >= ? AND LEFT(name, ?) = ? ORDER BY name LIMIT ?) AS l \
                 LEFT JOIN {claim} AS c ON c.name = l.name"
            )),
        }
    }

    /// Asks for the name.
    pub(super) fn claim(&self, key: &str, claim: &Claim) -> Statement {
        let ((kind, limit), (mode, permits)) = (kind_word(claim.kind), mode_word(claim.mode));
        let span = |span: Option<Duration>| span.map_or(0, micros);
        Statement {
            sql: Arc::clone(&self.claim),
            values: vec![
                key.into(),
                id(claim.id),
                kind.into(),
                limit.into(),
                mode.into(),
                permits.into(),
                claim.queue.into(),
                (&*claim.owner).into(),
                claim.reason.as_deref().map_or(Value::NULL, Value::from),
                micros(claim.lease).into(),
                span(claim.min_hold).into(),
                span(claim.once_per).into(),
            ],
        }
    }

    /// Renews claims, which are sorted by their keys. Each with whether to take its bell. `skip` says
    /// not to wait for rows that other sessions have locked.
    pub(super) fn renew(&self, claims: &[(String, &ClaimRef, bool)], skip: bool) -> Statement {
        let mut list = Vec::new();
        for (key, ClaimRef { claim, fence }, bell) in claims {
            // No key is longer than 1024 bytes.
            let size = u16::try_from(key.len()).unwrap_or_default();
            list.extend_from_slice(&size.to_be_bytes());
            list.extend_from_slice(&claim.id.bits().to_be_bytes());
            list.extend_from_slice(&fence.map_or(0, Fence::get).to_be_bytes());
            list.push((*bell).into());
            list.extend_from_slice(key.as_bytes());
        }
        Statement {
            sql: Arc::clone(&self.renew),
            values: vec![list.into(), skip.into()],
        }
    }

    /// Ends a claim in whatever state it is.
    pub(super) fn release(&self, key: &str, claim: &ClaimRef, ending: Ending) -> Statement {
        let (ending, keep) = match ending {
            Ending::Release => ("release", 0),
            Ending::Undo => ("undo", 0),
            Ending::Seal(keep) => ("seal", micros(keep)),
        };
        Statement {
            sql: Arc::clone(&self.release),
            values: vec![
                ending.into(),
                key.into(),
                id(claim.claim.id),
                fence(claim.fence),
                keep.into(),
            ],
        }
    }

    /// Turns a holder's claim into something else.
    pub(super) fn change(&self, key: &str, claim: &ClaimRef, to: &Change) -> Statement {
        let (verb, value) = match to {
            Change::Detach => ("detach", Value::NULL),
            Change::Downgrade => ("downgrade", Value::NULL),
            Change::Proclaim(value) => ("proclaim", (&**value).into()),
        };
        self.event(verb, key, id(claim.claim.id), claim.fence, value)
    }

    /// Ends another client's grant.
    pub(super) fn revoke(&self, key: &str, fence: Fence) -> Statement {
        self.event("revoke", key, Value::NULL, Some(fence), Value::NULL)
    }

    /// Clears the once-per mark, the seal and every min-hold.
    pub(super) fn clear(&self, key: &str) -> Statement {
        self.event("clear", key, Value::NULL, None, Value::NULL)
    }

    fn event(
        &self,
        verb: &str,
        key: &str,
        claim: Value,
        by: Option<Fence>,
        value: Value,
    ) -> Statement {
        Statement {
            sql: Arc::clone(&self.change),
            values: vec![verb.into(), key.into(), claim, fence(by), value],
        }
    }

    /// Waits for a bell, for whole seconds.
    pub(super) fn wait(&self, key: &str, claim: ClaimId, bell: ClaimId, seconds: u64) -> Statement {
        Statement {
            sql: Arc::clone(&self.wait),
            values: vec![key.into(), id(claim), id(bell), seconds.into()],
        }
    }

    /// Gives a bell back.
    pub(super) fn ring(&self, claim: ClaimId) -> Statement {
        Statement {
            sql: Arc::clone(&self.ring),
            values: vec![id(claim)],
        }
    }

    /// Deletes some lines that nothing was in for so long.
    pub(super) fn sweep(&self, age: Duration, most: i64) -> Statement {
        Statement {
            sql: Arc::clone(&self.sweep),
            values: vec![micros(age).into(), most.into()],
        }
    }

    /// Shows one line, with or without its waiters.
    pub(super) fn show(&self, key: &str, waiters: bool) -> Statement {
        let without = if waiters { "" } else { "waits" };
        Statement {
            sql: Arc::clone(&self.show),
            values: vec![without.into(), key.into()],
        }
    }

    /// Shows a page of the lines whose keys begin so, behind a key.
    pub(super) fn list(&self, begin: &str, after: &[u8]) -> Statement {
        Statement {
            sql: Arc::clone(&self.list),
            values: vec![
                after.into(),
                begin.into(),
                (begin.len() as u64).into(),
                begin.into(),
                (PAGE as u64).into(),
            ],
        }
    }
}

fn id(claim: ClaimId) -> Value {
    claim.bits().to_be_bytes().as_slice().into()
}

fn fence(fence: Option<Fence>) -> Value {
    fence.map_or(Value::NULL, |fence| fence.get().into())
}
