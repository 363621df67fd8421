//! `format=plain` — one ephemeral node, the name's own, and no line: the client that makes it
//! holds.
//!
//! A claim that is turned away watches the node and asks again when it is gone, all such claims at
//! once: where many wait for one name, `curator` is the better format. A node is deleted by its
//! path, and cannot be told from one that another client has made there since. So no client ever
//! deletes the node of another: there is no force-release in this format, and we read the node
//! before we delete it, unless a watch would have told us that ours is gone. A deletion by hand can
//! still come between that read and the `delete` behind it.

use std::sync::Arc;

use async_trait::async_trait;

use super::CURATOR;
use super::backend::Backend;
use super::claims::{ClaimLocation, Entry, Stage, fence_of};
use super::cleanup::Leftover;
use super::client::proto::{Code, Make, Request, Stat};
use super::client::{Failed, OrMissing, Session};
use super::failure::{self, gone};
use super::sessions::length_of;
use super::value::{self, Value};
use super::wait::holder_of;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::name::Name;
use crate::store::{
    Busy, Capability, Claim, ClaimRef, ClientHandle, Detach, Ending, Extensions, Grant, Order,
    Page, Query, Released, Revoked, Standing, Wakes,
};
use crate::stores::kit::session::claims::OwnClaim;
use crate::stores::kit::session::renew::renew;
use crate::stores::kit::session::wait::LOOKS;
use crate::stores::kit::token::{Put, TokenBackend};

/// What the format `plain` can do.
pub const PLAIN: Capability = Capability {
    format: "plain",
    order: Order::None,
    wakes: Wakes::Poll,
    rwlock: false,
    semaphore: false,
    // Waiters are not in the store.
    waiters_known: false,
    revoke: false,
    revoke_pushed: false,
    detach: Detach::Never,
    ..CURATOR
};

/// The locks in the format `plain`, for one client.
pub(super) struct Plain(pub(super) Arc<Backend>);

impl Plain {
    async fn enter(&self, entry: &Entry) -> Result<Put, Failed> {
        let (claim, location, session) = entry.parts();
        let value = value::of(claim, None, Some(&location.guid));
        failure::check_fits(location.base.len() + value.len())?;
        let chroot = &self.0.settings.chroot;
        let mut has_parents = chroot.is_empty();
        let mut denied = None;
        for _ in 0..LOOKS {
            match session
                .ask(Request::create(
                    &location.base,
                    &value,
                    session.acl(),
                    Make::Ephemeral,
                ))
                .await
            {
                Ok(created) => return Ok(Put::Done(self.holds(entry, created.czxid))),
                Err(failed) if failed.is(Code::NoNode) && !has_parents => {
                    has_parents = true;
                    for made in self.0.parents.make(session, std::slice::from_ref(chroot)) {
                        // It may exist: the next attempt tells.
                        denied = made
                            .answer()
                            .await
                            .err()
                            .filter(|failed| failed.is(Code::NoAuth))
                            .or(denied);
                    }
                    continue;
                }
                Err(failed) if failed.is(Code::NodeExists) => {}
                Err(failed) if failed.is(Code::NoNode) => return Err(denied.unwrap_or(failed)),
                Err(failed) => return Err(failure::in_line(failed, &claim.name)),
            }
            let Some((data, stat)) = self.read(entry).await? else {
                continue;
            };
            if stat.owner == session.id()
                && Value::read(&data, "")?.guid.as_ref() == Some(&location.guid)
            {
                return Ok(Put::Done(self.holds(entry, stat.czxid)));
            }
            if stat.owner == 0 {
                return Err(Failed::Never(Error::config(
                    "the name has a node that is no lock of the format plain; is it used in another format?",
                )));
            }
            let holder = holder_of(Ok((data, stat)), location, &location.base)?;
            return Ok(Put::Taken(Busy {
                holder,
                woken: claim.queue,
                ..Busy::default()
            }));
        }
        Err(gone())
    }

    /// Reads the node of a name; `None` if it is gone, and the name free. A claim that waits is
    /// told of its end.
    async fn read(
        &self,
        Entry {
            claim,
            location,
            session,
        }: &Entry,
    ) -> Result<Option<(Vec<u8>, Stat)>, Failed> {
        let read = Request::get_data(&location.base);
        if !claim.queue {
            return session.ask(read).await.or_missing();
        }
        self.0.watch_path(session, &location.base, claim.id);
        let there = session.ask(read.watched()).await;
        if there.is_err() {
            self.0
                .watches
                .remove(session.id(), &location.base, claim.id);
        }
        there.or_missing()
    }

