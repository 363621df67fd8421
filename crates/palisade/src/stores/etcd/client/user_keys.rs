//! Reads and conditional writes of the user's own keys. The URL, the members and the login are
//! those of the locks.

use std::sync::Arc;

use super::cluster::{Cluster, Resend};
use super::names::Names;
use super::proto::{RANGE, RangeRequest, RangeResponse, TXN, TxnRequest, TxnResponse};
use super::settings::Endpoints;
use super::txn;
use crate::error::{Error, ErrorKind, Result};
use crate::url::StoreUrl;

/// The members that a URL names, and their keys.
pub(crate) struct DataClient {
    names: Names,
    cluster: Arc<Cluster>,
}

/// A value, and the revision of its last write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) value: Vec<u8>,
    pub(crate) revision: i64,
}

/// A key and its new value, or none to delete it.
pub(crate) type Writing<'a> = (&'a [u8], Option<&'a [u8]>);

impl DataClient {
    /// Reads the URL. Nothing is connected.
    pub(crate) fn open(url: &str) -> Result<DataClient> {
        let url: StoreUrl = url.parse()?;
        if !matches!(url.scheme(), "etcd" | "etcds") {
            return Err(Error::bad_url(format!(
                "{}: is not etcd; write etcd://host or etcds://host",
                url.scheme()
            )));
        }
        let cluster = Cluster::new(&Endpoints::read(&url)?)?;
        Ok(DataClient {
            names: Names::read(&url)?,
            cluster,
        })
    }

    /// How names become keys in this URL.
    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    /// Reads a key, as it was at a revision or as it is now.
    pub(crate) async fn get(&self, key: &[u8], at: Option<i64>) -> Result<Option<Value>> {
        let reading = RangeRequest {
            key: key.to_vec(),
            revision: at.unwrap_or(0),
            ..RangeRequest::default()
        };
        let read: RangeResponse = self.cluster.call(RANGE, reading, Resend::IfUnsure).await?;
        Ok(read.kvs.into_iter().next().map(|kv| Value {
            value: kv.value,
            revision: kv.mod_revision,
        }))
    }

    /// Writes all of these, if the key `lock` was created at this revision and is still there. The
    /// answer says of each whether it deleted something; `None` when that key is gone.
    pub(crate) async fn write_if_held(
        &self,
        lock: &[u8],
        created: i64,
        writes: &[Writing<'_>],
    ) -> Result<Option<Vec<bool>>> {
        let writing = TxnRequest {
            compare: vec![txn::created_at(lock, created)],
            success: writes
                .iter()
                .map(|(key, value)| write(key, *value))
                .collect(),
            failure: Vec::new(),
        };
        let response = self.txn(writing).await?;
        Ok(response.succeeded.then(|| txn::replaced(response)))
    }

    /// Writes a key if it was last written at this revision; 0: if it is not there. Otherwise the
    /// answer is the present value.
    pub(crate) async fn swap(
        &self,
        (key, value): Writing<'_>,
        expected: i64,
    ) -> Result<Result<i64, Option<Value>>> {
        let swapping = TxnRequest {
            compare: vec![txn::written_at(key, expected)],
            success: vec![write(key, value)],
            failure: vec![txn::read(key)],
        };
        let response = self.txn(swapping).await?;
        if response.succeeded {
            return Ok(Ok(txn::revision_of(&response)));
        }
        let found = txn::keys_of(response).into_iter().next();
        Ok(Err(found.map(|kv| Value {
            value: kv.value,
            revision: kv.mod_revision,
        })))
    }

    /// Not sent again when its outcome is unknown: the second response would not be the first.
    async fn txn(&self, txn: TxnRequest) -> Result<TxnResponse> {
        Ok(self.cluster.call(TXN, txn, Resend::Never).await?)
    }
}

fn write(key: &[u8], value: Option<&[u8]>) -> super::proto::RequestOp {
    match value {
        Some(value) => txn::put(key, value.to_vec(), 0),
        None => txn::delete(key),
    }
}

/// Whether a request may have been done though it failed.
pub(crate) fn may_be_done(error: &Error) -> bool {
    error.kind() == ErrorKind::Unavailable
}
