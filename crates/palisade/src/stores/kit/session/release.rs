//! How claims end: by their owner, by an operator, or by passing to another client.

use std::sync::Arc;

use super::claims::OwnClaim;
use super::renew::{Renew, renew_one};
use super::{Entries, SessionOf, end};
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::name::Name;
use crate::store::{ClaimId, ClaimRef, Ending, Gone, Released, Revoked, Standing};
use crate::stores::in_task::in_task;

/// Takes entries out of lines.
pub(crate) trait Leave: Entries {
    /// Where the entry of a holder is.
    type Entry: Send + Sync;

    /// Deletes what a claim has in the store; whether it was there. If the outcome is not known, it
    /// is tried again in the background until it is.
    ///
    /// `own` is `None` for a claim that may never have arrived, or that another client has made.
    fn delete(
        self: &Arc<Self>,
        claim: &ClaimRef,
        own: Option<Self::Own>,
        ending: Ending,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// The entries that hold a name. Those that only keep it closed come last.
    fn holders_of(
        &self,
        name: &Name,
    ) -> impl Future<Output = Result<Vec<Holding<Self::Entry>>>> + Send;

    /// Deletes the entries of a holder; whether they were there.
    fn delete_holder(&self, entries: Vec<Self::Entry>)
    -> impl Future<Output = Result<bool>> + Send;

    /// A claim passes to another client, with the session that belongs to it.
    fn detached(&self, own: Self::Own, session: Option<SessionOf<Self>>);
}

/// An entry that holds a name, of this client or another.
pub(crate) struct Holding<E> {
    pub(crate) fence: Fence,
    pub(crate) entry: E,
}

pub(crate) async fn release<B: Leave>(
    backend: &Arc<B>,
    claim: &ClaimRef,
    ending: Ending,
) -> Result<Released> {
    let id = claim.claim.id;
    let is_other = |own: &B::Own| !own.is_meant_by(claim.fence);
    if backend.claims().lock().own.get(&id).is_some_and(is_other) {
        return Ok(Released::AlreadyLost);
    }
    // Forgotten first, so that the end of its entry is not taken for a revocation.
    let own = remove(backend, id).await?;
    let was_there = backend.delete(claim, own, ending).await?;
    backend.sessions().end_owned(id);
    Ok(if was_there {
        Released::Done
    } else {
        Released::AlreadyLost
    })
}

/// Removes a claim from the table, after a read of its position that is in flight: that may take
/// the claim's turn just now.
async fn remove<B: Entries>(backend: &Arc<B>, claim: ClaimId) -> Result<Option<B::Own>> {
    let looking = match backend.claims().lock().remove_idle(claim) {
        Ok(own) => return Ok(own),
        Err(looking) => looking,
    };
    let backend = Arc::clone(backend);
    let removing = async move {
        let _looking = looking.lock().await;
        Ok::<_, Error>(backend.claims().lock().remove(claim))
    };
    Box::pin(in_task(removing)).await
}

pub(crate) async fn revoke<B: Leave>(backend: &B, name: &Name, fence: Fence) -> Result<Revoked> {
    let (victims, others): (Vec<_>, Vec<_>) = backend
        .holders_of(name)
        .await?
        .into_iter()
        .partition(|holding| holding.fence == fence);
    if victims.is_empty() {
        let other = others.first().map(|other| other.fence);
        return Ok(other.map_or(Revoked::NotHeld, |fence| Revoked::OtherHolder { fence }));
    }
    let entries = victims.into_iter().map(|victim| victim.entry).collect();
    if !backend.delete_holder(entries).await? {
        return Ok(Revoked::NotHeld);
    }
    // If it is one of ours, its holder need not wait for the watch.
    let is_victim = |own: &B::Own| own.claim().name == *name && own.fence() == fence;
    let ours = {
        let claims = backend.claims().lock();
        let mut own = claims.own.iter();
        own.find(|(_, own)| is_victim(own)).map(|(id, _)| *id)
    };
    if let Some(claim) = ours {
        end(backend, claim, Gone::Revoked);
    }
    Ok(Revoked::Done)
}

/// Makes a grant outlive this client. It has a session of its own already; from now on that is not
/// ours to watch or to end.
pub(crate) async fn detach<B: Leave + Renew>(
    backend: &Arc<B>,
    claim: &ClaimRef,
) -> Result<Standing> {
    let id = claim.claim.id;
    let standing = renew_one(backend, claim).await?;
    if let Standing::Held(_) = standing {
        let own = backend.claims().lock().remove(id);
        let session = backend.sessions().disown(id);
        own.into_iter()
            .for_each(|own| backend.detached(own, session.clone()));
    }
    Ok(standing)
}
