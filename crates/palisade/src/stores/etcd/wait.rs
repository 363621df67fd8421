//! Waiting in line: the watch of what a claim waits for, and what happens when that goes.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::backend::Backend;
use super::claim::{place, span_of};
use super::claims::{OwnClaim, Slot, Waiting};
use super::client::cluster::Failed;
use super::client::proto::KeyValue;
use super::client::watch::WatchEvent;
use super::client::{spawn, txn};
use super::entry::{Entry, Purpose, Snapshot};
use super::position::{Position, Waiter};
use super::queue_rules::Blocker;
use crate::error::Result;
use crate::lease::{BootClock, Clock};
use crate::store::{Claim, ClaimId, Gone, Mode, Standing};
use crate::stores::kit::session::watch_held::watch_soon;
use crate::stores::kit::session::{gone, record_end, wait as kit};

/// How long a waiter behind another waiter may miss what happened between its look and the opening
/// of its watch. The server's own loop for watches in the past takes as long.
const UNSEEN: Duration = Duration::from_millis(100);

impl kit::Look for Backend {
    /// A late answer changes nothing: keys are compared by their revision.
    const ONE_BY_ONE: bool = false;

    async fn look(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        is_renewal: bool,
    ) -> Result<Option<Standing>, Failed> {
        if is_renewal {
            self.leave_doubtful(claim).await?;
        }
        let Some(waiter) = self.waiter(claim.id) else {
            return Ok(None);
        };
        let outcome = match self.lines.position(&waiter).await {
            Ok(position) => self.take_position(claim, &waiter, position).await,
            Err(failed) => Err(failed),
        };
        match outcome {
            Err(failed) if failed.lease_gone => {
                let full = self.full_session(claim).await?;
                self.find_ended(&[&waiter.slot.session, &full]).await?;
                Ok(None)
            }
            standing => standing.map(Some),
        }
    }
}

impl Backend {
    /// Moves the key of a waiter to another session, if a claim may yet arrive that names its own.
    async fn leave_doubtful(self: &Arc<Self>, claim: &Arc<Claim>) -> Result<()> {
        let Some(slot) = self
            .claims
            .slot(claim.id)
            .filter(|slot| slot.session.is_doubtful())
        else {
            return Ok(());
        };
        let full = self.full_session(claim).await?;
        let wait = self.wait_session(claim, &full).await?;
        match self.move_to_lasting(claim, &slot, &wait).await {
            Ok(()) => self.claims.moved(claim.id, slot.revision, wait),
            // It waits with the session that it has, or is found to be gone.
            Err(failed) => {
                tracing::debug!(error = %failed.error, name = %claim.name, "a waiter's key was not moved")
            }
        }
        Ok(())
    }

    /// Notes where a waiter stands. A late answer changes nothing: the claim may have been given
    /// back, or hold by now.
    async fn take_position(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        waiter: &Waiter,
        position: Position,
    ) -> Result<Standing, Failed> {
        let slot = &waiter.slot;
        match position {
            Position::Missing => {
                // Not only this claim is gone, if its session is.
                self.find_ended(&[&slot.session]).await?;
                Ok(Standing::Gone(record_end(&**self, claim.id, Gone::Revoked)))
            }
            Position::Sealed => {
                record_end(&**self, claim.id, Gone::Sealed);
                self.lines.delete(&slot.key.bytes, slot.revision).await?;
                Ok(Standing::Gone(Gone::Sealed))
            }
            Position::Blocked(blocker, line) => {
                if self.claims.still_waits(claim.id, slot.revision) {
                    self.wait(claim, slot, blocker, &line);
                }
                Ok(Standing::Waiting(place(&slot.session, &line)))
            }
            Position::Held => self.take_turn(claim, slot.clone()).await,
        }
    }

    /// A waiter holds. It keeps the session that it has: nothing is written, so that a hand-off
    /// costs the server one commit. Its next renewal moves it to the full one.
    async fn take_turn(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        mut slot: Slot,
    ) -> Result<Standing, Failed> {
        // Permits are written even where nothing changes: the waiter behind looks then. And a
        // minimum hold must outlast a crash.
        let writes = (matches!(claim.mode, Mode::Permits(_)) || claim.min_hold.is_some())
            && span_of(claim).is_none();
        if writes {
            let full = self.full_session(claim).await?;
            self.move_to_lasting(claim, &slot, &full).await?;
            slot.session = full;
        }
        if slot.session.has_ended() || !self.claims.knows(claim.id, slot.revision) {
            return Err(gone().into());
        }
        if span_of(claim).is_some() {
            return self.grant(claim, slot).await.map(Standing::Held);
        }
        let grant = slot.grant();
        let is_short = !writes && (claim.wait_lease() < claim.lease || claim.detachable);
        self.hold(claim, slot, is_short);
        Ok(Standing::Held(grant))
    }

    /// Notes a claim that holds.
    pub(super) fn hold(self: &Arc<Self>, claim: &Arc<Claim>, slot: Slot, is_short: bool) {
        let line = slot.key.line.clone();
        let is_owned = self
            .sessions
            .owned_by(claim.id)
            .is_some_and(|own| Arc::ptr_eq(&own, &slot.session));
        let mut own = OwnClaim::new(claim, slot);
        own.closed_until = claim.min_hold.map(|span| BootClock.now() + span);
        own.is_span = is_owned && !claim.detachable;
        own.is_short = is_short;
        let mut claims = self.claims.lock();
        if let Some(before) = claims.own.remove(&claim.id) {
            // It waited before, or was sent again: the watch of its own key stays.
            own.watch = before.watch;
            // A downgrade may have changed them.
            (own.kind, own.mode) = (before.kind, before.mode);
            own.closed_until = before
                .closed_until
                .filter(|_| before.waiting.is_none())
                .or(own.closed_until);
            if let Some(Waiting {
                watch: Some(watch),
                blocker,
                ..
            }) = before.waiting
            {
                match blocker.watched() {
                    // It may wait for the same key the next time.
                    Some(_) => self.watches.park(&line, watch),
                    None => self.watches.close(watch),
                }
            }
        }
        let is_watched = own.watch.id.is_some();
        claims.own.insert(claim.id, own);
        drop(claims);
        if !is_watched {
            watch_soon(self, claim.id);
        }
    }

