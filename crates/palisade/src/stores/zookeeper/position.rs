//! Where a claim of ours stands. A waiter's grant is decided here, and nowhere else: that its watch
//! has fired says little, since it may have waited for a waiter that gave up.
//!
//! The line is read as our server has it, without asking the leader first (`sync`). A node that may
//! come before ours has a smaller number and so was there before it: a line with our node in it
//! lacks none of them, however old it is, and nodes that it has too many only make us wait. What an
//! old line can hide is the end of our own node. If its session has ended, the deadline has passed
//! before: that counts from what a majority has answered, and when little is left of it, such an
//! answer is waited for here. If our node was deleted by hand, its watch tells us, as it tells any
//! holder. A `sync` proves no more of either: a leader that was replaced answers it, too.

use std::sync::Arc;

use super::backend::Backend;
use super::claims::{ClaimLocation, Entry, Holding, Stage, Waiting, fence_of};
use super::client::proto::Request;
use super::client::{Failed, OrMissing, Sent};
use super::queue_rules::{Recipe, Verdict};
use super::search::{Found, search};
use super::sessions::LockSession;
use super::wait::Blocker;
use crate::lease::{BootClock, Clock};
use crate::store::{Claim, Gone, Grant, Holder, Standing};
use crate::stores::kit::session::record_end;
use crate::stores::kit::session::wait::Look;

/// With less than this part of its life left, a session is proven before a grant.
const WORN: f64 = 0.5;

/// Where a claim stands.
pub(super) enum Position {
    Granted(Grant),
    /// In line; with the holder where it was read anyway.
    Queued(Option<Holder>),
    /// Its node is not there any more.
    Gone,
}

impl Look for Backend {
    /// Of two reads that find permits for the same claim, the second would find its place gone.
    const ONE_BY_ONE: bool = true;

    async fn look(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        is_renewal: bool,
    ) -> Result<Option<Standing>, Failed> {
        let now = {
            let claims = self.claims.lock();
            let own = claims.own.get(&claim.id);
            own.map(|own| (own.entry.clone(), own.stage.clone()))
        };
        let position = match now {
            None => return Ok(None),
            Some((entry, Stage::Holding(holding))) => {
                confirm(&entry, &holding, is_renewal).await.map(Some)
            }
            Some((entry, Stage::Waiting(waiting))) => {
                self.position(&entry, &waiting, is_renewal).await
            }
        };
        Ok(match position {
            Ok(None) => None,
            Ok(Some(Position::Granted(grant))) => Some(Standing::Held(grant)),
            Ok(Some(Position::Queued(holder))) => {
                Some(Standing::Waiting(self.place(claim, holder)))
            }
            // Its session lives: so just this claim was ended.
            Ok(Some(Position::Gone)) => {
                Some(Standing::Gone(record_end(&**self, claim.id, Gone::Revoked)))
            }
            Err(Failed::Ended) => Some(Standing::Gone(Gone::SessionEnded)),
            Err(failed) => return Err(failed),
        })
    }
}

impl Backend {
    /// Looks where a waiting claim stands; `None` when the line has changed meanwhile.
    async fn position(
        self: &Arc<Self>,
        entry: &Entry,
        waiting: &Waiting,
        is_proven: bool,
    ) -> Result<Option<Position>, Failed> {
        let Entry {
            location, session, ..
        } = entry;
        let own = location.node(&waiting.child);
        let is_worn = !is_proven && session.left(BootClock.now()) < WORN;
        let proof = is_worn.then(|| session.send(Request::heartbeat(&own)));
        if let Some(before) = waiting
            .watches
            .as_ref()
            .filter(|before| is_proven && self.is_told(entry, waiting, &before.path))
        {
            // Not every waiter reads a long line at every heartbeat, as long as these two are
            // there.
            let own = session.send(Request::exists(&own));
            let before = session.send(Request::exists(&before.path));
            if own
                .answer()
                .await
                .and(before.answer().await)
                .or_missing()?
                .is_some()
            {
                return Ok(Some(Position::Queued(None)));
            }
        }
        // The last first: the proof is there by then.
        let children = session.ask(Request::children(&location.line())).await;
        if let Some(proof) = proof {
            // Whether the step was done does not matter: the leader has answered.
            let _ = proof.answer().await?;
        }
        let Some(children) = children.or_missing()? else {
            return Ok(Some(Position::Gone));
        };
        Ok(Some(
            match (
                location.recipe.verdict(&children, &waiting.child),
                location.permits,
            ) {
                (Verdict::Missing, None) => Position::Gone,
                (Verdict::Missing, Some(_)) => self.left_line(entry).await?,
                (Verdict::Held, None) => {
                    Position::Granted(self.holds(entry, vec![own], fence_of(waiting.czxid)))
                }
                (Verdict::Held, Some(permits)) => {
                    self.first_in_line(entry, &waiting.child, permits).await?
                }
                (Verdict::Blocked { by, .. }, _)
                    if self.is_told(entry, waiting, &location.node(&by)) =>
                {
                    Position::Queued(None)
                }
                (Verdict::Blocked { by, first }, _) => {
                    match self.watch_blocker(entry, &by, by == first).await? {
                        Blocker::Watched(holder) => Position::Queued(holder),
                        Blocker::Left => return Ok(None),
                    }
                }
            },
        ))
    }

