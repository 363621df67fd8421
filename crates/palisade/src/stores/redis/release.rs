//! Ends a claim in whatever state it is, and repeats the last releases when contact is regained.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::backend::Backend;
use super::client::{Call, Purpose, TimedCall};
use super::{Lines, line};
use crate::error::Result;
use crate::store::{ClaimRef, Ending, Released};

/// How long a release is repeated after it was done. A server may lose the writes of the last
/// seconds: replicas lag, and files are synced, within that.
const REPEATED_FOR: Duration = Duration::from_secs(60);
/// How many releases are kept: a client that releases more in that time repeats the last ones.
const MOST_KEPT: usize = 1024;
/// How long the repeated releases may take.
const REPEAT_LIMIT: Duration = Duration::from_secs(30);

pub(super) async fn release(
    lines: &Lines,
    key: &str,
    claim: &ClaimRef,
    ending: Ending,
) -> Result<Released> {
    lines.backend.stopped_waiting(claim);
    let call = Arc::new(line::release(key, claim, ending));
    let called = lines.batch.release(Arc::clone(&call)).await?;
    lines.backend.recent_releases.keep(call);
    Ok(unless_sent_again(
        line::released(&called.value)?,
        called.sent_again,
    ))
}

/// The result of a release. A release that was sent again and found nothing may have been done the
/// first time.
pub(super) fn unless_sent_again(released: Released, sent_again: bool) -> Released {
    if sent_again && released == Released::AlreadyLost {
        Released::Unknown
    } else {
        released
    }
}

/// The last releases. A failover, or a restart from an older file, may bring back a grant that was
/// released; no client renews it then, and waiters would wait for the end of its lease. Sending a
/// release again is harmless: it names its claim and its fence.
#[derive(Default)]
pub(super) struct RecentReleases(Mutex<VecDeque<Done>>);

struct Done {
    at: Instant,
    call: Arc<Call>,
}

impl RecentReleases {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Done>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a release that was done.
    pub(super) fn keep(&self, call: Arc<Call>) {
        let mut releases = self.lock();
        if releases.len() == MOST_KEPT {
            releases.pop_front();
        }
        let at = Instant::now();
        releases.push_back(Done { at, call });
    }

    /// The releases to send again. They stay: a grant may come back a second time.
    fn to_repeat(&self) -> Vec<TimedCall> {
        let mut releases = self.lock();
        releases.retain(|release| release.at.elapsed() <= REPEATED_FOR);
        let call = |release: &Done| TimedCall {
            call: release.call.as_ref().clone(),
            limit: REPEAT_LIMIT,
        };
        releases.iter().map(call).collect()
    }
}

/// Sends the last releases again, in a task of its own.
pub(super) fn repeat_recent(backend: &Backend) {
    let (client, releases) = (
        Arc::clone(&backend.client),
        backend.recent_releases.to_repeat(),
    );
    tokio::spawn(async move { client.call_all(releases, Purpose::Requests, false).await });
}
