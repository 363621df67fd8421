//! The members of the cluster: which one is asked, and what happens when it does not answer.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use prost::Message;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::channels::Channels;
use super::failure::{Remedy, remedy};
use super::login::{Login, Token};
use super::proto::Headed;
use super::rollback::SeenRevisions;
use super::settings::Endpoints;
use crate::error::{Error, Result};
use crate::url::Host;

/// The longest response that is accepted: a line of some hundred thousand keys.
const LONGEST_RESPONSE: usize = 64 << 20;

/// A member that leaves a request unanswered for so long is not asked the next one.
pub(crate) const SUSPECT: Duration = Duration::from_millis(500);

/// How often one request logs in again: an administrator who changes users and roles mostly changes
/// several.
const LOGINS: usize = 3;

/// Whether a request may be sent again when its first outcome is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resend {
    /// Sent twice it does the same as sent once, and has the same response.
    IfUnsure,
    /// The second response would not be the first.
    Never,
}

/// How often an answered request was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    Once,
    /// An earlier copy may have arrived as well, or may arrive yet.
    Again,
}

/// An error, and what it says of the request.
#[derive(Clone, Debug)]
pub(crate) struct Failed {
    pub(crate) error: Error,
    /// The lease that the request names is gone.
    pub(crate) lease_gone: bool,
    /// The server has refused the request: the last copy of it has changed nothing.
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
        Failed {
            error,
            lease_gone: false,
            refused: false,
            sent: Sent::Once,
        }
    }
}

pub(crate) struct Cluster {
    members: Vec<Member>,
    channels: Channels,
    /// The index of the member that is asked.
    current: AtomicUsize,
    pub(super) login: Option<Login>,
    pub(crate) request_timeout: Duration,
    pub(crate) seen: SeenRevisions,
    /// Called when the cluster is no longer the one that confirmed our claims.
    on_rollback: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

struct Member {
    host: Host,
    endpoint: Endpoint,
}

impl Cluster {
    pub(crate) fn new(endpoints: &Endpoints) -> Result<Arc<Cluster>> {
        let member = |host: &Host| {
            Ok(Member {
                host: host.clone(),
                endpoint: endpoints.endpoint(host)?,
            })
        };
        let members: Vec<Member> = endpoints.hosts.iter().map(member).collect::<Result<_>>()?;
        Ok(Arc::new(Cluster {
            // Clients begin at different members, to spread the load.
            current: AtomicUsize::new(fastrand::usize(..members.len().max(1))),
            channels: Channels::default(),
            members,
            login: endpoints.login.clone().map(Login::new),
            request_timeout: endpoints.request_timeout,
            seen: SeenRevisions::default(),
            on_rollback: OnceLock::new(),
        }))
    }

    /// Sets the function that is called when the cluster has gone back in time, or is another one.
    pub(crate) fn on_rollback(&self, call: impl Fn() + Send + Sync + 'static) {
        drop(self.on_rollback.set(Box::new(call)));
    }

    pub(crate) fn report_rollback(&self) {
        if let Some(call) = self.on_rollback.get() {
            call();
        }
    }

    /// Checks what a response says of the cluster.
    fn check<A: Headed>(&self, response: &A, member: &Host, at_least: i64) -> Result<(), Failed> {
        let Some(header) = response.header() else {
            return Ok(());
        };
        self.seen
            .check(header, A::IS_LATEST.then_some(at_least))
            .map_err(|rollback| {
                let error = rollback.error(member);
                tracing::error!(%error, "the store has lost what it confirmed");
                self.report_rollback();
                error.into()
            })
    }

