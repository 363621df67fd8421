//! The format `table`: the line of one name as rows, changed by one procedure that follows
//! [`crate::line`].
//!
//! `tables.sql` has the columns, `step.sql` the procedure. A call applies any number of events, each
//! to its own line, in one transaction, and answers for each.

use std::sync::Arc;

use tokio_postgres::Row;

use super::failure::unexpected;
use super::inspect::fence;
use crate::error::Result;
use crate::fence::Fence;
use crate::line::{ClaimError, Told};
use crate::store::{
    Answer, Busy, Claim, ClaimId, ClaimRef, Ending, Grant, Holder, Kind, Lease, Mode, Place,
    Released, Revoked, Standing,
};
use crate::stores::sql::{check_text, gone, kind, kind_word, micros, mode, mode_word, span};

/// One event, as the procedure takes it.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) verb: &'static str,
    pub(super) key: String,
    pub(super) claim: Vec<u8>,
    pub(super) fence: Option<i64>,
    /// The claim as it was made; only a claim needs it.
    pub(super) details: Option<Arc<Claim>>,
    pub(super) text: String,
    pub(super) span: i64,
}

fn number(fence: Fence) -> i64 {
    i64::try_from(fence.get()).unwrap_or(i64::MAX)
}

impl Event {
    fn of(verb: &'static str, key: String, claim: &ClaimRef) -> Event {
        Event {
            verb,
            key,
            claim: claim.claim.id.bits().to_be_bytes().to_vec(),
            fence: claim.fence.map(number),
            details: None,
            text: String::new(),
            span: 0,
        }
    }

    /// Asks for the name.
    pub(super) fn claim(key: String, claim: &Arc<Claim>) -> Result<Event> {
        let fits = match (claim.kind, claim.mode) {
            (Kind::Mutex | Kind::RwLock, Mode::Exclusive) | (Kind::RwLock, Mode::Shared) => true,
            (Kind::Semaphore { limit }, Mode::Permits(count)) => (1..=limit).contains(&count),
            _ => false,
        };
        if !fits {
            return Err(ClaimError::ModeMisfit {
                kind: claim.kind,
                mode: claim.mode,
            }
            .of(&claim.name));
        }
        check_text("owner", &claim.owner)?;
        check_text("reason", claim.reason.as_deref().unwrap_or_default())?;
        Ok(Event {
            details: Some(Arc::clone(claim)),
            ..Event::of("claim", key, &claim.to_ref(None))
        })
    }

    pub(super) fn renew(key: String, claim: &ClaimRef) -> Event {
        Event::of("renew", key, claim)
    }

    pub(super) fn downgrade(key: String, claim: &ClaimRef) -> Event {
        Event::of("downgrade", key, claim)
    }

    pub(super) fn proclaim(key: String, claim: &ClaimRef, value: &str) -> Result<Event> {
        check_text("value", value)?;
        Ok(Event {
            text: value.to_owned(),
            ..Event::of("proclaim", key, claim)
        })
    }

    pub(super) fn release(key: String, claim: &ClaimRef, ending: Ending) -> Event {
        let (text, span) = match ending {
            Ending::Release => ("release", 0),
            Ending::Undo => ("undo", 0),
            Ending::Seal(keep) => ("seal", micros(keep)),
        };
        Event {
            text: text.to_owned(),
            span,
            ..Event::of("release", key, claim)
        }
    }

    /// An event that no claim makes.
    pub(super) fn by_operator(verb: &'static str, key: String, fence: Option<Fence>) -> Event {
        Event {
            verb,
            key,
            claim: Vec::new(),
            fence: fence.map(number),
            details: None,
            text: String::new(),
            span: 0,
        }
    }
}

/// Events as the procedure takes them: one array for each part.
#[derive(Default)]
pub(super) struct Columns {
    pub(super) verbs: Vec<&'static str>,
    pub(super) keys: Vec<String>,
    pub(super) claims: Vec<Vec<u8>>,
    pub(super) fences: Vec<Option<i64>>,
    pub(super) kinds: Vec<&'static str>,
    pub(super) capacities: Vec<i64>,
    pub(super) modes: Vec<&'static str>,
    pub(super) permits: Vec<i64>,
    pub(super) owners: Vec<String>,
    pub(super) reasons: Vec<Option<String>>,
    pub(super) leases: Vec<i64>,
    pub(super) queues: Vec<bool>,
    pub(super) min_holds: Vec<i64>,
    pub(super) once_pers: Vec<i64>,
    pub(super) texts: Vec<String>,
    pub(super) spans: Vec<i64>,
}

impl Columns {
    pub(super) fn of(events: &[Event]) -> Columns {
        let mut columns = Columns::default();
        for event in events {
            columns.verbs.push(event.verb);
            columns.keys.push(event.key.clone());
            columns.claims.push(event.claim.clone());
            columns.fences.push(event.fence);
            columns.texts.push(event.text.clone());
            columns.spans.push(event.span);
            let claim = event.details.as_deref();
            let (kind, capacity) = claim.map_or(("", 0), |claim| kind_word(claim.kind));
            let (mode, permits) = claim.map_or(("", 0), |claim| mode_word(claim.mode));
            columns.kinds.push(kind);
            columns.capacities.push(capacity);
            columns.modes.push(mode);
            columns.permits.push(permits);
            let owner = claim.map(|claim| claim.owner.to_string());
            columns.owners.push(owner.unwrap_or_default());
            let reason = claim.and_then(|claim| claim.reason.as_deref());
            columns.reasons.push(reason.map(str::to_owned));
            columns
                .leases
                .push(claim.map_or(0, |claim| micros(claim.lease)));
            columns.queues.push(claim.is_some_and(|claim| claim.queue));
            let span = |of: fn(&Claim) -> Option<std::time::Duration>| {
                claim.and_then(of).map_or(0, micros)
            };
            columns.min_holds.push(span(|claim| claim.min_hold));
            columns.once_pers.push(span(|claim| claim.once_per));
        }
        columns
    }
}

