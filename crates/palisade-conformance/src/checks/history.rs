//! The line is the oracle: a random history, replayed on the store and on the line, must have the
//! same answers.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade::Fence;
use palisade::line::{Line, StoreTime};
use palisade::store::{
    Answer, Claim, ClaimId, Ending, Gone, Kind, Mode, Order, Released, Revoked, Standing, Store,
};

use crate::{Subject, Verdict, needs};

/// How many histories, and how long each is.
const HISTORIES: u64 = 20;
const STEPS: u64 = 60;
/// How often waiters are renewed.
const KEPT: Duration = Duration::from_secs(1);

/// A claim on both sides, with the fence that each side gave it.
struct Both {
    claim: Arc<Claim>,
    ours: Option<Fence>,
    theirs: Option<Fence>,
}

/// Promise 1, in all kinds and modes: the store grants when and to whom the line would. Leases are
/// an hour, and waiters are renewed, so that nothing expires by itself.
pub async fn the_store_follows_the_line(subject: &Subject) -> Verdict {
    needs!(
        subject.is_as_it_is(),
        "anything about kinds that run as a mutex"
    );
    let capability = subject.capability();
    needs!(
        capability.order == Order::Fifo && capability.mutex_is_write_side,
        "one line in order"
    );
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    for history in 0..HISTORIES {
        let mut random = fastrand::Rng::with_seed(seed ^ history);
        let mut replay = Replay::new(subject, history);
        let semaphore = capability.semaphore && random.bool();
        for step in 0..STEPS {
            replay
                .step(&mut random, semaphore)
                .await
                .unwrap_or_else(|what| {
                    let before = replay.steps.join("\n");
                    panic!("seed {seed}, history {history}, step {step}: {what}, after\n{before}")
                });
        }
        replay.clear_away().await;
    }
    Verdict::Kept
}

struct Replay<'a> {
    subject: &'a Subject,
    store: Arc<dyn Store>,
    name: String,
    line: Line,
    clock: u64,
    claims: Vec<Both>,
    /// What the store has answered so far.
    steps: Vec<String>,
    /// When the waiters were last renewed.
    kept: Instant,
}

