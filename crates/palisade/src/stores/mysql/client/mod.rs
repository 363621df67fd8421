//! How statements get to the server: connections, login, TLS, reconnecting. It knows nothing of
//! locks.
//!
//! A client has a few connections for statements. Each runs one statement at a time; one that is
//! free takes the next statement in the queue, and further ones are opened while all are busy. A
//! statement that needs the session of an earlier one is pinned to its connection.

mod connection;
mod queue;
mod settings;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use mysql_async::{Row, Value};
use tokio::sync::oneshot;

pub(crate) use self::connection::{Connection, Failure, SQL_MODE};
use self::queue::{Job, Queue};
pub(crate) use self::settings::ClientSettings;
use crate::error::{Error, Result};

/// How many connections run statements.
const LANES: usize = 8;
/// Pauses before a statement that lost a deadlock, or a row, is sent again.
const AGAIN: std::ops::Range<u64> = 1..12;

/// One statement with its values.
#[derive(Clone, Debug)]
pub(crate) struct Statement {
    pub(crate) sql: Arc<str>,
    pub(crate) values: Vec<Value>,
}

/// The connection that ran a statement, until it is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Session {
    lane: usize,
    generation: u64,
}

/// The result of a statement.
pub(crate) struct Done {
    pub(crate) rows: Vec<Row>,
    pub(crate) session: Session,
    /// Whether it may have been done before: its first answer was lost.
    pub(crate) sent_again: bool,
}

/// How a statement is to be run.
#[derive(Clone)]
pub(crate) struct How {
    /// The session that it needs. Another one will do when that is gone.
    pub(crate) pinned: Option<Session>,
    /// Whether it goes before others.
    pub(crate) urgent: bool,
    /// Whether it may wait for a row for long, so that it must leave a connection to the others that
    /// are urgent.
    pub(crate) waits: bool,
    /// Asked before it is sent: whether its caller still wants it.
    pub(crate) wanted: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
    pub(crate) limit: Option<Duration>,
    /// Whether a row that is locked for too long is an error at once.
    pub(crate) impatient: bool,
    /// Whether it commits more than once, so that a part of it may be done when it fails.
    pub(crate) in_parts: bool,
}

/// The number of the server's error behind an error of ours.
pub(crate) fn code_of(error: &Error) -> Option<u16> {
    let cause = std::error::Error::source(error)?;
    cause
        .downcast_ref::<mysql_async::ServerError>()
        .map(|refused| refused.code)
}

impl How {
    pub(crate) const URGENT: How = How {
        pinned: None,
        urgent: true,
        waits: false,
        wanted: None,
        limit: None,
        impatient: false,
        in_parts: false,
    };
}

/// What becomes of the contact with the server.
pub(crate) trait Contact: Send + Sync {
    fn lost(&self);
    fn regained(&self);
}

/// A client of one server.
pub(crate) struct Client {
    settings: Arc<ClientSettings>,
    contact: Arc<dyn Contact>,
    queue: OnceLock<Arc<Queue>>,
}

impl Client {
    /// Nothing is connected.
    pub(crate) fn new(settings: ClientSettings, contact: Arc<dyn Contact>) -> Client {
        Client {
            settings: Arc::new(settings),
            contact,
            queue: OnceLock::new(),
        }
    }

    pub(crate) fn settings(&self) -> &Arc<ClientSettings> {
        &self.settings
    }

    fn queue(&self) -> &Arc<Queue> {
        self.queue
            .get_or_init(|| Queue::new(LANES, &self.settings, &self.contact))
    }

    /// Whether this session is still the one that it was.
    pub(crate) fn is_open(&self, session: Session) -> bool {
        self.queue
            .get()
            .is_some_and(|queue| queue.generation(session.lane) == session.generation)
    }

    /// Runs a statement. One that lost a deadlock, a row or its connection is sent again, for as
    /// long as a request may take: it must bear that.
    pub(crate) async fn run(&self, statement: &Statement, how: How) -> Result<Done> {
        let limit = how.limit.unwrap_or(self.settings.request_timeout);
        let until = Instant::now() + limit;
        let (mut sent, mut failures) = (false, 0_u32);
        loop {
            let pinned = how
                .pinned
                .filter(|session| self.is_open(*session))
                .map(|session| session.lane);
            let (reply, answer) = oneshot::channel();
            self.queue().push(
                Job {
                    statement: statement.clone(),
                    until,
                    wanted: how.wanted.clone(),
                    reply,
                },
                pinned,
                &how,
            );
            let failure = match answer.await {
                Ok(Ok((rows, session))) => {
                    return Ok(Done {
                        rows,
                        session,
                        sent_again: sent,
                    });
                }
                Ok(Err(failure)) => failure,
                Err(_) => return Err(Error::unavailable("the client is ending")),
            };
            sent |= failure.may_be_done() || (how.in_parts && failure.is_rolled_back());
            let locked = how.impatient && failure.code() == Some(1205);
            if locked || !failure.is_worth_another_try(failures) || Instant::now() >= until {
                return Err(failure.into_error(&self.settings, sent));
            }
            failures += 1;
            tokio::time::sleep(Duration::from_millis(fastrand::u64(AGAIN))).await;
        }
    }

    /// A connection of its own.
    pub(crate) async fn connect(&self) -> Result<Connection> {
        Connection::open(&self.settings)
            .await
            .map_err(|failure| failure.into_error(&self.settings, false))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(queue) = self.queue.get() {
            queue.close();
        }
    }
}
