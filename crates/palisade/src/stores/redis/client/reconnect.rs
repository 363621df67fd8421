//! Contact with the servers: what becomes of links, who watches over them, and how what was lost is restored.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::super::settings::Site;
use super::super::shared::Shared;
use super::address::Address;
use super::failure::Remedy;
use super::lane::Purpose;
use super::link::Link;
use crate::error::Result;
use crate::store::Event;

/// How long a server may leave a request unanswered before others are asked whether it is still the one to ask.
const SUSPECT: Duration = Duration::from_millis(500);
/// Between two attempts to restore a connection that was lost.
const RESTORE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// How often a link looks what its server is: how many replicas it has, and whether it is still one of its cluster.
const LOOK_AROUND: Duration = Duration::from_secs(10);

impl Shared {
    /// A link does not answer, or its server is the wrong one: whoever waits on it fails, and it is restored.
    pub(crate) fn give_up(self: &Arc<Self>, link: &Link) {
        link.give_up();
        self.cut_off();
    }

    /// Whether whoever asks is the first to listen to the sentinels.
    pub(crate) fn listens(&self) -> bool {
        self.client.get().is_some() && !self.listening.swap(true, Ordering::AcqRel)
    }

    /// The sentinels have agreed on another primary: nobody writes to any other from now on.
    pub(crate) fn switched(self: &Arc<Self>, from: Address, to: &Address) {
        if self.topology.switched(from, to) {
            self.leave_all_but(to);
        }
    }

    /// Asks the sentinels, and leaves what is not the primary any more.
    pub(crate) async fn look_for_switch(self: &Arc<Self>) -> Result<()> {
        self.topology.look(self).await?;
        if let [primary] = self.topology.primaries().as_slice() {
            self.leave_all_but(primary);
        }
        Ok(())
    }

    fn leave_all_but(self: &Arc<Self>, primary: &Address) {
        for link in self.lane.get().into_iter().flat_map(|lane| lane.links()) {
            if link.address != *primary {
                self.give_up(&link);
            }
        }
    }

    /// A connection has ended, by the server or the network.
    pub(crate) fn link_ended(self: &Arc<Self>) {
        self.cut_off();
    }

    /// Contact is lost: tells the core, and restores it without waiting to be asked.
    fn cut_off(self: &Arc<Self>) {
        self.topology.forget();
        self.cuts.fetch_add(1, Ordering::AcqRel);
        let Some(client) = self.client.get() else { return };
        if !self.restoring.swap(true, Ordering::AcqRel) {
            self.events.push(Event::CutOff);
            client.spawn(restore(Arc::downgrade(self)));
        }
    }

    /// How often to look what a server is: where the number of replicas was left to us often while there are none, since a failover
    /// may have been just now.
    fn look_around_every(&self, link: &Link) -> Duration {
        match (&self.settings.replicas, &self.settings.site) {
            (Some(_), Site::Single(_) | Site::Sentinel { .. }) => Duration::MAX,
            (None, Site::Sentinel { .. } | Site::Cluster(_)) if link.replicas() == 0 => Duration::from_secs(1),
            (_, _) => LOOK_AROUND,
        }
    }

    /// Whether a server is none any more that has keys. It may answer on, but what others publish it does not hear.
    async fn has_left(self: &Arc<Self>, link: &Link) -> bool {
        match link.look_at_role().await {
            Err(Remedy::FindPrimary(_)) => true,
            // Whoever cannot be asked has not left.
            Ok(()) if matches!(self.settings.site, Site::Cluster(_)) => {
                self.topology.look(self).await.is_ok() && !self.topology.primaries().contains(&link.address)
            }
            _ => false,
        }
    }

    /// Watches over a link: ends it when its server has not answered for too long, and sooner when another is to be asked.
    pub(crate) fn watch(self: &Arc<Self>, link: &Arc<Link>) {
        if let Ok(runtime) = self.runtime() {
            runtime.spawn(watch(Arc::downgrade(self), Arc::clone(link)));
        }
    }
}

