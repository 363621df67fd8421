//! Ends the claims that nobody renews in their time. Every request of a session keeps all its nodes alive: so the server does not
//! do it, as long as anything else is asked.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::ending::wipe_in_the_end;
use super::known::Stage;
use super::plain::delete_own_in_the_end;
use super::settings::Format;
use super::shared::{Shared, delete_in_the_end, locked};
use crate::lease::{BootClock, Clock, Moment};
use crate::store::Gone;

/// A claim that nobody has renewed is ended by us only so long after its time: its holder has been told by then.
const GRACE: Duration = Duration::from_millis(100);

impl Shared {
    /// A claim lives until then, unless it is renewed: somebody will look.
    pub(super) fn is_over_at(self: &Arc<Self>, until: Moment) {
        let at = until + GRACE;
        let mut janitor = locked(&self.janitor);
        match *janitor {
            None => {
                *janitor = Some(at);
                tokio::spawn(end_unrenewed(Arc::downgrade(self)));
            }
            Some(looks_at) if at < looks_at => self.sooner.notify_one(),
            Some(_) => {}
        }
    }

    /// Ends what is overdue; when to look again, if there is anything.
    fn end_overdue(self: &Arc<Self>) -> Option<Moment> {
        let now = BootClock.now();
        let (mut over, mut next) = (Vec::new(), None);
        {
            // In this order wherever both are taken.
            let mut janitor = locked(&self.janitor);
            let book = self.claims.lock();
            for (claim, known) in &book.known {
                let over_at = known.until + GRACE;
                match over_at <= now {
                    true => over.push(*claim),
                    false => next = Some(next.map_or(over_at, |next: Moment| next.min(over_at))),
                }
            }
            *janitor = next;
        }
        for claim in over {
            let Some(known) = self.ended_alone(claim, Gone::Expired) else { continue };
            let (this, is_plain) = (Arc::downgrade(self), self.settings.format == Format::Plain);
            tokio::spawn(async move {
                if is_plain {
                    // In its place there may be another's by now.
                    let seat = &known.seat;
                    return delete_own_in_the_end(Arc::downgrade(&known.session), seat.base.clone(), seat.guid.clone()).await;
                }
                // Whoever takes permits for it just now is waited for.
                let turn = known.turn.lock().await;
                delete_in_the_end(Arc::downgrade(&known.session), &known.nodes()).await;
                drop(turn);
                if let (Stage::Waiting(_), Some(_)) = (&known.stage, known.seat.permits) {
                    let seat = &known.seat;
                    wipe_in_the_end(this, Arc::downgrade(&known.session), seat.base.clone(), seat.guid.clone()).await;
                }
            });
            if let Some(session) = self.disown(claim) {
                tokio::spawn(async move { drop(session.close().await) });
            }
        }
        next
    }
}

async fn end_unrenewed(shared: Weak<Shared>) {
    loop {
        let Some(strong) = shared.upgrade() else { return };
        let Some(looks_at) = strong.end_overdue() else { return };
        // Not for as long as we sleep: nobody else would end the client.
        drop(strong);
        let pause = looks_at.since(BootClock.now()).max(Duration::from_millis(1));
        let Some(sooner) = shared.upgrade().map(|shared| Arc::clone(&shared.sooner)) else { return };
        let _ = tokio::time::timeout(pause, sooner.notified()).await;
    }
}
