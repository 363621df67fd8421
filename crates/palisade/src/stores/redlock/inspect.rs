//! Shows a name, ends a grant by hand, and describes the servers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::{LONGEST_REQUEST, Shared};
use crate::error::Result;
use crate::fence::Fence;
use crate::name::Name;
use crate::store::{Page, Revoked, ServerInfo};
use crate::stores::kit::token::page_of;
use crate::stores::redis::client::Call;
use crate::stores::redis::{REVOKE, SHOW, Token, describe, digits, token_and_left, unexpected};

/// The replies of the servers, a majority at least.
async fn replies(
    shared: &Arc<Shared>,
    call: Call,
    mut is_decided: impl FnMut(&[Value]) -> bool,
) -> Result<Vec<Value>> {
    let servers = shared.reached().await?;
    let mut calls = shared.send(&servers, &Arc::new(call));
    let (mut replies, mut failures) = (Vec::new(), Vec::new());
    calls
        .take(LONGEST_REQUEST, |_, reply, _| {
            match reply {
                Ok(reply) => replies.push(reply),
                Err(error) => failures.push(error),
            }
            is_decided(&replies)
        })
        .await;
    if replies.len() < shared.members.quorum() {
        return Err(shared.too_few(replies.len(), failures));
    }
    Ok(replies)
}

/// A token that a majority has, or would have with the servers that do not answer. What fewer
/// servers have is left over from an attempt.
pub(super) async fn show(shared: &Arc<Shared>, name: &Name) -> Result<Page> {
    let quorum = shared.members.quorum();
    let free = |replies: &[Value]| replies.iter().filter(|reply| **reply == Value::Nil).count();
    let decided = |replies: &[Value]| {
        free(replies) > shared.members.count - quorum
            || most(replies).is_some_and(|(_, left)| left.len() >= quorum)
    };
    let replies = replies(shared, shared.call(&SHOW, name), decided).await?;
    let unanswered = shared.members.count - replies.len();
    let holder = most(&replies)
        .filter(|(_, left)| left.len() + unanswered >= quorum)
        .map(|(token, mut left)| {
            // It may be taken by another when it has ended on so many that a majority is free.
            left.sort_unstable_by_key(|left| left.unwrap_or(Duration::MAX));
            let ends = left.get(left.len().saturating_sub(quorum)).copied();
            Token::read(token).holder(ends.flatten())
        });
    Ok(page_of(name, holder))
}

/// The token that most servers have, with the time left on each.
fn most(replies: &[Value]) -> Option<(&[u8], Vec<Option<Duration>>)> {
    let mut tokens: HashMap<&[u8], (&[u8], Vec<_>)> = HashMap::new();
    for reply in replies {
        if let Value::Array(parts) = reply
            && let Some((token, left)) = token_and_left(parts)
        {
            let (_, all) = tokens
                .entry(Token::claim_of(token))
                .or_insert((token, Vec::new()));
            all.push(left);
        }
    }
    tokens.into_values().max_by_key(|(_, left)| left.len())
}

pub(super) async fn revoke(shared: &Arc<Shared>, name: &Name, fence: Fence) -> Result<Revoked> {
    let call = shared
        .call(&REVOKE, name)
        .text(&digits((!fence.is_none()).then_some(fence)));
    let replies = replies(shared, call, |_| false).await?;
    let mut others = HashMap::new();
    let mut done = 0;
    for reply in &replies {
        match reply {
            Value::Int(1) => done += 1,
            Value::Int(0) => {}
            Value::BulkString(token) => *others.entry(Token::read(token).fence()).or_insert(0) += 1,
            _ => return Err(unexpected()),
        }
    }
    let quorum = shared.members.quorum();
    let other = others.into_iter().find(|(_, servers)| *servers >= quorum);
    Ok(match other {
        Some((fence, _)) => Revoked::OtherHolder {
            fence: fence.unwrap_or(Fence::NONE),
        },
        None if done > 0 => Revoked::Done,
        None => Revoked::NotHeld,
    })
}

/// Shows a lock on all servers, and describes the first.
pub(super) async fn ping(shared: &Arc<Shared>) -> Result<ServerInfo> {
    let replies = replies(shared, shared.call(&SHOW, &Name::of_ping()), |_| false).await?;
    let connected = shared.nodes.iter().find_map(|node| node.connected());
    let first = match connected {
        Some(connected) => describe(&connected.server).await,
        None => ServerInfo::default(),
    };
    let addresses: Vec<String> = shared
        .nodes
        .iter()
        .map(|node| node.address.to_string())
        .collect();
    Ok(ServerInfo {
        role: Some(format!(
            "{} of {} answer",
            replies.len(),
            shared.members.count
        )),
        address: Some(addresses.join(",")),
        ..first
    })
}
