//! Asking for a name: our node is made and the line is read in one go, so that a free lock takes one round trip.
//!
//! ```text
//! create  /mixed/_c_<guid>-lock-        ephemeral, numbered by the server
//! list    /mixed                        answered after it, on the same session: ours is in it
//! ```
//!
//! Whoever is first holds, and its fence is the transaction that made its node. Anybody else watches the node that it waits for.

use std::sync::Arc;

use super::ending::wipe_in_the_end;
use super::failure::{self, Failed};
use super::known::{Known, LEASES, Seat, Stage, recipe_of};
use super::proto::{self, Code, Request};
use super::recipe::{self, Verdict};
use super::session::{Sent, Session};
use super::shared::{Shared, fence_of};
use super::together::{Stand, Stands};
use super::value::{self, Value};
use crate::error::{Error, Result};
use crate::lease::{BootClock, Clock};
use crate::store::{Answer, Busy, Claim, ClaimId, Grant, Holder, Kind, Mode, Place};

/// How often a line is read again because it changed under our eyes.
pub(super) const LOOKS: usize = 20;
/// How often the nodes of a name are made again because somebody deleted them meanwhile.
const MADE_AGAIN: usize = 5;

/// Where a claim was found to stand.
pub(super) enum Stood {
    Granted(Grant),
    /// In line; the holder where it was read anyway.
    Queued(Option<Holder>),
    /// Its node is not there any more.
    Gone,
}

impl Shared {
    pub(super) async fn claim(self: &Arc<Self>, claim: &Claim) -> Result<Answer> {
        let sent = BootClock.now();
        // Boxed, here and below, is all that a new claim of a free name does not come to: its future is made and moved with every claim.
        if self.may_be_known(claim.id)
            && let Some(answer) = Box::pin(self.asked_before(claim)).await?
        {
            self.is_renewed(claim.id, sent);
            return Ok(answer);
        }
        let seat = Arc::new(self.seat(claim)?);
        let session = match self.session_at_hand(claim) {
            Some(session) => session,
            None => Box::pin(self.session_of(claim)).await?,
        };
        let _debt = session.debt();
        let answer = match seat.permits {
            None => self.enter(claim, &seat, &session).await,
            Some(permits) => Box::pin(self.enter_semaphore(claim, &seat, &session, permits)).await,
        };
        let answer = match answer {
            // It may have ended between the answer and our look at it: then nobody has found the claim among those that ended with it.
            Ok(Answer::Granted(_) | Answer::Queued(_)) if session.is_gone() => {
                self.claims.lock().known.remove(&claim.id);
                Err(Failed::Ended)
            }
            answer => answer,
        };
        match &answer {
            Ok(Answer::Granted(_)) => {
                self.is_sure(claim.id);
                self.is_renewed(claim.id, sent);
            }
            Ok(Answer::Queued(_)) => self.is_sure(claim.id),
            Err(Failed::Unsure(_)) => self.is_unsure(claim.id, &session),
            Ok(Answer::Busy(_) | Answer::Sealed) | Err(_) => {
                if answer.is_err() {
                    Box::pin(self.leave_the_line(claim, &seat, &session)).await;
                }
                self.is_sure(claim.id);
                if let Some(session) = self.disown(claim.id) {
                    tokio::spawn(async move { drop(session.close().await) });
                }
            }
        }
        Ok(answer?)
    }

    /// Whether a claim may have been made before. Why its last life ended is forgotten.
    fn may_be_known(&self, claim: ClaimId) -> bool {
        let mut book = self.claims.lock();
        book.exhume(claim);
        book.known.contains_key(&claim) || self.unsure_on(claim).is_some()
    }

    pub(super) fn seat(&self, claim: &Claim) -> Result<Seat> {
        let permits = match (claim.kind, claim.mode) {
            (Kind::Semaphore { limit }, Mode::Permits(count)) => Some((count, limit)),
            _ => None,
        };
        Ok(Seat {
            base: self.settings.dir(&claim.name)?,
            guid: recipe::guid(claim.id),
            recipe: recipe_of(self.settings.format, claim.kind, claim.mode),
            permits,
        })
    }

