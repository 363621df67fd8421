//! Claiming a name: our node is made and the line is read in one go, so that a free lock takes one
//! round trip.
//!
//! ```text
//! create  /mixed/_c_<guid>-lock-        ephemeral, numbered by the server
//! list    /mixed                        answered after it, on the same session: our node is in it
//! ```
//!
//! The first node holds, and its fence is the transaction that made it. Every other claim watches
//! the node that it waits for.

use std::sync::Arc;

use super::backend::Backend;
use super::batch::{Join, Joined};
use super::claims::{ClaimLocation, Entry, LEASES, fence_of};
use super::cleanup::Leftover;
use super::client::proto::{Code, Request};
use super::client::{Failed, OrMissing, Session};
use super::failure::{self, gone, unsure};
use super::queue_rules::{Recipe, Verdict};
use super::sessions::length_of;
use super::wait::{Blocker, holder_of};
use crate::error::Result;
use crate::store::{Answer, Busy, Claim, ClaimId, Holder, Lease, Place, Standing};
use crate::stores::kit::session::claim::Enter;
use crate::stores::kit::session::wait::stand_in_task;

/// How often the nodes of a name are made again because they were deleted meanwhile.
const MADE_AGAIN: usize = 5;

impl Enter for Backend {
    async fn find_again(self: &Arc<Self>, claim: &Arc<Claim>) -> Result<Option<Answer>, Failed> {
        let is_own = self.claims.lock().own.contains_key(&claim.id);
        if !is_own {
            let Some(session) = self.unconfirmed.session_of(claim.id) else {
                return Ok(None);
            };
            // Whether it arrived is certain now: earlier requests of this session have been
            // answered, or never will be.
            let is_there = !session.is_gone() && Box::pin(self.take_up_own(claim, session)).await?;
            self.unconfirmed.confirmed(claim.id);
            if !is_there {
                return Ok(None);
            }
        }
        let standing = Box::pin(stand_in_task(self, claim)).await;
        if let Err(Failed::Refused(_) | Failed::Never(_)) = &standing {
            let _ = self.withdraw(claim.id).await;
        }
        Ok(match standing? {
            Standing::Held(grant) => Some(Answer::Granted(grant)),
            Standing::Waiting(place) if claim.queue => Some(Answer::Queued(place)),
            Standing::Waiting(Place { holder, .. }) => {
                self.withdraw(claim.id).await?;
                Some(busy(holder))
            }
            Standing::Gone(_) => None,
        })
    }

    async fn enter(self: &Arc<Self>, claim: &Arc<Claim>) -> Result<Answer, Failed> {
        // Boxed is all that a new claim of a free name does not need: its future is made and moved
        // with every claim.
        let entry = Entry {
            claim: Arc::clone(claim),
            location: Arc::new(ClaimLocation::of(&self.settings, claim)?),
            session: self.sessions.of_claim(claim, length_of(claim)).await?,
        };
        let _open = entry.session.keep_open();
        let answer = match entry.location.permits {
            None => self.enter_line(&entry).await,
            Some(permits) => Box::pin(self.enter_semaphore(&entry, permits)).await,
        };
        if let Err(Failed::Ended | Failed::Refused(_) | Failed::Never(_)) = &answer {
            Box::pin(self.leave_line(&entry)).await;
        }
        self.unconfirmed.take_up(&entry, &answer);
        answer
    }

    fn turned_away(self: &Arc<Self>, _: &Claim, answer: &Result<Answer, Failed>) -> bool {
        !matches!(answer, Err(Failed::Unsure(_)))
    }
}

impl Backend {
    /// A claim has failed for good: it will not be made again, so nothing of it may stay behind.
    async fn leave_line(self: &Arc<Self>, entry: &Entry) {
        if self.claims.lock().own.contains_key(&entry.claim.id) {
            // What cannot be deleted now is tried again in the background.
            let _ = self.withdraw(entry.claim.id).await;
        } else if !entry.session.is_gone() {
            Leftover::Claim(Arc::clone(&entry.location)).delete_later(&entry.session);
        }
    }

