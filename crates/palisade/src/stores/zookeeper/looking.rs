//! Where a claim of ours stands, and finding one again of which we do not know.

use std::sync::Arc;

use super::claiming::{LOOKS, Stood, gone, holder_of};
use super::failure::Failed;
use super::known::{LEASES, LOCKS, Seat, Stage};
use super::proto::{self, Code, Request, Stat};
use super::recipe::{Recipe, Verdict, lease_prefix};
use super::session::{Sent, Session};
use super::shared::{Shared, fence_of};
use super::value::Value;
use crate::lease::{BootClock, Clock};
use crate::store::{Claim, ClaimId, ClaimRef, Grant, Holder};

/// A node of a claim.
pub(super) struct Found {
    pub(super) path: String,
    /// The line that it stands in; `None` for a permit.
    pub(super) recipe: Option<Recipe>,
    pub(super) stat: Stat,
    pub(super) value: Value,
}

const RECIPES: [Recipe; 5] = [Recipe::Mutex, Recipe::Write, Recipe::Read, Recipe::KazooLock, Recipe::KazooRead];

impl Shared {
    /// Looks where a claim of ours stands: its session, its node and the line. That does not renew it: a watch may have us look, and the
    /// owner be dead.
    ///
    /// A waiter's grant is decided here, and nowhere else. That its watch has fired says little: what it waited for may have been a
    /// waiter that gave up.
    ///
    /// The line is read as our server has it, without asking the leader first (`sync`). Whoever may come before our node has a smaller
    /// number and so was there before it: a line with our node in it lacks none of them, however old it is, and those whom it has too
    /// many only make us wait. What an old line can hide is the end of our own node. If its session has ended, the deadline has passed
    /// before: that counts from what a majority has answered, and when little is left of it, such an answer is waited for here. If
    /// somebody has deleted it by hand, we hear of it as any holder does, by its watch. A `sync` proves no more of either: a leader
    /// that was replaced answers it, too.
    pub(super) async fn look(self: &Arc<Self>, claim: &Claim) -> Result<Stood, Failed> {
        self.look_after(claim, false).await
    }

