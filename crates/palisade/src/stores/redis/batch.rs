//! Claims and releases of many tasks at the same time go to the server together, as one script.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::runtime::Handle;

use super::client::{Call, Called, EncodeCall, Failed, Script, Server, push_count, push_text};
use super::settings::Format;
use super::{Locks, unwanted};
use crate::error::Result;
use crate::store::{Claim, ClaimId};
use crate::stores::batch::{BatchExecutor, Batcher, Limits};

/// While the server works on one batch, the next is made. A larger batch would cost no less per call, and the server serves no other
/// request meanwhile, which is a tenth of a millisecond.
const LIMITS: Limits = Limits {
    in_flight: 2,
    largest: 16,
    apart: 2,
    patience: None,
    reply_wakes: true,
};
/// In a cluster each call goes alone: its keys are in different slots, and no script may touch two of them. So do those of `simple`.
const ALONE: Limits = Limits {
    in_flight: 256,
    largest: 1,
    apart: 256,
    patience: None,
    reply_wakes: true,
};

/// The batches of one store.
pub(super) struct Batch {
    locks: Arc<Locks>,
    /// Made at first use, inside the client's runtime.
    batcher: OnceLock<Arc<Batcher<Executor>>>,
}

impl Batch {
    pub(super) fn of(locks: &Arc<Locks>) -> Batch {
        Batch {
            locks: Arc::clone(locks),
            batcher: OnceLock::new(),
        }
    }

    /// Sends a claim, unless its caller has left before it is written. `needs_inbox`: the claim may be pushed to.
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
        let (client, again) = (&self.locks.client, request.clone());
        let batcher = self.batcher.get_or_init(|| {
            let alone =
                client.settings().is_cluster() || self.locks.settings.format == Format::Simple;
            let limits = if alone { ALONE } else { LIMITS };
            Batcher::new(Executor(Arc::clone(&self.locks)), Handle::current(), limits)
        });
        let failed = match batcher.ask(request).await.unwrap_or(Reply::NotReady) {
            Reply::Called(called) => return Ok(called),
            Reply::Failed(failed) => Some(failed),
            Reply::NotReady => None,
            Reply::Unwanted => return Err(unwanted()),
        };
        let is_wanted = || self.locks.wants_request(&again);
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

enum Reply {
    Called(Called),
    Failed(Failed),
    /// Nothing was sent: no server was ready.
    NotReady,
    /// Nothing was sent: the caller has left.
    Unwanted,
}

impl Locks {
    fn wants_request(&self, request: &Request) -> bool {
        request.claim.is_none_or(|claim| self.wants(claim))
    }
}

struct Executor(Arc<Locks>);

impl BatchExecutor for Executor {
    type Request = Request;
    type Reply = Reply;

    /// Several calls on one key are done in their order.
    fn can_join(&self, batch: &[Request], request: &Request) -> bool {
        batch
            .first()
            .is_none_or(|first| can_join(&first.call, &request.call))
    }

    /// Releases and withdrawals go before claims.
    fn is_urgent(&self, request: &Request) -> bool {
        request.claim.is_none()
    }

    async fn execute(&self, batch: Vec<Request>) -> Vec<Reply> {
        let wanted: Vec<bool> = batch
            .iter()
            .map(|request| self.0.wants_request(request))
            .collect();
        let sent: Vec<&Request> = batch
            .iter()
            .zip(&wanted)
            .filter(|(_, wanted)| **wanted)
            .map(|(request, _)| request)
            .collect();
        let needs_inbox = sent.iter().any(|request| request.needs_inbox);
        let Some(server) = sent
            .first()
            .and_then(|first| self.0.client.ready(first.call.key(), needs_inbox))
        else {
            return wanted
                .iter()
                .map(|wanted| {
                    if *wanted {
                        Reply::NotReady
                    } else {
                        Reply::Unwanted
                    }
                })
                .collect();
        };
        let mut replies = call_together(&server, &sent)
            .await
            .into_iter()
            .map(|reply| called(&server, reply));
        wanted
            .iter()
            .map(|wanted| {
                if *wanted {
                    replies.next().unwrap_or(Reply::NotReady)
                } else {
                    Reply::Unwanted
                }
            })
            .collect()
    }
}

/// The reply to each call of a batch.
async fn call_together(server: &Server, batch: &[&Request]) -> Vec<RedisResult<Value>> {
    let calls = (batch.len() > 1)
        .then(|| CallBatch::of(batch.iter().map(|request| request.call.as_ref())))
        .flatten();
    let Some(calls) = calls else {
        return one_by_one(server, batch).await;
    };
    match server
        .call(&calls)
        .await
        .and_then(|value| calls.replies(value))
    {
        Err(error) if is_refused_together(&error) => one_by_one(server, batch).await,
        Err(error) => batch.iter().map(|_| Err(error.clone())).collect(),
        Ok(replies) => replies,
    }
}

fn called(server: &Arc<Server>, reply: RedisResult<Value>) -> Reply {
    let server = Arc::clone(server);
    match reply {
        Ok(value) => Reply::Called(Called {
            value,
            server,
            sent_again: false,
        }),
        Err(error) => Reply::Failed(Failed { server, error }),
    }
}

/// Whether a server refused a whole batch before it did anything: perhaps for the key of one call, or because it wants keys of
/// different slots apart, though it has them all.
fn is_refused_together(error: &RedisError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Server(ServerErrorKind::NoPerm | ServerErrorKind::CrossSlot)
    )
}

