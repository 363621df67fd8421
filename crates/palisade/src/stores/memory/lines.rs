//! All lines of one `memory:NAME`, behind one mutex: every verb is one event on one line, followed
//! by its pushes.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use crate::error::Result;
use crate::fence::Fence;
use crate::line::{Line, StoreTime, Told};
use crate::name::Name;
use crate::store::{
    Answer, Claim, ClaimId, ClaimRef, ClientHandle, Leader, LineView, Observation,
    ObservationSender, Page, Query, Released, Standing,
};
use crate::stores::kit::line::{self, Effect, Event};

/// How many lines a page of a list has.
const PAGE: usize = 256;

#[derive(Default)]
pub(super) struct Lines {
    /// In the order of the names, so that a page of a list costs only its own lines.
    lines: BTreeMap<Name, Line>,
    routes: HashMap<ClaimId, Route>,
    /// The observers of the leaders of a name.
    observers: HashMap<Name, Vec<ObservationSender>>,
    /// The highest fence of all lines: an idle line is forgotten, its fence is not.
    last_fence: Option<Fence>,
    /// Verbs until the next sweep: at least as many as the last sweep left lines.
    sweep_in: usize,
}

/// How to reach the client of a claim.
struct Route {
    name: Name,
    client: ClientHandle,
}

impl Lines {
    /// Applies one event; `client` is the client that asks.
    pub(super) fn apply(
        &mut self,
        now: StoreTime,
        event: &Event,
        client: Option<&ClientHandle>,
    ) -> Result<Effect> {
        let effect = self.event(now, event.name(), |line, told| event.apply(line, now, told))?;
        match (event, &effect) {
            (Event::Claim(claim), Effect::Answered(Answer::Granted(_) | Answer::Queued(_))) => {
                self.route(claim, client)
            }
            (Event::Release(claim, _), Effect::Released(Released::Done)) => {
                drop(self.routes.remove(&claim.claim.id))
            }
            _ => {}
        }
        Ok(effect)
    }

    pub(super) fn renew(
        &mut self,
        now: StoreTime,
        claim: &ClaimRef,
        client: Option<&ClientHandle>,
    ) -> Standing {
        let ClaimRef { claim, fence } = claim;
        let standing = self.event(now, &claim.name, |line, told| {
            line.renew(now, claim.id, *fence, told)
        });
        match &standing {
            Standing::Gone(_) => drop(self.routes.remove(&claim.id)),
            // An adopted grant belongs to its new client from now on.
            _ => self.route(claim, client),
        }
        standing
    }

    fn route(&mut self, claim: &Claim, client: Option<&ClientHandle>) {
        if let Some(client) = client {
            self.routes.insert(
                claim.id,
                Route {
                    name: claim.name.clone(),
                    client: client.clone(),
                },
            );
        }
    }

    pub(super) fn leader(&self, now: StoreTime, name: &Name) -> Option<Leader> {
        let first = self
            .lines
            .get(name)?
            .holders
            .iter()
            .find(|holder| !holder.ghost && holder.expiry > now)?;
        Some(Leader {
            value: first.owner.to_string(),
            fence: first.fence,
        })
    }

    pub(super) fn observe(&mut self, now: StoreTime, name: &Name) -> Observation {
        let (mut sender, observation) = Observation::new();
        if let Some(leader) = self.leader(now, name) {
            sender.tell(leader);
        }
        self.observers.entry(name.clone()).or_default().push(sender);
        observation
    }

    pub(super) fn inspect(&self, now: StoreTime, query: &Query) -> Page {
        match query {
            Query::Show(name) | Query::Leader(name) => Page {
                lines: self.view(now, name).into_iter().collect(),
                next: None,
            },
            Query::List { prefix, after } => {
                let from = match after {
                    Some(after) if after >= prefix => Bound::Excluded(after.as_str()),
                    _ => Bound::Included(prefix.as_str()),
                };
                let names = self
                    .lines
                    .range::<str, _>((from, Bound::Unbounded))
                    .map(|(name, _)| name);
                let mut names = names
                    .take_while(|name| name.as_str().starts_with(prefix))
                    .peekable();
                let (mut lines, mut last) = (Vec::new(), None);
                for name in names.by_ref().take(PAGE) {
                    lines.extend(self.view(now, name));
                    last = Some(name.as_str().to_owned());
                }
                Page {
                    lines,
                    next: last.filter(|_| names.peek().is_some()),
                }
            }
        }
    }

    fn view(&self, now: StoreTime, name: &Name) -> Option<LineView> {
        let view = self.lines.get(name)?.view(now, name);
        (!view.is_free()).then_some(view)
    }

    pub(super) fn names(&mut self, now: StoreTime) -> usize {
        self.sweep(now);
        self.lines.len()
    }

