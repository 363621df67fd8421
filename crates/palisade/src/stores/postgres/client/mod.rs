//! How statements get to a PostgreSQL server: connections, login, TLS, reconnect. Knows nothing of
//! locks.

mod connection;
mod failure;
mod settings;
mod tls;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

pub(crate) use connection::{Connection, Heard, Parameters};
pub(crate) use failure::{Failed, Remedy};
pub(crate) use settings::ClientSettings;
use tokio::sync::{Mutex, mpsc};
use tokio_postgres::Row;

use crate::error::{Error, Result};
use crate::stores::backoff::Backoff;
use crate::stores::in_task::in_task;

/// Between the first two attempts to reconnect; each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What a connection is for: a verb that waits for a row must not hold up another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Verbs,
    Renewals,
    /// Waits for rows that other sessions have locked.
    Patience,
}

/// Is told of contact.
pub(crate) trait ContactHandler: Send + Sync + 'static {
    fn contact_lost(&self);
    fn contact_regained(&self);
}

/// The connections of one client to one database.
pub(crate) struct Client {
    settings: ClientSettings,
    handler: Arc<dyn ContactHandler>,
    verbs: Mutex<Option<Arc<Connection>>>,
    renewals: Mutex<Option<Arc<Connection>>>,
    patience: Mutex<Option<Arc<Connection>>>,
    /// The host that answered last.
    host: AtomicUsize,
    reconnecting: AtomicBool,
    /// Whether a login has shown a pooler between.
    pooled: AtomicBool,
    this: Weak<Client>,
}

impl Client {
    /// Nothing is connected.
    pub(crate) fn new(settings: ClientSettings, handler: Arc<dyn ContactHandler>) -> Arc<Client> {
        Arc::new_cyclic(|this| Client {
            settings,
            handler,
            verbs: Mutex::default(),
            renewals: Mutex::default(),
            patience: Mutex::default(),
            host: AtomicUsize::new(0),
            reconnecting: AtomicBool::new(false),
            pooled: AtomicBool::new(false),
            this: Weak::clone(this),
        })
    }

    pub(crate) fn settings(&self) -> &ClientSettings {
        &self.settings
    }

    /// Whether there is a pooler between, which lends a session for each transaction.
    pub(crate) fn is_pooled(&self) -> bool {
        self.pooled.load(Ordering::Relaxed)
    }

    /// The connection for this purpose, opened if need be.
    pub(crate) async fn connection(&self, purpose: Purpose) -> Result<Arc<Connection>> {
        if let Ok(slot) = self.slot(purpose).try_lock()
            && let Some(open) = slot.as_ref().filter(|open| !open.is_closed())
        {
            return Ok(Arc::clone(open));
        }
        let client = self.this.upgrade();
        let client = client.ok_or_else(|| Error::unavailable("the client is ending"))?;
        // Other requests wait for it.
        in_task(async move { client.connect(purpose).await }).await
    }

    fn slot(&self, purpose: Purpose) -> &Mutex<Option<Arc<Connection>>> {
        match purpose {
            Purpose::Verbs => &self.verbs,
            Purpose::Renewals => &self.renewals,
            Purpose::Patience => &self.patience,
        }
    }

    async fn connect(&self, purpose: Purpose) -> Result<Arc<Connection>> {
        let slot = self.slot(purpose);
        // Another request is connecting. Behind a server that does not answer, each of many requests
        // would wait for all before it.
        let limit = self.settings.connect_timeout;
        let Ok(mut slot) = tokio::time::timeout(limit, slot.lock()).await else {
            return Err(Error::unavailable(format!(
                "no connection could be made within {limit:?}"
            ))
            .with_nothing_sent());
        };
        if let Some(open) = slot.as_ref().filter(|open| !open.is_closed()) {
            return Ok(Arc::clone(open));
        }
        // Nothing depends on the connection that waits for rows.
        let client = Some(Weak::clone(&self.this)).filter(|_| purpose != Purpose::Patience);
        let closed = move || {
            if let Some(client) = client.and_then(|client| client.upgrade()) {
                client.reconnect();
            }
        };
        let opened = Arc::new(self.open(None, closed).await?);
        *slot = Some(Arc::clone(&opened));
        Ok(opened)
    }

