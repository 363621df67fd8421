//! How nodes leave their line.

use std::sync::Arc;

use super::backend::Backend;
use super::claims::{ClaimLocation, OwnClaim, Stage};
use super::cleanup::{Leftover, delete_claim};
use super::client::Failed;
use super::client::proto::Request;
use super::inspect::{Node, Reader};
use super::sessions::LockSession;
use crate::error::Result;
use crate::name::Name;
use crate::store::{ClaimRef, Ending};
use crate::stores::kit::session::release::{Holding, Leave};

impl Leave for Backend {
    /// The path of a node.
    type Entry = String;

    async fn delete(
        self: &Arc<Self>,
        claim: &ClaimRef,
        own: Option<OwnClaim>,
        _: Ending,
    ) -> Result<bool> {
        let id = claim.claim.id;
        let was_there = match own {
            Some(own) => delete(&own).await?,
            None if self.claims.lock().end_reason(id).is_some() => false,
            None => Box::pin(self.delete_unknown(claim)).await?,
        };
        self.unconfirmed.confirmed(id);
        Ok(was_there)
    }

    async fn holders_of(&self, name: &Name) -> Result<Vec<Holding<String>>> {
        let session = self.any_session().await?;
        session.ask(Request::sync("/")).await?;
        let reader = Reader {
            settings: &self.settings,
            session: &session,
            holders_only: true,
        };
        let lines = reader.lines(&self.settings.dir(name)?).await?;
        let nodes = lines
            .into_iter()
            .flat_map(|line| line.nodes.into_iter().take(line.held));
        let holding = |node: Node| Holding {
            fence: node.fence(),
            entry: node.path,
        };
        Ok(nodes.map(holding).collect())
    }

    async fn delete_holder(&self, nodes: Vec<String>) -> Result<bool> {
        let session = self.any_session().await?;
        let leftover = Leftover::Nodes(nodes);
        match leftover.delete(&session).await {
            Err(failed @ Failed::Unsure(_)) => {
                leftover.delete_later(&session);
                Err(failed.into())
            }
            deleted => Ok(deleted?),
        }
    }

    fn detached(&self, _: OwnClaim, session: Option<LockSession>) {
        session.iter().for_each(|session| session.leave());
    }
}

impl Backend {
    /// A claim that may never have arrived, or one that another client has made.
    async fn delete_unknown(&self, claim: &ClaimRef) -> Result<bool> {
        let location = ClaimLocation::of(&self.settings, &claim.claim)?;
        let unconfirmed = self.unconfirmed.session_of(claim.claim.id);
        let session = match &unconfirmed {
            Some(session) if session.is_gone() => return Ok(false),
            Some(session) => Arc::clone(session),
            None => self.any_session().await?,
        };
        let deleted = delete_claim(&session, &location, claim.fence).await;
        if let (Err(Failed::Unsure(_)), Some(session)) = (&deleted, unconfirmed) {
            // The session may live on by other claims, and then nothing else would ever end this
            // one.
            Leftover::Claim(Arc::new(location)).delete_later(&session);
            self.unconfirmed.confirmed(claim.claim.id);
        }
        match deleted {
            Err(Failed::Ended) => Ok(false),
            deleted => Ok(deleted?),
        }
    }
}

/// Deletes the nodes of a claim of ours.
async fn delete(own: &OwnClaim) -> Result<bool> {
    let (location, session) = (&own.entry.location, &own.entry.session);
    let is_deleted = session.delete(&own.nodes()).await?;
    // It left the line of a semaphore, perhaps with permits: that answer was lost.
    let may_have_permits =
        matches!(own.stage, Stage::Waiting(_)) && location.permits.is_some() && !is_deleted;
    Ok(is_deleted || may_have_permits && Box::pin(delete_claim(session, location, None)).await?)
}
