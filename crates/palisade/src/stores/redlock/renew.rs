//! Extends the leases of claims on a majority of the servers.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::calls::Calls;
use super::{RENEW, Shared};
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::store::{ClaimRef, Gone, Grant, Lease, Standing};
use crate::stores::redis::client::Call;
use crate::stores::redis::{digits, gone, millis, read_fence, unexpected};

/// The answers about one claim.
#[derive(Clone, Default)]
struct Counted {
    /// Its fence, and on how many servers it has that.
    held: Vec<(Fence, usize)>,
    gone: Vec<Gone>,
    failures: Vec<Error>,
}

impl Counted {
    fn count(&mut self, reply: Result<Value>) {
        let answer = reply.and_then(|reply| match reply {
            Value::BulkString(fence) => read_fence(&fence).map(Ok).ok_or_else(unexpected),
            other => gone(&other).map(Err).ok_or_else(unexpected),
        });
        match answer {
            Ok(Ok(fence)) => match self.held.iter_mut().find(|(known, _)| *known == fence) {
                Some((_, servers)) => *servers += 1,
                None => self.held.push((fence, 1)),
            },
            Ok(Err(gone)) => self.gone.push(gone),
            Err(error) => self.failures.push(error),
        }
    }

    fn standing(&self, shared: &Shared, claim: &ClaimRef) -> Option<Standing> {
        let quorum = shared.members.quorum();
        if let Some((fence, _)) = self.held.iter().find(|(_, servers)| *servers >= quorum) {
            return Some(Standing::Held(Grant {
                fence: *fence,
                lease: Lease::of(claim.claim.lease),
            }));
        }
        if self.gone.len() <= shared.members.count - quorum {
            return None;
        }
        // The one that says most. A server that has lost its data says least.
        let said = [Gone::Revoked, Gone::Taken, Gone::Ended];
        let why = said.into_iter().find(|why| self.gone.contains(why));
        Some(Standing::Gone(why.unwrap_or(Gone::Unknown)))
    }
}

pub(super) async fn renew(shared: &Arc<Shared>, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
    let call = |claim: &ClaimRef| {
        shared
            .call(&RENEW, &claim.claim.name)
            .text(&claim.claim.id.reveal())
            .number(millis(claim.claim.lease))
            .text(&digits(claim.fence))
            .text(&digits(shared.claimed.lowest(claim)))
    };
    let sent: Arc<Vec<Call>> = Arc::new(claims.iter().map(call).collect());
    let mut calls = Calls::new();
    for node in &shared.nodes {
        let (node, sent) = (Arc::clone(node), Arc::clone(&sent));
        calls.push(node.place, async move { node.call_all(&sent).await });
    }
    let mut counted = vec![Counted::default(); claims.len()];
    let standing = |counted: &[Counted]| -> Vec<Option<Standing>> {
        let each = counted.iter().zip(claims);
        each.map(|(counted, claim)| counted.standing(shared, claim))
            .collect()
    };
    let shortest = claims.iter().map(|claim| claim.claim.lease).min();
    let limit = (shortest.unwrap_or_default() / 6).max(Duration::from_millis(20));
    let mut answers = 0;
    calls
        .take(limit, |_, replies, _| {
            let unanswered = |error: Error| vec![Err(error); claims.len()];
            let replies = replies.unwrap_or_else(unanswered);
            let each = counted.iter_mut().zip(replies);
            each.for_each(|(counted, reply)| counted.count(reply));
            answers += 1;
            answers >= shared.members.quorum() && standing(&counted).iter().all(Option::is_some)
        })
        .await;
    let answer = |(standing, counted): (Option<Standing>, Counted)| {
        let held = counted
            .held
            .iter()
            .map(|(_, servers)| servers)
            .sum::<usize>();
        standing.ok_or_else(|| shared.too_few(held + counted.gone.len(), counted.failures))
    };
    standing(&counted)
        .into_iter()
        .zip(counted)
        .map(answer)
        .collect()
}
