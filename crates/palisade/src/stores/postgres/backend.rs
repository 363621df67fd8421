//! The state of the store: the client, and the knowledge about its own claims.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::client::{Client, ContactHandler, Failed, Parameters, Purpose, Remedy};
use super::failure::unexpected;
use super::line::{self, Answered, Columns, Event};
use super::schema::Text;
use super::settings::Settings;
use super::wait::Inbox;
use crate::error::{Error, Result};
use crate::store::{ByClaim, Claim, ClaimId, ClientHandle};
use crate::stores::in_task::in_task;
use crate::url::StoreUrl;

/// How long a call waits for a row that another session has locked, before it goes on without it.
const SHORT_PATIENCE: Duration = Duration::from_millis(250);
/// How long an event waits for its row on a connection that others do not need.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often a request is sent again after a deadlock or a serialization failure.
const REPEATS: u32 = 3;
/// How often idle names are swept.
const SWEEP: Duration = Duration::from_secs(60);

pub(super) struct Backend {
    pub(super) settings: Settings,
    pub(super) text: Text,
    pub(super) client: Arc<Client>,
    /// The core, to push to.
    pub(super) handle: OnceLock<ClientHandle>,
    /// The claims that may be in line.
    waiting: Mutex<ByClaim<Arc<Claim>>>,
    pub(super) inbox: Inbox,
    pub(super) creating: tokio::sync::Mutex<()>,
    /// Locked by the event that waits for its row.
    pub(super) waits_for_row: tokio::sync::Mutex<()>,
    pub(super) this: Weak<Backend>,
}

/// How a call ended, and whether it was sent more than once.
pub(super) struct Called {
    /// `None` for an event whose row another session has locked: nothing was done.
    pub(super) answers: Vec<Option<Answered>>,
    pub(super) sent_again: bool,
}

impl Backend {
    /// Nothing is connected.
    pub(super) fn open(url: StoreUrl) -> Result<Arc<Backend>> {
        let (settings, client) = Settings::read(url)?;
        // A random channel: no other client can guess it.
        let inbox = ClaimId::random()?.reveal();
        Ok(Arc::new_cyclic(|backend| Backend {
            text: Text::of(&settings),
            settings,
            client: Client::new(client, Arc::new(Contact(Weak::clone(backend)))),
            handle: OnceLock::new(),
            waiting: Mutex::default(),
            inbox: Inbox::new(inbox),
            creating: tokio::sync::Mutex::default(),
            waits_for_row: tokio::sync::Mutex::default(),
            this: Weak::clone(backend),
        }))
    }

    pub(super) fn attach(&self, client: ClientHandle) {
        if self.settings.layout.is_none() {
            client.runtime().spawn(sweep(Weak::clone(&self.this)));
        }
        // Told once.
        let _ = self.handle.set(client);
    }

    /// For a task of its own.
    pub(super) fn me(&self) -> Result<Arc<Backend>> {
        let me = self.this.upgrade();
        me.ok_or_else(|| Error::unavailable("the client is ending"))
    }

    pub(super) fn waiting(&self) -> MutexGuard<'_, ByClaim<Arc<Claim>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a claim is still to be sent. Its caller may have left while it queued.
    pub(super) fn wants(&self, claim: ClaimId) -> bool {
        self.handle.get().is_none_or(|client| client.wants(claim))
    }

    /// Applies events, each to its own line, in one transaction. Does not wait for rows that other
    /// sessions have locked for long: they must not hold up the other events.
    pub(super) async fn apply(&self, purpose: Purpose, events: &[Event]) -> Result<Called> {
        let limit = self.client.settings().request_timeout;
        self.apply_within(purpose, limit, events).await
    }

    /// The same, with a limit for each request.
    pub(super) async fn apply_within(
        &self,
        purpose: Purpose,
        limit: Duration,
        events: &[Event],
    ) -> Result<Called> {
        let patience = short_patience(limit);
        let mut called = self.step(purpose, limit, &patience, events).await;
        if events.len() > 1 && is_locked(&called) {
            called = self.step(purpose, limit, SKIP, events).await;
        }
        match called {
            Ok(called) => Ok(called),
            Err(failed) if failed.remedy == Remedy::Locked => Ok(Called {
                answers: vec![None; events.len()],
                sent_again: false,
            }),
            Err(failed) => Err(failed.error),
        }
    }

    /// Applies one event whose row another session has locked, and waits for that row. The answer,
    /// and whether the event was sent more than once.
    pub(super) async fn apply_patiently(&self, event: Event) -> Result<(Answered, bool)> {
        let backend = self.me()?;
        in_task(async move { backend.wait_for_row(event).await }).await
    }

    async fn wait_for_row(&self, event: Event) -> Result<(Answered, bool)> {
        let limit = self.client.settings().request_timeout;
        let Ok(_turn) = tokio::time::timeout(limit, self.waits_for_row.lock()).await else {
            return Err(locked());
        };
        let patience = long_patience(limit);
        let called = self
            .step(Purpose::Patience, limit, &patience, &[event])
            .await;
        match called {
            Ok(mut called) => {
                let answer = called.answers.pop().flatten().ok_or_else(unexpected)?;
                Ok((answer, called.sent_again))
            }
            Err(failed) if failed.remedy == Remedy::Locked => Err(locked()),
            Err(failed) => Err(failed.error),
        }
    }

