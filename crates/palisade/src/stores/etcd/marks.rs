//! What `min_hold` and `once` leave of a line: keys on leases of their own, whose rest is the time
//! that they still last.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::task::JoinSet;

use super::backend::Backend;
use super::client::cluster::Failed;
use super::entry::{Entry, Purpose};
use super::lines::Lines;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::store::{ClearMarks, Marks};

/// How many leases are asked for at the same time.
const MANY: usize = 64;

/// How long leases still run.
#[derive(Default)]
pub(super) struct LeasesLeft(HashMap<i64, Duration>);

impl LeasesLeft {
    /// The marks of a line whose leases are among these.
    pub(super) fn marks(&self, line: &[Entry]) -> Marks {
        let longest = |purpose| {
            let entries = line.iter().filter(move |entry| entry.purpose == purpose);
            entries
                .filter_map(|entry| self.0.get(&entry.lease).copied())
                .max()
        };
        Marks {
            closed_for: longest(Purpose::Closed),
            done_for: longest(Purpose::Sealed),
            ..Marks::default()
        }
    }
}

/// The leases of the marks among these keys.
pub(super) fn leases_of<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> BTreeSet<i64> {
    let marks = entries
        .into_iter()
        .filter(|entry| entry.purpose != Purpose::Claim);
    marks.map(|entry| entry.lease).collect()
}

impl Lines {
    /// How long these leases still run.
    pub(super) async fn leases_left(&self, leases: BTreeSet<i64>) -> Result<LeasesLeft, Failed> {
        let (mut leases, mut asked, mut left) =
            (leases.into_iter(), JoinSet::new(), LeasesLeft::default());
        loop {
            while asked.len() < MANY
                && let Some(lease) = leases.next()
            {
                let cluster = Arc::clone(&self.cluster);
                asked.spawn(async move { (lease, cluster.lease_left(lease).await) });
            }
            match asked.join_next().await {
                Some(Ok((lease, span))) => left.0.extend(span?.map(|span| (lease, span))),
                Some(Err(_)) => return Err(Error::unavailable("the client has ended").into()),
                None => return Ok(left),
            }
        }
    }
}

#[async_trait]
impl ClearMarks for Arc<Backend> {
    /// The `min_hold` of a claim that still holds stays: it is kept by the holder's client.
    async fn clear_marks(&self, name: &Name) -> Result<bool> {
        let line = self
            .lines
            .read_line(self.lines.names.line(name).as_bytes())
            .await?;
        let marks = line
            .entries
            .iter()
            .filter(|entry| entry.purpose != Purpose::Claim);
        let mut cleared = false;
        for mark in marks {
            cleared |= self.lines.delete(&mark.key, mark.revision).await?;
            // Nothing else hangs on it. If it cannot be revoked now, it ends by itself.
            drop(self.lines.cluster.revoke_lease(mark.lease).await);
        }
        Ok(cleared)
    }
}
