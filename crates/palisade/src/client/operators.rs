//! What operators ask of a store: to look at lines, to end grants, to find out which server answers.

use std::sync::Arc;
use std::time::Duration;

use super::Client;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::name::Name;
use crate::store::{Capability, LineView, Page, Query, Revoked, ServerInfo};

impl Client {
    /// Every line whose name begins so, with holders and waiters where the store knows them.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) where the store cannot list.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point.
    pub async fn list(&self, prefix: impl AsRef<str>) -> Result<Vec<LineView>> {
        let mut lines = Vec::new();
        let mut after = None;
        loop {
            let page = self.list_page(prefix.as_ref(), after).await?;
            lines.extend(page.lines);
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(lines),
            }
        }
    }

    /// One page of [`list`](Client::list), for stores with very many names.
    ///
    /// # Errors
    ///
    /// As [`list`](Client::list).
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point.
    pub async fn list_page(&self, prefix: impl AsRef<str>, after: Option<String>) -> Result<Page> {
        if !self.capability().list {
            return Err(Error::unsupported(format!(
                "{} cannot list its locks; show one by its name",
                self.capability()
            )));
        }
        self.inspect(Query::List {
            prefix: prefix.as_ref().to_owned(),
            after,
        })
        .await
    }

    /// The line of one name, and what `min_hold`, `once_per` and `once` have left of it; `None` when
    /// there is none of that.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`](crate::ErrorKind).
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point.
    pub async fn show(&self, name: impl AsRef<str>) -> Result<Option<LineView>> {
        let page = self.inspect(Query::Show(Name::new(name.as_ref())?)).await?;
        Ok(page.lines.into_iter().next())
    }

    /// Connects, logs in and asks: who answers, and how fast. It finds a wrong URL, a wrong password
    /// and missing rights to look at locks, which [`connect`](Client::connect) does not. One
    /// attempt.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> palisade::Result<()> {
    /// let locks = palisade::connect("memory:").await?;
    /// let pong = locks.ping().await?;
    /// println!("{} answers within {:?}", pong.server.product, pong.latency);
    /// # assert_eq!(pong.server.product, "memory");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Denied`](crate::ErrorKind::Denied) for a wrong password or missing rights,
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when no server answers.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point.
    pub async fn ping(&self) -> Result<Pong> {
        // The first one connects: the latency is that of a request on a connection that is there.
        self.ask_server().await?;
        let begun = self.core.now();
        let server = self.ask_server().await?;
        Ok(Pong {
            server,
            latency: self.core.now().since(begun),
        })
    }

    async fn ask_server(&self) -> Result<ServerInfo> {
        let store = Arc::clone(&self.core.store);
        self.core
            .call(async move {
                match store.extensions().ping {
                    Some(server) => server.ping().await,
                    None => Err(Error::unsupported(format!(
                        "{} does not say which server answers; show a name instead",
                        store.capability()
                    ))),
                }
            })
            .await
    }

    /// The very key or path of this name, as other programs see it; what the keys of its line begin
    /// with where it has several. `None` on a store without keys: memory and SQLite.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) for a name that the store cannot take.
    pub fn key(&self, name: impl AsRef<str>) -> Result<Option<String>> {
        let name = Name::new(name.as_ref())?;
        let keys = self.core.store.extensions().name_keys;
        keys.map(|keys| keys.key(&name)).transpose()
    }

    /// Clears what `min_hold`, `once_per` and `once` have left of a name, and says whether there was
    /// anything: an operator's verb. A claim that holds goes on holding.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) where the store keeps no such marks.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the marks may have been cleared.
    pub async fn clear_marks(&self, name: impl AsRef<str>) -> Result<bool> {
        let (store, name) = (Arc::clone(&self.core.store), Name::new(name.as_ref())?);
        self.core
            .call(async move {
                match store.extensions().clear_marks {
                    Some(marks) => marks.clear_marks(&name).await,
                    None => Err(Error::unsupported(format!(
                        "{} keeps no marks: it has no min_hold, once_per or once",
                        store.capability()
                    ))),
                }
            })
            .await
    }

    /// The statements that create the tables and routines of a store in SQL, for an administrator to
    /// run where this program may not. Nothing is sent.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) on a store without tables.
    pub fn schema(&self) -> Result<String> {
        match self.core.store.extensions().schema {
            Some(schema) => Ok(schema.statements()),
            None => Err(no_schema(self.capability())),
        }
    }

    /// Creates the tables and routines of a store in SQL, and says whether any were missing. The
    /// first use of a lock does the same, if the user may create tables.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) on a store without tables,
    /// [`Denied`](crate::ErrorKind::Denied) for missing rights.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, everything may have been created, or nothing.
    pub async fn create_schema(&self) -> Result<bool> {
        let store = Arc::clone(&self.core.store);
        self.core
            .call(async move {
                match store.extensions().schema {
                    Some(schema) => schema.create().await,
                    None => Err(no_schema(store.capability())),
                }
            })
            .await
    }

    async fn inspect(&self, query: Query) -> Result<Page> {
        let store = Arc::clone(&self.core.store);
        self.core
            .call(async move { store.inspect(&query).await })
            .await
    }

    /// Ends the grant that has this fence, of any client: an operator's verb. The holder is told by
    /// push where the store can, and at its next renewal at the latest. [`Fence::NONE`] names a
    /// peer's grant without a fence.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) where the store cannot.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the grant may have been ended.
    pub async fn revoke(&self, name: impl AsRef<str>, fence: Fence) -> Result<Revoked> {
        if !self.capability().revoke {
            return Err(Error::unsupported(format!(
                "{} cannot end a grant of another client",
                self.capability()
            )));
        }
        let (store, name) = (Arc::clone(&self.core.store), Name::new(name.as_ref())?);
        self.core
            .call(async move { store.revoke(&name, fence).await })
            .await
    }
}

fn no_schema(capability: &Capability) -> Error {
    Error::unsupported(format!(
        "{capability} has no tables to create; use it as it is"
    ))
}

/// The answer to a [ping](Client::ping).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pong {
    /// The server that answered.
    pub server: ServerInfo,
    /// How long its answer took, on a connection that was there.
    pub latency: Duration,
}