    /// What our node says. A claim that may be carried elsewhere says how to take its session up, to whoever has the grant.
    pub(super) fn value_of(&self, claim: &Claim, session: &Session) -> Vec<u8> {
        let password = claim.detachable.then(|| session.password());
        value::of(claim, password.as_deref(), None)
    }

    /// A claim that was made before finds itself again: `None` when it must be made.
    async fn asked_before(self: &Arc<Self>, claim: &Claim) -> Result<Option<Answer>> {
        if !self.claims.lock().known.contains_key(&claim.id) {
            let Some(session) = self.unsure_on(claim.id) else { return Ok(None) };
            // Whether it arrived is certain now: what was sent before on this session has been answered for, or never will be.
            if session.is_gone() || !self.find_again(claim, &session).await? {
                self.is_sure(claim.id);
                return Ok(None);
            }
            self.is_sure(claim.id);
        }
        let stood = self.look(claim).await;
        if let Err(Failed::Refused(_) | Failed::Never(_)) = &stood {
            let _ = self.withdraw(claim.id).await;
        }
        Ok(match stood? {
            Stood::Granted(grant) => Some(Answer::Granted(grant)),
            Stood::Queued(holder) if claim.queue => Some(Answer::Queued(self.place(claim.id, claim, holder))),
            Stood::Queued(holder) => {
                self.withdraw(claim.id).await?;
                Some(Answer::Busy(Busy { holder, ..Busy::default() }))
            }
            Stood::Gone => {
                let known = self.claims.lock().known.remove(&claim.id);
                known.into_iter().for_each(Known::give_up_the_rest);
                None
            }
        })
    }

    /// A claim has failed for good: whoever asked will not ask again, so nothing of it may stay behind.
    async fn leave_the_line(self: &Arc<Self>, claim: &Claim, seat: &Seat, session: &Arc<Session>) {
        if self.claims.lock().known.contains_key(&claim.id) {
            // What cannot be deleted now is tried again in the background.
            let _ = self.withdraw(claim.id).await;
        } else if !session.is_gone() {
            let (this, of) = (Arc::downgrade(self), Arc::downgrade(session));
            tokio::spawn(wipe_in_the_end(this, of, seat.base.clone(), seat.guid.clone()));
        }
    }

    /// Deletes the node of a claim of ours, and forgets it.
    pub(super) async fn withdraw(&self, claim: ClaimId) -> Result<bool, Failed> {
        let Some(known) = self.claims.lock().known.remove(&claim) else { return Ok(false) };
        self.delete(&known.session, &known.nodes()).await
    }

    /// Makes our node in a line and reads the line. The parents are made first where they may be missing.
    ///
    /// It may go together with others, unless there is more to be asked in the same round trip.
    pub(super) async fn stand(
        &self,
        session: &Arc<Session>,
        seat: &Seat,
        value: &[u8],
        parents: &[String],
        more: Option<&(dyn Fn() -> Vec<Sent> + Sync)>,
    ) -> Result<(Stands, Vec<String>, Vec<Sent>), Failed> {
        let mut made_again = 0;
        loop {
            let (line, wanted) = (seat.line().into_owned(), seat.wanted());
            failure::fits(wanted.len() + value.len())?;
            let stand = Stand { missing: self.missing(parents, made_again > 0), line, wanted, value: value.to_vec() };
            let (stands, more) = match more {
                None => (Box::pin(session.stand(stand)).await, Vec::new()),
                Some(more) => {
                    let sent = stand.send(session);
                    let more = more();
                    (Box::pin(sent.answer()).await, more)
                }
            };
            match stands {
                Ok(mut stands) => {
                    let children = match std::mem::replace(&mut stands.line, Ok(Vec::new())) {
                        Ok(children) => children,
                        // Ours to make, and not to read.
                        Err(failed @ Failed::Refused(Code::NoAuth)) => {
                            let _ = Box::pin(self.delete(session, &[stands.path])).await;
                            return Err(failed);
                        }
                        // The parents cannot be gone: our node is in them.
                        Err(failed) => return Err(unsure(failed)),
                    };
                    return Ok((stands, children, more));
                }
                Err(failed) if failed.is(Code::NoNode) && made_again < MADE_AGAIN => made_again += 1,
                Err(failed) => return Err(failed),
            }
        }
    }

