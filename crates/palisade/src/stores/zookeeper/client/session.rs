//! A session of ZooKeeper's: ephemeral nodes hang on it.
//!
//! It outlives its connections. A connection that is lost is replaced by another to the next
//! server, for as long as the session may live; requests wait for it, up to their own time limit.
//!
//! Nothing here keeps a session alive by itself. It lives only by its requests, so that it ends, by
//! the server's clock, when no request is made any more.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::oneshot;

use super::connection::{Hello, Opened, Wire};
use super::connection_task::ConnectionTask;
use super::failure::Failed;
use super::jute::Broken;
use super::proto::{Acl, Request};
use super::requests::{Answer, Connection, End};
use super::session_deadline::SessionDeadline;
use super::settings::Settings;
use crate::error::{Error, Result};
use crate::lease::{BootClock, Clock, Moment};

/// Hears what happens to a session, on the client's runtime.
pub(crate) trait SessionListener: Send + Sync + 'static {
    /// A watch on this path has fired.
    fn watch_fired(self: Arc<Self>, session: &Arc<Session>, path: &str);
    /// Its connection is lost, and the watches with it.
    fn connection_lost(self: Arc<Self>, session: &Arc<Session>);
    /// It has another connection.
    fn reconnected(self: Arc<Self>, session: &Arc<Session>);
    /// It has ended, and everything that hung on it.
    fn ended(self: Arc<Self>, session: &Arc<Session>);
    /// It was given up on our side: no watch of this session will fire any more.
    fn given_up(self: Arc<Self>, session: i64);
}

/// By what a session is known to the servers.
#[derive(Clone)]
pub(crate) struct Credentials {
    /// 0 for a new session.
    pub(crate) id: i64,
    pub(crate) password: Vec<u8>,
}

pub(crate) struct Session {
    settings: Arc<Settings>,
    state: Mutex<State>,
    connection: Arc<Connection>,
    kept_open: KeepOpen,
}

/// While one exists, a lost connection of the session is replaced: something of ours hangs on it,
/// or may.
pub(crate) type KeepOpen = Arc<()>;

pub(crate) struct State {
    pub(super) credentials: Credentials,
    /// The newest transaction that it has seen.
    pub(super) seen: i64,
    pub(super) deadline: SessionDeadline,
    /// When the server was last heard.
    pub(super) heard: Moment,
    /// When the last transaction was sent that was answered on this connection.
    pub(super) proven: Option<Moment>,
    pub(crate) gone: bool,
    /// Counts its connections.
    pub(super) connection: u64,
}

/// The task behind it then ends the session on the server.
impl Drop for Session {
    fn drop(&mut self) {
        self.connection.end(End::Close);
    }
}

/// A request that was queued. It leaves at the latest when its answer is awaited.
pub(crate) struct Sent<T> {
    answer: oneshot::Receiver<Answer>,
    read: fn(&[u8]) -> Result<T, Broken>,
    session: Arc<Session>,
}

impl<T> Sent<T> {
    pub(crate) async fn answer(self) -> Result<T, Failed> {
        self.with_zxid().await.map(|(answer, _)| answer)
    }

    /// The answer, and the newest transaction that the server had done: its own, for a request that
    /// is one.
    ///
    /// Needs no timer: the connection's task keeps the time limit.
    pub(crate) async fn with_zxid(self) -> Result<(T, i64), Failed> {
        self.session.connection.flush();
        match self.answer.await {
            Ok(answer) => answer.and_then(|reply| Ok(((self.read)(&reply.body)?, reply.zxid))),
            Err(_) if self.session.is_gone() => Err(Failed::Ended),
            Err(_) => Err(Failed::Unsure(Error::unavailable(
                "the connection to ZooKeeper is lost",
            ))),
        }
    }
}

impl Session {
    /// Opens one of this length, or of the nearest length that the server grants.
    pub(crate) async fn open(
        settings: &Arc<Settings>,
        length: Duration,
        listener: Option<Weak<dyn SessionListener>>,
    ) -> Result<Arc<Session>> {
        let new = Credentials {
            id: 0,
            password: vec![0; 16],
        };
        let session = Self::connect(settings, length, new, listener).await?;
        session.ok_or_else(|| Error::unavailable("no session was granted"))
    }

    /// Takes up one that another client has left; `None` when it has ended.
    pub(crate) async fn take_up(
        settings: &Arc<Settings>,
        length: Duration,
        credentials: Credentials,
        listener: Option<Weak<dyn SessionListener>>,
    ) -> Result<Option<Arc<Session>>> {
        let Some(session) = Self::connect(settings, length, credentials, listener).await? else {
            return Ok(None);
        };
        // One server takes it up alone. A transaction proves that a majority has it.
        match session.ask(Request::heartbeat("/")).await {
            Ok(_) => Ok(Some(session)),
            Err(Failed::Ended) => Ok(None),
            Err(failed) => {
                // It is not ours yet, and must not end with us.
                session.leave();
                Err(failed.into())
            }
        }
    }

