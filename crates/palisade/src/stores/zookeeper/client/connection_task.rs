//! The task behind a session: it reads answers and events, writes what is queued, and replaces a
//! connection that is lost.

use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::connection::{Hello, Opened, Wire};
use super::failure::Failed;
use super::proto::{self, Code, Reply};
use super::requests::{Connection, End, Timing};
use super::session::{Session, SessionListener};
use super::settings::Settings;
use crate::error::{Error, Result};
use crate::lease::{BootClock, Clock};
use crate::stores::backoff::Backoff;

/// Between two rounds of attempts to reach a server, growing from the first to the second.
const PAUSE: (Duration, Duration) = (Duration::from_millis(40), Duration::from_secs(1));

/// Why a connection is not served any more.
enum Over {
    /// The session was given up.
    GivenUp,
    /// The session has ended.
    Ended,
    Lost(Error),
}

/// What wakes the task.
enum Wake<'a> {
    Message(std::io::Result<&'a [u8]>),
    /// There is something to write, or to time.
    Queued,
    Time,
}

/// Serves the connections of one session, one after the other.
pub(super) struct ConnectionTask {
    pub(super) id: i64,
    pub(super) session: Weak<Session>,
    pub(super) settings: Arc<Settings>,
    pub(super) listener: Option<Weak<dyn SessionListener>>,
    pub(super) connection: Arc<Connection>,
    /// Which server is tried next.
    pub(super) next_host: usize,
}

/// However the task ends, with its runtime too: no answer will come any more.
impl Drop for ConnectionTask {
    fn drop(&mut self) {
        self.connection.closed();
    }
}

impl ConnectionTask {
    fn listener(&self) -> Option<Arc<dyn SessionListener>> {
        self.listener.as_ref()?.upgrade()
    }

    pub(super) async fn run(mut self, mut wire: Wire) {
        loop {
            let error = match self.serve(wire).await {
                Over::GivenUp => {
                    if let Some(listener) = self.listener() {
                        listener.given_up(self.id);
                    }
                    return;
                }
                Over::Ended => return self.end(),
                Over::Lost(error) => error,
            };
            self.connection.lost(&error);
            tracing::debug!(%error, "the connection of a session is lost");
            let Some(session) = self.session.upgrade() else {
                return;
            };
            let Some(listener) = self.listener().filter(|_| session.is_kept_open()) else {
                // Nothing hangs on it; the server ends it by itself.
                return self.end();
            };
            listener.connection_lost(&session);
            drop(session);
            let connection = Arc::clone(&self.connection);
            let reconnected = tokio::select! {
                biased;
                wire = self.reconnect() => wire,
                never = connection.expire_queue() => never,
            };
            wire = match reconnected {
                Some(wire) => wire,
                None => return self.end(),
            };
            let (Some(session), Some(listener)) = (self.session.upgrade(), self.listener()) else {
                return;
            };
            listener.reconnected(&session);
        }
    }

    /// The session has ended. Waiting callers are told when this task is dropped.
    fn end(self) {
        let Some(session) = self.session.upgrade() else {
            return;
        };
        let is_news = !std::mem::replace(&mut session.state().gone, true);
        if let Some(listener) = self.listener().filter(|_| is_news) {
            listener.ended(&session);
        }
    }

    /// Finds a server that takes the session up; `None` when it has ended, must have by now, or
    /// nothing hangs on it any more.
    async fn reconnect(&mut self) -> Option<Wire> {
        let (mut failures, mut backoff) = (0_usize, Backoff::new(PAUSE.0, PAUSE.1));
        let hosts = self.settings.hosts.len().max(1);
        loop {
            let (seen, credentials, length, heard) = {
                let session = self.session.upgrade()?;
                let state = session.state();
                (
                    state.seen,
                    state.credentials.clone(),
                    state.deadline.length(),
                    state.heard,
                )
            };
            // The server counts from later than we do, and in whole ticks; after a lost quorum it
            // begins anew.
            if BootClock.now().since(heard) > length * 10 {
                return None;
            }
            let host = self.settings.hosts.get(self.next_host % hosts)?;
            self.next_host += 1;
            let hello = Hello {
                seen,
                length,
                credentials: &credentials,
            };
            match Wire::open_within(
                self.limit().min(self.settings.connect_timeout),
                &self.settings,
                host,
                &hello,
            )
            .await
            {
                // A server that hears us, and is not heard, counts the session from anew each time.
                // Past its end that would keep names closed by nodes in which no client believes
                // any more.
                None if self.session.upgrade()?.is_over() => return None,
                None => tracing::debug!("a session cannot be taken up again in time"),
                Some(Ok(opened)) => return self.resume(opened, credentials.id, length),
                Some(Err(error)) => tracing::debug!(%error, "a session cannot be taken up again"),
            }
            if !self.session.upgrade()?.is_kept_open() {
                return None;
            }
            failures += 1;
            if failures.is_multiple_of(hosts) {
                backoff.pause().await;
            }
        }
    }

