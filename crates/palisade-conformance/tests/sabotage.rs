//! A check proves something only if it can fail. Here a store breaks one rule at a time, and the
//! checks must catch each breach.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use palisade::lease::BootClock;
use palisade::store::{
    Answer, Busy, Claim, ClaimId, ClaimRef, ClearMarks, ClientHandle, Ending, Extensions, Gone,
    Grant, Lease, Marks, Page, Ping, Query, Released, ServerInfo, Standing, Store,
};
use palisade::stores::memory::MemoryStore;
use palisade::{Fence, Name, Result};
use palisade_conformance::around::{Around, Wrapped};
use palisade_conformance::{CHECKS, Subject, set_patience};

/// The rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// None: shows that the wrapper itself breaks no check.
    None,
    /// Every so often a claim is granted beside the holder.
    GrantsTwice,
    /// A waiter is told that it waits, and does not stand in line.
    ForgetsAWaiter,
    /// Every second grant has the fence of the one before.
    ReusesAFence,
    /// A release frees the name, without comparing the claim.
    ReleasesByName,
    /// A renewal of what has expired is answered with yes.
    RevivesTheExpired,
    /// The lease is said to be longer than it is, as if it had begun with the reply.
    PromisesTooMuch,
    /// No waiter is ever woken, and renewals answer that it still waits.
    NeverHandsOver,
    /// A claim that gives up keeps its place.
    Leaks,
    /// Whatever became of a grant, its lease is said to have run out.
    SaysExpired,
    /// Neither a refusal nor a look at the line says who holds it.
    HidesHolders,
    /// A look at the line does not show what a minimum hold, a period or a seal has left.
    HidesMarks,
    /// Marks are said to be cleared, and are not.
    KeepsMarks,
    /// A ping is answered, and not by name.
    PingsWithoutAName,
}

/// A check that must catch each breach.
const CAUGHT_BY: &[(Rule, &str)] = &[
    (Rule::GrantsTwice, "mutex::excludes"),
    (Rule::ForgetsAWaiter, "mutex::serves_in_order"),
    (Rule::ReusesAFence, "mutex::fences_rise"),
    (
        Rule::ReleasesByName,
        "contract::release_needs_claim_and_fence",
    ),
    (
        Rule::RevivesTheExpired,
        "contract::an_expired_claim_is_not_revived",
    ),
    (Rule::PromisesTooMuch, "loss::a_lease_is_kept_in_full"),
    (Rule::NeverHandsOver, "contract::release_hands_over"),
    (Rule::Leaks, "contract::a_waiter_can_step_out"),
    (
        Rule::SaysExpired,
        "contract::a_gone_grant_says_what_is_known",
    ),
    (Rule::HidesHolders, "mutex::a_refusal_names_the_holder"),
    (
        Rule::HidesMarks,
        "times::a_closed_period_is_shown_and_cleared",
    ),
    (Rule::HidesMarks, "times::a_last_run_is_shown_and_cleared"),
    (Rule::HidesMarks, "times::a_seal_is_shown_and_cleared"),
    (
        Rule::KeepsMarks,
        "times::a_closed_period_is_shown_and_cleared",
    ),
    (Rule::KeepsMarks, "times::a_last_run_is_shown_and_cleared"),
    (Rule::KeepsMarks, "times::a_seal_is_shown_and_cleared"),
    (Rule::PingsWithoutAName, "mutex::a_ping_names_the_server"),
];

/// The memory store, with one rule broken.
struct Saboteur {
    store: MemoryStore,
    rule: Rule,
    shared: Arc<Mutex<Shared>>,
}

/// Shared by the connections of one deployment.
#[derive(Default)]
struct Shared {
    claims: usize,
    last_fence: Option<Fence>,
    /// The holder of each name, for a release by name.
    holders: HashMap<Name, ClaimRef>,
    /// Grants that were given beside a holder.
    stolen: HashMap<ClaimId, Grant>,
}

fn subject(rule: Rule) -> Subject {
    let store = MemoryStore::new(Arc::new(BootClock));
    let shared = Arc::new(Mutex::new(Shared::default()));
    Subject::new(move || {
        Arc::new(Wrapped(Arc::new(Saboteur {
            store: store.another(),
            rule,
            shared: Arc::clone(&shared),
        })))
    })
}

impl Saboteur {
    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().expect("no panic in here")
    }

    fn bend(&self, claim: &Claim, answer: Answer) -> Answer {
        let mut shared = self.shared();
        shared.claims += 1;
        match (self.rule, answer) {
            (Rule::GrantsTwice, Answer::Queued(_)) if shared.claims.is_multiple_of(3) => {
                let fence = Fence::new(1 << 40 | shared.claims as u64).expect("a fence");
                let grant = Grant {
                    fence,
                    lease: Lease::of(claim.lease),
                };
                shared.stolen.insert(claim.id, grant);
                Answer::Granted(grant)
            }
            (Rule::ReusesAFence, Answer::Granted(grant)) => {
                Answer::Granted(reused(&mut shared, grant))
            }
            (Rule::HidesHolders, Answer::Busy(busy)) => Answer::Busy(Busy {
                holder: None,
                ..busy
            }),
            (_, answer) => answer,
        }
    }
}

