//! The inbox: one connection that listens, for as long as a claim waits.
//!
//! Each NOTIFY wakes every session of the database that listens to anything. So a client without
//! waiters does not listen.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio_postgres::types::Type;

use super::backend::Backend;
use super::client::{Connection, Heard, Parameters, Purpose};
use super::line::push;
use crate::error::{Error, Result};
use crate::line::Told;
use crate::store::{Claim, ClaimRef};
use crate::stores::backoff::Backoff;
use crate::stores::kit::line::hear;

/// For how long the connection stays when no claim waits any more.
const STAYS: Duration = Duration::from_secs(10);
/// How long the first message to itself may take. Behind a pooler that lends a session for each
/// transaction it never comes.
const TEST: Duration = Duration::from_secs(2);
const TEST_TEXT: &str = "test";
/// Between two attempts to listen.
const PAUSE: Duration = Duration::from_millis(200);
/// Between two questions of a waiter where no push comes.
const FIRST_POLL: Duration = Duration::from_millis(20);
const LONGEST_POLL: Duration = Duration::from_millis(640);

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Off,
    Starting,
    Listening,
}

pub(super) struct Inbox {
    /// The channel, which no other client can guess.
    pub(super) channel: String,
    state: Mutex<State>,
    /// Whether no push comes: a pooler is between.
    polls: AtomicBool,
}

impl Inbox {
    pub(super) fn new(channel: String) -> Inbox {
        Inbox {
            channel,
            state: Mutex::new(State::Off),
            polls: AtomicBool::new(false),
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Backend {
    /// Whether no push comes, so that waiters ask again and again.
    pub(super) fn polls(&self) -> bool {
        self.client.is_pooled() || self.inbox.polls.load(Ordering::Relaxed)
    }

    /// A claim was queued: from now on it can be told.
    pub(super) fn queued(&self, claim: &Arc<Claim>) {
        if self.polls() {
            self.poll(claim);
            return;
        }
        let mut state = self.inbox.state();
        if *state == State::Off {
            *state = State::Starting;
            tokio::spawn(listen(Weak::clone(&self.this)));
        }
    }

    /// A claim has ended. With a fence it is a grant that has ended, perhaps long ago: the claim may
    /// wait again.
    pub(super) fn stopped_waiting(&self, ended: &ClaimRef) {
        if ended.fence.is_none() {
            self.waiting().remove(&ended.claim.id);
        }
    }

    /// Asks for all claims that wait: a push may have been lost.
    fn ask_for_all(&self) {
        let waiting: Vec<_> = self.waiting().keys().copied().collect();
        if let Some(client) = self.handle.get() {
            waiting
                .into_iter()
                .for_each(|claim| client.ask_again(claim));
        }
    }

    /// Asks for a claim again and again while it waits.
    fn poll(&self, claim: &Arc<Claim>) {
        let Some(client) = self.handle.get().cloned() else {
            return;
        };
        let id = claim.id;
        let asks = client.clone();
        client.while_waiting(id, async move {
            let mut backoff = Backoff::new(FIRST_POLL, LONGEST_POLL);
            loop {
                backoff.pause().await;
                asks.ask_again(id);
            }
        });
    }

    fn pushed(&self, text: &str) {
        let Some(told) = push(text) else {
            if text != TEST_TEXT {
                tracing::warn!("a message that cannot be read came to the inbox");
            }
            return;
        };
        let claim = match told {
            Told::Granted { claim, .. } | Told::Gone { claim, .. } => claim,
        };
        self.waiting().remove(&claim);
        if let Some(client) = self.handle.get() {
            hear(client, told);
        }
    }
}

/// Listens for as long as claims wait, through reconnects.
async fn listen(backend: Weak<Backend>) {
    loop {
        match listen_once(&backend).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => tracing::debug!(%error, "cannot listen to PostgreSQL"),
        }
        let Some(strong) = backend.upgrade() else {
            return;
        };
        *strong.inbox.state() = State::Starting;
        if strong.ends_listening() {
            return;
        }
        drop(strong);
        tokio::time::sleep(PAUSE.mul_f64(0.5 + fastrand::f64())).await;
    }
}

impl Backend {
    /// Whether no claim waits. If so, the next one begins to listen anew.
    fn ends_listening(&self) -> bool {
        let mut state = self.inbox.state();
        let idle = self.waiting().is_empty();
        if idle {
            *state = State::Off;
        }
        idle
    }
}

/// Runs a statement on the listener's connection.
async fn ask(backend: &Backend, connection: &Connection, statement: &str) -> Result<()> {
    let asked = connection.client.batch_execute(statement);
    let limit = backend.client.settings().request_timeout;
    match tokio::time::timeout(limit, asked).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(Error::unavailable("cannot listen to PostgreSQL").with_source(error)),
        Err(_) => Err(Error::unavailable(format!(
            "{} does not answer within {limit:?}",
            connection.address
        ))),
    }
}

/// Listens on one connection; `true` when it has ended, `false` when there is nothing to listen for.
async fn listen_once(backend: &Weak<Backend>) -> Result<bool> {
    let Some(strong) = backend.upgrade() else {
        return Ok(false);
    };
    let (sender, mut heard) = mpsc::unbounded_channel::<Heard>();
    let connection = strong.client.listener(sender).await?;
    let inbox = strong.inbox.channel.as_str();
    ask(&strong, &connection, &format!("LISTEN \"{inbox}\"")).await?;
    // From another session, as every push: a pooler may lend this one the same session twice.
    let parameters: &Parameters<'_> = &[(&inbox, Type::TEXT), (&TEST_TEXT, Type::TEXT)];
    let notify = "SELECT pg_notify($1, $2)";
    strong.query(Purpose::Verbs, notify, parameters).await?;
    if tokio::time::timeout(TEST, heard.recv()).await.is_err() && !connection.is_closed() {
        tracing::warn!(
            "no push comes from PostgreSQL: a pooler is between that lends a session for each \
             transaction; waiters ask again and again instead"
        );
        strong.inbox.polls.store(true, Ordering::Relaxed);
        let waiting: Vec<_> = strong.waiting().values().cloned().collect();
        waiting.iter().for_each(|claim| strong.poll(claim));
        return Ok(false);
    }
    // It would end a listener that hears nothing. It is there from version 14.
    let stays =
        "SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'idle_session_timeout'";
    ask(&strong, &connection, stays).await?;
    *strong.inbox.state() = State::Listening;
    // A grant that came before is found by a renewal.
    strong.ask_for_all();
    drop(strong);
    let mut idle_since: Option<Instant> = None;
    loop {
        let news = tokio::select! {
            news = heard.recv() => news,
            () = connection.ended() => return Ok(true),
            () = tokio::time::sleep(Duration::from_secs(1)) => {
                let Some(strong) = backend.upgrade() else { return Ok(false) };
                let idle = strong.waiting().is_empty();
                let since = *idle_since.get_or_insert_with(Instant::now);
                if !idle {
                    idle_since = None;
                } else if since.elapsed() > STAYS && strong.ends_listening() {
                    return Ok(false);
                }
                continue;
            }
        };
        let (Some(Heard(text)), Some(strong)) = (news, backend.upgrade()) else {
            return Ok(true);
        };
        strong.pushed(&text);
    }
}