    async fn enter(self: &Arc<Self>, claim: &Claim, seat: &Arc<Seat>, session: &Arc<Session>) -> Result<Answer, Failed> {
        let value = self.value_of(claim, session);
        let (stands, children, _) = self.stand(session, seat, &value, std::slice::from_ref(&seat.base), None).await?;
        let verdict = seat.recipe.verdict(&children, stands.child());
        let may_have_permits = children.iter().any(|child| child == LEASES);
        if verdict == Verdict::Held && !may_have_permits {
            return Ok(Answer::Granted(self.granted(claim, seat, session, stands.path, stands.czxid)));
        }
        Box::pin(self.entered(claim, seat, session, stands, (verdict, may_have_permits))).await
    }

    /// Our node is in the line, and more must be asked before it is known how it stands there.
    async fn entered(
        self: &Arc<Self>,
        claim: &Claim,
        seat: &Arc<Seat>,
        session: &Arc<Session>,
        stands: Stands,
        (verdict, may_have_permits): (Verdict, bool),
    ) -> Result<Answer, Failed> {
        let (child, czxid) = (stands.child(), stands.czxid);
        self.waits(claim, seat, session, (child.to_owned(), czxid), stands.sent);
        if may_have_permits && let Err(refused) = self.check_no_permits(session, seat).await {
            self.withdraw(claim.id).await?;
            return Err(refused);
        }
        match verdict {
            Verdict::Held => Ok(Answer::Granted(self.granted(claim, seat, session, stands.path, czxid))),
            Verdict::Blocked { first, .. } if !claim.queue => {
                let holder = session.send(Request::get_data(&format!("{}/{first}", seat.line()), false));
                self.withdraw(claim.id).await?;
                let holder = holder_of(holder.answer().await, seat, &first)?;
                Ok(Answer::Busy(Busy { holder, ..Busy::default() }))
            }
            Verdict::Blocked { by, first } => match self.wait_for(claim, seat, session, (&by, by == first)).await? {
                Some(holder) => Ok(Answer::Queued(self.place(claim.id, claim, holder))),
                // It left between our look and our watch.
                None => match self.look(claim).await? {
                    Stood::Granted(grant) => Ok(Answer::Granted(grant)),
                    Stood::Queued(holder) => Ok(Answer::Queued(self.place(claim.id, claim, holder))),
                    Stood::Gone => Err(gone()),
                },
            },
            Verdict::Missing => Err(gone()),
        }
    }

    /// One name serves one kind at a time. The permits of a semaphore are elsewhere, and looked at only where there may be some.
    async fn check_no_permits(&self, session: &Arc<Session>, seat: &Seat) -> Result<(), Failed> {
        let held = match session.ask(Request::children(&seat.leases(), false)).await {
            Ok(body) => proto::children(&body)?.len(),
            Err(failed) if failed.is(Code::NoNode) => 0,
            Err(failed) => return Err(failed),
        };
        if held == 0 {
            return Ok(());
        }
        let this = if seat.recipe == recipe::Recipe::Mutex { "mutex" } else { "rwlock" };
        Err(Failed::Never(Error::config(format!(
            "the name serves as a semaphore now, and cannot serve as a {this} at the same time"
        ))))
    }

    /// Our node is first: it holds.
    pub(super) fn granted(
        self: &Arc<Self>,
        claim: &Claim,
        seat: &Arc<Seat>,
        session: &Arc<Session>,
        node: String,
        czxid: i64,
    ) -> Grant {
        let fence = fence_of(czxid);
        self.holds(claim, seat, session, (vec![node], fence));
        Grant { fence, lease: session.lease() }
    }