    /// The index of the member to ask now.
    pub(crate) fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed)
    }

    /// Turns away from a member that does not answer, unless another request has done so already.
    pub(crate) fn turn_from(&self, member: usize) {
        let next = (member + 1) % self.members.len().max(1);
        let _ = self
            .current
            .compare_exchange(member, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// How many members are worth asking before a request fails. A single member is asked twice,
    /// since its connection may have died unnoticed.
    pub(crate) fn attempts(&self) -> usize {
        self.members.len().max(2)
    }

    pub(super) fn host(&self, member: usize) -> Result<&Host> {
        self.member(member).map(|member| &member.host)
    }

    fn member(&self, index: usize) -> Result<&Member> {
        self.members
            .get(index)
            .ok_or_else(|| Error::bad_url("bad store URL: no host is named"))
    }

    fn grpc(&self, member: usize) -> Result<Grpc<Channel>> {
        let channel = self.channels.get(member, &self.member(member)?.endpoint)?;
        Ok(Grpc::new(channel).max_decoding_message_size(LONGEST_RESPONSE))
    }

    /// Sends one request and waits for its response, for the request time-out at the longest.
    pub(crate) async fn call<Q, A>(
        self: &Arc<Self>,
        path: &'static str,
        request: Q,
        resend: Resend,
    ) -> Result<A, Failed>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + Headed + 'static,
    {
        self.call_counted(path, request, resend)
            .await
            .map(|(response, _)| response)
    }

    /// As [`call`](Cluster::call), and says how often the request was sent.
    pub(crate) async fn call_counted<Q, A>(
        self: &Arc<Self>,
        path: &'static str,
        request: Q,
        resend: Resend,
    ) -> Result<(A, Sent), Failed>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + Headed + 'static,
    {
        let asked = AtomicUsize::new(self.current());
        let calling = self.call_members(path, request, resend, &asked);
        match tokio::time::timeout(self.request_timeout, calling).await {
            Ok(outcome) => outcome,
            Err(_) => Err(self.silent(asked.into_inner()).into()),
        }
    }

    /// Asks one member after the other until one has answered.
    async fn call_members<Q, A>(
        self: &Arc<Self>,
        path: &'static str,
        request: Q,
        resend: Resend,
        asked: &AtomicUsize,
    ) -> Result<(A, Sent), Failed>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + Headed + 'static,
    {
        let at_least = self.seen.highest();
        let (mut logins, mut attempt, mut sent) = (0, 1, Sent::Once);
        loop {
            let token = self.token().await?;
            let member = self.current();
            asked.store(member, Ordering::Relaxed);
            let host = self.host(member)?;
            let status = match self
                .send(member, path, request.clone(), token.clone())
                .await?
            {
                Ok(response) => {
                    return self
                        .check(&response, host, at_least)
                        .map(|()| (response, sent));
                }
                Err(status) => status,
            };
            let error = match remedy(&status, host) {
                Remedy::LogIn(_) if self.login.is_some() && logins < LOGINS => {
                    logins += 1;
                    self.forget_token(token.as_ref());
                    continue;
                }
                Remedy::AskAnother(error) => error,
                Remedy::Unsure(error) => {
                    if resend == Resend::Never {
                        self.turn_from(member);
                        return Err(error.into());
                    }
                    sent = Sent::Again;
                    error
                }
                Remedy::LeaseGone(error) => {
                    return Err(Failed {
                        error,
                        lease_gone: true,
                        refused: true,
                        sent,
                    });
                }
                Remedy::Fail(error) => {
                    return Err(Failed {
                        error,
                        lease_gone: false,
                        refused: true,
                        sent,
                    });
                }
                Remedy::LogIn(error) => return Err(error.into()),
            };
            self.turn_from(member);
            if attempt >= self.attempts() {
                return Err(error.into());
            }
            attempt += 1;
        }
    }

    /// Asks one member. If it is slow to answer, later requests go to another one. Dropping the
    /// future cancels the request on the server as well.
    pub(super) async fn send<Q, A>(
        &self,
        member: usize,
        path: &'static str,
        request: Q,
        token: Option<Token>,
    ) -> Result<Result<A, Status>>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.grpc(member)?;
        let mut sending = pin!(async {
            grpc.ready()
                .await
                .map_err(|cause| Status::from_error(Box::new(cause)))?;
            let (request, codec) = (
                with_token(Request::new(request), token),
                ProstCodec::<Q, A>::default(),
            );
            grpc.unary(request, PathAndQuery::from_static(path), codec)
                .await
                .map(tonic::Response::into_inner)
        });
        if let Ok(outcome) = tokio::time::timeout(SUSPECT, sending.as_mut()).await {
            return Ok(outcome);
        }
        self.turn_from(member);
        Ok(sending.await)
    }

    /// The error of a member that does not answer.
    pub(crate) fn silent(&self, member: usize) -> Error {
        let host = self.host(member).map(Host::to_string).unwrap_or_default();
        Error::unavailable(format!("{host} has not answered in time"))
    }

    /// Opens a stream both ways. The first message must be waiting in `out` already: the server
    /// sends nothing before it.
    pub(crate) async fn open<Q, A>(
        self: &Arc<Self>,
        member: usize,
        path: &'static str,
        out: UnboundedReceiver<Q>,
    ) -> Result<Streaming<A>>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let token = self.token().await?;
        let mut request = with_token(
            Request::new(UnboundedReceiverStream::new(out)),
            token.clone(),
        );
        // A member that has lost its leader ends the stream, instead of keeping it silent.
        request
            .metadata_mut()
            .insert("hasleader", MetadataValue::from_static("true"));
        let mut grpc = self.grpc(member)?;
        let opening = async {
            grpc.ready()
                .await
                .map_err(|cause| Status::from_error(Box::new(cause)))?;
            let codec = ProstCodec::<Q, A>::default();
            grpc.streaming(request, PathAndQuery::from_static(path), codec)
                .await
                .map(tonic::Response::into_inner)
        };
        match tokio::time::timeout(self.request_timeout, opening).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(status)) => Err(self.stream_failed(member, token.as_ref(), &status)),
            Err(_) => {
                self.turn_from(member);
                Err(self.silent(member))
            }
        }
    }

    /// What the end of a stream means.
    pub(crate) fn stream_ended(&self, member: usize, status: &Status) -> Error {
        self.stream_failed(member, None, status)
    }

    fn stream_failed(&self, member: usize, token: Option<&Token>, status: &Status) -> Error {
        let Ok(host) = self.host(member) else {
            return self.silent(member);
        };
        match remedy(status, host) {
            Remedy::LogIn(error) => {
                self.forget_token(token);
                error
            }
            Remedy::AskAnother(error) | Remedy::Unsure(error) => {
                self.turn_from(member);
                error
            }
            other => other.into_error(),
        }
    }
}

fn with_token<T>(mut request: Request<T>, token: Option<Token>) -> Request<T> {
    if let Some(token) = token {
        request.metadata_mut().insert("token", token);
    }
    request
}
