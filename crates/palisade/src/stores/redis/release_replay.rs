//! The last releases. A failover, or a restart from an older file, may bring back a grant that was released; no client renews it
//! then, and waiters would wait for the end of its lease. So the last releases are sent again when contact is regained, which is
//! harmless: each names its claim and its fence.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::client::Call;

/// A server may lose writes of the last seconds: replicas lag, and files are synced, within that.
const LONGEST: Duration = Duration::from_secs(60);
/// How many are kept: a client that releases more in that time repeats the last ones.
const MOST: usize = 1024;

#[derive(Default)]
pub(super) struct ReleaseReplay(Mutex<VecDeque<(Instant, Arc<Call>)>>);

impl ReleaseReplay {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(Instant, Arc<Call>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a release that was done.
    pub(super) fn keep(&self, release: Arc<Call>) {
        let mut releases = self.lock();
        if releases.len() == MOST {
            releases.pop_front();
        }
        releases.push_back((Instant::now(), release));
    }

    /// The releases to send again. They stay: a grant may come back a second time.
    pub(super) fn to_repeat(&self) -> Vec<Call> {
        let mut releases = self.lock();
        while releases
            .front()
            .is_some_and(|(at, _)| at.elapsed() > LONGEST)
        {
            releases.pop_front();
        }
        releases
            .iter()
            .map(|(_, release)| release.as_ref().clone())
            .collect()
    }
}
