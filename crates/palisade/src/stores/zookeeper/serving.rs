//! The task behind a session: it reads what the server says, writes what has gathered, and replaces a connection that is lost.

use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::failure::Failed;
use super::pipe::{End, Look, Pipe, Reply};
use super::proto::{self, Code};
use super::session::{Hears, Session};
use super::settings::Settings;
use super::wire::{Hello, Wire};
use crate::error::{Error, Result};
use crate::lease::{BootClock, Clock};

/// Between two rounds of attempts to reach a server.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Why a connection is not served any more.
enum Over {
    /// Nobody needs it.
    Done,
    /// The session has ended.
    Ended,
    Lost(Error),
}

/// What wakes whoever serves a connection.
enum Wake<'a> {
    Message(std::io::Result<&'a [u8]>),
    /// There is something to write, or to wait for.
    Stirred,
    Time,
}

/// Serves the connections of one session, one after the other.
pub(super) struct Actor {
    pub(super) id: i64,
    pub(super) session: Weak<Session>,
    pub(super) settings: Arc<Settings>,
    pub(super) hears: Weak<dyn Hears>,
    pub(super) pipe: Arc<Pipe>,
    /// Which server is tried next.
    pub(super) place: usize,
}

/// However it ends, with its runtime too: nobody waits for an answer any more.
impl Drop for Actor {
    fn drop(&mut self) {
        self.pipe.is_over();
    }
}

impl Actor {
    pub(super) async fn run(mut self, mut wire: Wire) {
        loop {
            let error = match self.serve(wire).await {
                Over::Done => {
                    if let Some(hears) = self.hears.upgrade() {
                        hears.left(self.id);
                    }
                    return;
                }
                Over::Ended => return self.end(),
                Over::Lost(error) => error,
            };
            self.pipe.is_lost(&error);
            tracing::debug!(%error, "the connection of a session is lost");
            let Some(session) = self.session.upgrade() else { return };
            let Some(hears) = self.hears.upgrade().filter(|_| session.has_debts() || self.is_needed(&session)) else {
                // Nobody would miss it; the server ends it by itself.
                return self.end();
            };
            hears.cut_off(&session);
            drop((session, hears));
            let pipe = Arc::clone(&self.pipe);
            let reconnected = tokio::select! {
                biased;
                wire = self.reconnect() => wire,
                never = pipe.tell_the_late() => never,
            };
            wire = match reconnected {
                Some(wire) => wire,
                None => return self.end(),
            };
            let (Some(session), Some(hears)) = (self.session.upgrade(), self.hears.upgrade()) else { return };
            hears.restored(&session);
        }
    }

    /// The session has ended: whoever waits is told when the actor goes.
    fn end(self) {
        let Some(session) = self.session.upgrade() else { return };
        let news = !std::mem::replace(&mut session.state().gone, true);
        if let Some(hears) = self.hears.upgrade().filter(|_| news) {
            hears.ended(&session);
        }
    }

    /// Whether somebody would miss the session.
    fn is_needed(&self, session: &Session) -> bool {
        self.hears.upgrade().is_some_and(|hears| hears.in_use(session))
    }

    /// Finds a server that takes the session up; `None` when it has ended, must have by now, or nobody needs it any more.
    async fn reconnect(&mut self) -> Option<Wire> {
        let mut failures = 0_usize;
        loop {
            let (hello_of, length, heard) = {
                let session = self.session.upgrade()?;
                let state = session.state();
                ((state.seen, state.id, state.password.clone()), state.dating.length(), state.heard)
            };
            // The server counts from later than we do, and in whole ticks; a quorum that was lost begins anew.
            if BootClock.now().since(heard) > length * 10 {
                return None;
            }
            let host = self.settings.hosts.get(self.place % self.settings.hosts.len().max(1))?;
            self.place += 1;
            let (seen, id, password) = &hello_of;
            let hello = Hello { seen: *seen, length, session: *id, password };
            match Wire::open_within(self.limit().min(self.settings.connect_timeout), &self.settings, host, &hello).await {
                // A server that hears us, and is not heard, counts the session from anew each time. Past its end that would keep
                // names closed by nodes that nobody believes in any more.
                None if self.session.upgrade()?.is_over() => return None,
                None => tracing::debug!("a session cannot be taken up again in time"),
                Some(Ok((wire, connected, sent))) => {
                    if connected.session != *id {
                        return None;
                    }
                    let session = self.session.upgrade()?;
                    let mut state = session.state();
                    let granted = Duration::from_millis(u64::try_from(connected.timeout_ms).unwrap_or(0));
                    if granted < length {
                        // Its holders count on more. They are told now, and the server ends it in its new time: that is time to stop.
                        tracing::warn!(?length, ?granted, "ZooKeeper has shortened a session, which is given up");
                        return None;
                    }
                    state.dating.connected(sent, granted);
                    state.heard = sent;
                    state.proven = sent;
                    state.connection += 1;
                    drop(state);
                    return Some(wire);
                }
                Some(Err(error)) => tracing::debug!(%error, "a session cannot be taken up again"),
            }
            let session = self.session.upgrade()?;
            if !session.has_debts() && !self.is_needed(&session) {
                return None;
            }
            drop(session);
            failures += 1;
            if failures.is_multiple_of(self.settings.hosts.len().max(1)) {
                let round = u32::try_from(failures / self.settings.hosts.len().max(1)).unwrap_or(u32::MAX);
                let ceiling = PAUSE.0.saturating_mul(1 << round.min(6)).min(PAUSE.1);
                tokio::time::sleep(ceiling.mul_f64(0.5 + 0.5 * fastrand::f64())).await;
            }
        }
    }