    /// A claim is not in the line of its semaphore any more: with permits, if the answer that said
    /// so was lost.
    pub(super) async fn left_line(self: &Arc<Self>, entry: &Entry) -> Result<Position, Failed> {
        let mut found = search(&entry.session, &entry.location).await?;
        found.retain(|found| found.stat.owner == entry.session.id() && found.recipe.is_none());
        let Some(first) = found.first() else {
            return Ok(Position::Gone);
        };
        let nodes = found.iter().map(|found| found.path.clone()).collect();
        Ok(Position::Granted(self.holds(
            entry,
            nodes,
            fence_of(first.stat.czxid),
        )))
    }

    /// Takes up the nodes of a claim that hang on this session; whether there are any. Those of an
    /// older session are not ours.
    pub(super) async fn take_up_own(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        session: LockSession,
    ) -> Result<bool, Failed> {
        let location = ClaimLocation::of(&self.settings, claim)?;
        let mut found = search(&session, &location).await?;
        found.retain(|found| found.stat.owner == session.id());
        Ok(self.take_up(claim, location, session, &found))
    }

    /// Takes up nodes that were found; whether there are any.
    pub(super) fn take_up(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        location: ClaimLocation,
        session: LockSession,
        found: &[Found],
    ) -> bool {
        let claim = Arc::clone(claim);
        let permits: Vec<&Found> = found
            .iter()
            .filter(|found| found.recipe.is_none())
            .collect();
        if let Some(first) = permits.first() {
            let nodes = permits.iter().map(|found| found.path.clone()).collect();
            self.holds(
                &Entry {
                    claim,
                    location: Arc::new(location),
                    session,
                },
                nodes,
                fence_of(first.stat.czxid),
            );
            return true;
        }
        let Some((first, recipe)) = found.first().and_then(|found| Some((found, found.recipe?)))
        else {
            return false;
        };
        let recipe = if recipe == Recipe::KazooLock {
            location.recipe
        } else {
            recipe
        };
        let child = first.path.rsplit('/').next().unwrap_or_default();
        let entry = Entry {
            claim,
            location: Arc::new(ClaimLocation { recipe, ..location }),
            session,
        };
        self.waits(&entry, child, first.stat.czxid);
        true
    }
}

/// Asks whether a claim still holds that we believe to hold.
async fn confirm(entry: &Entry, holding: &Holding, is_proven: bool) -> Result<Position, Failed> {
    let session = &entry.session;
    let sync = (!is_proven).then(|| session.send(Request::sync("/")));
    let nodes: Vec<Sent<_>> = holding
        .nodes
        .iter()
        .map(|node| session.send(Request::exists(node)))
        .collect();
    if let Some(sync) = sync {
        sync.answer().await?;
    }
    for node in nodes {
        // In its place there may be the node of another client by now.
        if node
            .answer()
            .await
            .or_missing()?
            .is_none_or(|stat| stat.owner != session.id())
        {
            return Ok(Position::Gone);
        }
    }
    Ok(Position::Granted(entry.grant(holding.fence)))
}