    /// The same; `proven` when the session's heartbeat was answered just now.
    pub(super) async fn look_after(self: &Arc<Self>, claim: &Claim, proven: bool) -> Result<Stood, Failed> {
        let mut proven = proven;
        let Some(turn) = self.claims.lock().known.get(&claim.id).map(|known| Arc::clone(&known.turn)) else {
            return Ok(Stood::Gone);
        };
        let _turn = turn.lock().await;
        for _ in 0..LOOKS {
            let snapshot = self.claims.lock().known.get(&claim.id).map(|known| {
                let stage = match &known.stage {
                    Stage::Waiting(waiting) => Ok(waiting.clone()),
                    Stage::Holding(holding) => Err(holding.clone()),
                };
                (Arc::clone(&known.seat), Arc::clone(&known.session), stage)
            });
            let Some((seat, session, stage)) = snapshot else { return Ok(Stood::Gone) };
            let is_heartbeat = std::mem::replace(&mut proven, false);
            let proof = match &stage {
                _ if is_heartbeat => None,
                // A grant must be worth something.
                Ok(waiting) if session.is_worn(BootClock.now()) => {
                    Some(Request::beat(&format!("{}/{}", seat.line(), waiting.child)))
                }
                Ok(_) => None,
                // Whoever believes to hold asks whether that is still so.
                Err(_) => Some(Request::sync("/")),
            };
            let proof = proof.map(|proof| session.send(proof));
            let waiting = match stage {
                Ok(waiting) => waiting,
                Err(holding) => {
                    let all: Vec<Sent> = holding.nodes.iter().map(|node| session.send(Request::exists(node, false))).collect();
                    answered(proof).await?;
                    for exists in all {
                        match exists.answer().await {
                            // In a node's place there may be another's by now.
                            Ok(body) if proto::stat(&body)?.owner != session.id() => return Ok(Stood::Gone),
                            Ok(_) => {}
                            Err(failed) if failed.is(Code::NoNode) => return Ok(Stood::Gone),
                            Err(failed) => return Err(failed),
                        }
                    }
                    return Ok(Stood::Granted(Grant { fence: holding.fence, lease: session.lease() }));
                }
            };
            let is_told = |path: &str| {
                let on_this = (path.to_owned(), session.connection());
                waiting.watches.as_ref() == Some(&on_this) && self.claims.lock().is_watched(session.id(), path, claim.id)
            };
            if let Some((before, _)) = waiting.watches.as_ref().filter(|(path, _)| is_heartbeat && is_told(path)) {
                // A long line is not read by everybody in it, as long as these two are there.
                let own = session.send(Request::exists(&format!("{}/{}", seat.line(), waiting.child), false));
                let before = session.send(Request::exists(before, false));
                match own.answer().await.and(before.answer().await) {
                    Ok(_) => return Ok(Stood::Queued(None)),
                    Err(failed) if failed.is(Code::NoNode) => {}
                    Err(failed) => return Err(failed),
                }
            }
            let list = session.send(Request::children(&seat.line(), false));
            // The last first: the other is there by then.
            let list = list.answer().await;
            answered(proof).await?;
            let children = match list {
                Ok(body) => proto::children(&body)?,
                Err(failed) if failed.is(Code::NoNode) => return Ok(Stood::Gone),
                Err(failed) => return Err(failed),
            };
            match (seat.recipe.verdict(&children, &waiting.child), seat.permits) {
                (Verdict::Missing, None) => return Ok(Stood::Gone),
                (Verdict::Missing, Some(_)) => return self.left_the_line(claim, &seat, &session).await,
                (Verdict::Held, None) => {
                    let own = format!("{}/{}", seat.line(), waiting.child);
                    return Ok(Stood::Granted(self.granted(claim, &seat, &session, own, waiting.made)));
                }
                (Verdict::Held, Some(permits)) => {
                    return self.first_in_line(claim, &seat, &session, &waiting.child, permits).await;
                }
                (Verdict::Blocked { by, first }, _) => {
                    let path = format!("{}/{by}", seat.line());
                    if is_told(&path) {
                        return Ok(Stood::Queued(None));
                    }
                    if let Some(holder) = self.wait_for(claim, &seat, &session, (&by, by == first)).await? {
                        return Ok(Stood::Queued(holder));
                    }
                    // It left between our look and our watch: another look.
                }
            }
        }
        Err(gone())
    }

    /// A claim is not in the line of its semaphore any more: with permits, if the answer that said so was lost.
    pub(super) async fn left_the_line(
        self: &Arc<Self>,
        claim: &Claim,
        seat: &Arc<Seat>,
        session: &Arc<Session>,
    ) -> Result<Stood, Failed> {
        let mut found = self.search(session, &seat.base, &seat.guid).await?;
        found.retain(|found| found.stat.owner == session.id() && found.recipe.is_none());
        let Some(first) = found.first() else { return Ok(Stood::Gone) };
        let fence = fence_of(first.stat.czxid);
        let nodes = found.iter().map(|found| found.path.clone()).collect();
        self.holds(claim, seat, session, (nodes, fence));
        Ok(Stood::Granted(Grant { fence, lease: session.lease() }))
    }

