//! The members of the cluster: which one is asked, and what happens when it does not answer.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use prost::Message;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::endpoints::Endpoints;
use super::failure::{Remedy, denied, remedy};
use super::lane::Lane;
use super::lanes::{Lanes, Place};
use super::proto::{AUTHENTICATE, AuthenticateRequest, AuthenticateResponse, Headed};
use super::rollback::SeenRevisions;
use crate::error::{Error, Result};
use crate::url::{Host, Secret};

/// The longest answer that is taken: a line of some hundred thousand keys.
const LONGEST_ANSWER: usize = 64 << 20;

/// How long a member may leave a request unanswered before others are asked what comes next.
pub(crate) const SUSPECT: Duration = Duration::from_millis(500);

/// A caller's runtime that was blocked for longer than the request time-out has so long to take an answer that is there.
const CATCHES_UP: Duration = Duration::from_millis(100);

/// How often one request logs in: whoever changes users and roles mostly changes several.
const LOGINS: usize = 3;

type Token = MetadataValue<tonic::metadata::Ascii>;

/// Whether a request may be sent again when nobody knows whether it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// Sent twice it does the same as sent once, and has the same answer.
    Freely,
    /// The second answer would not be the first.
    Never,
}

/// How often a request was sent that has its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    Once,
    /// An earlier one may have arrived as well, or may yet.
    Again,
}

/// An error, and what it says of the request.
#[derive(Clone, Debug)]
pub(crate) struct Failed {
    pub(crate) error: Error,
    /// The lease that it names is gone.
    pub(crate) lease_gone: bool,
    /// The server has refused it: the last time that it was sent it has done nothing.
    pub(crate) refused: bool,
    pub(crate) sent: Sent,
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Error {
        failed.error
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed { error, lease_gone: false, refused: false, sent: Sent::Once }
    }
}

pub(crate) struct Cluster {
    members: Vec<Member>,
    pub(crate) lanes: Lanes,
    /// The place of the one that is asked.
    current: AtomicUsize,
    login: Option<(Secret, Secret)>,
    token: Mutex<Option<Token>>,
    /// One at a time logs in.
    logging_in: tokio::sync::Mutex<()>,
    pub(crate) request_timeout: Duration,
    pub(crate) seen: SeenRevisions,
    /// Told when the cluster is not the one any more that confirmed our claims.
    broken: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

struct Member {
    host: Host,
    endpoint: Endpoint,
}

/// The attempt of a request that is under way: the member that is asked, by whose connection, and since when.
#[derive(Clone)]
struct Attempt {
    place: usize,
    lane: Arc<Lane>,
    since: Instant,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cluster {
    pub(crate) fn new(endpoints: &Endpoints) -> Result<Cluster> {
        let member = |host: &Host| {
            let endpoint = endpoints.endpoint(host)?;
            Ok(Member { host: host.clone(), endpoint })
        };
        let members: Vec<Member> = endpoints.hosts.iter().map(member).collect::<Result<_>>()?;
        Ok(Cluster {
            // Clients begin at different members, so that none has all of them.
            current: AtomicUsize::new(fastrand::usize(..members.len().max(1))),
            lanes: Lanes::new(members.len()),
            members,
            login: endpoints.login.clone(),
            token: Mutex::new(None),
            logging_in: tokio::sync::Mutex::new(()),
            request_timeout: endpoints.request_timeout,
            seen: SeenRevisions::default(),
            broken: OnceLock::new(),
        })
    }

    /// Says who is to hear that the cluster has gone back in time, or is another one.
    pub(crate) fn on_broken(&self, tell: impl Fn() + Send + Sync + 'static) {
        drop(self.broken.set(Box::new(tell)));
    }

    /// Takes up what an answer says of the cluster.
    fn check<A: Headed>(&self, answer: &A, asked: &Host, at_least: i64) -> Result<(), Failed> {
        let Some(header) = answer.header() else { return Ok(()) };
        self.seen.take(header, A::IS_LATEST.then_some(at_least)).map_err(|broken| {
            let error = broken.error(asked);
            tracing::error!(%error, "the store has lost what it confirmed");
            self.tell_broken();
            error.into()
        })
    }

    pub(crate) fn tell_broken(&self) {
        if let Some(tell) = self.broken.get() {
            tell();
        }
    }

    /// Whether we have a user and a password.
    pub(crate) fn logs_in(&self) -> bool {
        self.login.is_some()
    }

    /// The place of the member to ask now.
    pub(crate) fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed)
    }

