//! Ends the claims that are not renewed in their time. Every request of a session keeps all its nodes alive: so the server does not
//! do it, as long as the session is used.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use super::claims::Stage;
use super::cleanup::Leftover;
use super::locks::Locks;
use super::sessions::LockSession;
use super::settings::Format;
use crate::lease::{BootClock, Clock, Moment};
use crate::store::Gone;

/// A claim that is not renewed is ended only so long after its time: its holder has been told by then.
const GRACE: Duration = Duration::from_millis(100);

#[derive(Default)]
pub(super) struct Janitor {
    /// When it looks next; `None` when there is no task.
    looks_at: Mutex<Option<Moment>>,
    sooner: Arc<Notify>,
}

impl Janitor {
    fn looks_at(&self) -> MutexGuard<'_, Option<Moment>> {
        self.looks_at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Locks {
    /// A claim lives until then, unless it is renewed.
    pub(super) fn lives_until(self: &Arc<Self>, until: Moment) {
        let at = until + GRACE;
        let mut looks_at = self.janitor.looks_at();
        match *looks_at {
            None => {
                *looks_at = Some(at);
                tokio::spawn(end_unrenewed(Arc::downgrade(self)));
            }
            Some(looks_at) if at < looks_at => self.janitor.sooner.notify_one(),
            Some(_) => {}
        }
    }

    /// Ends what is overdue; when to look again, if there is anything.
    fn end_overdue(&self) -> Option<Moment> {
        let now = BootClock.now();
        let (mut over, mut next) = (Vec::new(), None);
        {
            // In this order wherever both are taken.
            let mut looks_at = self.janitor.looks_at();
            for (claim, own) in &self.claims.lock().own {
                let over_at = own.until + GRACE;
                match over_at <= now {
                    true => over.push(*claim),
                    false => next = Some(next.map_or(over_at, |next: Moment| next.min(over_at))),
                }
            }
            *looks_at = next;
        }
        for claim in over {
            let Some(own) = self.claims.end(claim, Gone::Expired) else { continue };
            let is_plain = self.settings.format == Format::Plain;
            tokio::spawn(async move {
                let (seat, session) = (&own.entry.seat, &own.entry.session);
                if is_plain {
                    // In its place there may be the node of another client by now.
                    return Leftover::Plain(Arc::clone(seat)).delete_with_retry(session).await;
                }
                // A look that takes permits for it just now is waited for.
                let looking = own.looking.lock().await;
                Leftover::Nodes(own.nodes().into_owned()).delete_with_retry(session).await;
                drop(looking);
                if let (Stage::Waiting(_), Some(_)) = (&own.stage, seat.permits) {
                    Leftover::Claim(Arc::clone(seat)).delete_with_retry(session).await;
                }
            });
            self.sessions.disown(claim).into_iter().for_each(LockSession::close_later);
        }
        next
    }
}

async fn end_unrenewed(locks: Weak<Locks>) {
    loop {
        let Some(strong) = locks.upgrade() else { return };
        let Some(looks_at) = strong.end_overdue() else { return };
        let sooner = Arc::clone(&strong.janitor.sooner);
        // Not kept while we sleep: the client could not end.
        drop(strong);
        let pause = looks_at.since(BootClock.now()).max(Duration::from_millis(1));
        let _ = tokio::time::timeout(pause, sooner.notified()).await;
    }
}
