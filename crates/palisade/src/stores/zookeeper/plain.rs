//! `format=plain` — one ephemeral node, the name's own, and no line: who makes it holds.
//!
//! Whoever is turned away watches the node and asks again when it is gone, all at once: where many wait for one name, `curator` is the
//! better format. A node is deleted by its path, and cannot be told from one that another client has made there since. So nobody
//! ever deletes somebody else's: there is no force-release in this format, and we look whose it is before we delete, unless a watch
//! would have told us that ours is gone. Whoever deletes nodes by hand can still be faster than the `delete` behind that look.

use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;

use super::CURATOR;
use super::claiming::{LOOKS, gone, holder_of};
use super::failure::{self, Failed};
use super::known::{Seat, Stage};
use super::proto::{self, ANY, Code, Make, Request};
use super::session::Session;
use super::shared::{Shared, fence_of};
use super::value::{self, Value};
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::name::Name;
use crate::store::{
    Answer, Busy, Capability, Claim, ClaimId, ClaimRef, Detach, Ending, Event, Grant, Order, Page, Query, Released, Revoked,
    Standing, Store, Wakes, Woken,
};

/// What the format `plain` can do.
pub const PLAIN: Capability = Capability {
    format: "plain",
    order: Order::None,
    wakes: Wakes::Poll,
    rwlock: false,
    semaphore: false,
    // Those who wait are not in the store.
    waiters_known: false,
    revoke: false,
    revoke_pushed: false,
    detach: Detach::Never,
    ..CURATOR
};

/// Between two attempts of what must be done in the end.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) struct PlainStore(pub(super) Arc<Shared>);

impl PlainStore {
    async fn enter(&self, claim: &Claim, seat: &Arc<Seat>, session: &Arc<Session>) -> Result<Answer, Failed> {
        let value = value::of(claim, None, Some(&seat.guid));
        failure::fits(seat.base.len() + value.len())?;
        let mut has_parents = self.0.settings.chroot.is_empty();
        let mut denied = None;
        for _ in 0..LOOKS {
            match session.ask(Request::create(&seat.base, &value, self.0.settings.acl(), Make::Ephemeral)).await {
                Ok(body) => {
                    let (_, stat) = proto::created(&body)?;
                    return Ok(Answer::Granted(self.granted(claim, seat, session, stat.czxid)));
                }
                Err(failed) if failed.is(Code::NoNode) && !has_parents => {
                    has_parents = true;
                    for made in self.0.make_parents(session, std::slice::from_ref(&self.0.settings.chroot), true) {
                        // There already, perhaps: the next attempt tells.
                        denied = made.answer().await.err().filter(|failed| failed.is(Code::NoAuth)).or(denied);
                    }
                    continue;
                }
                Err(failed) if failed.is(Code::NodeExists) => {}
                Err(failed) if failed.is(Code::NoNode) => return Err(denied.unwrap_or(failed)),
                Err(failed) => return Err(failed),
            }
            let read = session.ask(Request::get_data(&seat.base, false)).await;
            let body = match read {
                Ok(body) => body,
                // Gone between the two: it is free.
                Err(failed) if failed.is(Code::NoNode) => continue,
                Err(failed) => return Err(failed),
            };
            let (data, stat) = proto::data(&body)?;
            let is_ours = stat.owner == session.id() && Value::read(&data, "")?.guid.as_ref() == Some(&seat.guid);
            if is_ours {
                return Ok(Answer::Granted(self.granted(claim, seat, session, stat.czxid)));
            }
            if stat.owner == 0 {
                return Err(Failed::Never(Error::config(
                    "the name has a node that is no lock of the format plain; is it used in another format?",
                )));
            }
            let holder = holder_of(Ok(body), seat, &seat.base)?;
            return Ok(Answer::Busy(Busy { holder, woken: true, ..Busy::default() }));
        }
        Err(gone())
    }

    fn granted(&self, claim: &Claim, seat: &Arc<Seat>, session: &Arc<Session>, czxid: i64) -> Grant {
        let fence = fence_of(czxid);
        self.0.holds(claim, seat, session, (vec![seat.base.clone()], fence));
        Grant { fence, lease: session.lease() }
    }

    /// Returns when the node of a name is gone.
    async fn freed(&self, name: &Name) -> Result<(), Failed> {
        let session = self.0.any_session().await?;
        let path = self.0.settings.dir(name)?;
        let told = Arc::new(Notify::new());
        self.0.look_on(session.id(), &path, &told);
        match session.ask(Request::get_data(&path, true)).await {
            Ok(_) => told.notified().await,
            Err(failed) => {
                drop(told);
                self.0.look_away(session.id(), &path);
                return if failed.is(Code::NoNode) { Ok(()) } else { Err(failed) };
            }
        }
        Ok(())
    }
}

