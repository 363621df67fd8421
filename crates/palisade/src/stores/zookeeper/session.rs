//! A session of ZooKeeper's: what our nodes hang on.
//!
//! It outlives its connections. One that is lost is replaced by another to the next server, for as long as the session may live; what
//! was asked meanwhile waits for it, up to its own time limit.
//!
//! Nothing here keeps a session alive by itself. It lives only by what is asked on it, so that it ends, by the server's clock, when
//! nobody renews its claims any more.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::sync::{mpsc, oneshot};

use super::dating::{Dating, PASSED_ON};
use super::failure::Failed;
use super::proto::{self, Acl, Code, Request};
use super::settings::Settings;
use super::together::{self, Together};
use super::wire::{Hello, Wire};
use crate::error::{Error, ErrorKind, Result};
use crate::lease::{BootClock, Clock, Moment};
use crate::store::Lease;

/// Between two rounds of attempts to reach a server.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Who is told what happens to a session.
pub(super) trait Hears: Send + Sync + 'static {
    /// A watch on this path has fired.
    fn told(&self, session: &Arc<Session>, path: &str);
    /// Its connection is lost. With it its watches are.
    fn cut_off(&self, session: &Arc<Session>);
    /// It has another connection.
    fn restored(&self, session: &Arc<Session>);
    /// It has ended, and everything that hung on it.
    fn ended(&self, session: &Arc<Session>);
    /// Nobody has it any more.
    fn left(&self, session: i64);
    /// Whether anything hangs on it.
    fn in_use(&self, session: &Session) -> bool;
}

pub(super) struct Session {
    settings: Arc<Settings>,
    state: Mutex<State>,
    commands: mpsc::UnboundedSender<Command>,
    /// Those of its requests that may go together.
    together: Arc<Together>,
    debts: Debt,
}

/// Something of ours may be on a session, or on its way there: as long as this is kept, the session is not given up with its
/// connection.
pub(super) type Debt = Arc<()>;

struct State {
    id: i64,
    password: Vec<u8>,
    /// The newest transaction that it has seen.
    seen: i64,
    dating: Dating,
    /// When the server was last heard.
    heard: Moment,
    /// When the last request was sent that the leader has answered.
    proven: Moment,
    gone: bool,
    /// Counts its connections.
    connection: u64,
}

enum Command {
    Ask(Request, oneshot::Sender<Result<Reply, Failed>>),
    /// Lets go of the session without ending it.
    Leave,
}

/// A good answer.
pub(super) struct Reply {
    /// The newest transaction that the server had done: its own, for a request that is one.
    pub(super) zxid: i64,
    pub(super) body: Vec<u8>,
}

/// A request on its way.
pub(super) struct Sent {
    answer: oneshot::Receiver<Result<Reply, Failed>>,
    session: Arc<Session>,
    /// From when it was sent, so that the limits of many run at the same time.
    until: tokio::time::Instant,
}

impl Sent {
    /// The body of the answer.
    pub(super) async fn answer(self) -> Result<Vec<u8>, Failed> {
        self.reply().await.map(|reply| reply.body)
    }

    pub(super) async fn reply(self) -> Result<Reply, Failed> {
        match tokio::time::timeout_at(self.until, self.answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) if self.session.is_gone() => Err(Failed::Ended),
            Ok(Err(_)) => Err(Failed::Unsure(Error::unavailable("the connection to ZooKeeper is lost"))),
            Err(_) => Err(Failed::Unsure(Error::unavailable("ZooKeeper has not answered in time"))),
        }
    }
}

impl Session {
    /// Opens one of this length, or another that the server grants.
    pub(super) async fn open(settings: &Arc<Settings>, length: Duration, hears: Weak<dyn Hears>) -> Result<Arc<Session>> {
        Self::begin(settings, length, 0, vec![0; 16], hears).await?.ok_or_else(|| Error::unavailable("no session was granted"))
    }

    /// Takes up one that another client has left; `None` when it has ended.
    pub(super) async fn take_up(
        settings: &Arc<Settings>,
        length: Duration,
        (id, password): (i64, Vec<u8>),
        hears: Weak<dyn Hears>,
    ) -> Result<Option<Arc<Session>>> {
        Self::begin(settings, length, id, password, hears).await
    }

