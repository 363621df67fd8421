//! What all verbs of one client share: its lanes, where the keys are, who waits, and what the core must hear of.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use redis::{RedisError, Value};
use tokio::runtime::Handle;

use super::client::address::Address;
use super::client::failure::{self, Remedy};
use super::client::lane::{Lane, Purpose};
use super::client::link::{self, Link};
use super::client::script::Call;
use super::client::topology::Topology;
use super::line::{self, Push};
use super::release_replay::ReleaseReplay;
use super::rollback::Rollback;
use super::settings::{Settings, Site};
use super::simple::keyspace::Keyspace;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::store::{ByClaim, ClaimId, Event, Released, Woken};
use crate::stores::events::Events;
use crate::stores::mailbox::Mailbox;

/// How long to look for a key that moves between servers, between two attempts.
const MOVING: Duration = Duration::from_millis(20);
/// How many redirections one request follows.
const REDIRECTS: usize = 8;

pub(super) struct Shared {
    pub(super) settings: Settings,
    pub(super) topology: Topology,
    pub(super) events: Events,
    pub(super) rollback: Rollback,
    pub(super) release_replay: ReleaseReplay,
    pub(super) keyspace: Keyspace,
    waiting: Mutex<ByClaim<Waiting>>,
    pub(super) lane: OnceLock<Arc<Lane>>,
    /// The client's own runtime.
    pub(super) client: OnceLock<Handle>,
    pub(super) restoring: AtomicBool,
    /// How often contact was lost.
    pub(super) cuts: AtomicU64,
    /// Whether the sentinels are listened to.
    pub(super) listening: AtomicBool,
}

/// A claim that stands in line.
struct Waiting {
    /// Made when something is pushed or somebody looks: nearly every claim is granted at once.
    mailbox: Option<Arc<Mailbox>>,
}

/// Ends a sleep that nobody waits for any more.
struct Asleep(tokio::task::AbortHandle);

impl Drop for Asleep {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(settings: Settings) -> Arc<Shared> {
        Arc::new(Shared {
            topology: Topology::new(&settings),
            settings,
            events: Events::default(),
            rollback: Rollback::default(),
            release_replay: ReleaseReplay::default(),
            keyspace: Keyspace::default(),
            waiting: Mutex::default(),
            lane: OnceLock::new(),
            client: OnceLock::new(),
            restoring: AtomicBool::new(false),
            cuts: AtomicU64::new(0),
            listening: AtomicBool::new(false),
        })
    }

    pub(super) fn attach(&self, runtime: &Handle) {
        let _ = self.client.set(runtime.clone());
    }

    /// The client's own runtime, or the caller's where there is no client.
    pub(super) fn runtime(&self) -> Result<Handle> {
        match self.client.get() {
            Some(client) => Ok(client.clone()),
            None => Handle::try_current()
                .map_err(|_| Error::config("the store is used without a client and outside of a tokio runtime")),
        }
    }

    /// Sleeps by a timer of the client's: the caller's runtime may have none. Over when the client is: a timer that outlives its
    /// runtime panics, so it is a task there that sleeps.
    pub(super) async fn sleep(&self, span: Duration) {
        match self.client.get() {
            Some(client) => {
                let sleep = client.spawn(async move { tokio::time::sleep(span).await });
                let _asleep = Asleep(sleep.abort_handle());
                let _ = sleep.await;
            }
            None => tokio::time::sleep(span).await,
        }
    }

    /// The connections of this client, in its own runtime.
    pub(super) fn lane(self: &Arc<Self>) -> Result<Arc<Lane>> {
        if let Some(lane) = self.lane.get() {
            return Ok(Arc::clone(lane));
        }
        let lane = Lane::new(self.runtime()?, self)?;
        Ok(Arc::clone(self.lane.get_or_init(|| lane)))
    }

    /// Calls a script where its key is, and says by which link.
    pub(super) async fn call(self: &Arc<Self>, lane: &Arc<Lane>, call: &Call, queues: bool) -> Result<(Arc<Link>, Value)> {
        self.call_perhaps_twice(lane, call, queues).await.map(|(link, value, _)| (link, value))
    }

    /// The same, and says whether it was sent again because the first answer did not come: the server may have done it then.
    ///
    /// What is rare is boxed: nearly every call finds its link ready and its key in place, and its future is made and moved
    /// twice in every cycle of a lock.
    pub(super) async fn call_perhaps_twice(
        self: &Arc<Self>,
        lane: &Arc<Lane>,
        call: &Call,
        queues: bool,
    ) -> Result<(Arc<Link>, Value, bool)> {
        let failed = match self.ready(lane, call.key(), queues) {
            Some(link) => match link.call(call).await {
                Ok(value) => return Ok((link, value, false)),
                Err(error) => Some((link, error)),
            },
            None => None,
        };
        Box::pin(self.call_in_need(lane, call, queues, failed)).await
    }