    /// A connection of its own, which hears notifications until it is dropped.
    pub(crate) async fn listener(&self, heard: mpsc::UnboundedSender<Heard>) -> Result<Connection> {
        self.open(Some(heard), || {}).await
    }

    /// A connection of its own.
    pub(crate) async fn alone(&self) -> Result<Connection> {
        self.open(None, || {}).await
    }

    /// Connects to the first host that takes writes, beginning with the last one that did.
    async fn open(
        &self,
        heard: Option<mpsc::UnboundedSender<Heard>>,
        closed: impl FnOnce() + Send + Clone + 'static,
    ) -> Result<Connection> {
        let hosts = self.settings.hosts.len();
        let first = self.host.load(Ordering::Relaxed);
        let mut failed = Error::unavailable("no host is named");
        for step in 0..hosts {
            let at = (first + step) % hosts;
            let host = &self.settings.hosts[at];
            let opening = Connection::open(&self.settings, host, heard.clone(), closed.clone());
            match tokio::time::timeout(self.settings.connect_timeout, opening).await {
                Ok(Ok(connection)) => {
                    self.host.store(at, Ordering::Relaxed);
                    if connection.pooled && !self.pooled.swap(true, Ordering::Relaxed) {
                        tracing::warn!(
                            "a pooler is between this client and PostgreSQL, so no push can come: \
                             waiters ask again and again instead"
                        );
                    }
                    return Ok(connection);
                }
                Ok(Err(error)) => failed = error,
                Err(_) => {
                    failed = Error::unavailable(format!(
                        "{host} does not answer within {:?}",
                        self.settings.connect_timeout
                    ));
                }
            }
        }
        Err(failed.with_nothing_sent())
    }

    /// Sends one statement, and waits for its rows. A connection that does not answer in time is
    /// closed: what it would answer is unknown.
    pub(crate) async fn query(
        &self,
        purpose: Purpose,
        limit: Duration,
        statement: &str,
        parameters: &Parameters<'_>,
    ) -> std::result::Result<Vec<Row>, Failed> {
        let connection = self.connection(purpose).await?;
        let answer = connection.client.query_typed(statement, parameters);
        match tokio::time::timeout(limit, answer).await {
            Ok(Ok(rows)) => Ok(rows),
            Ok(Err(error)) => {
                let failed = Failed::of(&error, &connection.address);
                if failed.remedy == Remedy::Reconnect {
                    connection.close();
                }
                Err(failed)
            }
            Err(_) => {
                connection.close();
                Err(Failed::silent(&connection.address, limit))
            }
        }
    }

    /// Runs a script of statements, without parameters.
    pub(crate) async fn script(&self, script: &str) -> std::result::Result<(), Failed> {
        let connection = self.connection(Purpose::Verbs).await?;
        // The first use of many clients waits for one of them.
        let limit = 4 * self.settings.request_timeout;
        match tokio::time::timeout(limit, connection.client.batch_execute(script)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                let failed = Failed::of(&error, &connection.address);
                // A script that fails half-way leaves its transaction open.
                connection.close();
                Err(failed)
            }
            Err(_) => {
                connection.close();
                Err(Failed::silent(&connection.address, limit))
            }
        }
    }

    /// Contact is lost: tells so, and reconnects without waiting to be asked.
    fn reconnect(self: Arc<Self>) {
        if self.reconnecting.swap(true, Ordering::AcqRel) {
            return;
        }
        self.handler.contact_lost();
        let client = Arc::downgrade(&self);
        tokio::spawn(async move {
            let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
            while let Some(client) = client.upgrade() {
                let both = [Purpose::Renewals, Purpose::Verbs];
                let mut reached = true;
                for purpose in both {
                    reached = reached && client.connection(purpose).await.is_ok();
                }
                if reached {
                    client.reconnecting.store(false, Ordering::Release);
                    client.handler.contact_regained();
                    return;
                }
                drop(client);
                backoff.pause().await;
            }
        });
    }
}
