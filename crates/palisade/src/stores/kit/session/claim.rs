//! Claiming: the entry of a claim is put into the line, and the line is read.

use std::sync::Arc;

use super::claims::OwnClaim;
use super::sessions::OpensSessions;
use super::{Entries, gone};
use crate::error::Result;
use crate::store::{Answer, Claim};

/// Puts entries into lines.
pub(crate) trait Enter: Entries {
    /// The answer to a claim that is in the store already, by an earlier request; `None` when it
    /// must be made. Only for stores whose [`enter`](Enter::enter) does not find it.
    fn find_again(
        self: &Arc<Self>,
        _claim: &Arc<Claim>,
    ) -> impl Future<Output = Result<Option<Answer>, Self::Failed>> + Send {
        std::future::ready(Ok(None))
    }

    /// Puts the entry of a claim into its line, and reads where it stands there. A claim that may
    /// not queue leaves nothing behind, unless it holds.
    fn enter(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
    ) -> impl Future<Output = Result<Answer, Self::Failed>> + Send;

    /// A claim was turned away or has failed: forgets it. `false` when its entry may be in the store
    /// all the same.
    fn turned_away(self: &Arc<Self>, claim: &Claim, answer: &Result<Answer, Self::Failed>) -> bool;
}

pub(crate) async fn claim<B: Enter>(backend: &Arc<B>, claim: &Arc<Claim>) -> Result<Answer> {
    let earlier = backend.claims().lock().take_end(claim.id);
    if let Some(answer) = backend.find_again(claim).await.map_err(Into::into)? {
        return Ok(answer);
    }
    // An entry that was looked for and not found has ended just now.
    let mut ended = backend.claims().lock().take_end(claim.id).or(earlier);
    let mut answer = backend.enter(claim).await;
    if let Ok(Answer::Granted(_) | Answer::Queued(_)) = &answer {
        if is_there(&**backend, claim) {
            return answer.map_err(Into::into);
        }
        (answer, ended) = (Err(gone().into()), None);
    }
    if backend.turned_away(claim, &answer) {
        backend.sessions().end_owned(claim.id);
        if let Some(ended) = ended {
            backend.claims().lock().restore_end(claim.id, ended);
        }
    }
    answer.map_err(Into::into)
}

/// Whether a claim that was just answered is still there. If its session ended between the answer
/// and our look at it, the claim was not found among those that ended with the session.
fn is_there<B: Entries>(backend: &B, claim: &Claim) -> bool {
    let ended = {
        let mut claims = backend.claims().lock();
        let has_ended = |own: &B::Own| backend.sessions().system.has_ended(own.session());
        match claims.own.get(&claim.id).map(has_ended) {
            Some(true) => claims.remove(claim.id),
            Some(false) => return true,
            None => None,
        }
    };
    ended.into_iter().for_each(|own| backend.dropped(own));
    false
}
