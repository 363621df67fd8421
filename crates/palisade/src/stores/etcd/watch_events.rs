//! What watches tell: of the key that a claim waits for, and of its own.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::client::proto::KeyValue;
use super::client::watch::Told;
use super::entry::{Entry, Purpose};
use super::session::Session;
use super::shared::{Shared, locked};
use crate::lease::{BootClock, Clock};
use crate::store::{ClaimId, Gone, Mode, Woken};

/// The key of a claim is watched only after so long: most holds and most waits are shorter, and then a watch would cost more than
/// the lock. Until then a look tells whether it is there: when a waiter is granted, and at every renewal.
const UNWATCHED: Duration = Duration::from_millis(100);

/// How long a waiter that stands behind another one may miss what happened between its look and its watch. The server's own
/// loop for watches in the past takes as long.
const UNSEEN: Duration = Duration::from_millis(100);

impl Shared {
    pub(super) fn on_blocker(self: &Arc<Self>, claim: ClaimId, told: Told<'_>) {
        let mut book = self.claims.lock();
        let Some(known) = book.known.get_mut(&claim) else { return };
        let mode = known.mode;
        let Some(waiting) = known.waiting.as_mut() else { return };
        let ask = match told {
            // Something was written between our look at the line and the opening of the watch.
            Told::Opened(revision) if revision != waiting.seen => {
                if !waiting.is_near {
                    self.cluster.lanes.spawn(look_later(Arc::downgrade(self), claim, waiting.watch));
                }
                waiting.is_near
            }
            Told::Opened(_) | Told::Closed | Told::Settled | Told::Denied => false,
            // An earlier key by the same name, of which the line that we have read knew already.
            Told::Deleted(kv) if kv.mod_revision <= waiting.seen => false,
            Told::Deleted(kv) => {
                waiting.heard = waiting.heard.max(kv.mod_revision);
                let ask = waiting.blocker.deleted(&kv.key);
                waiting.told |= ask;
                ask
            }
            // What the line that we have read knew already.
            Told::Changed(kv) if kv.mod_revision <= waiting.seen => false,
            // A key that only moves to another lease tells nothing, but to who waits for permits: its owner has got them.
            Told::Changed(kv) => waiting.blocker.watched().is_some() && (matches!(mode, Mode::Permits(_)) || lets_others_on(kv)),
        };
        if ask {
            let mailbox = Arc::clone(&waiting.mailbox);
            drop(book);
            mailbox.push(Woken::Ask);
        }
    }

    fn watch_own(self: &Arc<Self>, claim: ClaimId, key: &[u8]) -> i64 {
        let shared = Arc::downgrade(self);
        self.watcher.open(key.to_vec(), Vec::new(), move |told| {
            if let Some(shared) = shared.upgrade() {
                shared.on_own_key(claim, told);
            }
        })
    }

    pub(super) fn on_own_key(self: &Arc<Self>, claim: ClaimId, told: Told<'_>) {
        let mut book = self.claims.lock();
        let Some(known) = book.known.get_mut(&claim) else { return };
        match told {
            Told::Opened(_) => {
                known.opened = true;
                // What happened before it was opened only a look can tell. Waiters look when it is their turn.
                let looks = known.waiting.is_none() && !known.verified;
                drop(book);
                if looks {
                    self.watch_soon(claim);
                }
            }
            Told::Closed | Told::Denied => (known.opened, known.verified) = (false, false),
            Told::Changed(_) | Told::Settled => {}
            // An earlier claim's, which had the same key: a member that is behind tells of it only now.
            Told::Deleted(kv) if kv.mod_revision <= known.revision => {}
            Told::Deleted(_) => {
                known.verified = false;
                let mailbox = known.waiting.as_ref().map(|waiting| Arc::clone(&waiting.mailbox));
                let (session, revision) = (Arc::clone(&known.session), known.revision);
                drop(book);
                match mailbox {
                    // Its next question finds out.
                    Some(mailbox) => mailbox.push(Woken::Ask),
                    None => self.cluster.lanes.spawn(classify_loss(Arc::downgrade(self), claim, revision, session)),
                }
            }
        }
    }

