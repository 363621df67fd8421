//! What the servers are to each other: independent, and old enough.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::store::ClientHandle;
use crate::stores::redis::client::{Address, Facts};

pub(super) struct Members {
    pub(super) count: usize,
    longest_lease: Option<Duration>,
    seen: Mutex<Vec<Seen>>,
    pub(super) handle: OnceLock<ClientHandle>,
}

#[derive(Clone, Default)]
struct Seen {
    /// Where the process was reached that has this id.
    process: Option<(Address, String)>,
    lost: bool,
}

impl Members {
    pub(super) fn new(count: usize, longest_lease: Option<Duration>) -> Members {
        Members {
            count,
            longest_lease,
            seen: Mutex::new(vec![Seen::default(); count]),
            handle: OnceLock::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many servers are a majority.
    pub(super) fn quorum(&self) -> usize {
        self.count / 2 + 1
    }

    /// Notes which process is at this place, before it is asked for anything. One that is at another
    /// place already would have two votes.
    pub(super) fn admit(&self, place: usize, address: &Address, facts: &Facts) -> Result<()> {
        if facts.is_in_cluster {
            return Err(Error::bad_url(format!(
                "{address} is part of a cluster, and cannot vote alone; write redis+cluster://{address}, or independent servers"
            )));
        }
        let mut seen = self.lock();
        let is_same = |other: &Seen| {
            let (address, id) = other.process.as_ref()?;
            (*id == facts.run_id).then(|| address.clone())
        };
        let others = seen.iter().enumerate().filter(|(at, _)| *at != place);
        if let Some(twin) = others.filter_map(|(_, other)| is_same(other)).next() {
            return Err(Error::bad_url(format!(
                "{address} and {twin} are one server, which would have two votes; write independent servers into the URL"
            )));
        }
        if let Some(mine) = seen.get_mut(place) {
            mine.process = Some((address.clone(), facts.run_id.clone()));
        }
        Ok(())
    }

    /// When a server is old enough to vote: a grant that it may have lost by a restart has ended by
    /// then. `None`: it is.
    pub(super) fn votes_from(&self, facts: &Facts) -> Option<Instant> {
        let missing = self.longest_lease?.checked_sub(facts.up_for)?;
        Some(facts.at + missing)
    }

    pub(super) fn lost(&self, place: usize) {
        if self.set_lost(place, true)
            && let Some(client) = self.handle.get()
        {
            client.contact_lost();
        }
    }

    /// The server may have lost grants meanwhile: all are renewed.
    pub(super) fn regained(&self, place: usize) {
        if !self.set_lost(place, false)
            && let Some(client) = self.handle.get()
        {
            client.contact_regained();
        }
    }

    /// Whether too few are left for a majority.
    fn set_lost(&self, place: usize, lost: bool) -> bool {
        let mut seen = self.lock();
        if let Some(mine) = seen.get_mut(place) {
            mine.lost = lost;
        }
        seen.iter().filter(|member| !member.lost).count() < self.quorum()
    }
}