/// The answer to one event.
#[derive(Clone, Debug)]
pub(super) struct Answered {
    word: String,
    fence: i64,
    ahead: i64,
    ask_in: i64,
    holder: Option<Holder>,
}

const NUMBERS: usize = 7;
const WORDS: usize = 4;

/// The answers of a call, in the order of its events.
/// `None` for one whose row is locked.
pub(super) fn answers(row: &Row, events: usize) -> Result<Vec<Option<Answered>>> {
    let numbers: Vec<Option<i64>> = row.try_get(0).map_err(|_| unexpected())?;
    let words: Vec<Option<String>> = row.try_get(1).map_err(|_| unexpected())?;
    if numbers.len() != NUMBERS * events || words.len() != WORDS * events {
        return Err(unexpected());
    }
    let mut answers: Vec<Option<Answered>> = vec![None; events];
    let mut locked = 0;
    for (numbers, words) in numbers.chunks(NUMBERS).zip(words.chunks(WORDS)) {
        let [
            Some(place),
            Some(number),
            Some(ahead),
            Some(ask_in),
            held,
            left,
            permits,
        ] = *numbers
        else {
            return Err(unexpected());
        };
        let [Some(word), owner, reason, mode_word] = words else {
            return Err(unexpected());
        };
        let holder = match (owner, mode_word) {
            (Some(owner), Some(word)) => Some(Holder {
                owner: owner.clone(),
                reason: reason.clone(),
                fence: fence(number)?,
                mode: mode(word, permits.unwrap_or(0)).ok_or_else(unexpected)?,
                held: span(held.unwrap_or(-1)),
                lease_left: span(left.unwrap_or(-1)),
            }),
            _ => None,
        };
        if word == "locked" {
            locked += 1;
            continue;
        }
        let at = usize::try_from(place - 1).map_err(|_| unexpected())?;
        *answers.get_mut(at).ok_or_else(unexpected)? = Some(Answered {
            word: word.clone(),
            fence: number,
            ahead,
            ask_in,
            holder,
        });
    }
    let missing = answers.iter().filter(|answer| answer.is_none()).count();
    if missing == locked {
        Ok(answers)
    } else {
        Err(unexpected())
    }
}

impl Answered {
    fn grant(&self, claim: &Claim) -> Result<Grant> {
        Ok(Grant {
            fence: fence(self.fence)?,
            lease: Lease::of(claim.lease),
        })
    }

    fn place(&self, claim: &Claim) -> Place {
        Place {
            ahead: u32::try_from(self.ahead).ok(),
            ask_in: span(self.ask_in),
            lease: Lease::of(claim.wait_lease()),
            holder: None,
        }
    }

    pub(super) fn of_claim(self, claim: &Claim) -> Result<Answer> {
        Ok(match self.word.as_str() {
            "held" => Answer::Granted(self.grant(claim)?),
            "waiting" => Answer::Queued(self.place(claim)),
            "sealed" => Answer::Sealed,
            word @ ("busy" | "too soon") => Answer::Busy(Busy {
                ask_in: span(self.ask_in),
                too_soon: word == "too soon",
                closed: word == "busy" && self.holder.is_none() && self.fence == 0,
                holder: self.holder,
                woken: false,
            }),
            "spent" => return Err(ClaimError::FencesSpent.of(&claim.name)),
            word => {
                let in_use = word.strip_prefix("kind ").ok_or_else(unexpected)?;
                return Err(ClaimError::KindConflict {
                    in_use: kind(Some(in_use), self.fence).ok_or_else(unexpected)?,
                    asked: claim.kind,
                }
                .of(&claim.name));
            }
        })
    }

    pub(super) fn standing(&self, claim: &Claim) -> Result<Standing> {
        Ok(match self.word.as_str() {
            "held" => Standing::Held(self.grant(claim)?),
            "waiting" => Standing::Waiting(self.place(claim)),
            why => Standing::Gone(gone(why).ok_or_else(unexpected)?),
        })
    }

    pub(super) fn released(&self) -> Result<Released> {
        match self.word.as_str() {
            "done" => Ok(Released::Done),
            "lost" => Ok(Released::AlreadyLost),
            _ => Err(unexpected()),
        }
    }

    pub(super) fn revoked(&self) -> Result<Revoked> {
        match self.word.as_str() {
            "done" => Ok(Revoked::Done),
            "none" => Ok(Revoked::NotHeld),
            "other" => Ok(Revoked::OtherHolder {
                fence: fence(self.fence)?,
            }),
            _ => Err(unexpected()),
        }
    }

    pub(super) fn cleared(&self) -> bool {
        self.word == "done"
    }
}

/// Reads a push; `None` for a message that no routine of ours sent.
pub(super) fn push(text: &str) -> Option<Told> {
    let (rest, number) = text.rsplit_once(' ')?;
    let (word, claim) = rest.rsplit_once(' ')?;
    let claim = ClaimId::parse(claim)?;
    Some(match word {
        "granted" => Told::Granted {
            claim,
            fence: Fence::new(number.parse().ok()?)?,
        },
        why => Told::Gone {
            claim,
            why: gone(why)?,
        },
    })
}
