//! `mysql:` and `mariadb:` — the line in two tables of a MySQL or MariaDB server.
//!
//! Every verb is one `CALL`, so one request, in every state; no transaction stays open across a
//! round trip. `table` documents the tables and routines, `schema` how they are created. A waiter is
//! woken by the bell of the claim before it: see `wait`.
//!
//! # How a request flows
//!
//! ```text
//! claim, renew, release, inspect ──► table (the call) ──► backend (are the tables there?) ──► client ──► server
//!                                                                                                   │
//! core ◄──── wait (a connection of its own for each waiter, up to a cap) ◄──── the bell ◄───────────┘
//! ```

mod backend;
mod claim;
pub(crate) mod client;
mod inspect;
mod release;
mod renew;
mod schema;
mod session;
mod settings;
mod table;
mod token;
mod wait;

use std::sync::Arc;

use async_trait::async_trait;

use self::backend::Backend;
use self::client::{Client, How};
#[cfg(test)]
pub(in crate::stores) use self::schema::NOW;
pub use self::session::SESSION;
pub use self::token::{SHEDLOCK, SIMPLE};
use crate::error::Result;
use crate::name::Name;
use crate::store::{
    Capability, Change, ClaimRef, ClientHandle, Durability, Extensions, NameKeys, Page, Ping,
    Query, Schema, ServerInfo, Standing, Store, Wakes,
};
use crate::stores::kit::line::{Effect, Event, LineBackend, LineStore};
use crate::stores::kit::token::TokenStore;
use crate::url::StoreUrl;

/// The capability of the format `table`.
pub const CAPABILITY: Capability = Capability {
    store: "mysql",
    format: "table",
    wakes: Wakes::Watch,
    // A holder has no connection that waits.
    revoke_pushed: false,
    durability: Durability::Failover,
    ..Capability::LINE
};

/// The same behind a proxy, where a claim's session may be another one for each statement.
const PROXIED: Capability = Capability {
    wakes: Wakes::Poll,
    ..CAPABILITY
};

/// Opens a URL of MySQL or MariaDB. Nothing is connected.
pub(crate) fn open(url: StoreUrl) -> Result<Arc<dyn Store>> {
    if url.common().format.as_deref() == Some(SESSION.format) {
        return session::open(url);
    }
    let backend = Backend::open(url)?;
    Ok(match backend.settings.layout {
        Some(layout) => Arc::new(TokenStore(token::tokens(backend, layout))),
        None => Arc::new(LineStore(Lines(backend))),
    })
}

/// The lines on the server, for one client.
struct Lines(Arc<Backend>);

#[async_trait]
impl LineBackend for Lines {
    fn capability(&self) -> &Capability {
        if self.0.client.settings().is_proxied() {
            &PROXIED
        } else {
            &CAPABILITY
        }
    }

    fn attach(&self, client: ClientHandle) {
        self.0.attach(client);
    }

    async fn apply(&self, event: Event) -> Result<Effect> {
        let (backend, key) = (&self.0, self.0.settings.key(event.name()));
        Ok(match event {
            Event::Claim(claim) => Effect::Answered(claim::claim(backend, &key, &claim).await?),
            Event::Release(claim, ending) => {
                Effect::Released(release::release(backend, &key, &claim, ending).await?)
            }
            Event::Change(claim, to) => {
                let pinned = backend.bell_of(claim.claim.id);
                let statement = backend.texts.change(&key, &claim, &to);
                let done = backend
                    .run(
                        &statement,
                        How {
                            pinned,
                            ..How::URGENT
                        },
                    )
                    .await?;
                let (standing, _) = table::standing(&done.rows, &claim.claim)?;
                if to == Change::Downgrade || to == Change::Detach {
                    // Its bell has rung: a renewal of whichever client keeps it takes it anew.
                    backend.forget(claim.claim.id);
                }
                Effect::Stands(standing)
            }
            Event::ClearMarks(_) => {
                let done = backend.run(&backend.texts.clear(&key), How::URGENT).await?;
                Effect::Cleared(table::cleared(&done.rows)?)
            }
            Event::Revoke(_, fence) => {
                let done = backend
                    .run(&backend.texts.revoke(&key, fence), How::URGENT)
                    .await?;
                Effect::Revoked(table::revoked(&done.rows)?)
            }
        })
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        renew::renew(&self.0, claims).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        match query {
            Query::Show(name) => inspect::show(&self.0, name, true).await,
            Query::Leader(name) => inspect::show(&self.0, name, false).await,
            Query::List { prefix, after } => inspect::list(&self.0, prefix, after.as_deref()).await,
        }
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions {
            ping: Some(&*self.0),
            name_keys: Some(&*self.0),
            schema: Some(&*self.0),
            ..Extensions::default()
        }
    }
}

#[async_trait]
impl Ping for Backend {
    async fn ping(&self) -> Result<ServerInfo> {
        let statement = self.texts.show(&self.settings.key(&Name::of_ping()), false);
        self.run(&statement, How::URGENT).await?;
        server_info(&self.client).await
    }
}

/// The server that answers.
async fn server_info(client: &Client) -> Result<ServerInfo> {
    let connection = client.connect().await?;
    let server = connection.server.clone();
    connection.close().await;
    let is_proxied = client.settings().is_proxied();
    Ok(ServerInfo {
        product: server.product,
        version: Some(server.version),
        role: is_proxied.then(|| "behind a proxy".to_owned()),
        address: Some(server.address),
    })
}

#[async_trait]
impl Schema for Backend {
    fn statements(&self) -> String {
        self.schema.script()
    }

    async fn create(&self) -> Result<bool> {
        self.create_tables().await
    }
}

impl NameKeys for Backend {
    fn key(&self, name: &Name) -> Result<String> {
        Ok(self.settings.key(name))
    }
}