    /// One event on one line, followed by its pushes.
    fn event<T>(
        &mut self,
        now: StoreTime,
        name: &Name,
        act: impl FnOnce(&mut Line, &mut Vec<Told>) -> T,
    ) -> T {
        let line = match self.lines.get_mut(name) {
            Some(line) => line,
            None => self.lines.entry(name.clone()).or_default(),
        };
        if let Some(fence) = self.last_fence {
            line.raise_fence(fence);
        }
        let mut told = Vec::new();
        let answer = act(line, &mut told);
        self.last_fence = self.last_fence.max(Some(line.last_fence));
        if line.is_idle(now) {
            self.lines.remove(name);
        }
        told.into_iter().for_each(|told| self.tell(told));
        if !self.observers.is_empty() {
            self.tell_observers(now, name);
        }
        match self.sweep_in.checked_sub(1) {
            Some(left) => self.sweep_in = left,
            None => self.sweep(now),
        }
        answer
    }

    fn tell(&self, told: Told) {
        if let Some(route) = self.routes.get(&told.claim()) {
            line::hear(&route.client, told);
        }
    }

    fn tell_observers(&mut self, now: StoreTime, name: &Name) {
        let leader = self.leader(now, name);
        let Some(observers) = self.observers.get_mut(name) else {
            return;
        };
        observers.retain(|observer| !observer.is_deserted());
        match leader {
            _ if observers.is_empty() => drop(self.observers.remove(name)),
            Some(leader) => observers
                .iter_mut()
                .for_each(|observer| observer.tell(leader.clone())),
            None => {}
        }
    }

    /// Forgets abandoned grants that have expired. As often as it is cheap.
    fn sweep(&mut self, now: StoreTime) {
        self.lines.retain(|_, line| !line.is_idle(now));
        let lines = &self.lines;
        self.routes.retain(|claim, route| {
            lines
                .get(&route.name)
                .is_some_and(|line| line.knows(*claim))
        });
        self.observers
            .retain(|_, observers| observers.iter().any(|observer| !observer.is_deserted()));
        self.sweep_in = self.lines.len().max(1024);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::store::Ending;

    const LEASE: Duration = Duration::from_secs(1);

    fn at(secs: u64) -> StoreTime {
        StoreTime::at(Duration::from_secs(secs))
    }

    fn claim(number: u128) -> Arc<Claim> {
        Arc::new(Claim::of_mutex(
            ClaimId::from_bits(number),
            &format!("lines/{number}"),
            LEASE,
        ))
    }

    fn granted(lines: &mut Lines, now: StoreTime, claim: &Arc<Claim>) -> Fence {
        match lines
            .apply(now, &Event::Claim(Arc::clone(claim)), None)
            .expect("an answer")
        {
            Effect::Answered(Answer::Granted(grant)) => grant.fence,
            other => panic!("not granted: {other:?}"),
        }
    }

    /// A released name leaves nothing behind, and its next fence is higher all the same.
    #[test]
    fn an_idle_line_is_forgotten_and_its_fence_is_not() {
        let mut lines = Lines::default();
        let claim = claim(1);
        let first = granted(&mut lines, at(0), &claim);
        let release = Event::Release(claim.to_ref(Some(first)), Ending::Release);
        assert!(matches!(
            lines.apply(at(0), &release, None),
            Ok(Effect::Released(Released::Done))
        ));
        assert_eq!((lines.lines.len(), lines.routes.len()), (0, 0));
        assert!(granted(&mut lines, at(0), &claim) > first);
    }

    /// Each page costs only its own lines, however many names there are, so that a list blocks no
    /// other verb for long.
    #[test]
    fn a_page_of_a_list_does_not_go_through_all_names() {
        let mut lines = Lines::default();
        let count = 100_000;
        for number in 0..count {
            granted(&mut lines, at(0), &claim(number));
        }
        let (begun, mut listed, mut after) = (std::time::Instant::now(), 0, None);
        loop {
            let page = lines.inspect(
                at(0),
                &Query::List {
                    prefix: "lines/".to_owned(),
                    after,
                },
            );
            listed += page.lines.len() as u128;
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(listed, count);
        assert!(
            begun.elapsed() < Duration::from_secs(6),
            "{:?}",
            begun.elapsed()
        );
        let page = lines.inspect(
            at(0),
            &Query::List {
                prefix: "lines/99999".to_owned(),
                after: None,
            },
        );
        let names: Vec<&str> = page.lines.iter().map(|line| line.name.as_str()).collect();
        assert_eq!((names.as_slice(), page.next), (&["lines/99999"][..], None));
        assert_eq!(
            lines
                .inspect(
                    at(0),
                    &Query::List {
                        prefix: "m".to_owned(),
                        after: None
                    }
                )
                .lines
                .len(),
            0
        );
    }

    /// Abandoned grants and the routes to their clients are removed while others work: after
    /// 100,000 crashes nothing is left.
    #[test]
    fn what_was_abandoned_is_swept() {
        let mut lines = Lines::default();
        for number in 0..100_000 {
            // A new name every millisecond, and a lease of a second: about a thousand live at any
            // time.
            let now = StoreTime::at(Duration::from_millis(number));
            granted(&mut lines, now, &claim(number.into()));
        }
        assert!(lines.lines.len() <= 4 * 1024, "{} lines", lines.lines.len());
        assert!(
            lines.routes.len() <= 4 * 1024,
            "{} routes",
            lines.routes.len()
        );
        assert_eq!(lines.names(at(1000)), 0);
        assert_eq!(lines.routes.len(), 0);
    }
}