    /// Sends one call. `patience` is how many milliseconds it waits for a row, or [`SKIP`].
    async fn step(
        &self,
        purpose: Purpose,
        limit: Duration,
        patience: &str,
        events: &[Event],
    ) -> std::result::Result<Called, Failed> {
        let columns = Columns::of(events);
        let inbox = self.inbox.channel.as_str();
        let parameters: &Parameters<'_> = &[
            (&columns.verbs, Type::TEXT_ARRAY),
            (&columns.keys, Type::TEXT_ARRAY),
            (&columns.claims, Type::BYTEA_ARRAY),
            (&columns.fences, Type::INT8_ARRAY),
            (&columns.kinds, Type::TEXT_ARRAY),
            (&columns.capacities, Type::INT8_ARRAY),
            (&columns.modes, Type::TEXT_ARRAY),
            (&columns.permits, Type::INT8_ARRAY),
            (&columns.owners, Type::TEXT_ARRAY),
            (&columns.reasons, Type::TEXT_ARRAY),
            (&columns.leases, Type::INT8_ARRAY),
            (&columns.queues, Type::BOOL_ARRAY),
            (&columns.min_holds, Type::INT8_ARRAY),
            (&columns.once_pers, Type::INT8_ARRAY),
            (&columns.texts, Type::TEXT_ARRAY),
            (&columns.spans, Type::INT8_ARRAY),
            (&inbox, Type::TEXT),
            (&patience, Type::TEXT),
        ];
        let sent = self.send(purpose, limit, &self.text.step, parameters);
        let (rows, sent_again) = sent.await?;
        let read = rows.first().ok_or_else(unexpected);
        match read.and_then(|row| line::answers(row, events.len())) {
            Ok(answers) => Ok(Called {
                answers,
                sent_again,
            }),
            Err(error) => Err(Failed {
                error,
                remedy: Remedy::None,
            }),
        }
    }

    /// Sends a statement of ours, and mends what can be mended.
    pub(super) async fn query(
        &self,
        purpose: Purpose,
        statement: &str,
        parameters: &Parameters<'_>,
    ) -> Result<Vec<Row>> {
        let limit = self.client.settings().request_timeout;
        match self.send(purpose, limit, statement, parameters).await {
            Ok((rows, _)) => Ok(rows),
            Err(failed) => Err(failed.error),
        }
    }

    /// As [`query`](Backend::query), within a limit of its own. Says whether it was sent again.
    pub(super) async fn send(
        &self,
        purpose: Purpose,
        limit: Duration,
        statement: &str,
        parameters: &Parameters<'_>,
    ) -> std::result::Result<(Vec<Row>, bool), Failed> {
        let (mut repeats, mut sent_again, mut created) = (0, false, false);
        loop {
            let failed = match self
                .client
                .query(purpose, limit, statement, parameters)
                .await
            {
                Ok(rows) => return Ok((rows, sent_again)),
                Err(failed) => failed,
            };
            match failed.remedy {
                Remedy::Repeat if repeats < REPEATS => repeats += 1,
                // Verbs are idempotent. It is sent again once: a server that ends each connection
                // must not be asked for ever.
                Remedy::Reconnect if !sent_again => sent_again = true,
                Remedy::Create if !created => {
                    created = true;
                    let error = failed.error.clone();
                    let done = self.created(failed).await;
                    done.map_err(|refused| Failed {
                        error: if refused.kind() == error.kind() {
                            error
                        } else {
                            refused
                        },
                        remedy: Remedy::None,
                    })?;
                }
                // The first attempt may have been done, whatever became of the last one.
                remedy if sent_again => {
                    let error = failed.error.with_earlier_attempt();
                    return Err(Failed { error, remedy });
                }
                _ => return Err(failed),
            }
        }
    }
}

/// Leaves out events whose rows are locked.
const SKIP: &str = "skip";

fn is_locked(called: &std::result::Result<Called, Failed>) -> bool {
    matches!(called, Err(failed) if failed.remedy == Remedy::Locked)
}

/// Another session has locked the row for too long.
pub(super) fn locked() -> Error {
    Error::unavailable(
        "another session has locked the row of the name; does a forgotten transaction hold it?",
    )
}

/// How long a request with this limit waits for a locked row, as `lock_timeout` takes it, before
/// it leaves the connection to others.
pub(super) fn short_patience(limit: Duration) -> String {
    SHORT_PATIENCE.min(limit / 4).as_millis().max(1).to_string()
}

/// The same on a connection where no other request waits for it.
pub(super) fn long_patience(limit: Duration) -> String {
    PATIENCE.min(limit / 2).as_millis().max(1).to_string()
}

/// The error of a claim whose caller has left before it was sent.
pub(super) fn unwanted() -> Error {
    Error::unavailable("the caller has left before the claim was sent").with_nothing_sent()
}

struct Contact(Weak<Backend>);

impl ContactHandler for Contact {
    fn contact_lost(&self) {
        if let Some(backend) = self.0.upgrade()
            && let Some(client) = backend.handle.get()
        {
            client.contact_lost();
        }
    }

    fn contact_regained(&self) {
        if let Some(backend) = self.0.upgrade()
            && let Some(client) = backend.handle.get()
        {
            client.contact_regained();
        }
    }
}

/// Deletes idle names now and then, for as long as the store is used.
async fn sweep(backend: Weak<Backend>) {
    loop {
        tokio::time::sleep(SWEEP.mul_f64(0.5 + fastrand::f64())).await;
        let Some(backend) = backend.upgrade() else {
            return;
        };
        loop {
            // On the connection of the renewals, which is there if anything was ever held for long.
            let swept = backend
                .query(Purpose::Renewals, &backend.text.sweep, &[])
                .await;
            match swept {
                Ok(rows) if rows.first().is_some_and(|row| row.get(0)) => {}
                Ok(_) => break,
                Err(error) => {
                    tracing::debug!(%error, "idle names are not swept");
                    break;
                }
            }
        }
    }
}
