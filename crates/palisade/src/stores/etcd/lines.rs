//! Reads and writes of the lines: transactions that need nothing but the cluster and the names.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::claims::Slot;
use super::client::cluster::{Cluster, Failed, Resend};
use super::client::names::Names;
use super::client::proto::{Compare, KeyValue, RequestOp, TXN, TxnRequest, TxnResponse};
use super::client::txn;
use super::entry::{Entry, Snapshot};
use super::key_pool::LockKey;
use super::sessions::Session;
use crate::error::Result;
use crate::stores::kit::session::gone;

/// How many transactions beside claims and releases are in flight at the most. Others wait, in
/// order.
const OTHERS: usize = 64;

pub(super) struct Lines {
    pub(super) names: Names,
    pub(super) cluster: Arc<Cluster>,
    others: Semaphore,
}

impl Lines {
    pub(super) fn new(names: Names, cluster: Arc<Cluster>) -> Lines {
        Lines {
            names,
            cluster,
            others: Semaphore::new(OTHERS),
        }
    }

    /// Sends a transaction that does the same when it is sent twice.
    pub(super) async fn txn(&self, txn: TxnRequest) -> Result<TxnResponse, Failed> {
        let _permit = self.others.acquire().await;
        self.cluster.call(TXN, txn, Resend::IfUnsure).await
    }

    /// Does one operation on a condition; whether that was met.
    pub(super) async fn only_if(
        &self,
        condition: Compare,
        then: RequestOp,
    ) -> Result<bool, Failed> {
        Ok(self.txn(txn::only_if(condition, then)).await?.succeeded)
    }

    /// Reads keys of a line.
    pub(super) async fn read(&self, reads: Vec<RequestOp>) -> Result<Snapshot, Failed> {
        Ok(Snapshot::of(self.txn(txn::always(reads)).await?)?)
    }

    pub(super) async fn read_line(&self, line: &[u8]) -> Result<Snapshot, Failed> {
        self.read(vec![txn::read_line(line)]).await
    }

    /// Deletes a key, if it was created at this revision; whether it was.
    pub(super) async fn delete(&self, key: &[u8], revision: i64) -> Result<bool, Failed> {
        self.only_if(txn::created_at(key, revision), txn::delete(key))
            .await
    }

    /// Attaches a key to another session, which must last as long as the claim counts on the
    /// present one.
    pub(super) async fn move_key(&self, slot: &Slot, to: &Arc<Session>) -> Result<(), Failed> {
        let moving = txn::move_to(&slot.key.bytes, to.id);
        match self.only_if(slot.is_there(), moving).await? {
            true => Ok(()),
            false => Err(gone().into()),
        }
    }

    pub(super) async fn read_own(&self, key: &LockKey) -> Result<Option<Entry>, Failed> {
        Ok(self.read(vec![txn::read(&key.bytes)]).await?.entries.pop())
    }

    /// The first key of a line, and the revision of the read.
    pub(super) async fn first_key(&self, line: &[u8]) -> Result<Option<(KeyValue, i64)>> {
        let reading = txn::always(vec![txn::read_first(line)]);
        let response = self.txn(reading).await?;
        let revision = txn::revision_of(&response);
        Ok(txn::keys_of(response)
            .into_iter()
            .next()
            .map(|first| (first, revision)))
    }
}