    /// Deletes the node of a claim of ours, and forgets the claim.
    pub(super) async fn withdraw(&self, claim: ClaimId) -> Result<bool, Failed> {
        let Some(own) = self.claims.lock().remove(claim) else {
            return Ok(false);
        };
        own.entry.session.delete(&own.nodes()).await
    }

    /// Makes our node in a line and reads the line. The parents are made first where they may be
    /// missing.
    ///
    /// `send` sends it, with `M` for the same round trip.
    pub(super) async fn join<M: Send, F: Future<Output = (Result<Joined, Failed>, M)> + Send>(
        &self,
        Entry {
            claim,
            location,
            session,
        }: &Entry,
        value: &[u8],
        parents: &[String],
        send: impl Fn(Join) -> F + Send,
    ) -> Result<(Joined, Vec<String>, M), Failed> {
        let mut made_again = 0;
        loop {
            let (line, node) = (location.line().into_owned(), location.own_node());
            failure::check_fits(node.len() + value.len())?;
            // It may have waited for its session.
            if !self.claims.is_wanted(claim.id) {
                return Err(Failed::NotSent);
            }
            let wanted = self
                .claims
                .client()
                .map(|client| (client.clone(), claim.id));
            let parents = self.parents.missing(parents, made_again > 0);
            let join = Join {
                parents,
                line,
                node,
                value: value.to_vec(),
                wanted,
            };
            match send(join).await {
                (Ok(mut joined), more) => {
                    return match std::mem::replace(&mut joined.line, Ok(Vec::new())) {
                        Ok(children) => Ok((joined, children, more)),
                        // We may make a node here, but not read the line.
                        Err(failed @ Failed::Refused(Code::NoAuth)) => {
                            let _ = Box::pin(session.delete(&[joined.path])).await;
                            Err(failed)
                        }
                        // The parents cannot be gone: our node is in them.
                        Err(failed) => Err(unsure(failed)),
                    };
                }
                (Err(failed), _) if failed.is(Code::NoNode) && made_again < MADE_AGAIN => {
                    made_again += 1
                }
                (Err(failed), _) => return Err(failure::in_line(failed, &claim.name)),
            }
        }
    }

    async fn enter_line(self: &Arc<Self>, entry: &Entry) -> Result<Answer, Failed> {
        let alone_or_in_batch =
            |join| async { (Box::pin(entry.session.batcher.join(join)).await, ()) };
        let parents = std::slice::from_ref(&entry.location.base);
        let (joined, children, ()) = self
            .join(entry, &entry.value(), parents, alone_or_in_batch)
            .await?;
        let verdict = entry.location.recipe.verdict(&children, joined.child());
        let may_have_permits = children.iter().any(|child| child == LEASES);
        if verdict == Verdict::Held && !may_have_permits {
            return Ok(Answer::Granted(self.holds(
                entry,
                vec![joined.path],
                fence_of(joined.czxid),
            )));
        }
        Box::pin(self.entered(entry, joined, verdict, may_have_permits)).await
    }

    /// Our node is in the line, and more must be read before it is known how it stands there.
    async fn entered(
        self: &Arc<Self>,
        entry: &Entry,
        joined: Joined,
        verdict: Verdict,
        may_have_permits: bool,
    ) -> Result<Answer, Failed> {
        let (claim, location, session) = entry.parts();
        self.waits(entry, joined.child(), joined.czxid);
        if may_have_permits && let Err(refused) = check_no_permits(session, entry).await {
            self.withdraw(claim.id).await?;
            return Err(refused);
        }
        match verdict {
            Verdict::Held => Ok(Answer::Granted(self.holds(
                entry,
                vec![joined.path],
                fence_of(joined.czxid),
            ))),
            Verdict::Blocked { first, .. } if !claim.queue => {
                let holder = session.send(Request::get_data(&location.node(&first)));
                self.withdraw(claim.id).await?;
                Ok(busy(holder_of(holder.answer().await, location, &first)?))
            }
            Verdict::Blocked { by, first } => {
                match self.watch_blocker(entry, &by, by == first).await? {
                    Blocker::Watched(holder) => Ok(Answer::Queued(self.place(claim, holder))),
                    Blocker::Left => self.queued(claim).await,
                }
            }
            Verdict::Missing => Err(gone()),
        }
    }

