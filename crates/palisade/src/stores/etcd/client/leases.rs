//! The lease requests of etcd: grant, revoke, and how long one still runs.

use std::sync::Arc;
use std::time::Duration;

use super::cluster::{Cluster, Failed, Resend};
use super::proto::{
    LEASE_GRANT, LEASE_REVOKE, LEASE_TIME_TO_LIVE, LeaseGrantRequest, LeaseGrantResponse,
    LeaseRevokeRequest, LeaseRevokeResponse, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
    RANGE, RangeRequest, RangeResponse,
};
use crate::error::Result;

/// A length in seconds, as the server says it.
pub(crate) fn length_of(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

/// A length in the unit of etcd, which has whole seconds only: never shorter than asked.
pub(crate) fn seconds(length: Duration) -> u64 {
    length.as_secs() + u64::from(length.subsec_nanos() > 0)
}

impl Cluster {
    /// Opens a lease of this length or longer: its number, and its length.
    pub(crate) async fn grant_lease(self: &Arc<Self>, length: Duration) -> Result<(i64, Duration)> {
        let request = LeaseGrantRequest {
            ttl: i64::try_from(seconds(length)).unwrap_or(i64::MAX),
        };
        // A second one, of a request that was sent twice, ends by itself.
        let response: LeaseGrantResponse =
            self.call(LEASE_GRANT, request, Resend::IfUnsure).await?;
        Ok((response.id, length_of(response.ttl)))
    }

    /// How long a lease still runs; `None` when it has ended.
    pub(crate) async fn lease_left(
        self: &Arc<Self>,
        lease: i64,
    ) -> Result<Option<Duration>, Failed> {
        let request = LeaseTimeToLiveRequest { id: lease };
        match self
            .call(LEASE_TIME_TO_LIVE, request, Resend::IfUnsure)
            .await
        {
            Ok(LeaseTimeToLiveResponse { ttl, .. }) => Ok((ttl >= 0).then(|| length_of(ttl))),
            Err(failed) if failed.lease_gone => Ok(None),
            Err(failed) => Err(failed),
        }
    }

    /// The term of the leader that a majority serves after this was asked, by a linearizable read
    /// of one key; `None` where the response does not say it.
    pub(super) async fn term(self: &Arc<Self>, key: &[u8]) -> Result<Option<u64>> {
        let reading = RangeRequest {
            key: key.to_vec(),
            limit: 1,
            keys_only: true,
            ..RangeRequest::default()
        };
        let read: RangeResponse = self.call(RANGE, reading, Resend::IfUnsure).await?;
        Ok(read.header.map(|header| header.raft_term))
    }

    /// Ends a lease, and with it all its keys.
    pub(crate) async fn revoke_lease(self: &Arc<Self>, lease: i64) -> Result<(), Failed> {
        let request = LeaseRevokeRequest { id: lease };
        let revoked: Result<LeaseRevokeResponse, Failed> =
            self.call(LEASE_REVOKE, request, Resend::IfUnsure).await;
        match revoked {
            Err(failed) if !failed.lease_gone => Err(failed),
            _ => Ok(()),
        }
    }
}