    /// The same, with whatever else is asked in this lane at the same time. In a cluster each goes alone: its keys are in
    /// different slots, and no script may touch two of them.
    pub(super) async fn call_together(
        self: &Arc<Self>,
        lane: &Arc<Lane>,
        call: &Arc<Call>,
        queues: bool,
    ) -> Result<(Arc<Link>, Value, bool)> {
        if let Site::Cluster(_) = self.settings.site {
            return self.call_perhaps_twice(lane, call, queues).await;
        }
        let failed = match self.ready(lane, call.key(), queues) {
            Some(link) => match link.call_together(Arc::clone(call)).await {
                Ok(value) => return Ok((link, value, false)),
                Err(error) => Some((link, error)),
            },
            None => None,
        };
        Box::pin(self.call_in_need(lane, call, queues, failed)).await
    }

    /// The link for a key, if nothing has to be opened or found for it.
    fn ready(&self, lane: &Lane, key: &str, queues: bool) -> Option<Arc<Link>> {
        let link = lane.open_link(&self.topology.known(key)?, Purpose::Requests)?;
        (!queues || lane.is_at_home()).then_some(link)
    }

    /// Calls a script whatever stands in the way: no link, a link that has failed, a key that is elsewhere.
    async fn call_in_need(
        self: &Arc<Self>,
        lane: &Arc<Lane>,
        call: &Call,
        queues: bool,
        failed: Option<(Arc<Link>, RedisError)>,
    ) -> Result<(Arc<Link>, Value, bool)> {
        let begun = tokio::time::Instant::now();
        let mut call = Cow::Borrowed(call);
        // A link that was open before may have died unnoticed: its failure is no proof that the server is gone.
        let (mut may_reconnect, mut reconnected) = (true, false);
        let (mut redirect, mut redirects) = (None, 0);
        let mut failed = failed;
        let mut sent = failed.is_some();
        loop {
            let unsent = |error: Error| if sent { error } else { error.with_nothing_sent() };
            let (link, error) = match failed.take() {
                Some(failed) => failed,
                None => {
                    let asking = redirect.is_some();
                    let address = match redirect.take() {
                        Some(address) => address,
                        None => self.topology.find(self, call.key()).await.map_err(unsent)?,
                    };
                    may_reconnect &= lane.open_link(&address, Purpose::Requests).is_some();
                    let link = lane.link(&address, Purpose::Requests).await;
                    let link = link.inspect_err(|_| self.topology.forget()).map_err(unsent)?;
                    if queues {
                        lane.at_home(&link).await.map_err(unsent)?;
                    }
                    if std::mem::replace(&mut sent, true) {
                        // What was sent before may have been done.
                        call = Cow::Owned(call.again());
                    }
                    let answer = if asking { link.call_asking(&call).await } else { link.call(&call).await };
                    match answer {
                        Ok(value) => return Ok((link, value, reconnected)),
                        Err(error) => (link, error),
                    }
                }
            };
            match failure::remedy(&error, &link.address) {
                Remedy::Redirect { .. } if matches!(self.settings.site, Site::Single(_)) => {
                    let address = &link.address;
                    return Err(Error::bad_url(format!("{address} is part of a cluster; write redis+cluster://{address}")));
                }
                Remedy::Redirect { to, slot } if redirects < REDIRECTS => {
                    redirects += 1;
                    match slot {
                        Some(slot) => self.topology.learn(slot, to),
                        None => redirect = Some(to),
                    }
                }
                Remedy::AskAgain if begun.elapsed() < self.settings.request_timeout => {
                    // Each turn of a key that moves is redirected anew.
                    redirects = 0;
                    self.sleep(MOVING).await;
                }
                Remedy::Reconnect(error) => {
                    self.give_up(&link);
                    if !std::mem::take(&mut may_reconnect) {
                        return Err(error);
                    }
                    reconnected = true;
                }
                Remedy::FindPrimary(error) => {
                    self.give_up(&link);
                    return Err(error);
                }
                Remedy::Tell(error) => return Err(error),
                Remedy::Redirect { .. } | Remedy::AskAgain | Remedy::SendWhole => {
                    self.topology.forget();
                    return Err(Error::unavailable(format!("{}: the key moves between servers; try again", link.address)));
                }
            }
        }
    }