    /// Watches the node that a claim waits for; `None` when that is gone already. The answer names the holder if that is its node: to
    /// read another would be a request that hardly any wait has a use for. See [`holder`](Shared::holder).
    pub(super) async fn wait_for(
        &self,
        claim: &Claim,
        seat: &Seat,
        session: &Arc<Session>,
        (by, is_first): (&str, bool),
    ) -> Result<Option<Option<Holder>>, Failed> {
        let path = format!("{}/{by}", seat.line());
        let connection = session.connection();
        self.claims.lock().watch(session.id(), &path, claim.id);
        let mut watched = session.ask(Request::get_data(&path, true)).await;
        if let Err(Failed::Refused(Code::NoAuth)) = &watched {
            // Not ours to read. Whether it is there may be asked by anybody. Some servers do not tell us of its end: the heartbeat does.
            watched = match session.ask(Request::exists(&path, true)).await {
                Ok(_) => Err(Failed::Refused(Code::NoAuth)),
                failed => failed,
            };
        }
        match &watched {
            Ok(_) | Err(Failed::Refused(Code::NoAuth)) => {}
            Err(failed) => {
                self.claims.lock().is_not_watched(session.id(), &path, claim.id);
                return if failed.is(Code::NoNode) { Ok(None) } else { Err(failed.clone()) };
            }
        }
        if let Some(Stage::Waiting(waiting)) = self.claims.lock().known.get_mut(&claim.id).map(|known| &mut known.stage) {
            waiting.watches = Some((path, connection));
        }
        // Read in any case: a node of a newer version is not waited for as if it were understood.
        Ok(Some(holder_of(watched, seat, by)?.filter(|_| is_first)))
    }

    pub(super) fn place(&self, id: ClaimId, claim: &Claim, holder: Option<Holder>) -> Place {
        let lease = match self.claims.lock().known.get(&id) {
            Some(known) => known.session.lease_of(claim.wait_lease()),
            None => crate::store::Lease::of(claim.wait_lease()),
        };
        Place { ahead: None, ask_in: None, lease, holder }
    }
}

/// Who a node is, for people to read; nobody when it is gone meanwhile.
pub(super) fn holder_of(answer: Result<Vec<u8>, Failed>, seat: &Seat, node: &str) -> Result<Option<Holder>, Failed> {
    let body = match answer {
        Ok(body) => body,
        Err(Failed::Refused(Code::NoNode | Code::NoAuth)) => return Ok(None),
        Err(failed) => return Err(failed),
    };
    let (data, stat) = proto::data(&body)?;
    let value = Value::read(&data, node)?;
    let mode = match seat.permits {
        Some(_) => Mode::Permits(1),
        None if seat.recipe.is_shared(node) => Mode::Shared,
        None => Mode::Exclusive,
    };
    Ok(Some(Holder { owner: value.owner, reason: value.reason, fence: fence_of(stat.czxid), mode, held: None, lease_left: None }))
}

/// The node was made, whatever came after.
pub(super) fn unsure(failed: Failed) -> Failed {
    match failed {
        Failed::Ended => Failed::Ended,
        other => Failed::Unsure(Error::from(other)),
    }
}

pub(super) fn gone() -> Failed {
    Failed::Unsure(Error::unavailable("the claim was gone before ZooKeeper could say where it stands"))
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use palisade_testkit::zookeeper::ZooKeeper;

    use super::super::session::Hears;
    use super::super::settings::Settings;
    use super::*;
    use crate::store::Released;

    fn claim(number: u128) -> Arc<Claim> {
        Arc::new(Claim::of_mutex(ClaimId::from_bits(number), "late", Duration::from_secs(10)))
    }

    /// Its answer is there, and then the session ends, before anybody looks: it is no grant, and is not taken for one later.
    #[tokio::test]
    async fn an_answer_that_is_looked_at_too_late_is_no_grant() {
        let server = ZooKeeper::with().long_sessions().start();
        let settings = Settings::read(format!("zk://{}", server.address()).parse().expect("a URL")).expect("settings");
        let shared = Shared::new(settings);
        let first = claim(1);
        assert!(matches!(shared.claim(&first).await, Ok(Answer::Granted(_))));
        assert!(matches!(shared.release(&first.to_ref(None)).await, Ok(Released::Done)));
        let session = shared.session_of(&first).await.expect("it is open");
        let late = claim(2);
        let mut claiming = Box::pin(shared.claim(&late));
        assert!(claiming.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        // Behind it: when this is answered, the other was.
        session.ask(Request::sync("/")).await.expect("an answer");
        session.state().gone = true;
        shared.ended(&session);
        let Poll::Ready(answer) = claiming.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("it was answered");
        };
        assert!(answer.is_err(), "its node ends with the session");
        assert!(shared.claims.lock().known.is_empty(), "nothing is kept of it");
    }
}
