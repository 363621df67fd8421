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
use crate::url::StoreUrl;

/// How long a verb waits for a row that another session has locked.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often a request is sent again after a deadlock, a serialization failure or a locked row.
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
    pub(super) this: Weak<Backend>,
}

/// How a call ended, and whether it was sent more than once.
pub(super) struct Called {
    pub(super) answers: Vec<Answered>,
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
            this: Weak::clone(backend),
        }))
    }

    pub(super) fn attach(&self, client: ClientHandle) {
        client.runtime().spawn(sweep(Weak::clone(&self.this)));
        // Told once.
        let _ = self.handle.set(client);
    }

    pub(super) fn waiting(&self) -> MutexGuard<'_, ByClaim<Arc<Claim>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a claim is still to be sent. Its caller may have left while it queued.
    pub(super) fn wants(&self, claim: ClaimId) -> bool {
        self.handle.get().is_none_or(|client| client.wants(claim))
    }

    /// Applies events, each to its own line, in one transaction.
    pub(super) async fn step(
        &self,
        purpose: Purpose,
        limit: Duration,
        events: &[Event],
    ) -> Result<Called> {
        let columns = Columns::of(events);
        let patience = PATIENCE.min(limit / 4).as_millis().max(1).to_string();
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
        let asked = self.send(purpose, limit, &self.text.step, parameters).await;
        let (rows, sent_again) = match asked {
            Ok(answered) => answered,
            // One row that is locked from outside must not hold up the other events.
            Err(failed) if failed.remedy == Remedy::Repeat && events.len() > 1 => {
                let (one, other) = events.split_at(events.len() / 2);
                let mut called = Box::pin(self.step(purpose, limit, one)).await?;
                let other = Box::pin(self.step(purpose, limit, other)).await?;
                called.answers.extend(other.answers);
                called.sent_again |= other.sent_again;
                return Ok(called);
            }
            Err(failed) => return Err(failed.error),
        };
        let row = rows.first().ok_or_else(unexpected)?;
        Ok(Called {
            answers: line::answers(row, events.len())?,
            sent_again,
        })
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

    async fn send(
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
                _ => return Err(failed),
            }
        }
    }
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
        // On the connection of the renewals, which is there if anything was ever held for long.
        if let Err(error) = backend
            .query(Purpose::Renewals, &backend.text.sweep, &[])
            .await
        {
            tracing::debug!(%error, "idle names are not swept");
        }
    }
}