    async fn connect(
        settings: &Arc<Settings>,
        length: Duration,
        credentials: Credentials,
        listener: Option<Weak<dyn SessionListener>>,
    ) -> Result<Option<Arc<Session>>> {
        let count = settings.hosts.len();
        let first = fastrand::usize(..count.max(1));
        let mut failure = None;
        let begun = BootClock.now();
        for place in first..first + count {
            // Not longer than one request may take, but one attempt at least.
            if place > first && BootClock.now().since(begun) >= settings.request_timeout {
                break;
            }
            let Some(host) = settings.hosts.get(place % count) else {
                break;
            };
            let hello = Hello {
                seen: 0,
                length,
                credentials: &credentials,
            };
            match Wire::open(settings, host, &hello).await {
                Ok(opened) => {
                    return Ok(Self::begin(
                        settings,
                        opened,
                        credentials.id == 0,
                        listener,
                        place + 1,
                    ));
                }
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(|| Error::unavailable("no server can be reached")))
    }

    /// Begins to serve a session; `None` when the server has not granted it.
    fn begin(
        settings: &Arc<Settings>,
        Opened {
            wire,
            credentials,
            length,
            sent,
        }: Opened,
        is_new: bool,
        listener: Option<Weak<dyn SessionListener>>,
        next_host: usize,
    ) -> Option<Arc<Session>> {
        if credentials.id == 0 || length.is_zero() {
            return None;
        }
        let (id, connection): (_, Arc<Connection>) = (credentials.id, Arc::default());
        let state = State {
            credentials,
            seen: 0,
            deadline: if is_new {
                SessionDeadline::new(sent, length)
            } else {
                SessionDeadline::of_other(sent, length)
            },
            heard: sent,
            proven: is_new.then_some(sent),
            gone: false,
            connection: 1,
        };
        let session = Arc::new(Session {
            settings: Arc::clone(settings),
            state: Mutex::new(state),
            connection: Arc::clone(&connection),
            kept_open: KeepOpen::default(),
        });
        let (settings, of) = (Arc::clone(settings), Arc::downgrade(&session));
        tokio::spawn(
            ConnectionTask {
                id,
                session: of,
                settings,
                listener,
                connection,
                next_host,
            }
            .run(wire),
        );
        Some(session)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn acl(&self) -> Acl {
        self.settings.acl()
    }

    pub(crate) fn id(&self) -> i64 {
        self.state().credentials.id
    }

    pub(crate) fn password(&self) -> Vec<u8> {
        self.state().credentials.password.clone()
    }

    /// The length that the server granted.
    pub(crate) fn length(&self) -> Duration {
        self.state().deadline.length()
    }

    /// The last part of its life that can be counted on, at most so long: its length, and when it
    /// begins. It ends when the whole does, whatever the drift of the clocks.
    pub(crate) fn last_part(&self, longest: Duration) -> (Duration, Moment) {
        let state = self.state();
        let deadline = &state.deadline;
        let length = longest.min(deadline.proven_length());
        (
            length,
            deadline.counted_from()
                + (deadline.length() - length).mul_f64(1.0 - self.settings.drift),
        )
    }

    /// To be taken before a node is made or deleted on it, and kept until the outcome is known.
    pub(crate) fn keep_open(&self) -> KeepOpen {
        KeepOpen::clone(&self.kept_open)
    }

    pub(super) fn is_kept_open(&self) -> bool {
        KeepOpen::strong_count(&self.kept_open) > 1
    }

    /// The number of its current connection, from 1 on.
    pub(crate) fn connection(&self) -> u64 {
        self.state().connection
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.state().gone
    }

    /// Whether it has ended by our clock. By the servers' it may live on.
    pub(super) fn is_over(&self) -> bool {
        let state = self.state();
        BootClock.now() > state.deadline.counted_from() + state.deadline.length()
    }

    /// The part of its length that is left at least, by our clock; 0 when it is gone.
    pub(crate) fn left(&self, now: Moment) -> f64 {
        let state = self.state();
        let length = state.deadline.length();
        let left = (state.deadline.counted_from() + length).since(now);
        if state.gone {
            0.0
        } else {
            left.div_duration_f64(length)
        }
    }

    /// Whether the leader has answered so recently that asking again would bring nothing.
    pub(crate) fn is_fresh(&self, now: Moment) -> bool {
        let state = self.state();
        state
            .proven
            .is_some_and(|proven| now.since(proven) < state.deadline.length() / 20)
    }

    /// Queues a request. All that is queued before the first is awaited goes out in one piece, and
    /// is answered in order.
    pub(crate) fn send<T>(self: &Arc<Self>, request: Request<T>) -> Sent<T> {
        // From now on, so that the limits of many run at the same time.
        let until = BootClock.now() + self.settings.request_timeout;
        Sent {
            answer: self.connection.queue(request.frame, until),
            read: request.read,
            session: Arc::clone(self),
        }
    }

    /// Sends a request and awaits its answer.
    pub(crate) async fn ask<T>(self: &Arc<Self>, request: Request<T>) -> Result<T, Failed> {
        self.send(request).answer().await
    }

    /// Gives it up without ending it: it lives on until its time is over, or another client takes
    /// it up.
    pub(crate) fn leave(&self) {
        self.state().gone = true;
        self.connection.end(End::Leave);
    }

    /// Ends it, and everything that hangs on it.
    pub(crate) async fn close(self: Arc<Self>) -> Result<(), Failed> {
        let closed = self.ask(Request::close()).await;
        if let Err(Failed::Unsure(_)) = &closed {
            // It may live on: what is still to be deleted on it must be.
            return closed;
        }
        self.state().gone = true;
        match closed {
            Err(Failed::Ended) => Ok(()),
            closed => closed,
        }
    }
}
