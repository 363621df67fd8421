//! A session of ZooKeeper's: what our nodes hang on.
//!
//! It outlives its connections. One that is lost is replaced by another to the next server, for as long as the session may live; what
//! was asked meanwhile waits for it, up to its own time limit.
//!
//! Nothing here keeps a session alive by itself. It lives only by what is asked on it, so that it ends, by the server's clock, when
//! nobody renews its claims any more.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::oneshot;

use super::dating::{Dating, PASSED_ON};
use super::failure::Failed;
use super::pipe::{Answer, End, Pipe, Reply};
use super::proto::{Acl, Request};
use super::serving::Actor;
use super::settings::Settings;
use super::together::{self, Together};
use super::wire::{Hello, Wire};
use crate::error::{Error, Result};
use crate::lease::{BootClock, Clock, Moment};
use crate::store::Lease;

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
    pipe: Arc<Pipe>,
    /// Those of its requests that may go together.
    together: Arc<Together>,
    debts: Debt,
}

/// Something of ours may be on a session, or on its way there: as long as this is kept, the session is not given up with its
/// connection.
pub(super) type Debt = Arc<()>;

pub(super) struct State {
    pub(super) id: i64,
    pub(super) password: Vec<u8>,
    /// The newest transaction that it has seen.
    pub(super) seen: i64,
    pub(super) dating: Dating,
    /// When the server was last heard.
    pub(super) heard: Moment,
    /// When the last request was sent that the leader has answered.
    pub(super) proven: Moment,
    pub(super) gone: bool,
    /// Counts its connections.
    pub(super) connection: u64,
}

/// Nobody has it any more: the task behind it ends it.
impl Drop for Session {
    fn drop(&mut self) {
        self.pipe.end(End::Close);
    }
}

/// A request that was asked for. It leaves at the latest when somebody waits for its answer.
pub(super) struct Sent {
    answer: oneshot::Receiver<Answer>,
    session: Arc<Session>,
}

impl Sent {
    /// The body of the answer.
    pub(super) async fn answer(self) -> Result<Vec<u8>, Failed> {
        self.reply().await.map(|reply| reply.body)
    }

    /// Whoever waits here may be in any runtime, or in none: time limits are kept by the task behind the session.
    pub(super) async fn reply(self) -> Result<Reply, Failed> {
        self.session.pipe.flush();
        match self.answer.await {
            Ok(answer) => answer,
            Err(_) if self.session.is_gone() => Err(Failed::Ended),
            Err(_) => Err(Failed::Unsure(Error::unavailable("the connection to ZooKeeper is lost"))),
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
            let pipe: Arc<Pipe> = Arc::default();
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
                pipe: Arc::clone(&pipe),
                together: together::on(this),
                debts: Debt::default(),
            });
            let actor = Actor {
                id: session.id(),
                session: Arc::downgrade(&session),
                settings: Arc::clone(settings),
                hears,
                pipe,
                place: place + 1,
            };
            tokio::spawn(actor.run(wire));
            return Ok(Some(session));
        }
        Err(failure.unwrap_or_else(|| Error::unavailable("no server can be reached")))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
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

    pub(super) fn has_debts(&self) -> bool {
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
    pub(super) fn is_over(&self) -> bool {
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
        // From now on, so that the limits of many run at the same time.
        let until = BootClock.now() + self.settings.request_timeout;
        Sent { answer: self.pipe.ask(request, until), session: Arc::clone(self) }
    }

    /// Sends a request and waits for the body of its answer.
    pub(super) async fn ask(self: &Arc<Self>, request: Request) -> Result<Vec<u8>, Failed> {
        self.send(request).answer().await
    }

    /// Lets go of it without ending it: it lives on until its time is over, or somebody takes it up.
    pub(super) fn leave(&self) {
        self.state().gone = true;
        self.pipe.end(End::Leave);
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