    async fn begin(
        settings: &Arc<Settings>,
        length: Duration,
        id: i64,
        password: Vec<u8>,
        hears: Weak<dyn Hears>,
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
            let Some(host) = settings.hosts.get(place % count) else { break };
            let hello = Hello { seen: 0, length, session: id, password: &password };
            let (wire, connected, sent) = match Wire::open(settings, host, &hello).await {
                Ok(opened) => opened,
                Err(error) => {
                    failure = Some(error);
                    continue;
                }
            };
            let granted = Duration::from_millis(u64::try_from(connected.timeout_ms).unwrap_or(0));
            if connected.session == 0 || granted.is_zero() {
                return Ok(None);
            }
            let (commands, received) = mpsc::unbounded_channel();
            let state = State {
                id: connected.session,
                password: connected.password,
                seen: 0,
                dating: Dating::new(sent, granted),
                heard: sent,
                proven: sent,
                gone: false,
                connection: 1,
            };
            let session = Arc::new_cyclic(|this| Session {
                settings: Arc::clone(settings),
                state: Mutex::new(state),
                commands,
                together: together::on(this),
                debts: Debt::default(),
            });
            let actor = Actor {
                id: session.id(),
                session: Arc::downgrade(&session),
                settings: Arc::clone(settings),
                hears,
                received,
                place: place + 1,
            };
            tokio::spawn(actor.run(wire));
            return Ok(Some(session));
        }
        Err(failure.unwrap_or_else(|| Error::unavailable("no server can be reached")))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn acl(&self) -> Acl {
        self.settings.acl()
    }

    pub(super) fn together(&self) -> &Arc<Together> {
        &self.together
    }

    pub(super) fn id(&self) -> i64 {
        self.state().id
    }

    pub(super) fn password(&self) -> Vec<u8> {
        self.state().password.clone()
    }

    /// The length that the server granted.
    pub(super) fn length(&self) -> Duration {
        self.state().dating.length()
    }

    /// Its lease, as far as it is proven: three quarters of its length, since an answer proves no more at a time.
    pub(super) fn lease(&self) -> Lease {
        self.lease_of(self.length())
    }

    /// The last part of its lease, at most so long. It ends when the whole does, whatever the drift of the clocks.
    pub(super) fn lease_of(&self, longest: Duration) -> Lease {
        let state = self.state();
        let whole = state.dating.length();
        let length = longest.min(whole - whole / PASSED_ON);
        let begins_later = (whole - length).mul_f64(1.0 - self.settings.drift);
        Lease { length, counted_from: Some(state.dating.counted_from() + begins_later) }
    }

    pub(super) fn counted_from(&self) -> Moment {
        self.state().dating.counted_from()
    }

    /// To be taken before anything is made or ended on it, and kept until it is known what became of that.
    pub(super) fn debt(&self) -> Debt {
        Debt::clone(&self.debts)
    }

    fn has_debts(&self) -> bool {
        Debt::strong_count(&self.debts) > 1
    }

    /// Which of its connections is the current one.
    pub(super) fn connection(&self) -> u64 {
        self.state().connection
    }

    pub(super) fn is_gone(&self) -> bool {
        self.state().gone
    }

    /// Whether it has ended by our clock. By the servers' it may live on.
    fn is_over(&self) -> bool {
        let state = self.state();
        BootClock.now() > state.dating.counted_from() + state.dating.length()
    }

    /// Whether enough is left of it for a new claim. Its claims are renewed more often: so nobody has renewed it otherwise.
    pub(super) fn can_be_joined(&self, now: Moment) -> bool {
        let state = self.state();
        let length = state.dating.length();
        !state.gone && (state.dating.counted_from() + length).since(now) > length.mul_f64(0.4)
    }

    /// Whether so much of it is over that a grant on it should be proven first.
    pub(super) fn is_worn(&self, now: Moment) -> bool {
        let state = self.state();
        now.since(state.dating.counted_from()) > state.dating.length() / 2
    }

    /// Whether the leader has answered so recently that asking again would bring nothing.
    pub(super) fn is_fresh(&self, now: Moment) -> bool {
        let state = self.state();
        now.since(state.proven) < state.dating.length() / 20
    }

    /// Sends a request. What is sent before the first is waited for goes out in one piece, and is answered in order.
    pub(super) fn send(self: &Arc<Self>, request: Request) -> Sent {
        let (reply, answer) = oneshot::channel();
        // If nobody receives it, the session has ended.
        drop(self.commands.send(Command::Ask(request, reply)));
        let until = tokio::time::Instant::now() + self.settings.request_timeout;
        Sent { answer, session: Arc::clone(self), until }
    }

    /// Sends a request and waits for the body of its answer.
    pub(super) async fn ask(self: &Arc<Self>, request: Request) -> Result<Vec<u8>, Failed> {
        self.send(request).answer().await
    }

    /// Lets go of it without ending it: it lives on until its time is over, or somebody takes it up.
    pub(super) fn leave(&self) {
        self.state().gone = true;
        let _ = self.commands.send(Command::Leave);
    }