    /// The answer to a claim whose node is in the line.
    pub(super) async fn queued(self: &Arc<Self>, claim: &Arc<Claim>) -> Result<Answer, Failed> {
        match stand_in_task(self, claim).await? {
            Standing::Held(grant) => Ok(Answer::Granted(grant)),
            Standing::Waiting(place) => Ok(Answer::Queued(place)),
            Standing::Gone(_) => Err(gone()),
        }
    }

    pub(super) fn place(&self, claim: &Claim, holder: Option<Holder>) -> Place {
        let lease = match self.claims.lock().own.get(&claim.id) {
            Some(own) => own.entry.session.lease_of(claim.wait_lease()),
            None => Lease::of(claim.wait_lease()),
        };
        Place {
            ahead: None,
            ask_in: None,
            lease,
            holder,
        }
    }
}

/// The answer to a claim that may not queue.
pub(super) fn busy(holder: Option<Holder>) -> Answer {
    Answer::Busy(Busy {
        holder,
        ..Busy::default()
    })
}

/// One name serves one kind at a time. The permits of a semaphore are elsewhere, and read only
/// where there may be some.
async fn check_no_permits(session: &Arc<Session>, entry: &Entry) -> Result<(), Failed> {
    let (claim, location, _) = entry.parts();
    let held = session
        .ask(Request::children(&location.leases()))
        .await
        .or_missing()?;
    if held.is_none_or(|held| held.is_empty()) {
        return Ok(());
    }
    Err(failure::other_kind(
        &claim.name,
        "semaphore",
        if location.recipe == Recipe::Mutex {
            "mutex"
        } else {
            "rwlock"
        },
    ))
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use palisade_testkit::zookeeper::ZooKeeper;

    use super::super::client::SessionListener;
    use super::super::settings::Settings;
    use super::*;
    use crate::store::{Ending, Released};
    use crate::stores::kit::session::claim as kit;
    use crate::stores::kit::session::release::release;

    fn claim(number: u128) -> Arc<Claim> {
        Arc::new(Claim::of_mutex(
            ClaimId::from_bits(number),
            "late",
            Duration::from_secs(10),
        ))
    }

    /// The answer is there, and then the session ends, before the caller is polled: it is no grant,
    /// and is not taken for one later.
    #[tokio::test]
    async fn an_answer_that_is_looked_at_too_late_is_no_grant() {
        let server = ZooKeeper::with().long_sessions().start();
        let settings = Settings::read(format!("zk://{}", server.address()).parse().expect("a URL"))
            .expect("settings");
        let backend = Backend::new(settings);
        let first = claim(1);
        assert!(matches!(
            kit::claim(&backend, &first).await,
            Ok(Answer::Granted(_))
        ));
        assert!(matches!(
            release(&backend, &first.to_ref(None), Ending::Release).await,
            Ok(Released::Done)
        ));
        let length = length_of(&first);
        let session = backend.sessions.of_claim(&first, length).await;
        let session = session.expect("it is open");
        let late = claim(2);
        let mut claiming = Box::pin(kit::claim(&backend, &late));
        assert!(
            claiming
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
        // Behind it: when this is answered, the other was.
        session.ask(Request::sync("/")).await.expect("an answer");
        session.state().gone = true;
        Arc::clone(&backend).ended(&session);
        let Poll::Ready(answer) = claiming
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        else {
            panic!("it was answered");
        };
        assert!(answer.is_err(), "its node ends with the session");
        assert!(
            backend.claims.lock().own.is_empty(),
            "nothing is kept of it"
        );
    }
}
