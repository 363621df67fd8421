//! What the tasks of one runtime ask a server at the same time goes there together, as one script.

use std::sync::{Arc, Weak};

use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::runtime::Handle;

use super::client::connection::unanswered;
use super::client::link::Link;
use super::client::script::{Call, Together};
use crate::stores::gather::{Carries, Gather};

/// How many may be on their way before others wait to go together: while the server works on one, the next one is made.
const AT_ONCE: usize = 2;
/// How many go together at most. Nobody else is served meanwhile, which is a tenth of a millisecond; more of them cost no less each.
const MOST: usize = 16;

/// Takes what was gathered to the server of one link.
pub(super) struct Carrier(Weak<Link>);

impl Carrier {
    pub(super) fn gather(link: Weak<Link>, runtime: Handle) -> Arc<Gather<Carrier>> {
        Gather::new(Carrier(link), runtime, AT_ONCE, MOST)
    }

    /// The link, unless it is broken. Those who ask were told so then: they may have asked elsewhere since, and must not arrive here
    /// later.
    fn unbroken(&self) -> Option<Arc<Link>> {
        self.0.upgrade().filter(|link| !link.is_broken())
    }
}

impl Carries for Carrier {
    type Request = Arc<Call>;
    type Answer = RedisResult<Value>;

    const ANSWER_WAKES: bool = true;

    fn fits(&self, group: &[Arc<Call>], request: &Arc<Call>) -> bool {
        // On one key they are done one after the other, in this order.
        group.first().is_none_or(|first| first.goes_with(request))
    }

    async fn carry(&self, group: Vec<Arc<Call>>) -> Vec<RedisResult<Value>> {
        let Some(link) = self.unbroken() else { return failed(&group, &unanswered()) };
        if let [call] = group.as_slice() {
            return vec![link.call(call).await];
        }
        let Some(together) = Together::of(group.iter().map(Arc::as_ref)) else { return one_by_one(&link, &group).await };
        match link.call_group(&together).await {
            Ok(answers) => answers,
            Err(error) if is_refused_together(&error) => one_by_one(&link, &group).await,
            Err(error) => failed(&group, &error),
        }
    }

    async fn carry_alone(&self, call: Arc<Call>) -> Option<RedisResult<Value>> {
        match self.unbroken() {
            Some(link) => Some(link.call(&call).await),
            None => Some(Err(unanswered())),
        }
    }

    /// Where the runtime of the link stands still, nothing is even sent.
    async fn given_up(&self) {
        if let Some(link) = self.0.upgrade() {
            let _expected = link.expect();
            link.ended().await;
        }
    }
}

fn failed(group: &[Arc<Call>], error: &RedisError) -> Vec<RedisResult<Value>> {
    group.iter().map(|_| Err(error.clone())).collect()
}

/// Whether all were refused before anything was done: perhaps for the key of one of them, or because this server wants those of
/// different slots apart, though it has them all.
fn is_refused_together(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Server(ServerErrorKind::NoPerm | ServerErrorKind::CrossSlot))
}

async fn one_by_one(link: &Link, group: &[Arc<Call>]) -> Vec<RedisResult<Value>> {
    let mut answers = Vec::with_capacity(group.len());
    for call in group {
        answers.push(link.call(call).await);
    }
    answers
}
