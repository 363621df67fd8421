//! The last releases: a failover, or a restart from an older file, may bring back what was given back. Nobody renews it then, and
//! whoever waits would wait for its lease. So they are sent again when contact is restored, which harms nobody: each names its
//! claim and its fence.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::client::script::Call;

/// How old a write is that a server may still lose, at most: replicas lag, and files are synced, within seconds.
const LONGEST: Duration = Duration::from_secs(60);
/// How many are kept: a client that gives back more in that time repeats the last ones.
const MOST: usize = 1024;

#[derive(Default)]
pub(super) struct ReleaseReplay(Mutex<VecDeque<(Instant, Arc<Call>)>>);

impl ReleaseReplay {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(Instant, Arc<Call>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a release that was done.
    pub(super) fn keep(&self, release: Arc<Call>) {
        let mut release_replay = self.lock();
        if release_replay.len() == MOST {
            release_replay.pop_front();
        }
        release_replay.push_back((Instant::now(), release));
    }

    /// The releases to send again. They stay: what came back once may come back a second time.
    pub(super) fn to_repeat(&self) -> Vec<Call> {
        let mut release_replay = self.lock();
        while release_replay.front().is_some_and(|(at, _)| at.elapsed() > LONGEST) {
            release_replay.pop_front();
        }
        release_replay.iter().map(|(_, release)| release.as_ref().clone()).collect()
    }
}
