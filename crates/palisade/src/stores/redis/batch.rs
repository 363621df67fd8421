//! Claims and releases of many tasks at the same time go to the server together, as one script.

use std::sync::{Arc, OnceLock};

use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::runtime::Handle;

use super::backend::{Backend, unwanted};
use super::client::{Call, Called, Failed, Server};
use super::settings::Format;
use crate::error::Result;
use crate::store::{Claim, ClaimId};
use crate::stores::batch::{BatchExecutor, Batcher, Limits};

/// While the server works on one batch, the next is made. A larger batch would cost no less per
/// call, and the server serves no other request meanwhile, which is a tenth of a millisecond.
const LIMITS: Limits = Limits {
    in_flight: 2,
    largest: 16,
    apart: 2,
    patience: None,
    reply_wakes: true,
};
/// In a cluster each call goes alone: its keys are in different slots, and no script may touch two
/// of them. So do the calls of the formats that are shared with peers.
const ALONE: Limits = Limits {
    in_flight: 256,
    largest: 1,
    apart: 256,
    ..LIMITS
};

/// The batches of one store.
pub(super) struct Batch {
    backend: Arc<Backend>,
    /// Made at first use, inside the client's runtime.
    batcher: OnceLock<Arc<Batcher<Executor>>>,
}

impl Batch {
    pub(super) fn of(backend: &Arc<Backend>) -> Batch {
        Batch {
            backend: Arc::clone(backend),
            batcher: OnceLock::new(),
        }
    }

    /// Sends a claim, unless its caller has left before it is written. `needs_inbox`: the server
    /// may push to the claim.
    pub(super) async fn claim(
        &self,
        call: Arc<Call>,
        claim: &Claim,
        needs_inbox: bool,
    ) -> Result<Called> {
        self.call(Request {
            call,
            needs_inbox,
            claim: Some(claim.id),
        })
        .await
    }

    pub(super) async fn release(&self, call: Arc<Call>) -> Result<Called> {
        self.call(Request {
            call,
            needs_inbox: false,
            claim: None,
        })
        .await
    }

    /// Calls a script where its key is, with other calls at the same time.
    async fn call(&self, request: Request) -> Result<Called> {
        let (client, again) = (&self.backend.client, request.clone());
        let batcher = self.batcher.get_or_init(|| {
            let alone =
                client.settings().is_cluster() || self.backend.settings.format != Format::Palisade;
            let limits = if alone { ALONE } else { LIMITS };
            Batcher::new(
                Executor(Arc::clone(&self.backend)),
                Handle::current(),
                limits,
            )
        });
        let failed = match batcher.ask(request).await.unwrap_or(Reply::NotReady) {
            Reply::Called(called) => return Ok(called),
            Reply::Failed(failed) => Some(failed),
            Reply::NotReady => None,
            Reply::Unwanted => return Err(unwanted()),
        };
        let is_wanted = || again.is_wanted(&self.backend);
        Box::pin(client.call_with_recovery(&again.call, again.needs_inbox, failed, &is_wanted))
            .await
    }
}

#[derive(Clone)]
struct Request {
    call: Arc<Call>,
    needs_inbox: bool,
    /// Of a claim: its caller may leave before it is sent.
    claim: Option<ClaimId>,
}

impl Request {
    fn is_wanted(&self, backend: &Backend) -> bool {
        self.claim.is_none_or(|claim| backend.wants(claim))
    }
}

enum Reply {
    Called(Called),
    Failed(Failed),
    /// Nothing was sent: no server was ready.
    NotReady,
    /// Nothing was sent: the caller has left.
    Unwanted,
}

struct Executor(Arc<Backend>);

impl BatchExecutor for Executor {
    type Request = Request;
    type Reply = Reply;

    /// Several calls on one key are done in their order.
    fn can_join(&self, batch: &[Request], request: &Request) -> bool {
        batch
            .first()
            .is_none_or(|first| first.call.can_join(&request.call))
    }

    /// Releases and withdrawals go before claims.
    fn is_urgent(&self, request: &Request) -> bool {
        request.claim.is_none()
    }

    async fn execute(&self, batch: Vec<Request>) -> Vec<Reply> {
        let mut replies: Vec<Reply> = batch.iter().map(|_| Reply::Unwanted).collect();
        let sent: Vec<usize> = (0..batch.len())
            .filter(|&at| batch[at].is_wanted(&self.0))
            .collect();
        let needs_inbox = sent.iter().any(|&at| batch[at].needs_inbox);
        let calls: Vec<&Call> = sent.iter().map(|&at| batch[at].call.as_ref()).collect();
        let key = calls.first().map_or("", |call| call.key());
        let Some(server) = self.0.client.ready(key, needs_inbox) else {
            sent.iter().for_each(|&at| replies[at] = Reply::NotReady);
            return replies;
        };
        for (&at, reply) in sent.iter().zip(call_together(&server, &calls).await) {
            replies[at] = match reply {
                Ok(value) => Reply::Called(Called::at_once(value, &server)),
                Err(error) => Reply::Failed(Failed {
                    server: Arc::clone(&server),
                    error,
                }),
            };
        }
        replies
    }
}

/// The reply to each call of a batch.
async fn call_together(server: &Server, calls: &[&Call]) -> Vec<RedisResult<Value>> {
    let joined = if calls.len() > 1 {
        Call::join(calls)
    } else {
        None
    };
    let Some(joined) = joined else {
        return one_by_one(server, calls).await;
    };
    let reply = server.call(&joined).await;
    match reply.and_then(|value| replies(value, calls.len())) {
        Err(error) if is_refused_together(&error) => one_by_one(server, calls).await,
        Err(error) => calls.iter().map(|_| Err(error.clone())).collect(),
        Ok(replies) => replies,
    }
}

/// Whether a server refused a whole batch before it did anything: perhaps for the key of one call,
/// or because it wants keys of different slots apart, though it has them all.
fn is_refused_together(error: &RedisError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Server(ServerErrorKind::NoPerm | ServerErrorKind::CrossSlot)
    )
}

async fn one_by_one(server: &Server, calls: &[&Call]) -> Vec<RedisResult<Value>> {
    let mut replies = Vec::with_capacity(calls.len());
    for call in calls {
        replies.push(server.call(call).await);
    }
    replies
}

/// The reply to each of the calls that were joined.
fn replies(value: Value, calls: usize) -> RedisResult<Vec<RedisResult<Value>>> {
    match value {
        Value::Array(replies) if replies.len() == calls => {
            Ok(replies.into_iter().map(Value::extract_error).collect())
        }
        _ => Err((
            ErrorKind::UnexpectedReturnType,
            "the server does not answer each call of a batch",
        )
            .into()),
    }
}