    /// Goes on with the session on another connection; `None` when the server has ended or
    /// shortened it.
    fn resume(&self, opened: Opened, id: i64, length: Duration) -> Option<Wire> {
        let session = self.session.upgrade()?;
        if opened.credentials.id != id {
            return None;
        }
        if opened.length < length {
            // Its holders count on more. They are told now, and the server ends it in its new time:
            // that is time to stop.
            tracing::warn!(?length, granted = ?opened.length, "ZooKeeper has shortened a session, which is given up");
            return None;
        }
        let mut state = session.state();
        state.deadline.connected(opened.sent, opened.length);
        // The server may be a leader that was deposed: only a transaction on this connection proves
        // anything.
        (state.heard, state.proven) = (opened.sent, None);
        state.connection += 1;
        Some(opened.wire)
    }

    /// How long an answer may take before the connection is given up: there must be time left for
    /// another server.
    fn limit(&self) -> Duration {
        let length = self
            .session
            .upgrade()
            .map_or(Duration::ZERO, |session| session.length());
        (length / 4).min(self.settings.request_timeout)
    }

    async fn serve(&mut self, wire: Wire) -> Over {
        let Wire {
            mut read,
            mut write,
        } = wire;
        let limit = self.limit();
        self.connection.opened(write.socket());
        let mut look_at = None;
        let mut time = pin!(tokio::time::sleep(Duration::ZERO));
        loop {
            let wake = tokio::select! {
                biased;
                message = read.message() => Wake::Message(message),
                () = self.connection.woken() => Wake::Queued,
                () = time.as_mut(), if look_at.is_some() => Wake::Time,
            };
            match wake {
                Wake::Message(Err(cause)) => {
                    return Over::Lost(
                        Error::unavailable("the connection to ZooKeeper is lost")
                            .with_source(cause),
                    );
                }
                Wake::Message(Ok(message)) => {
                    let mut next = Some(message);
                    // All that has come with it.
                    while let Some(message) = next {
                        if let Err(over) = self.receive(message) {
                            return over;
                        }
                        next = match read.buffered() {
                            Ok(next) => next,
                            Err(cause) => {
                                return Over::Lost(
                                    Error::protocol("ZooKeeper sent too much at once")
                                        .with_source(cause),
                                );
                            }
                        };
                    }
                    continue;
                }
                Wake::Queued => {
                    let (out, end) = self.connection.take_output();
                    if end == Some(End::Leave) {
                        return Over::GivenUp;
                    }
                    let is_written = matches!(
                        tokio::time::timeout(limit, write.write(&out)).await,
                        Ok(Ok(()))
                    );
                    if end == Some(End::Close) {
                        // The server hears of the end before we hang up.
                        let _ = tokio::time::timeout(limit, read.message()).await;
                        return Over::GivenUp;
                    }
                    if !is_written {
                        return Over::Lost(Error::unavailable("ZooKeeper cannot be written to"));
                    }
                }
                Wake::Time => {}
            }
            let now = BootClock.now();
            look_at = match self.connection.check_time(now, limit) {
                Timing::LookAt(next) => next,
                Timing::Overdue => {
                    return Over::Lost(Error::unavailable("ZooKeeper has not answered in time"));
                }
            };
            if let Some(at) = look_at {
                time.as_mut()
                    .reset(tokio::time::Instant::now() + at.since(now));
            }
        }
    }

    /// Takes up one message.
    fn receive(&self, message: &[u8]) -> Result<(), Over> {
        let unreadable = |_| {
            Over::Lost(Error::protocol(
                "ZooKeeper answered what this version does not understand",
            ))
        };
        let (header, body) = proto::header(message).map_err(unreadable)?;
        let Some(session) = self.session.upgrade() else {
            return Ok(());
        };
        match header.xid {
            proto::XID_EVENT => {
                let path = proto::event_path(body).map_err(unreadable)?;
                if let Some(listener) = self.listener() {
                    listener.watch_fired(&session, &path);
                }
                Ok(())
            }
            proto::XID_AUTH if header.error == 0 => Ok(()),
            proto::XID_AUTH => Err(Over::Lost(Failed::Refused(Code::AuthFailed).into())),
            xid => {
                let request = self.connection.answered(xid);
                let request = request.ok_or_else(|| {
                    Over::Lost(Error::protocol("ZooKeeper answered out of order"))
                })?;
                let code = Code::of(header.error);
                if proto::is_of_ended_session(request.op, &header, body) {
                    return Err(Over::Ended);
                }
                if code == Code::SessionMoved {
                    return Err(Over::Lost(Error::unavailable(
                        "another connection has taken the session",
                    )));
                }
                {
                    let mut state = session.state();
                    state.seen = state.seen.max(header.zxid);
                    let now = BootClock.now();
                    state.heard = now;
                    state
                        .deadline
                        .answered(request.sent, now, request.by_leader);
                    if request.by_leader {
                        state.proven = state.proven.max(Some(request.sent));
                    }
                }
                request.answer(match header.error {
                    0 => Ok(Reply {
                        zxid: header.zxid,
                        body: body.to_vec(),
                    }),
                    _ => Err(Failed::Refused(code)),
                });
                Ok(())
            }
        }
    }
}