/// Every second grant gets the fence of the one before.
fn reused(shared: &mut Shared, grant: Grant) -> Grant {
    match shared.last_fence.take() {
        Some(fence) => Grant { fence, ..grant },
        None => {
            shared.last_fence = Some(grant.fence);
            grant
        }
    }
}

#[async_trait]
impl Around for Saboteur {
    fn inner(&self) -> &dyn Store {
        &self.store
    }

    fn attach(&self, client: ClientHandle) {
        // One that never hands over wakes nothing either.
        if self.rule != Rule::NeverHandsOver {
            self.store.attach(client);
        }
    }

    async fn claim(&self, claim: &Arc<Claim>) -> Result<Answer> {
        let mut asked = Claim::clone(claim);
        if self.rule == Rule::PromisesTooMuch {
            asked.lease = claim.lease.mul_f64(0.7);
        }
        let mut answer = self.store.claim(&Arc::new(asked)).await?;
        if let (Rule::PromisesTooMuch, Answer::Granted(grant)) = (self.rule, &mut answer) {
            grant.lease = Lease::of(claim.lease);
        }
        if let (Rule::ForgetsAWaiter, Answer::Queued(_)) = (self.rule, &answer) {
            let _ = self
                .store
                .release(&claim.to_ref(None), Ending::Release)
                .await?;
        }
        if let Answer::Granted(grant) = &answer {
            self.shared()
                .holders
                .insert(claim.name.clone(), claim.to_ref(Some(grant.fence)));
        }
        Ok(self.bend(claim, answer))
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        let answers = self.store.renew(claims).await;
        let bend = |(claim, answer): (&ClaimRef, Result<Standing>)| {
            let lease = Lease::of(claim.claim.lease);
            match (self.rule, answer, claim.fence) {
                (Rule::RevivesTheExpired, Ok(Standing::Gone(_)), Some(fence)) => {
                    Ok(Standing::Held(Grant { fence, lease }))
                }
                (Rule::GrantsTwice, Ok(standing), _) => {
                    let stolen = self.shared().stolen.get(&claim.claim.id).copied();
                    Ok(stolen.map_or(standing, Standing::Held))
                }
                (Rule::SaysExpired, Ok(Standing::Gone(_)), _) => Ok(Standing::Gone(Gone::Expired)),
                (_, answer, _) => answer,
            }
        };
        claims.iter().zip(answers).map(bend).collect()
    }

    async fn release(&self, claim: &ClaimRef, ending: Ending) -> Result<Released> {
        match self.rule {
            Rule::ReleasesByName => {
                let holder = self.shared().holders.remove(&claim.claim.name);
                self.store
                    .release(&holder.unwrap_or_else(|| claim.clone()), ending)
                    .await
            }
            Rule::Leaks if claim.fence.is_none() => Ok(Released::Done),
            Rule::GrantsTwice | Rule::ReusesAFence => {
                self.shared().stolen.remove(&claim.claim.id);
                // The fence may be made up.
                self.store.release(&claim.claim.to_ref(None), ending).await
            }
            _ => self.store.release(claim, ending).await,
        }
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let mut page = self.store.inspect(query).await?;
        for line in &mut page.lines {
            match self.rule {
                Rule::HidesHolders => line.holders.clear(),
                Rule::HidesMarks => line.marks = Marks::default(),
                _ => {}
            }
        }
        Ok(page)
    }

    fn extensions(&self) -> Extensions<'_> {
        let own = self.store.extensions();
        match self.rule {
            Rule::KeepsMarks => Extensions {
                clear_marks: Some(self),
                ..own
            },
            Rule::PingsWithoutAName => Extensions {
                ping: Some(self),
                ..own
            },
            _ => own,
        }
    }
}

#[async_trait]
impl ClearMarks for Saboteur {
    async fn clear_marks(&self, _: &Name) -> Result<bool> {
        Ok(true)
    }
}

#[async_trait]
impl Ping for Saboteur {
    async fn ping(&self) -> Result<ServerInfo> {
        Ok(ServerInfo::default())
    }
}

/// Whether a check fails on a store with this rule broken.
fn catches(check: &str, rule: Rule) -> bool {
    let check = *CHECKS
        .iter()
        .find(|known| known.name == check)
        .expect("a check of this name");
    catch_unwind(AssertUnwindSafe(|| check.run(&subject(rule)))).is_err()
}

#[test]
fn every_breach_is_caught() {
    set_patience(Duration::from_secs(4));
    let threads: Vec<_> = CAUGHT_BY
        .iter()
        .map(|&(rule, check)| {
            (
                rule,
                check,
                std::thread::spawn(move || catches(check, rule)),
            )
        })
        .collect();
    let mut missed = Vec::new();
    for &(_, check) in CAUGHT_BY {
        assert!(
            !catches(check, Rule::None),
            "{check} fails on a store that breaks nothing"
        );
    }
    for (rule, check, thread) in threads {
        let caught = thread.join().expect("caught inside");
        println!(
            "{rule:?}: {check} {}",
            if caught { "catches it" } else { "MISSES it" }
        );
        if !caught {
            missed.push((rule, check));
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