    fn holds(&self, entry: &Entry, czxid: i64) -> Grant {
        self.0
            .holds(entry, vec![entry.location.base.clone()], fence_of(czxid))
    }
}

/// Deletes the node of a claim, if it is the claim's own. Once anything is answered on a session,
/// its earlier requests have been done or never will be, and while the session lives no other
/// client can make our node. So the node is ours, or must not be touched.
///
/// `is_watched` when a watch would have told that our node was deleted: only then it is not read
/// first.
pub(super) async fn delete_own(
    session: &Arc<Session>,
    location: &ClaimLocation,
    is_watched: bool,
) -> Result<bool, Failed> {
    if !is_watched {
        let Some((data, stat)) = session
            .ask(Request::get_data(&location.base))
            .await
            .or_missing()?
        else {
            return Ok(false);
        };
        if stat.owner != session.id()
            || Value::read(&data, "")?.guid.as_ref() != Some(&location.guid)
        {
            return Ok(false);
        }
    }
    match session
        .ask(Request::delete(&location.base))
        .await
        .or_missing()
    {
        Err(Failed::Ended) => Ok(false),
        deleted => Ok(deleted?.is_some()),
    }
}

#[async_trait]
impl TokenBackend for Plain {
    fn capability(&self) -> &Capability {
        &PLAIN
    }

    fn attach(&self, client: ClientHandle) {
        self.0.claims.attach(client);
    }

    async fn put_if_absent(&self, claim: &Arc<Claim>) -> Result<Put> {
        let known = {
            let mut table = self.0.claims.lock();
            table.take_end(claim.id);
            let unconfirmed = self
                .0
                .unconfirmed
                .session_of(claim.id)
                .filter(|session| !session.is_gone());
            unconfirmed.or_else(|| {
                table
                    .own
                    .get(&claim.id)
                    .map(|own| own.entry.session.clone())
            })
        };
        let location = Arc::new(ClaimLocation::of(&self.0.settings, claim)?);
        let session = match known {
            Some(session) => session,
            None => self.0.sessions.of_claim(claim, length_of(claim)).await?,
        };
        let entry = Entry {
            claim: Arc::clone(claim),
            location,
            session,
        };
        let _open = entry.session.keep_open();
        // It may have waited for its session.
        if !self.0.claims.is_wanted(claim.id) {
            return Err(Failed::NotSent.into());
        }
        let answer = self.enter(&entry).await;
        self.0.unconfirmed.take_up(&entry, &answer);
        Ok(answer?)
    }

    async fn extend(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        renew(&self.0, claims).await
    }

    async fn delete_if(&self, claim: &ClaimRef, _: Ending) -> Result<Released> {
        let id = claim.claim.id;
        let own = {
            let mut claims = self.0.claims.lock();
            let own = claims.own.get(&id);
            if own.is_some_and(|own| !own.is_meant_by(claim.fence)) {
                return Ok(Released::AlreadyLost);
            }
            claims.remove(id)
        };
        let unconfirmed = self.0.unconfirmed.session_of(id);
        let (session, is_watched, _open) = match (own, unconfirmed) {
            (Some(own), _) => {
                let session = own.entry.session;
                let is_watched = matches!(own.stage, Stage::Holding(holding) if holding.watched_on == session.connection());
                (session, is_watched, own.keep_open)
            }
            (None, Some(session)) => (session.clone(), false, session.keep_open()),
            (None, None) => return Ok(Released::AlreadyLost),
        };
        let location = ClaimLocation::of(&self.0.settings, &claim.claim)?;
        let deleted = delete_own(&session, &location, is_watched).await;
        if let Err(Failed::Unsure(_)) = &deleted {
            // The session may live on by other claims, and then nothing else would ever end this
            // one.
            Leftover::Plain(Arc::new(location)).delete_later(&session);
        }
        self.0.unconfirmed.confirmed(id);
        match deleted {
            Ok(true) => Ok(Released::Done),
            Ok(false) | Err(Failed::Ended) => Ok(Released::AlreadyLost),
            Err(failed) => Err(failed.into()),
        }
    }

    async fn revoke(&self, _: &Name, _: Fence) -> Result<Revoked> {
        Err(Error::unsupported(
            "zookeeper in the format plain cannot end the lock of another client: a third may be in its place by then; end its session",
        ))
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.0.inspect(query).await
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions {
            ping: Some(&*self.0),
            name_keys: Some(&*self.0),
            ..Extensions::default()
        }
    }
}
