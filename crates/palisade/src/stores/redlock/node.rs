//! One of the servers: its connection, whether it may vote, and its clock.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::Value;

use super::members::Members;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::{BootClock, Clock};
use crate::stores::redis::client::{
    Address, Call, Client, Facts, Purpose, PushHandler, Server, final_error, is_no_script,
};

/// A server that has left a request unanswered for so long is not asked where a majority does
/// without it.
const SILENT: Duration = Duration::from_millis(300);
/// Between two attempts to reach a server that the others do without.
const REACH_AGAIN: Duration = Duration::from_millis(100);

pub(super) struct Node {
    pub(super) place: usize,
    pub(super) address: Address,
    client: Arc<Client>,
    members: Arc<Members>,
    state: Mutex<State>,
    /// The server's clock less ours, in microseconds, as far as is known.
    ahead: AtomicI64,
}

#[derive(Default)]
struct State {
    /// The open connection, once the server has said what it is.
    checked: Option<Checked>,
    /// Why the server is not one to vote at all: the URL is wrong.
    refused: Option<Error>,
    /// When it was last tried to reach the server without waiting for it.
    tried: Option<Instant>,
}

struct Checked {
    server: Arc<Server>,
    /// Before that the server is too young to vote.
    votes_from: Option<Instant>,
    /// How many requests were answered, and when that was first seen.
    answered: (u64, Instant),
}

/// A server with an open connection.
pub(super) struct Connected {
    pub(super) server: Arc<Server>,
    /// Whether it has left requests unanswered for a while.
    pub(super) is_silent: bool,
}

impl Node {
    pub(super) fn new(
        place: usize,
        address: Address,
        client: Arc<Client>,
        members: &Arc<Members>,
    ) -> Node {
        Node {
            place,
            address,
            client,
            members: Arc::clone(members),
            state: Mutex::default(),
            ahead: AtomicI64::new(i64::MIN),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server, if it is connected.
    pub(super) fn connected(&self) -> Option<Connected> {
        let mut state = self.lock();
        let checked = state.checked.as_mut()?;
        if checked.server.is_closed() {
            return None;
        }
        let progress = checked.server.progress();
        if !progress.in_flight || progress.answered != checked.answered.0 {
            checked.answered = (progress.answered, Instant::now());
        }
        Some(Connected {
            server: Arc::clone(&checked.server),
            is_silent: checked.answered.1.elapsed() >= SILENT,
        })
    }

    /// How long the server is still too young to vote.
    pub(super) fn is_young_for(&self) -> Option<Duration> {
        let votes_from = self.lock().checked.as_ref()?.votes_from?;
        Some(votes_from.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
    }

    /// Why the URL is wrong about this server.
    pub(super) fn refused(&self) -> Option<Error> {
        self.lock().refused.clone()
    }

    /// The server, connected and checked.
    pub(super) async fn reach(&self) -> Result<Arc<Server>> {
        let reached = self.reach_for(Purpose::Requests).await;
        let mut state = self.lock();
        match reached {
            Ok((server, facts)) => {
                let same = |checked: &Checked| Arc::ptr_eq(&checked.server, &server);
                if !state.checked.as_ref().is_some_and(same) {
                    state.checked = Some(Checked {
                        server: Arc::clone(&server),
                        votes_from: self.members.votes_from(&facts),
                        answered: (server.progress().answered, Instant::now()),
                    });
                }
                state.refused = None;
                Ok(server)
            }
            Err(error) => {
                state.refused = (error.kind() == ErrorKind::Config).then(|| error.clone());
                Err(error)
            }
        }
    }

    async fn reach_for(&self, purpose: Purpose) -> Result<(Arc<Server>, Facts)> {
        let server = self.client.server(&self.address, purpose).await?;
        let facts = server.facts().await?.clone();
        self.members.admit(self.place, &self.address, &facts)?;
        if let Some(time) = facts.time {
            self.learn(time.saturating_add(micros(facts.at.elapsed())));
        }
        Ok((server, facts))
    }

    /// Reaches the server in a task of its own, not too often: the others do without it.
    pub(super) fn reach_soon(self: &Arc<Self>) {
        let due = |tried: Instant| tried.elapsed() >= REACH_AGAIN;
        if self.lock().tried.replace(Instant::now()).is_none_or(due) {
            let node = Arc::clone(self);
            tokio::spawn(async move { node.reach().await });
        }
    }

    /// The server's clock said this.
    pub(super) fn learn(&self, time: u64) {
        let ahead = i64::try_from(time).unwrap_or(i64::MAX) - now();
        self.ahead.store(ahead, Ordering::Relaxed);
    }

    /// What the server's clock says now, in microseconds; zero when that is not known.
    pub(super) fn time(&self) -> u64 {
        match self.ahead.load(Ordering::Relaxed) {
            i64::MIN => 0,
            ahead => u64::try_from(now().saturating_add(ahead)).unwrap_or(0),
        }
    }

    /// Calls a script on a connection that is open. Nothing is sent twice.
    pub(super) fn call(
        &self,
        server: Arc<Server>,
        call: &Arc<Call>,
    ) -> impl Future<Output = Result<Value>> + Send + 'static {
        let (call, address) = (Arc::clone(call), self.address.clone());
        async move {
            let reply = server.call(&call).await;
            reply.map_err(|error| final_error(&error, &address))
        }
    }

    /// Calls many scripts in one pipeline, on the connection for renewals.
    pub(super) async fn call_all(&self, calls: &[Call]) -> Result<Vec<Result<Value>>> {
        let (server, _) = self.reach_for(Purpose::Renewals).await?;
        let told = |error| final_error(&error, &self.address);
        let replies = server.call_all(calls.iter()).await.map_err(told)?;
        let mut answers = Vec::with_capacity(calls.len());
        for (call, reply) in calls.iter().zip(replies) {
            answers.push(match reply {
                Err(error) if is_no_script(&error) => server.call(call).await.map_err(told),
                reply => reply.map_err(told),
            });
        }
        Ok(answers)
    }
}

/// Our own clock in microseconds.
fn now() -> i64 {
    i64::try_from(BootClock.now().since_zero().as_micros()).unwrap_or(i64::MAX)
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// Takes what the connections to one server tell.
pub(super) struct Contact {
    pub(super) place: usize,
    pub(super) members: Arc<Members>,
}

impl PushHandler for Contact {
    /// Nothing is subscribed to.
    fn message(&self, _channel: &[u8], _payload: &[u8]) {}

    fn contact_lost(&self) {
        self.members.lost(self.place);
    }

    fn contact_regained(&self) {
        self.members.regained(self.place);
    }
}
