//! Which member answers, and what it says of itself.

use std::sync::Arc;

use super::cluster::{Cluster, Resend};
use super::proto::{STATUS, StatusRequest, StatusResponse};
use crate::error::Result;
use crate::store::ServerInfo;

impl Cluster {
    /// Asks a member what it is. A member that does not say is shown without version and role.
    pub(crate) async fn server_info(self: &Arc<Self>) -> Result<ServerInfo> {
        let status: Option<StatusResponse> = self
            .call(STATUS, StatusRequest {}, Resend::IfUnsure)
            .await
            .ok();
        let role = |status: &StatusResponse| {
            let member = status.header.as_ref().map(|header| header.member_id);
            match status {
                StatusResponse {
                    is_learner: true, ..
                } => "learner",
                status if Some(status.leader) == member => "leader",
                _ => "follower",
            }
        };
        Ok(ServerInfo {
            product: "etcd".to_owned(),
            role: status.as_ref().map(|status| role(status).to_owned()),
            version: status.map(|status| status.version),
            address: Some(self.host(self.current())?.to_string()),
        })
    }
}