    /// Turns away from a member that does not answer, unless somebody has done so already.
    pub(crate) fn turn_from(&self, place: usize) {
        let next = (place + 1) % self.members.len().max(1);
        let _ = self.current.compare_exchange(place, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// How many members are worth asking before one gives up: one that is alone is asked twice, since its connection may have
    /// died unnoticed.
    pub(crate) fn attempts(&self) -> usize {
        self.members.len().max(2)
    }

    fn member(&self, place: usize) -> Result<&Member> {
        self.members.get(place).ok_or_else(|| Error::bad_url("bad store URL: no host is named"))
    }

    /// Sends one request and waits for its answer, for the request time-out at the longest.
    pub(crate) async fn ask<Q, A>(self: &Arc<Self>, path: &'static str, question: Q, again: Again) -> Result<A, Failed>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + Headed + 'static,
    {
        self.ask_noting_sends(path, question, again).await.map(|(answer, _)| answer)
    }

    /// As [`ask`](Cluster::ask), and says how often it was sent.
    pub(crate) async fn ask_noting_sends<Q, A>(
        self: &Arc<Self>,
        path: &'static str,
        question: Q,
        again: Again,
    ) -> Result<(A, Sent), Failed>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + Headed + 'static,
    {
        if matches!(self.lanes.place()?, Place::Here(_)) {
            return self.ask_in_time(path, question, again).await;
        }
        let cluster = Arc::clone(self);
        let asking = async move { Ok(cluster.ask_in_time(path, question, again).await) };
        Box::pin(self.lanes.in_client(asking)).await?
    }

    /// Asks from here, and watches how long it takes.
    async fn ask_in_time<Q, A>(self: &Arc<Self>, path: &'static str, question: Q, again: Again) -> Result<(A, Sent), Failed>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + Headed + 'static,
    {
        let under_way = Mutex::new(None);
        let mut asking = pin!(self.ask_members(path, question, again, &under_way));
        let (began, mut is_late) = (Instant::now(), false);
        let mut timer = pin!(self.lanes.timer(SUSPECT.min(self.request_timeout)));
        loop {
            tokio::select! {
                biased;
                answer = asking.as_mut() => return answer,
                () = timer.as_mut() => {}
            }
            let attempt: Option<Attempt> = locked(&under_way).clone();
            let mut next_look = SUSPECT;
            if let Some(attempt) = &attempt {
                match SUSPECT.min(self.request_timeout).checked_sub(attempt.since.elapsed()) {
                    Some(left) if !left.is_zero() => next_look = left,
                    _ => {
                        self.turn_from(attempt.place);
                        attempt.lane.doubt();
                    }
                }
            }
            let left = self.request_timeout.saturating_sub(began.elapsed());
            let pause = match left {
                Duration::ZERO if is_late => {
                    return Err(self.silent(attempt.map_or_else(|| self.current(), |attempt| attempt.place)).into());
                }
                Duration::ZERO => {
                    is_late = true;
                    CATCHES_UP
                }
                left => left.min(next_look),
            };
            // By the clock of the timer, which may not be that of whoever asks.
            timer.as_mut().reset((Instant::now() + pause).into());
        }
    }

    /// Asks one member after the other until one has answered.
    async fn ask_members<Q, A>(
        self: &Arc<Self>,
        path: &'static str,
        question: Q,
        again: Again,
        under_way: &Mutex<Option<Attempt>>,
    ) -> Result<(A, Sent), Failed>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + Headed + 'static,
    {
        let at_least = self.seen.highest();
        let (mut logins, mut attempt, mut sent) = (0, 1, Sent::Once);
        loop {
            let token = self.token().await?;
            let place = self.current();
            let member = self.member(place)?;
            // Each time: whoever began elsewhere may be here now.
            let lane = self.lanes.nearest()?;
            *locked(under_way) = Some(Attempt { place, lane: Arc::clone(&lane), since: Instant::now() });
            let status = match member.send(place, &lane, path, question.clone(), token.clone()).await {
                Ok(answer) => return self.check(&answer, &member.host, at_least).map(|()| (answer, sent)),
                Err(status) => status,
            };
            let error = match remedy(&status, &member.host) {
                Remedy::LogIn(_) if self.login.is_some() && logins < LOGINS => {
                    logins += 1;
                    self.forget_token(token.as_ref());
                    continue;
                }
                Remedy::AskAnother(error) => {
                    self.turn_from(place);
                    error
                }
                Remedy::Unsure(error) => {
                    self.turn_from(place);
                    if again == Again::Never {
                        return Err(error.into());
                    }
                    sent = Sent::Again;
                    error
                }
                Remedy::LeaseGone(error) => return Err(Failed { error, lease_gone: true, refused: true, sent }),
                Remedy::Tell(error) => return Err(Failed { error, lease_gone: false, refused: true, sent }),
                other => return Err(other.into_error().into()),
            };
            if attempt >= self.attempts() {
                return Err(error.into());
            }
            attempt += 1;
        }
    }

    /// The error of a member that does not answer.
    pub(crate) fn silent(&self, place: usize) -> Error {
        let host = self.members.get(place).map(|member| member.host.to_string()).unwrap_or_default();
        Error::unavailable(format!("{host} has not answered in time"))
    }

    /// Opens a stream both ways. What is to be sent first must be waiting already: a server says nothing before it.
    pub(crate) async fn open<Q, A>(
        self: &Arc<Self>,
        place: usize,
        path: &'static str,
        out: UnboundedReceiver<Q>,
    ) -> Result<Streaming<A>>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let member = self.member(place)?;
        let token = self.token().await?;
        let mut request = with_token(Request::new(UnboundedReceiverStream::new(out)), token.clone());
        // A member that has lost its leader ends the stream, instead of keeping it silent.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        let mut grpc = Grpc::new(member.channel(place, &*self.lanes.clients()?)).max_decoding_message_size(LONGEST_ANSWER);
        let opening = async {
            grpc.ready().await.map_err(|cause| Status::from_error(Box::new(cause)))?;
            let codec = ProstCodec::<Q, A>::default();
            grpc.streaming(request, PathAndQuery::from_static(path), codec).await.map(tonic::Response::into_inner)
        };
        match tokio::time::timeout(self.request_timeout, opening).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(status)) => Err(self.stream_failed(place, token.as_ref(), &status)),
            Err(_) => {
                self.turn_from(place);
                Err(self.silent(place))
            }
        }
    }

    /// What the end of a stream means.
    pub(crate) fn stream_ended(&self, place: usize, status: &Status) -> Error {
        self.stream_failed(place, None, status)
    }

    fn stream_failed(&self, place: usize, token: Option<&Token>, status: &Status) -> Error {
        let Ok(member) = self.member(place) else { return self.silent(place) };
        match remedy(status, &member.host) {
            Remedy::LogIn(error) => {
                self.forget_token(token);
                error
            }
            Remedy::AskAnother(error) | Remedy::Unsure(error) => {
                self.turn_from(place);
                error
            }
            other => other.into_error(),
        }
    }

    /// The token of our login; none where nobody logs in.
    async fn token(self: &Arc<Self>) -> Result<Option<Token>> {
        if self.login.is_none() {
            return Ok(None);
        }
        if let Some(token) = &*locked(&self.token) {
            return Ok(Some(token.clone()));
        }
        let cluster = Arc::clone(self);
        // Boxed, as all that a request seldom comes to: its future is made and moved with every request.
        Box::pin(self.lanes.in_client(async move { cluster.log_in().await })).await
    }

    async fn log_in(&self) -> Result<Option<Token>> {
        let Some((user, password)) = &self.login else { return Ok(None) };
        let mut attempt = 1;
        let _one_at_a_time = self.logging_in.lock().await;
        if let Some(token) = &*locked(&self.token) {
            return Ok(Some(token.clone()));
        }
        let began = Instant::now();
        loop {
            let place = self.current();
            let member = self.member(place)?;
            let question = AuthenticateRequest { name: user.reveal().to_owned(), password: password.reveal().to_owned() };
            let lane = self.lanes.clients()?;
            let mut answer = pin!(member.send::<_, AuthenticateResponse>(place, &lane, AUTHENTICATE, question, None));
            let answer = match tokio::time::timeout(SUSPECT, answer.as_mut()).await {
                Ok(answer) => answer,
                Err(_) => {
                    self.turn_from(place);
                    let left = self.request_timeout.saturating_sub(began.elapsed());
                    tokio::time::timeout(left, answer).await.map_err(|_| self.silent(place))?
                }
            };
            match answer {
                Ok(answer) => {
                    let token = answer.token.parse().map_err(|_| Error::protocol("the server's token cannot be sent back"))?;
                    *locked(&self.token) = Some(token);
                    return Ok(locked(&self.token).clone());
                }
                // Nobody has to log in here: then nobody is asked for the token either.
                Err(status) if status.message().contains("authentication is not enabled") => return Ok(None),
                Err(status) => match remedy(&status, &member.host) {
                    Remedy::AskAnother(_) | Remedy::Unsure(_) if attempt < self.attempts() => self.turn_from(place),
                    Remedy::LogIn(_) => return Err(denied(&member.host, "refused the user or the password")),
                    other => return Err(other.into_error()),
                },
            }
            attempt += 1;
        }
    }

    /// Forgets a token that was refused, unless there is a newer one.
    fn forget_token(&self, refused: Option<&Token>) {
        let mut token = locked(&self.token);
        if refused.is_none() || token.as_ref() == refused {
            *token = None;
        }
    }
}

impl Member {
    fn channel(&self, place: usize, lane: &Lane) -> Channel {
        lane.channel(place, || self.endpoint.connect_lazy())
    }

    /// Asks this member, for as long as somebody waits. Whoever does not any more ends the request with the server, too.
    async fn send<Q, A>(
        &self,
        place: usize,
        lane: &Arc<Lane>,
        path: &'static str,
        question: Q,
        token: Option<Token>,
    ) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let request = with_token(Request::new(question), token);
        let mut grpc = Grpc::new(self.channel(place, lane)).max_decoding_message_size(LONGEST_ANSWER);
        grpc.ready().await.map_err(|cause| Status::from_error(Box::new(cause)))?;
        let codec = ProstCodec::<Q, A>::default();
        grpc.unary(request, PathAndQuery::from_static(path), codec).await.map(tonic::Response::into_inner)
    }
}

fn with_token<T>(mut request: Request<T>, token: Option<Token>) -> Request<T> {
    if let Some(token) = token {
        request.metadata_mut().insert("token", token);
    }
    request
}