    /// Watches the key of a claim that was made or granted just now, if it is still there a moment later; and looks at it once the
    /// watch is open: the next renewal may be far away, and not everybody who holds renews.
    pub(super) fn watch_soon(self: &Arc<Self>, claim: ClaimId) {
        let mut fresh = locked(&self.fresh);
        fresh.0.push((claim, BootClock.now()));
        if !std::mem::replace(&mut fresh.1, true) {
            self.cluster.lanes.spawn(look_after(Arc::downgrade(self)));
        }
    }

    /// Opens the watches of those who still hold or wait. `None` when there was nobody; else those who hold and are watched, but
    /// were not seen since.
    fn watch_fresh(self: &Arc<Self>) -> Option<Vec<ClaimId>> {
        let mut fresh = locked(&self.fresh);
        let is_needed = !fresh.0.is_empty();
        fresh.1 = is_needed;
        let now = BootClock.now();
        let (claims, younger): (Vec<_>, Vec<_>) =
            std::mem::take(&mut fresh.0).into_iter().partition(|(_, since)| now.since(*since) >= UNWATCHED);
        fresh.0 = younger;
        drop(fresh);
        let mut unseen = Vec::new();
        for (claim, _) in &claims {
            let mut book = self.claims.lock();
            let Some(known) = book.known.get_mut(claim) else { continue };
            if known.own_watch.is_none() {
                known.own_watch = Some(self.watch_own(*claim, &known.seat.key));
            } else if known.waiting.is_none() && known.opened && !known.verified {
                unseen.push(*claim);
            }
        }
        is_needed.then_some(unseen)
    }
}

/// Whether a key's new value lets those behind it on, or turns them away: it has become a reader's, or sealed the name.
fn lets_others_on(kv: &KeyValue) -> bool {
    match Entry::read(kv.clone()) {
        Ok(entry) => entry.mode == Mode::Shared || entry.purpose == Purpose::Sealed,
        Err(_) => true,
    }
}

async fn look_after(shared: Weak<Shared>) {
    loop {
        tokio::time::sleep(UNWATCHED).await;
        let Some(shared) = shared.upgrade() else { return };
        let Some(unseen) = shared.watch_fresh() else { return };
        if !unseen.is_empty() {
            shared.look_again(&unseen).await;
        }
    }
}

/// Lets a waiter that stands behind another one look again after a moment: both would have had to leave between its look and its
/// watch, and mostly it is served before that.
async fn look_later(shared: Weak<Shared>, claim: ClaimId, watch: Option<i64>) {
    tokio::time::sleep(UNSEEN).await;
    let Some(shared) = shared.upgrade() else { return };
    let book = shared.claims.lock();
    let Some(waiting) = book.known.get(&claim).and_then(|known| known.waiting.as_ref()) else { return };
    if waiting.watch == watch && !waiting.told {
        let mailbox = Arc::clone(&waiting.mailbox);
        drop(book);
        mailbox.push(Woken::Ask);
    }
}

/// The key of a holder was deleted by somebody else: finds out whether its session has ended, or only this claim.
pub(super) async fn classify_loss(shared: Weak<Shared>, claim: ClaimId, revision: i64, session: Arc<Session>) {
    let Some(shared) = shared.upgrade() else { return };
    let left = shared.sessions.left(session.id).await;
    // The same claim may have been made again meanwhile, and that one is not gone.
    let is_new = shared.claims.lock().known.get(&claim).is_none_or(|known| known.revision != revision);
    match left {
        Ok(Some(_)) | Err(_) if is_new => {}
        Ok(None) => shared.session_ended(&session),
        Ok(Some(_)) => shared.ended(claim, Gone::Revoked),
        // It is gone in any case; why is not known.
        Err(_) => shared.ended(claim, Gone::Expired),
    }
}
