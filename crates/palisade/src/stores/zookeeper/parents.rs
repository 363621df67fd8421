//! The nodes that a line needs above it.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use super::client::proto::Request;
use super::client::{Sent, Session};

/// How many are remembered.
const MOST: usize = 4096;

/// Parents that this client has made, or seen, before. They may be gone since.
#[derive(Default)]
pub(super) struct Parents(Mutex<HashSet<String>>);

impl Parents {
    /// The parents that may be missing; with `all`, every parent and its ancestors.
    pub(super) fn missing(&self, parents: &[String], all: bool) -> Vec<String> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST {
            known.clear();
        }
        let mut missing: Vec<String> = Vec::new();
        for parent in parents {
            let is_new = !known.contains(parent) && known.insert(parent.clone());
            if all {
                let ancestors = parent
                    .match_indices('/')
                    .skip(1)
                    .filter_map(|(at, _)| parent.get(..at));
                missing.extend(
                    ancestors
                        .map(str::to_owned)
                        .filter(|ancestor| !parents.contains(ancestor)),
                );
            }
            if is_new || all {
                missing.push(parent.clone());
            }
        }
        missing.dedup();
        missing
    }

    /// Makes parents and their ancestors again.
    pub(super) fn make(&self, session: &Arc<Session>, parents: &[String]) -> Vec<Sent<()>> {
        self.missing(parents, true)
            .iter()
            .map(|path| session.send(Request::container(path, session.acl())))
            .collect()
    }
}