async fn one_by_one(server: &Server, batch: &[&Request]) -> Vec<RedisResult<Value>> {
    let mut replies = Vec::with_capacity(batch.len());
    for request in batch {
        replies.push(server.call(request.call.as_ref()).await);
    }
    replies
}

/// Whether two calls may be parts of one script.
fn can_join(one: &Call, other: &Call) -> bool {
    match (one.batched_as(), other.batched_as()) {
        (Some((_, script)), Some((_, other))) => std::ptr::eq(script, other),
        _ => false,
    }
}

/// Several calls as one, each with its own reply.
pub(super) struct CallBatch {
    script: &'static Script,
    calls: usize,
    /// How many parts the request has after the script.
    parts: usize,
    /// These parts: the number of keys, the keys, the verbs, all arguments.
    tail: Vec<u8>,
}

impl CallBatch {
    /// `None` when one of the calls cannot be joined with the others.
    pub(super) fn of<'a>(calls: impl IntoIterator<Item = &'a Call>) -> Option<CallBatch> {
        let calls: Vec<&Call> = calls.into_iter().collect();
        let first = calls.first()?;
        let (_, script) = first.batched_as()?;
        if !calls.iter().all(|call| can_join(first, call)) {
            return None;
        }
        let mut tail = Vec::new();
        push_count(&mut tail, calls.len() as u64);
        let mut verbs = Vec::with_capacity(2 * calls.len());
        let mut parts = 2 + calls.len();
        for call in &calls {
            push_text(&mut tail, call.key().as_bytes());
            let (letter, _) = call.batched_as()?;
            let (_, count) = call.arguments();
            verbs.extend([letter, count]);
            parts += usize::from(count);
        }
        push_text(&mut tail, &verbs);
        for call in &calls {
            tail.extend_from_slice(call.arguments().0);
        }
        Some(CallBatch {
            script,
            calls: calls.len(),
            parts,
            tail,
        })
    }

    /// The reply to each call.
    fn replies(&self, value: Value) -> RedisResult<Vec<RedisResult<Value>>> {
        match value {
            Value::Array(replies) if replies.len() == self.calls => {
                Ok(replies.into_iter().map(Value::extract_error).collect())
            }
            _ => Err((
                ErrorKind::UnexpectedReturnType,
                "the server does not answer each call of a batch",
            )
                .into()),
        }
    }
}

impl EncodeCall for CallBatch {
    fn script(&self) -> &'static Script {
        self.script
    }

    fn by_hash(&self) -> Cow<'_, [u8]> {
        self.script.call_by_hash(self.parts, &self.tail).into()
    }

    fn whole(&self) -> Vec<u8> {
        self.script.call_whole(self.parts, &self.tail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_joined_only_as_parts_of_one_script() {
        static BOTH: Script = Script::new("return { 1, 2 }");
        static OTHER: Script = Script::new("return { 3 }");
        static A: Script = Script::new("return 1").batched_as(b'a', &BOTH);
        static B: Script = Script::new("return 2").batched_as(b'b', &BOTH);
        static C: Script = Script::new("return 3").batched_as(b'c', &OTHER);
        static ALONE: Script = Script::new("return 4");
        let [a, b, c, alone] =
            [&A, &B, &C, &ALONE].map(|script| Call::new(script, "k").text("x").number(7));
        let b = b.text("ü");
        let mut sent = redis::cmd("EVAL");
        sent.arg("return { 1, 2 }")
            .arg(2)
            .arg("k")
            .arg("k")
            .arg(b"a\x02b\x03");
        sent.arg("x").arg(7).arg("x").arg(7).arg("ü");
        assert_eq!(
            CallBatch::of([&a, &b]).unwrap().whole(),
            sent.get_packed_command()
        );
        for other in [&c, &alone, &Call::new(&A, "k").beside("l")] {
            assert!(!can_join(&a, other) && !can_join(other, &a));
            assert!(CallBatch::of([&a, other]).is_none());
        }
        assert!(
            !can_join(&alone, &alone)
                && CallBatch::of([&alone]).is_none()
                && CallBatch::of([]).is_none()
        );
    }
}