    /// Ends it, and everything that hangs on it.
    pub(super) async fn close(self: &Arc<Self>) -> Result<(), Failed> {
        let closed = self.ask(Request::close()).await.map(drop);
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

/// Why a connection is not served any more.
enum Over {
    /// Nobody needs it.
    Done,
    /// The session has ended.
    Ended,
    Lost(Error),
}

/// A request that waits for its answer.
struct Flight {
    xid: i32,
    sent: Moment,
    op: i32,
    by_leader: bool,
    reply: oneshot::Sender<Result<Reply, Failed>>,
}

struct Actor {
    id: i64,
    session: Weak<Session>,
    settings: Arc<Settings>,
    hears: Weak<dyn Hears>,
    received: mpsc::UnboundedReceiver<Command>,
    /// Which server is tried next.
    place: usize,
}

impl Actor {
    async fn run(mut self, mut wire: Wire) {
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
            tracing::debug!(%error, "the connection of a session is lost");
            let Some(session) = self.session.upgrade() else { return };
            let Some(hears) = self.hears.upgrade().filter(|_| session.has_debts() || self.is_needed(&session)) else {
                // Nobody would miss it; the server ends it by itself.
                return self.end();
            };
            hears.cut_off(&session);
            drop((session, hears));
            wire = match self.reconnect().await {
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
        let mut flights: VecDeque<Flight> = VecDeque::new();
        let mut xid = 0_i32;
        let limit = self.limit();
        loop {
            let overdue = flights.front().map(|flight| (flight.sent + limit).since(BootClock.now()));
            tokio::select! {
                biased;
                message = read.message() => {
                    let mut next = match message {
                        Ok(message) => Some(message),
                        Err(cause) => return lost(flights, Error::unavailable("the connection to ZooKeeper is lost").with_source(cause)),
                    };
                    while let Some(message) = next {
                        match self.take(message, &mut flights) {
                            Ok(()) => {}
                            Err(Over::Lost(error)) => return lost(flights, error),
                            Err(over) => return over,
                        }
                        next = match read.buffered() {
                            Ok(next) => next,
                            Err(cause) => return lost(flights, Error::protocol("ZooKeeper sent too much at once").with_source(cause)),
                        };
                    }
                }
                command = self.received.recv() => {
                    let mut out = Vec::new();
                    let mut next = command;
                    let over = next.is_none();
                    // Dated before it is sent.
                    let sent = BootClock.now();
                    while let Some(command) = next {
                        match command {
                            Command::Leave => return Over::Done,
                            Command::Ask(_, reply) if reply.is_closed() => {}
                            Command::Ask(request, reply) => {
                                xid = xid.checked_add(1).unwrap_or(1);
                                request.write(xid, &mut out);
                                flights.push_back(Flight { xid, sent, op: request.op, by_leader: request.by_leader, reply });
                            }
                        }
                        next = self.received.try_recv().ok();
                    }
                    if over {
                        xid = xid.checked_add(1).unwrap_or(1);
                        Request::close().write(xid, &mut out);
                    }
                    let writing = async {
                        write.write_all(&out).await?;
                        write.flush().await
                    };
                    let is_written = matches!(tokio::time::timeout(limit, writing).await, Ok(Ok(())));
                    if !is_written && !over {
                        return lost(flights, Error::unavailable("ZooKeeper cannot be written to"));
                    }
                    if over {
                        // It hears of the end before we hang up.
                        let _ = tokio::time::timeout(limit, read.message()).await;
                        return Over::Done;
                    }
                }
                () = tokio::time::sleep(overdue.unwrap_or_default()), if overdue.is_some() => {
                    return lost(flights, Error::unavailable("ZooKeeper has not answered in time"));
                }
            }
        }
    }

    /// Takes up one message.
    fn take(&self, mut message: Vec<u8>, flights: &mut VecDeque<Flight>) -> Result<(), Over> {
        let unreadable = |_| Over::Lost(Error::protocol("ZooKeeper answered what this version does not understand"));
        let (header, body) = proto::header(&message).map_err(unreadable)?;
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
                let flight = flights.pop_front().filter(|flight| flight.xid == xid);
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
                // Whoever asked may have left.
                let _ = flight.reply.send(match header.error {
                    0 => {
                        message.drain(..proto::HEADER);
                        Ok(Reply { zxid: header.zxid, body: message })
                    }
                    _ => Err(Failed::Refused(code)),
                });
                Ok(())
            }
        }
    }
}

/// Tells everybody who waits for an answer that none will come. What was sent may have been done, except behind a login that was
/// refused.
fn lost(flights: VecDeque<Flight>, error: Error) -> Over {
    for flight in flights {
        let unsure = match error.kind() {
            ErrorKind::Denied => Failed::Never(error.clone()),
            _ => Failed::Unsure(error.clone()),
        };
        let _ = flight.reply.send(Err(unsure));
    }
    Over::Lost(error)
}