    /// Calls many scripts, those of one server in one pipeline. Each has its own answer, in the same order. `told`: whether
    /// something may be pushed to our inbox after it.
    pub(super) async fn call_all(self: &Arc<Self>, calls: Vec<Call>, purpose: Purpose, told: bool) -> Vec<Result<Value>> {
        let lane = match self.lane() {
            Ok(lane) => lane,
            Err(error) => return calls.iter().map(|_| Err(error.clone())).collect(),
        };
        let mut answers: Vec<Option<Result<Value>>> = calls.iter().map(|_| None).collect();
        let mut servers: HashMap<Address, Vec<(usize, Call)>> = HashMap::new();
        for (place, call) in calls.into_iter().enumerate() {
            match self.topology.find(self, call.key()).await {
                Ok(address) => servers.entry(address).or_default().push((place, call)),
                Err(error) => put(&mut answers, place, Err(error)),
            }
        }
        for (address, calls) in servers {
            let (places, calls): (Vec<usize>, Vec<Call>) = calls.into_iter().unzip();
            let pipelined = async {
                let link = lane.link(&address, purpose).await.inspect_err(|_| self.topology.forget())?;
                if told {
                    // Not waited for: it may be on another server, which hangs. What is pushed before is found by the next renewal.
                    drop(lane.begin_home(&link));
                }
                let answers = link.call_all(&calls).await.map_err(|error| {
                    self.give_up(&link);
                    link::told(&error, &address)
                })?;
                Ok::<_, Error>(answers)
            };
            match pipelined.await {
                Ok(values) => {
                    for ((place, call), value) in places.into_iter().zip(&calls).zip(values) {
                        let answer = match value {
                            Ok(value) => Ok(value),
                            Err(error) => match failure::remedy(&error, &address) {
                                // One by one.
                                Remedy::SendWhole | Remedy::Redirect { .. } | Remedy::AskAgain => {
                                    self.call(&lane, call, told).await.map(|(_, value)| value)
                                }
                                _ => Err(link::told(&error, &address)),
                            },
                        };
                        put(&mut answers, place, answer);
                    }
                }
                Err(error) => places.into_iter().for_each(|place| put(&mut answers, place, Err(error.clone()))),
            }
        }
        let unanswered = || Err(Error::protocol("the server answered fewer requests than it was sent"));
        answers.into_iter().map(|answer| answer.unwrap_or_else(unanswered)).collect()
    }

    /// Which part of the servers has a name, as far as is known: what is asked of one does not wait for another.
    pub(super) fn part(&self, name: &Name) -> u64 {
        let mut hasher = std::hash::DefaultHasher::new();
        self.topology.last_known(&self.settings.key(name)).hash(&mut hasher);
        hasher.finish()
    }

    /// How many replicas must confirm what is granted on this link.
    pub(super) fn replicas_for(&self, link: &Link) -> usize {
        self.settings.replicas.unwrap_or_else(|| link.replicas().min(1))
    }

    /// Whether a grant that was handed over must be confirmed by replicas, as far as is known.
    pub(super) fn pushes_need_replicas(&self) -> bool {
        match self.settings.replicas {
            Some(count) => count > 0,
            None => self.lane.get().is_some_and(|lane| lane.has_replicas()),
        }
    }

    /// Whether enough replicas have what was written on this link. Where the number was left to us, and the last replica is
    /// gone, none is needed any more.
    pub(super) async fn confirmed(&self, lane: &Lane, link: &Arc<Link>, patience: Duration) -> Result<bool> {
        let replicas = self.replicas_for(link);
        if replicas == 0 || link.confirmed(&lane.runtime, replicas, patience).await? {
            return Ok(true);
        }
        if self.settings.replicas.is_none() {
            let _ = link.look_at_role().await;
        }
        Ok(self.replicas_for(link) == 0)
    }

    // Who waits.

    /// From now on a claim that may queue is heard of.
    pub(super) fn wait_for(&self, claim: ClaimId) {
        locked(&self.waiting).insert(claim, Waiting { mailbox: None });
    }

    /// A claim is known not to wait, or not any more.
    pub(super) fn stop_waiting(&self, claim: ClaimId) {
        locked(&self.waiting).remove(&claim);
    }

    pub(super) fn mailbox(&self, claim: ClaimId) -> Option<Arc<Mailbox>> {
        locked(&self.waiting).get_mut(&claim).map(|waiting| Arc::clone(waiting.mailbox.get_or_insert_default()))
    }

    /// A renewal found that a waiting claim was handed the name, and the push did not come, or not yet. If nobody is at the other
    /// end of the inbox any more, this question stays unanswered, and the link is given up for it.
    pub(super) fn missed_push(&self) {
        if let Some(lane) = self.lane.get()
            && let Some(home) = lane.home()
        {
            lane.runtime.spawn(async move { home.ask(redis::cmd("PING")).await });
        }
    }

    /// A message came to one of our inboxes.
    pub(super) fn pushed(&self, payload: &[u8]) {
        // What was said only so that somebody else is written to first: see `line/release_fast.lua`.
        if payload.is_empty() {
            return;
        }
        let Some((claim, push)) = line::push(payload) else {
            tracing::warn!("a message that cannot be read came to the inbox");
            return;
        };
        let woken = match push {
            Push::Granted(fence) => Woken::Granted(fence),
            Push::Gone(why) => {
                self.events.push(Event::Gone { claim, why });
                Woken::Ask
            }
        };
        if let Some(mailbox) = self.mailbox(claim) {
            mailbox.push(woken);
        }
    }

    /// A message came on a channel of the keyspace.
    pub(super) fn key_changed(&self, channel: &[u8], payload: &[u8]) {
        self.keyspace.heard(channel, payload);
    }
}

/// What a release came to. One that was sent again and found nothing may have found it the first time.
pub(super) fn unsure(released: Released, sent_again: bool) -> Released {
    if sent_again && released == Released::AlreadyLost { Released::Unknown } else { released }
}

fn put(answers: &mut [Option<Result<Value>>], place: usize, answer: Result<Value>) {
    if let Some(slot) = answers.get_mut(place) {
        *slot = Some(answer);
    }
}
