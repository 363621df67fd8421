//! Which claims, and which tasks without a claim, a watch is for.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Notify;

use crate::store::ClaimId;

/// The watches of a client, by session and path. A watch fires once.
#[derive(Default)]
pub(super) struct Watches(Mutex<HashMap<(i64, String), Vec<Watcher>>>);

pub(super) enum Watcher {
    Claim(ClaimId),
    /// Gone when its task is.
    Task(Weak<Notify>),
}

impl Watcher {
    fn is(&self, claim: ClaimId) -> bool {
        matches!(self, Watcher::Claim(own) if *own == claim)
    }

    fn is_alive(&self) -> bool {
        match self {
            Watcher::Claim(_) => true,
            Watcher::Task(task) => task.strong_count() > 0,
        }
    }

    /// Wakes a task; the claim otherwise.
    fn tell(self) -> Option<ClaimId> {
        match self {
            Watcher::Claim(claim) => return Some(claim),
            Watcher::Task(task) => task.upgrade().inspect(|task| task.notify_one()),
        };
        None
    }
}

impl Watches {
    fn lock(&self) -> MutexGuard<'_, HashMap<(i64, String), Vec<Watcher>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a watch is for this watcher. Before it is sent, so that it cannot fire unheard.
    pub(super) fn add(&self, session: i64, path: &str, watcher: Watcher, is_own: impl Fn(ClaimId) -> bool) {
        let mut watches = self.lock();
        let watchers = watches.entry((session, path.to_owned())).or_default();
        // Not each time: that would be a look at all of them for each of them.
        if watchers.len() >= 32 && watchers.len().is_power_of_two() {
            // The watch of a claim that has left fires once more, without effect.
            watchers.retain(|watcher| match watcher {
                Watcher::Claim(claim) => is_own(*claim),
                Watcher::Task(task) => task.strong_count() > 0,
            });
        }
        if !watchers.iter().any(|other| matches!((other, &watcher), (Watcher::Claim(one), Watcher::Claim(other)) if one == other))
        {
            watchers.push(watcher);
        }
    }

    pub(super) fn is_watched(&self, session: i64, path: &str, claim: ClaimId) -> bool {
        self.lock().get(&(session, path.to_owned())).is_some_and(|watchers| watchers.iter().any(|watcher| watcher.is(claim)))
    }

    /// No watch was set for this claim after all; with `None`, for tasks that are gone.
    pub(super) fn remove(&self, session: i64, path: &str, claim: Option<ClaimId>) {
        let (at, mut watches) = ((session, path.to_owned()), self.lock());
        let Some(watchers) = watches.get_mut(&at) else { return };
        watchers.retain(|watcher| watcher.is_alive() && !claim.is_some_and(|claim| watcher.is(claim)));
        if watchers.is_empty() {
            watches.remove(&at);
        }
    }

    /// A watch has fired: tasks are woken, and the claims returned.
    pub(super) fn fired(&self, session: i64, path: &str) -> Vec<ClaimId> {
        let fired = self.lock().remove(&(session, path.to_owned()));
        fired.into_iter().flatten().filter_map(Watcher::tell).collect()
    }

    /// The watches of a session are gone with its connection: tasks are woken.
    pub(super) fn lost(&self, session: i64) {
        let lost: Vec<_> = self.lock().extract_if(|(of, _), _| *of == session).collect();
        for watcher in lost.into_iter().flat_map(|(_, watchers)| watchers) {
            watcher.tell();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_watch_that_was_not_set_is_forgotten() {
        let (watches, claims) = (Watches::default(), [ClaimId::from_bits(1), ClaimId::from_bits(2)]);
        claims.iter().for_each(|claim| watches.add(7, "/a", Watcher::Claim(*claim), |_| true));
        watches.remove(7, "/a", Some(claims[0]));
        assert!(!watches.is_watched(7, "/a", claims[0]) && watches.is_watched(7, "/a", claims[1]));
        watches.remove(7, "/a", Some(claims[1]));
        watches.remove(7, "/a", Some(claims[1]));
        assert!(watches.lock().is_empty(), "nothing is left behind");
    }

    #[test]
    fn tasks_and_claims_that_are_gone_leave_nothing_behind() {
        let watches = Watches::default();
        let task = Arc::new(Notify::new());
        watches.add(7, "/a", Watcher::Task(Arc::downgrade(&task)), |_| true);
        drop(task);
        watches.remove(7, "/a", None);
        assert!(watches.lock().is_empty());
        let claim = |number| Watcher::Claim(ClaimId::from_bits(number));
        (0..1000).for_each(|number| watches.add(7, "/a", claim(number), |own| own == ClaimId::from_bits(0)));
        assert!(watches.fired(7, "/a").len() <= 32);
    }
}
