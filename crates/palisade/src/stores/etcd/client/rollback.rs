//! Detects a cluster that went back in time.
//!
//! A revision never falls while a cluster lives. One that does has been restored from a snapshot,
//! or is another cluster: then confirmed grants are missing, and fences may be given a second time.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::proto::Header;
use crate::error::Error;

/// What this client has seen of the cluster.
#[derive(Default)]
pub(crate) struct SeenRevisions(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    /// The cluster that answers; 0 before the first response.
    cluster: u64,
    /// Clusters that have answered before it.
    earlier: Vec<u64>,
    /// The highest revision of all responses.
    highest: i64,
}

/// Why a response cannot be accepted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Rollback {
    /// It is older than an earlier one.
    WentBack { from: i64, to: i64 },
    /// Another cluster has answered, for the first time. It can be used, but our claims are not in
    /// it.
    OtherCluster,
    /// Two clusters answer in turn: locks of one mean nothing to the other.
    TwoClusters,
}

impl SeenRevisions {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The least revision that the response to a request must have that is sent now.
    pub(crate) fn highest(&self) -> i64 {
        self.lock().highest
    }

    /// Checks a response. `at_least` is [`highest`](SeenRevisions::highest) from before its request
    /// was sent: of two requests in flight at the same time, the later response may be the older
    /// one.
    pub(crate) fn check(&self, header: &Header, at_least: Option<i64>) -> Result<(), Rollback> {
        let mut seen = self.lock();
        if seen.cluster != header.cluster_id {
            let first = seen.cluster == 0;
            if seen.earlier.contains(&header.cluster_id) {
                return Err(Rollback::TwoClusters);
            }
            let before = std::mem::replace(&mut seen.cluster, header.cluster_id);
            if !first {
                seen.earlier.push(before);
                return Err(Rollback::OtherCluster);
            }
        }
        match at_least {
            Some(at_least) if header.revision < at_least => {
                return Err(Rollback::WentBack {
                    from: seen.highest,
                    to: header.revision,
                });
            }
            Some(_) => seen.highest = seen.highest.max(header.revision),
            None => {}
        }
        Ok(())
    }
}

impl Rollback {
    pub(crate) fn error(&self, member: &impl std::fmt::Display) -> Error {
        match self {
            Rollback::WentBack { from, to } => Error::protocol(format!(
                "{member} went back from revision {from} to {to}, as after a restored snapshot: fences may be given again, and nothing \
                 is granted until it has passed {from}; see docs/stores/etcd.md, \"After a restore\""
            )),
            Rollback::OtherCluster => Error::unavailable(format!(
                "{member} is another cluster now; what was held in the old one is lost"
            )),
            Rollback::TwoClusters => Error::protocol(format!(
                "{member} belongs to another cluster than the other hosts of the URL, and their locks do not exclude each other; correct the URL"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(cluster_id: u64, revision: i64) -> Header {
        Header {
            cluster_id,
            revision,
            ..Header::default()
        }
    }

    #[test]
    fn an_answer_is_as_new_as_all_that_were_there_when_it_was_asked_for() {
        let seen = SeenRevisions::default();
        assert_eq!(seen.check(&header(1, 5), Some(seen.highest())), Ok(()));
        let sent_at = seen.highest();
        assert_eq!(seen.check(&header(1, 7), Some(sent_at)), Ok(()));
        assert_eq!(
            seen.check(&header(1, 6), Some(sent_at)),
            Ok(()),
            "it was on its way at the same time"
        );
        assert_eq!(
            seen.check(&header(1, 6), Some(seen.highest())),
            Err(Rollback::WentBack { from: 7, to: 6 })
        );
        assert_eq!(
            seen.check(&header(1, 2), None),
            Ok(()),
            "a member that has not heard of the latest"
        );
        assert_eq!(
            seen.check(&header(1, 7), Some(seen.highest())),
            Ok(()),
            "it has caught up"
        );
    }

    #[test]
    fn another_cluster_is_told_once_and_two_for_ever() {
        let seen = SeenRevisions::default();
        assert_eq!(seen.check(&header(1, 5), Some(0)), Ok(()));
        assert_eq!(
            seen.check(&header(2, 9), Some(5)),
            Err(Rollback::OtherCluster)
        );
        assert_eq!(seen.check(&header(2, 9), Some(5)), Ok(()));
        for _ in 0..2 {
            assert_eq!(
                seen.check(&header(1, 10), Some(9)),
                Err(Rollback::TwoClusters)
            );
        }
    }
}