/// Deletes our node, and only ours. What was sent on a session before has been done or never will be once something is
/// answered on it, and while the session lives nobody else can have our name. So what is there is ours or nobody's business.
///
/// `checked` when a watch would have told that our node was deleted: only then nothing is read first.
async fn delete_own(session: &Arc<Session>, path: &str, guid: &str, checked: bool) -> Result<bool, Failed> {
    if !checked {
        let body = match session.ask(Request::get_data(path, false)).await {
            Err(failed) if failed.is(Code::NoNode) => return Ok(false),
            read => read?,
        };
        let (data, stat) = proto::data(&body)?;
        if stat.owner != session.id() || Value::read(&data, "")?.guid.as_deref() != Some(guid) {
            return Ok(false);
        }
    }
    match session.ask(Request::delete(path, ANY)).await {
        Ok(_) => Ok(true),
        Err(Failed::Ended) => Ok(false),
        Err(failed) if failed.is(Code::NoNode) => Ok(false),
        Err(failed) => Err(failed),
    }
}

/// The same, however long it takes: until it is gone, or its session is.
pub(super) async fn delete_own_in_the_end(session: Weak<Session>, path: String, guid: String) {
    let _debt = session.upgrade().map(|session| session.debt());
    loop {
        let Some(strong) = session.upgrade().filter(|session| !session.is_gone()) else { return };
        match delete_own(&strong, &path, &guid, false).await {
            Err(Failed::Unsure(_)) => {}
            Ok(_) | Err(_) => return,
        }
        drop(strong);
        tokio::time::sleep(PAUSE).await;
    }
}

#[async_trait]
impl Store for PlainStore {
    fn capability(&self) -> &Capability {
        &PLAIN
    }

    async fn claim(&self, claim: &Claim) -> Result<Answer> {
        self.0.claims.lock().exhume(claim.id);
        let seat = Arc::new(self.0.seat(claim)?);
        let session = match self.0.unsure_on(claim.id).filter(|session| !session.is_gone()) {
            Some(session) => session,
            None => {
                let known = self.0.claims.lock().known.get(&claim.id).map(|known| Arc::clone(&known.session));
                match known {
                    Some(session) => session,
                    None => self.0.session_of(claim).await?,
                }
            }
        };
        let _debt = session.debt();
        let answer = self.enter(claim, &seat, &session).await;
        match &answer {
            Err(Failed::Unsure(_)) => self.0.is_unsure(claim.id, &session),
            _ => self.0.is_sure(claim.id),
        }
        Ok(answer?)
    }

    async fn wake(&self, claim: &Claim) -> Woken {
        if let Err(failed) = self.freed(&claim.name).await {
            tracing::debug!(error = %Error::from(failed), name = %claim.name, "cannot watch who holds the name");
            // The core asks by its own clock.
            std::future::pending::<()>().await;
        }
        Woken::Ask
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        self.0.renew(claims).await
    }

    async fn release(&self, claim: &ClaimRef, _: Ending) -> Result<Released> {
        let id = claim.claim.id;
        if self.0.is_misnamed(claim) {
            return Ok(Released::AlreadyLost);
        }
        let known = self.0.claims.lock().known.remove(&id);
        let (session, checked, debt) = match (known, self.0.unsure_on(id)) {
            (Some(known), _) => {
                let is_watched =
                    matches!(&known.stage, Stage::Holding(holding) if holding.watched_on == known.session.connection());
                (known.session, is_watched, known.debt)
            }
            (None, Some(session)) => (Arc::clone(&session), false, session.debt()),
            (None, None) => return Ok(Released::AlreadyLost),
        };
        let seat = self.0.seat(&claim.claim)?;
        let deleted = delete_own(&session, &seat.base, &seat.guid, checked).await;
        if let Err(Failed::Unsure(_)) = &deleted {
            // The session may live on by other claims, and then nothing else would ever end this one.
            let deleting = delete_own_in_the_end(Arc::downgrade(&session), seat.base, seat.guid);
            tokio::spawn(async move {
                deleting.await;
                drop(debt);
            });
        }
        self.0.is_sure(id);
        match deleted {
            Ok(true) => Ok(Released::Done),
            Ok(false) | Err(Failed::Ended) => Ok(Released::AlreadyLost),
            Err(failed) => Err(failed.into()),
        }
    }

    async fn revoke(&self, _: &Name, _: Fence) -> Result<Revoked> {
        Err(Error::unsupported(
            "zookeeper in the format plain cannot end somebody else's lock: another may be in its place by then; end its session",
        ))
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.0.inspect(query).await
    }

    // Somebody else's node may stand in its place: it proves nothing.
    fn lock_key(&self, _: ClaimId) -> Option<String> {
        None
    }

    async fn event(&self) -> Event {
        self.0.events.next().await
    }
}
