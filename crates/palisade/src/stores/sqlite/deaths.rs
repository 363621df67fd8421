//! The death of a client before a claim in line: no lease need end.

use std::sync::Arc;

use super::liveness::Folder;
use super::{ANSWERED_BY, LOOK_AGAIN, Sqlite};
use crate::store::Claim;

impl Sqlite {
    /// While a claim waits, the death of a client before it makes it ask.
    pub(super) fn watch_deaths(&self, claim: &Arc<Claim>) {
        let Some(client) = self.0.inbox.client() else {
            return;
        };
        let (shared, claim, handle) = (Arc::clone(&self.0), Arc::clone(claim), client.clone());
        client.while_waiting(claim.id, async move {
            let Ok(us) = shared.client() else { return };
            loop {
                // Our own death needs no watch.
                let before: Vec<String> = shared
                    .before(&claim)
                    .into_iter()
                    .flatten()
                    .filter(|other| *other != us.id)
                    .collect();
                tokio::select! {
                    () = any_death(&us.folder, &before) => {
                        handle.ask_again(claim.id);
                        // Until the answer is there, the dead client is still before us.
                        tokio::time::sleep(ANSWERED_BY).await;
                    }
                    () = tokio::time::sleep(LOOK_AGAIN) => {}
                }
            }
        });
    }
}

/// Completes when one of these clients has died.
async fn any_death(folder: &Folder, clients: &[String]) {
    match clients {
        [] => std::future::pending().await,
        [one] => folder.death(one).await,
        [one, rest @ ..] => {
            let (one, rest) = (
                Box::pin(folder.death(one)),
                Box::pin(any_death(folder, rest)),
            );
            tokio::select! {
                () = one => {}
                () = rest => {}
            }
        }
    }
}