/// Watches over a link. It waits for no answer of any server: what it asks is asked by tasks of their own.
async fn watch(shared: Weak<Shared>, link: Arc<Link>) {
    let Some(timeout) = shared.upgrade().map(|shared| shared.settings.request_timeout) else { return };
    let tick = SUSPECT.min(timeout / 4).max(Duration::from_millis(1));
    let (mut answered, mut silent_since, mut looked) = (0, None, Instant::now());
    loop {
        tokio::select! {
            () = link.ended() => return,
            () = tokio::time::sleep(tick) => {}
        }
        let Some(shared) = shared.upgrade() else { return };
        let (now_answered, outstanding) = link.progress();
        if !outstanding || now_answered != answered {
            (answered, silent_since) = (now_answered, outstanding.then(Instant::now));
        } else {
            silent_since.get_or_insert_with(Instant::now);
        }
        let silent = silent_since.map_or(Duration::ZERO, |since| since.elapsed());
        if silent >= timeout {
            return shared.give_up(&link);
        }
        let (suspicious, look_is_due) = (silent >= SUSPECT, looked.elapsed() >= shared.look_around_every(&link));
        if look_is_due {
            looked = Instant::now();
        }
        let link = Arc::clone(&link);
        tokio::spawn(async move {
            shared.keyspace.sweep(&link).await;
            if suspicious {
                // It stands still. Perhaps others have agreed on another one meanwhile.
                let _ = shared.topology.look(&shared).await;
                if !shared.topology.primaries().contains(&link.address) {
                    shared.give_up(&link);
                }
            } else if look_is_due && shared.has_left(&link).await {
                shared.give_up(&link);
            }
        });
    }
}

/// Restores what was lost: the client's own links, and every inbox that had waiters. The core renews everything as soon as a
/// server is there again, and once more when all are: a part of a cluster may take longer.
async fn restore(shared: Weak<Shared>) {
    let mut pause = RESTORE.0;
    loop {
        let Some(strong) = shared.upgrade() else { return };
        let cuts = strong.cuts.load(Ordering::Acquire);
        let Reached { some_anew, all } = reach(&strong).await;
        if some_anew || all {
            strong.events.push(Event::Restored);
            let again = Arc::clone(&strong);
            tokio::spawn(async move { again.call_all(again.release_replay.to_repeat(), Purpose::Requests, false).await });
        }
        if all {
            strong.restoring.store(false, Ordering::Release);
            // What was cut off meanwhile relied on us.
            let cut_again = strong.cuts.load(Ordering::Acquire) != cuts;
            if !cut_again || strong.restoring.swap(true, Ordering::AcqRel) {
                return;
            }
            pause = RESTORE.0;
        }
        drop(strong);
        tokio::time::sleep(pause.mul_f64(0.5 + 0.5 * fastrand::f64())).await;
        pause = (pause * 2).min(RESTORE.1);
    }
}

struct Reached {
    /// Whether a server is there that was not.
    some_anew: bool,
    all: bool,
}

async fn reach(shared: &Arc<Shared>) -> Reached {
    let nobody = Reached { some_anew: false, all: false };
    if shared.topology.look(shared).await.is_err() {
        return nobody;
    }
    let Ok(lane) = shared.lane() else { return nobody };
    let primaries = shared.topology.primaries();
    // Beside the rest: the server that had the inbox may hang. Until then renewals find what was pushed.
    if let (true, Some(address)) = (lane.has_lost_home(), primaries.first().cloned()) {
        let lane = Arc::clone(&lane);
        tokio::spawn(async move {
            let link = lane.link(&address, Purpose::Requests).await?;
            lane.at_home(&link).await
        });
    }
    // All at once. Of those that hang the first one to answer does not wait.
    let mut reaching = tokio::task::JoinSet::new();
    for address in &primaries {
        let (lane, address) = (Arc::clone(&lane), address.clone());
        let was_open = lane.open_link(&address, Purpose::Renewals).is_some();
        reaching.spawn(async move { (lane.link(&address, Purpose::Renewals).await.is_ok(), was_open) });
    }
    let (mut reached, mut some_anew) = (0, false);
    while let Some(Ok((is_there, was_open))) = reaching.join_next().await {
        reached += usize::from(is_there);
        if is_there && !was_open && !std::mem::replace(&mut some_anew, true) && !reaching.is_empty() {
            shared.events.push(Event::Restored);
        }
    }
    Reached { some_anew, all: reached == primaries.len() }
}