    /// Notes a claim that waits, and watches what it waits for.
    pub(super) fn wait(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        slot: &Slot,
        blocker: Blocker,
        line: &Snapshot,
    ) {
        let mut claims = self.claims.lock();
        let own = claims
            .own
            .entry(claim.id)
            .or_insert_with(|| OwnClaim::new(claim, slot.clone()));
        own.slot = slot.clone();
        let is_new = own.waiting.is_none() && own.watch.id.is_none();
        let before = own.waiting.take();
        let mut waiting = Waiting {
            watch: before.as_ref().and_then(|before| before.watch),
            last_event: before.as_ref().map_or(0, |before| before.last_event),
            seen: line.revision,
            is_near: blocker
                .watched()
                .is_none_or(|key| line.first().is_none_or(|first| first.key == *key)),
            is_woken: false,
            blocker,
        };
        let same_watch =
            before.is_some_and(|before| before.blocker.watched() == waiting.blocker.watched());
        if waiting.watch.is_none() || !same_watch {
            if let Some(other) = waiting.watch.take() {
                self.watches.close(other);
            }
            waiting.last_event = self.watch_blocker(claim.id, slot, &mut waiting);
        }
        // The read does not show this event, and it is not reported again.
        let is_late = waiting.last_event > line.revision;
        own.waiting = Some(waiting);
        if is_late {
            kit::look_soon(self, &mut claims, claim);
        }
        drop(claims);
        if is_new {
            watch_soon(self, claim.id);
        }
    }

    /// Opens the watch of what a claim waits for. The answer is the last revision of which that
    /// watch does not report any more.
    fn watch_blocker(self: &Arc<Self>, claim: ClaimId, slot: &Slot, waiting: &mut Waiting) -> i64 {
        let weak = Arc::downgrade(self);
        let handler = move |event: WatchEvent| {
            if let Some(backend) = weak.upgrade() {
                backend.on_blocker(claim, event);
            }
        };
        let line = &slot.key.line;
        let (watch, reported) = match waiting.blocker.watched() {
            Some(key) => self.watches.open_or_reuse(line, key, handler),
            None => (
                self.watches
                    .open(line.clone(), txn::prefix_end(line), handler),
                None,
            ),
        };
        waiting.watch = Some(watch);
        // A watch that was idle has reported its earlier events, and knows nothing of those before
        // its opening.
        reported.map_or(0, |reported| reported.last.max(reported.opened))
    }

    /// The watch of what a claim waits for has reported something.
    fn on_blocker(self: &Arc<Self>, claim: ClaimId, event: WatchEvent) {
        let mut claims = self.claims.lock();
        let Some(own) = claims.own.get_mut(&claim) else {
            return;
        };
        let (mode, waiter) = (own.mode, Arc::clone(&own.claim));
        let Some(waiting) = own.waiting.as_mut() else {
            return;
        };
        let look = match event {
            // Something was written between our look at the line and the opening of the watch.
            WatchEvent::Opened(revision) if revision != waiting.seen => {
                if !waiting.is_near {
                    spawn(look_later(Arc::downgrade(self), claim, waiting.watch));
                }
                waiting.is_near
            }
            WatchEvent::Opened(_)
            | WatchEvent::Closed
            | WatchEvent::Settled
            | WatchEvent::Denied => false,
            // The line that we have read shows it.
            WatchEvent::Deleted(ref kv) | WatchEvent::Changed(ref kv)
                if kv.mod_revision <= waiting.seen =>
            {
                false
            }
            WatchEvent::Deleted(kv) => {
                waiting.last_event = waiting.last_event.max(kv.mod_revision);
                let look = waiting.blocker.deleted(&kv.key);
                waiting.is_woken |= look;
                look
            }
            // A move to another lease means nothing, except to a waiter for permits: its owner has
            // got them.
            WatchEvent::Changed(kv) => {
                waiting.blocker.watched().is_some()
                    && (matches!(mode, Mode::Permits(_)) || lets_others_on(kv))
            }
        };
        if look {
            kit::look_soon(self, &mut claims, &waiter);
        }
    }
}

/// Whether a key's new value lets the keys behind it on, or turns them away: it has become a
/// reader's, or has sealed the name.
fn lets_others_on(kv: KeyValue) -> bool {
    match Entry::read(kv) {
        Ok(entry) => entry.mode == Mode::Shared || entry.purpose == Purpose::Sealed,
        Err(_) => true,
    }
}

/// Lets a waiter behind another one look again after a moment. Both would have had to leave between
/// its look and the opening of its watch, and mostly its turn comes before that.
async fn look_later(backend: Weak<Backend>, claim: ClaimId, watch: Option<i64>) {
    tokio::time::sleep(UNSEEN).await;
    let Some(backend) = backend.upgrade() else {
        return;
    };
    let mut claims = backend.claims.lock();
    let Some(own) = claims.own.get(&claim) else {
        return;
    };
    let is_due = |waiting: &Waiting| waiting.watch == watch && !waiting.is_woken;
    if own.waiting.as_ref().is_some_and(is_due) {
        let waiter = Arc::clone(&own.claim);
        kit::look_soon(&backend, &mut claims, &waiter);
    }
}
