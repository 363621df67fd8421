//! Claims and releases of many tasks at the same time go to the server together, in one transaction:
//! one commit for all of them.

use std::sync::{Arc, OnceLock};

use tokio::runtime::Handle;

use super::backend::{Backend, unwanted};
use super::client::Purpose;
use super::line::{Answered, Event};
use crate::error::{Error, ErrorKind, Result};
use crate::store::ClaimId;
use crate::stores::batch::{BatchExecutor, Batcher, Limits};

/// While the server commits one batch, the next is made.
const LIMITS: Limits = Limits {
    in_flight: 1,
    largest: 64,
    apart: 1,
    patience: None,
    reply_wakes: true,
};

pub(super) struct Batch {
    backend: Arc<Backend>,
    /// Made at first use, inside the client's runtime.
    batcher: OnceLock<Arc<Batcher<Executor>>>,
}

struct Request {
    event: Event,
    /// Of a claim: its caller may leave before it is sent.
    claim: Option<ClaimId>,
}

/// What became of an event.
enum Applied {
    /// The answer, and whether it was sent again.
    Answered(Answered, bool),
    /// Nothing yet: another session has locked its row.
    Locked(Event),
}

type Reply = Result<Applied>;

impl Batch {
    pub(super) fn of(backend: &Arc<Backend>) -> Batch {
        Batch {
            backend: Arc::clone(backend),
            batcher: OnceLock::new(),
        }
    }

    /// Sends an event with others at the same time. The answer, and whether it was sent again.
    pub(super) async fn apply(
        &self,
        event: Event,
        claim: Option<ClaimId>,
    ) -> Result<(Answered, bool)> {
        let batcher = self.batcher.get_or_init(|| {
            Batcher::new(
                Executor(Arc::clone(&self.backend)),
                Handle::current(),
                LIMITS,
            )
        });
        let reply = batcher.ask(Request { event, claim }).await;
        let reply = reply.ok_or_else(|| Error::unavailable("the client is ending"))?;
        match reply? {
            Applied::Answered(answer, sent_again) => Ok((answer, sent_again)),
            // By itself, and not in the batch: others wait for that.
            Applied::Locked(event) => Box::pin(self.backend.apply_patiently(event)).await,
        }
    }
}

struct Executor(Arc<Backend>);

impl BatchExecutor for Executor {
    type Request = Request;
    type Reply = Reply;

    /// Several events of one name are applied in their order.
    fn can_join(&self, _: &[Request], _: &Request) -> bool {
        true
    }

    /// Releases and withdrawals go before claims.
    fn is_urgent(&self, request: &Request) -> bool {
        request.claim.is_none()
    }

    async fn execute(&self, batch: Vec<Request>) -> Vec<Reply> {
        let (backend, count) = (Arc::clone(&self.0), batch.len());
        // A task of its own: it goes on if the caller is not polled.
        let sent = tokio::spawn(async move { send(&backend, batch).await });
        sent.await.unwrap_or_else(|_| {
            let ended = || Err(Error::unavailable("the client is ending"));
            (0..count).map(|_| ended()).collect()
        })
    }
}

async fn send(backend: &Backend, batch: Vec<Request>) -> Vec<Reply> {
    let mut replies: Vec<Reply> = batch.iter().map(|_| Err(unwanted())).collect();
    let (mut places, mut events) = (Vec::new(), Vec::new());
    for (place, request) in batch.into_iter().enumerate() {
        if request.claim.is_none_or(|claim| backend.wants(claim)) {
            places.push(place);
            events.push(request.event);
        }
    }
    if events.is_empty() {
        return replies;
    }
    match backend.apply(Purpose::Verbs, &events).await {
        // One of them cannot be done, and so none was.
        Err(error) if error.kind() == ErrorKind::Config && events.len() > 1 => {
            for (place, event) in places.into_iter().zip(events) {
                let called = backend.apply(Purpose::Verbs, std::slice::from_ref(&event));
                replies[place] = called.await.map(|mut called| match called.answers.pop() {
                    Some(Some(answer)) => Applied::Answered(answer, called.sent_again),
                    _ => Applied::Locked(event),
                });
            }
        }
        Ok(called) => {
            let answers = called.answers.into_iter().zip(events);
            for (place, (answer, event)) in places.into_iter().zip(answers) {
                replies[place] = Ok(match answer {
                    Some(answer) => Applied::Answered(answer, called.sent_again),
                    None => Applied::Locked(event),
                });
            }
        }
        Err(error) => {
            for place in places {
                replies[place] = Err(error.clone());
            }
        }
    }
    replies
}
