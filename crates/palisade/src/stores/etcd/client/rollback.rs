//! What this client has seen of the cluster: by it a store is found out that went back in time.
//!
//! A revision never falls while a cluster lives. One that does has been restored from a snapshot, or is another cluster: then
//! grants that were confirmed are not there, and fences that were given may be given again.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::proto::Header;
use crate::error::Error;

#[derive(Default)]
pub(crate) struct SeenRevisions(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    /// The cluster that answers; 0 before the first answer.
    cluster: u64,
    /// Clusters that have answered before it.
    earlier: Vec<u64>,
    /// The highest revision that any answer had.
    highest: i64,
}

/// Why an answer cannot be taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// It is older than what was seen before.
    WentBack { from: i64, to: i64 },
    /// Another cluster has answered, for the first time. What it says is as good as any, but our claims are not in it.
    OtherCluster,
    /// Two clusters answer in turn: locks of one say nothing to the other.
    TwoClusters,
}

impl SeenRevisions {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a request that is sent now must be answered with at the least.
    pub(crate) fn highest(&self) -> i64 {
        self.lock().highest
    }

    /// Takes up an answer. `at_least` is what was seen before its request was sent: of two requests that are under way at the same
    /// time, the later answer may be the older one.
    pub(crate) fn take(&self, header: &Header, at_least: Option<i64>) -> Result<(), Broken> {
        let mut seen = self.lock();
        if seen.cluster != header.cluster_id {
            let first = seen.cluster == 0;
            if seen.earlier.contains(&header.cluster_id) {
                return Err(Broken::TwoClusters);
            }
            let before = std::mem::replace(&mut seen.cluster, header.cluster_id);
            if !first {
                seen.earlier.push(before);
                return Err(Broken::OtherCluster);
            }
        }
        match at_least {
            Some(at_least) if header.revision < at_least => {
                return Err(Broken::WentBack { from: seen.highest, to: header.revision });
            }
            Some(_) => seen.highest = seen.highest.max(header.revision),
            None => {}
        }
        Ok(())
    }
}

impl Broken {
    pub(crate) fn error(&self, asked: &impl std::fmt::Display) -> Error {
        match self {
            Broken::WentBack { from, to } => Error::protocol(format!(
                "{asked} went back from revision {from} to {to}, as after a restored snapshot: fences may be given again, and nothing \
                 is granted until it has passed {from}; see docs/stores/etcd.md, \"After a restore\""
            )),
            Broken::OtherCluster => {
                Error::unavailable(format!("{asked} is another cluster now; what was held in the old one is lost"))
            }
            Broken::TwoClusters => Error::protocol(format!(
                "{asked} belongs to another cluster than the other hosts of the URL, and their locks exclude nobody here; correct the URL"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(cluster_id: u64, revision: i64) -> Header {
        Header { cluster_id, revision }
    }

    #[test]
    fn an_answer_is_as_new_as_all_that_were_there_when_it_was_asked_for() {
        let past = SeenRevisions::default();
        assert_eq!(past.take(&header(1, 5), Some(past.highest())), Ok(()));
        let sent_at = past.highest();
        assert_eq!(past.take(&header(1, 7), Some(sent_at)), Ok(()));
        assert_eq!(past.take(&header(1, 6), Some(sent_at)), Ok(()), "it was on its way at the same time");
        assert_eq!(past.take(&header(1, 6), Some(past.highest())), Err(Broken::WentBack { from: 7, to: 6 }));
        assert_eq!(past.take(&header(1, 2), None), Ok(()), "a member that has not heard of the latest");
        assert_eq!(past.take(&header(1, 7), Some(past.highest())), Ok(()), "it has caught up");
    }

    #[test]
    fn another_cluster_is_told_once_and_two_for_ever() {
        let past = SeenRevisions::default();
        assert_eq!(past.take(&header(1, 5), Some(0)), Ok(()));
        assert_eq!(past.take(&header(2, 9), Some(5)), Err(Broken::OtherCluster));
        assert_eq!(past.take(&header(2, 9), Some(5)), Ok(()));
        for _ in 0..2 {
            assert_eq!(past.take(&header(1, 10), Some(9)), Err(Broken::TwoClusters));
        }
    }
}