    /// How long an answer may take before the connection is given up: there must be time left for another server.
    fn limit(&self) -> Duration {
        let length = self.session.upgrade().map_or(Duration::ZERO, |session| session.length());
        (length / 4).min(self.settings.request_timeout)
    }

    async fn serve(&mut self, wire: Wire) -> Over {
        let Wire { mut read, mut write } = wire;
        let limit = self.limit();
        self.pipe.is_up(write.socket());
        let mut looks_at = None;
        let mut time = pin!(tokio::time::sleep(Duration::ZERO));
        loop {
            let wake = tokio::select! {
                biased;
                message = read.message() => Wake::Message(message),
                () = self.pipe.stirred() => Wake::Stirred,
                () = time.as_mut(), if looks_at.is_some() => Wake::Time,
            };
            match wake {
                Wake::Message(message) => {
                    let mut next = match message {
                        Ok(message) => Some(message),
                        Err(cause) => {
                            return Over::Lost(Error::unavailable("the connection to ZooKeeper is lost").with_source(cause));
                        }
                    };
                    // All that has come with it.
                    while let Some(message) = next {
                        if let Err(over) = self.take(message) {
                            return over;
                        }
                        next = match read.buffered() {
                            Ok(next) => next,
                            Err(cause) => {
                                return Over::Lost(Error::protocol("ZooKeeper sent too much at once").with_source(cause));
                            }
                        };
                    }
                    continue;
                }
                Wake::Stirred => {
                    let (out, end) = self.pipe.outgoing();
                    if end == Some(End::Leave) {
                        return Over::Done;
                    }
                    let is_written = matches!(tokio::time::timeout(limit, write.write(&out)).await, Ok(Ok(())));
                    if end == Some(End::Close) {
                        // It hears of the end before we hang up.
                        let _ = tokio::time::timeout(limit, read.message()).await;
                        return Over::Done;
                    }
                    if !is_written {
                        return Over::Lost(Error::unavailable("ZooKeeper cannot be written to"));
                    }
                }
                Wake::Time => {}
            }
            let now = BootClock.now();
            looks_at = match self.pipe.look(now, limit) {
                Look::At(next) => next,
                Look::Overdue => return Over::Lost(Error::unavailable("ZooKeeper has not answered in time")),
            };
            if let Some(at) = looks_at {
                time.as_mut().reset(tokio::time::Instant::now() + at.since(now));
            }
        }
    }

    /// Takes up one message.
    fn take(&self, message: &[u8]) -> Result<(), Over> {
        let unreadable = |_| Over::Lost(Error::protocol("ZooKeeper answered what this version does not understand"));
        let (header, body) = proto::header(message).map_err(unreadable)?;
        let Some(session) = self.session.upgrade() else { return Ok(()) };
        match header.xid {
            proto::XID_EVENT => {
                let path = proto::event_path(body).map_err(unreadable)?;
                if let Some(hears) = self.hears.upgrade() {
                    hears.told(&session, &path);
                }
                Ok(())
            }
            proto::XID_AUTH if header.error == 0 => Ok(()),
            proto::XID_AUTH => Err(Over::Lost(Failed::Refused(Code::AuthFailed).into())),
            xid => {
                let flight = self.pipe.answered(xid);
                let flight = flight.ok_or_else(|| Over::Lost(Error::protocol("ZooKeeper answered out of order")))?;
                let code = Code::of(header.error);
                if proto::is_of_ended_session(flight.op, &header, body) {
                    return Err(Over::Ended);
                }
                if code == Code::SessionMoved {
                    return Err(Over::Lost(Error::unavailable("another connection has taken the session")));
                }
                {
                    let mut state = session.state();
                    state.seen = state.seen.max(header.zxid);
                    let now = BootClock.now();
                    state.heard = now;
                    state.dating.answered(flight.sent, now, flight.by_leader);
                    if flight.by_leader {
                        state.proven = state.proven.max(flight.sent);
                    }
                }
                flight.answer(match header.error {
                    0 => Ok(Reply { zxid: header.zxid, body: body.to_vec() }),
                    _ => Err(Failed::Refused(code)),
                });
                Ok(())
            }
        }
    }
}