impl<'a> Replay<'a> {
    fn new(subject: &'a Subject, history: u64) -> Replay<'a> {
        let name = format!("history-{history}");
        Replay {
            subject,
            store: subject.store(),
            name,
            line: Line::default(),
            clock: 0,
            claims: Vec::new(),
            steps: Vec::new(),
            kept: Instant::now(),
        }
    }

    fn note(&mut self, verb: &str, at: usize, answer: &impl Debug) {
        self.steps.push(format!("{verb} {at}: {answer:?}"));
    }

    fn now(&mut self) -> StoreTime {
        self.clock += 1;
        StoreTime::at(Duration::from_millis(self.clock))
    }

    async fn step(&mut self, random: &mut fastrand::Rng, semaphore: bool) -> Result<(), String> {
        if self.kept.elapsed() > KEPT {
            self.keep_waiters().await?;
        }
        match (random.u8(0..10), self.claims.len()) {
            (0..4, _) | (_, 0) => self.claim(random, semaphore).await,
            (4..6, count) => self.renew(random.usize(0..count)).await,
            (6..9, count) => self.release(random.usize(0..count)).await,
            (_, count) => self.revoke(random.usize(0..count)).await,
        }
    }

    /// Renews all that wait: whatever its lease is, a waiter lives for a few seconds.
    async fn keep_waiters(&mut self) -> Result<(), String> {
        self.kept = Instant::now();
        let waits = |id| self.line.waiters.iter().any(|waiter| waiter.claim == id);
        let waiting = self.claims.iter().filter(|both| waits(both.claim.id));
        let waiting: Vec<_> = waiting.map(|both| both.claim.to_ref(None)).collect();
        if waiting.is_empty() {
            return Ok(());
        }
        for answer in self.store.renew(&waiting).await {
            match answer.map_err(|error| error.to_string())? {
                Standing::Waiting(_) => {}
                other => return Err(format!("a waiter: {other:?}")),
            }
        }
        Ok(())
    }

    async fn claim(&mut self, random: &mut fastrand::Rng, semaphore: bool) -> Result<(), String> {
        let again = !self.claims.is_empty() && random.u8(0..5) == 0;
        if !again {
            let (kind, mode) = match (semaphore, random.u8(0..3)) {
                (true, permits) => (
                    Kind::Semaphore { limit: 3 },
                    Mode::Permits(u32::from(permits) + 1),
                ),
                (false, 0) => (Kind::Mutex, Mode::Exclusive),
                (false, 1) if self.subject.capability().rwlock => (Kind::RwLock, Mode::Shared),
                (false, _) => (Kind::RwLock, Mode::Exclusive),
            };
            let kind = if self.subject.capability().rwlock || semaphore {
                kind
            } else {
                Kind::Mutex
            };
            let id = ClaimId::from_bits(random.u128(..));
            let lease = Duration::from_secs(3600);
            let claim = Claim {
                id,
                kind,
                mode,
                lease,
                queue: random.u8(0..4) > 0,
                ..self.subject.claim(&self.name)
            };
            self.claims.push(Both {
                claim: Arc::new(claim),
                ours: None,
                theirs: None,
            });
        }
        let at = if again {
            random.usize(0..self.claims.len())
        } else {
            self.claims.len() - 1
        };
        let (now, claim) = (self.now(), Arc::clone(&self.claims[at].claim));
        let expected = self
            .line
            .claim(now, &claim, &mut Vec::new())
            .map_err(|error| format!("{error:?}"))?;
        let answer = self
            .store
            .claim(&claim)
            .await
            .map_err(|error| error.to_string())?;
        self.note("claim", at, &answer);
        match (&expected, &answer) {
            (Answer::Granted(ours), Answer::Granted(theirs)) => {
                self.granted(at, ours.fence, theirs.fence)
            }
            (Answer::Queued(ours), Answer::Queued(theirs))
                if theirs.ahead.is_none_or(|ahead| Some(ahead) == ours.ahead) =>
            {
                Ok(())
            }
            (Answer::Busy(_), Answer::Busy(_)) => Ok(()),
            _ => Err(format!("claim: {answer:?} and not {expected:?}")),
        }
    }

    fn granted(&mut self, at: usize, ours: Fence, theirs: Fence) -> Result<(), String> {
        let both = &mut self.claims[at];
        if both.ours.is_some_and(|known| known == ours)
            && both.theirs.is_some_and(|known| known != theirs)
        {
            return Err(format!("another fence for the same grant: {theirs}"));
        }
        (both.ours, both.theirs) = (Some(ours), Some(theirs));
        let order =
            |one: &Both, other: &Both| (one.ours.cmp(&other.ours), one.theirs.cmp(&other.theirs));
        let both = &self.claims[at];
        let known = self.claims.iter().filter(|other| other.ours.is_some());
        let wrong = known
            .map(|other| order(both, other))
            .any(|(ours, theirs)| ours != theirs);
        if wrong && !theirs.is_none() {
            Err(format!("fence {theirs} is out of order"))
        } else {
            Ok(())
        }
    }

    async fn renew(&mut self, at: usize) -> Result<(), String> {
        let now = self.now();
        let Both {
            claim,
            ours,
            theirs,
        } = &self.claims[at];
        let expected = self.line.renew(now, claim.id, *ours, &mut Vec::new());
        let answer = self
            .store
            .renew(&[claim.to_ref(*theirs)])
            .await
            .remove(0)
            .map_err(|error| error.to_string())?;
        self.note("renew", at, &answer);
        match (&expected, &answer) {
            (Standing::Held(ours), Standing::Held(theirs)) => {
                self.granted(at, ours.fence, theirs.fence)
            }
            (Standing::Waiting(ours), Standing::Waiting(theirs))
                if theirs.ahead.is_none_or(|ahead| Some(ahead) == ours.ahead) =>
            {
                Ok(())
            }
            (Standing::Gone(Gone::Revoked), Standing::Gone(Gone::Revoked)) => Ok(()),
            (
                Standing::Gone(Gone::Expired | Gone::Ended | Gone::Unknown | Gone::Taken),
                Standing::Gone(Gone::Expired | Gone::Ended | Gone::Unknown | Gone::Taken),
            ) => Ok(()),
            _ => Err(format!("renew: {answer:?} and not {expected:?}")),
        }
    }

    async fn release(&mut self, at: usize) -> Result<(), String> {
        let now = self.now();
        let Both {
            claim,
            ours,
            theirs,
            ..
        } = &self.claims[at];
        let expected = self
            .line
            .release(now, claim.id, *ours, Ending::Release, &mut Vec::new());
        let answer = self
            .store
            .release(&claim.to_ref(*theirs), Ending::Release)
            .await
            .map_err(|error| error.to_string())?;
        self.note("release", at, &answer);
        if answer == expected {
            Ok(())
        } else {
            Err(format!("release: {answer:?} and not {expected:?}"))
        }
    }

    async fn revoke(&mut self, at: usize) -> Result<(), String> {
        let (Some(ours), Some(theirs)) = (self.claims[at].ours, self.claims[at].theirs) else {
            return Ok(());
        };
        if !self.subject.capability().revoke {
            return Ok(());
        }
        let now = self.now();
        let name = self.claims[at].claim.name.clone();
        let expected = self.line.revoke(now, ours, &mut Vec::new());
        let answer = self
            .store
            .revoke(&name, theirs)
            .await
            .map_err(|error| error.to_string())?;
        self.note("revoke", at, &answer);
        match (&expected, &answer) {
            (Revoked::Done, Revoked::Done) | (Revoked::NotHeld, Revoked::NotHeld) => Ok(()),
            (Revoked::OtherHolder { .. }, Revoked::OtherHolder { .. }) => Ok(()),
            _ => Err(format!("revoke: {answer:?} and not {expected:?}")),
        }
    }

    /// Ends every claim, so that nothing is left in the store.
    async fn clear_away(self) {
        for Both { claim, .. } in &self.claims {
            let ended = self
                .store
                .release(&claim.to_ref(None), Ending::Undo)
                .await
                .expect("an answer");
            assert!(matches!(ended, Released::Done | Released::AlreadyLost));
        }
    }
}
