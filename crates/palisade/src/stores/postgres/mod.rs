//! `postgres:` — the line in tables of PostgreSQL.
//!
//! Every verb is one `CALL` of one procedure, so one request and one transaction: `line` documents
//! it. A release hands the name to the next waiter in the same transaction, and tells only that
//! waiter, by `NOTIFY` after the commit. Claims and releases of many tasks at the same time are one
//! call with arrays: see `batch`.
//!
//! # How a request flows
//!
//! ```text
//! claim, release ──► line (columns) ──► batch ──┐
//! renew, inspect ──► line ──────────────────────┴──► client ──► server
//!                                                       │
//! core ◄──── wait (the inbox) ◄──── NOTIFY ◄────────────┘
//! ```

mod backend;
mod batch;
pub(crate) mod client;
mod failure;
mod inspect;
mod line;
mod renew;
mod schema;
mod session;
mod settings;
mod token;
mod wait;

use std::sync::Arc;

use async_trait::async_trait;

use self::backend::Backend;
use self::batch::Batch;
use self::client::Purpose;
use self::line::Event;
pub use self::session::SESSION;
pub use self::token::{SHEDLOCK, SIMPLE};
use crate::error::Result;
use crate::name::Name;
use crate::store::{
    Answer, Capability, Change, Claim, ClaimRef, ClientHandle, Durability, Ending, Extensions,
    NameKeys, Page, Query, Released, Standing, Store, Wakes,
};
use crate::stores::kit::line::{self as kit, Effect, LineBackend, LineStore};
use crate::stores::kit::token::TokenStore;
use crate::url::StoreUrl;

/// The capability of the format `table`.
pub const CAPABILITY: Capability = Capability {
    store: "postgres",
    format: "table",
    // A holder does not listen: it is told at its next renewal.
    revoke_pushed: false,
    durability: Durability::Failover,
    ..Capability::LINE
};

/// The same behind a pooler, where no push comes.
const POOLED: Capability = Capability {
    wakes: Wakes::Poll,
    ..CAPABILITY
};

/// Opens a URL of PostgreSQL. Nothing is connected.
pub(crate) fn open(url: StoreUrl) -> Result<Arc<dyn Store>> {
    if url.common().format.as_deref() == Some(SESSION.format) {
        return session::open(url);
    }
    let backend = Backend::open(url)?;
    if let Some(layout) = backend.settings.layout {
        return Ok(Arc::new(TokenStore(token::tokens(backend, layout))));
    }
    Ok(Arc::new(LineStore(Lines {
        batch: Batch::of(&backend),
        backend,
    })))
}

/// The lines in PostgreSQL, for one client.
struct Lines {
    backend: Arc<Backend>,
    batch: Batch,
}

impl Lines {
    async fn claim(&self, key: String, claim: &Arc<Claim>) -> Result<Answer> {
        let event = Event::claim(key, claim)?;
        if claim.queue {
            // Before the claim is sent, so that no push can come before it.
            self.backend.waiting().insert(claim.id, Arc::clone(claim));
        }
        let answer = match self.batch.apply(event, Some(claim.id)).await {
            Ok((answer, _)) => answer.of_claim(claim),
            Err(error) => Err(error),
        };
        if matches!(answer, Ok(Answer::Queued(_))) {
            self.backend.queued(claim);
        } else if claim.queue {
            self.backend.waiting().remove(&claim.id);
        }
        answer
    }

    async fn release(&self, key: String, claim: &ClaimRef, ending: Ending) -> Result<Released> {
        self.backend.stopped_waiting(claim);
        let event = Event::release(key, claim, ending);
        let (answer, sent_again) = self.batch.apply(event, None).await?;
        Ok(match answer.released()? {
            // It may have been done the first time.
            Released::AlreadyLost if sent_again => Released::Unknown,
            released => released,
        })
    }

    /// Applies one event by itself.
    async fn alone(&self, event: Event) -> Result<line::Answered> {
        let called = self
            .backend
            .apply(Purpose::Verbs, std::slice::from_ref(&event));
        match called.await?.answers.pop() {
            Some(Some(answer)) => Ok(answer),
            Some(None) => Ok(self.backend.apply_patiently(event).await?.0),
            None => Err(failure::unexpected()),
        }
    }
}

#[async_trait]
impl LineBackend for Lines {
    fn capability(&self) -> &Capability {
        if self.backend.polls() {
            &POOLED
        } else {
            &CAPABILITY
        }
    }

    fn attach(&self, client: ClientHandle) {
        self.backend.attach(client);
    }

    async fn apply(&self, event: kit::Event) -> Result<Effect> {
        let key = self.backend.settings.key(event.name())?;
        Ok(match event {
            kit::Event::Claim(claim) => Effect::Answered(self.claim(key, &claim).await?),
            kit::Event::Release(claim, ending) => {
                Effect::Released(self.release(key, &claim, ending).await?)
            }
            kit::Event::Change(claim, to) => {
                let event = match to {
                    Change::Detach => Event::renew(key, &claim),
                    Change::Downgrade => Event::downgrade(key, &claim),
                    Change::Proclaim(value) => Event::proclaim(key, &claim, &value)?,
                };
                Effect::Stands(self.alone(event).await?.standing(&claim.claim)?)
            }
            kit::Event::ClearMarks(_) => {
                let event = Event::by_operator("clear", key, None);
                Effect::Cleared(self.alone(event).await?.cleared())
            }
            kit::Event::Revoke(_, fence) => {
                let event = Event::by_operator("revoke", key, Some(fence));
                Effect::Revoked(self.alone(event).await?.revoked()?)
            }
        })
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        renew::renew(&self.backend, claims).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        inspect::inspect(&self.backend, query).await
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions {
            ping: Some(&*self.backend),
            name_keys: Some(&*self.backend),
            schema: Some(&*self.backend),
            ..Extensions::default()
        }
    }
}

impl NameKeys for Backend {
    fn key(&self, name: &Name) -> Result<String> {
        self.settings.key(name)
    }
}
