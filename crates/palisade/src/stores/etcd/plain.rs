//! `format=plain`: create if absent. The keys of the format `mutex`, created only while the name is
//! free.
//!
//! The one transaction compares the whole line, so it never overtakes a claim that waits in the
//! other format, or one of Go or etcdctl. A claim that is turned away watches the first key and
//! asks again when that is gone. All of them ask at once: where many wait for one name, `mutex` is
//! the better format.

use std::sync::{Arc, Weak};

use async_trait::async_trait;
use tokio::sync::mpsc;

use super::CAPABILITY;
use super::backend::Backend;
use super::client::watch::WatchEvent;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::name::Name;
use crate::store::{
    Answer, Busy, Capability, Change, Claim, ClaimRef, ClientHandle, Ending, Extensions, Order,
    Page, Query, Released, Revoked, Standing, Wakes,
};
use crate::stores::kit::session::release::{release, revoke};
use crate::stores::kit::session::renew::renew;
use crate::stores::kit::session::{SessionBackend, claim};
use crate::stores::kit::token::{Put, TokenBackend};

/// What the format `plain` can do.
pub const PLAIN: Capability = Capability {
    format: "plain",
    order: Order::None,
    wakes: Wakes::Poll,
    rwlock: false,
    semaphore: false,
    mutex_is_write_side: false,
    downgrade: false,
    // Waiters are not in the store.
    waiters_known: false,
    ..CAPABILITY
};

/// The locks in the format `plain`, for one client.
pub(super) struct Plain(pub(super) Arc<Backend>);

impl Backend {
    /// Returns when the first key of the line is gone.
    async fn freed(&self, name: &Name) -> Result<()> {
        let line = self.lines.names.line(name).into_bytes();
        let Some((mut first, mut seen)) = self.lines.first_key(&line).await? else {
            return Ok(());
        };
        loop {
            let (tell, mut told) = mpsc::unbounded_channel();
            let watch = self
                .watches
                .open(first.key.clone(), Vec::new(), move |event| {
                    let _ = match event {
                        // Something was written between our read and the opening of the watch.
                        WatchEvent::Opened(revision) if revision != seen => tell.send(false),
                        // Not the end of an earlier key of the same name.
                        WatchEvent::Deleted(kv) if kv.mod_revision > seen => tell.send(true),
                        _ => Ok(()),
                    };
                });
            let _closes = Closes {
                backend: self,
                watch,
            };
            loop {
                let Some(false) = told.recv().await else {
                    return Ok(());
                };
                let Some((now, revision)) = self.lines.first_key(&line).await? else {
                    return Ok(());
                };
                if now.create_revision != first.create_revision {
                    (first, seen) = (now, revision);
                    break;
                }
            }
        }
    }
}

/// Closes a watch that was opened for one wait.
struct Closes<'a> {
    backend: &'a Backend,
    watch: i64,
}

impl Drop for Closes<'_> {
    fn drop(&mut self) {
        self.backend.watches.close(self.watch);
    }
}

/// Tells the client when the name of a claim that was turned away is free.
async fn tell_freed(backend: Weak<Backend>, claim: Arc<Claim>) {
    let Some(backend) = backend.upgrade() else {
        return;
    };
    match (backend.freed(&claim.name).await, backend.claims.client()) {
        (Ok(()), Some(client)) => client.ask_again(claim.id),
        (Ok(()), None) => {}
        // The core asks by its own clock.
        (Err(error), _) => {
            tracing::debug!(%error, name = %claim.name, "cannot watch the first key of the line")
        }
    }
}

#[async_trait]
impl TokenBackend for Plain {
    fn capability(&self) -> &Capability {
        &PLAIN
    }

    fn attach(&self, client: ClientHandle) {
        self.0.claims.attach(client);
    }

    async fn put_if_absent(&self, claim: &Arc<Claim>) -> Result<Put> {
        let unqueued = if claim.queue {
            Arc::new(Claim {
                queue: false,
                ..(**claim).clone()
            })
        } else {
            Arc::clone(claim)
        };
        match claim::claim(&self.0, &unqueued).await? {
            Answer::Granted(grant) => Ok(Put::Done(grant)),
            Answer::Sealed => Ok(Put::Sealed),
            Answer::Busy(busy) => {
                if let (true, Some(client)) = (claim.queue, self.0.claims.client()) {
                    client.while_waiting(
                        claim.id,
                        tell_freed(Arc::downgrade(&self.0), Arc::clone(claim)),
                    );
                }
                Ok(Put::Taken(Busy {
                    woken: claim.queue,
                    ..busy
                }))
            }
            Answer::Queued(_) => Err(Error::protocol(
                "a claim that was not to be queued stands in line",
            )),
        }
    }

    async fn extend(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        renew(&self.0, claims).await
    }

    async fn delete_if(&self, claim: &ClaimRef, ending: Ending) -> Result<Released> {
        release(&self.0, claim, ending).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.0.inspect(query).await
    }

    async fn revoke(&self, name: &Name, fence: Fence) -> Result<Revoked> {
        revoke(&*self.0, name, fence).await
    }

    async fn change(&self, claim: &ClaimRef, to: Change) -> Result<Standing> {
        self.0.change(claim, to, &PLAIN).await
    }

    fn extensions(&self) -> Extensions<'_> {
        self.0.extensions()
    }
}