    /// Every node of a claim, whatever it was made as.
    pub(super) async fn search(&self, session: &Arc<Session>, base: &str, guid: &str) -> Result<Vec<Found>, Failed> {
        let sync = session.send(Request::sync("/"));
        let dirs = [base.to_owned(), format!("{base}/{LOCKS}"), format!("{base}/{LEASES}")];
        let lists: Vec<Sent> = dirs.iter().map(|dir| session.send(Request::children(dir, false))).collect();
        answered(Some(sync)).await?;
        let mut paths = Vec::new();
        for (dir, list) in dirs.iter().zip(lists) {
            let children = match list.answer().await {
                Ok(body) => proto::children(&body)?,
                Err(failed) if failed.is(Code::NoNode) => continue,
                Err(failed) => return Err(failed),
            };
            for child in children {
                let recipe = RECIPES.into_iter().find(|recipe| child.starts_with(&recipe.prefix(guid)));
                if recipe.is_some() || child.starts_with(&lease_prefix(guid)) {
                    paths.push((format!("{dir}/{child}"), recipe));
                }
            }
        }
        let mut found = Vec::new();
        for (path, recipe) in paths {
            match session.ask(Request::get_data(&path, false)).await {
                Ok(body) => {
                    let (data, stat) = proto::data(&body)?;
                    found.push(Found { value: Value::read(&data, &path)?, path, recipe, stat });
                }
                Err(failed) if failed.is(Code::NoNode) => {}
                Err(failed) => return Err(failed),
            }
        }
        Ok(found)
    }

    /// Takes up the nodes of a claim that hang on this session; whether there are any. Those of an older session are not ours.
    pub(super) async fn find_again(self: &Arc<Self>, claim: &Claim, session: &Arc<Session>) -> Result<bool, Failed> {
        let seat = self.seat(claim)?;
        let mut found = self.search(session, &seat.base, &seat.guid).await?;
        found.retain(|found| found.stat.owner == session.id());
        Ok(self.take_up(claim, seat, session, &found))
    }

    /// Takes up nodes that were found; whether there are any.
    pub(super) fn take_up(self: &Arc<Self>, claim: &Claim, seat: Seat, session: &Arc<Session>, found: &[Found]) -> bool {
        let permits: Vec<&Found> = found.iter().filter(|found| found.recipe.is_none()).collect();
        if let Some(first) = permits.first() {
            let nodes = permits.iter().map(|found| found.path.clone()).collect();
            self.holds(claim, &Arc::new(seat), session, (nodes, fence_of(first.stat.czxid)));
            return true;
        }
        let Some((first, recipe)) = found.first().and_then(|found| Some((found, found.recipe?))) else { return false };
        let recipe = if recipe == Recipe::KazooLock { seat.recipe } else { recipe };
        let child = first.path.rsplit('/').next().unwrap_or_default().to_owned();
        let seat = Arc::new(Seat { recipe, ..seat });
        self.waits(claim, &seat, session, (child, first.stat.czxid), BootClock.now());
        true
    }

    /// Who holds what a claim of ours waits for, as our server knows it.
    pub(super) async fn holder(&self, claim: &Claim) -> Result<Option<Holder>, Failed> {
        let known = self.claims.lock().known.get(&claim.id).map(|known| (Arc::clone(&known.seat), Arc::clone(&known.session)));
        let Some((seat, session)) = known else { return Ok(None) };
        let dir = if seat.permits.is_some() { seat.leases().into() } else { seat.line() };
        let children = proto::children(&session.ask(Request::children(&dir, false)).await?)?;
        let one = match seat.permits {
            Some(_) => children.first().map(String::as_str),
            None => seat.recipe.first_blocker(&children, &seat.guid),
        };
        let Some(one) = one else { return Ok(None) };
        let asked = session.ask(Request::get_data(&format!("{dir}/{one}"), false)).await;
        holder_of(asked, &seat, one)
    }

    /// The node that a claim of ours holds by.
    pub(super) fn lock_node(&self, claim: ClaimId) -> Option<String> {
        match &self.claims.lock().known.get(&claim)?.stage {
            Stage::Holding(holding) => holding.nodes.first().cloned(),
            Stage::Waiting(_) => None,
        }
    }

    /// Whether a claim of ours is named by a fence that is not its own: whoever does so means another grant.
    pub(super) fn is_misnamed(&self, claim: &ClaimRef) -> bool {
        self.claims.lock().known.get(&claim.claim.id).is_some_and(|known| !known.is_meant_by(claim.fence))
    }
}

async fn answered(sent: Option<Sent>) -> Result<(), Failed> {
    match sent {
        Some(sent) => sent.answer().await.map(drop),
        None => Ok(()),
    }
}
