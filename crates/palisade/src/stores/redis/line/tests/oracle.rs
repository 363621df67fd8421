//! Random histories on a server and on [`Line`], which must agree.
//!
//! Spans are whole seconds, and the server's clock is moved by whole seconds. The time that really
//! passes is a fraction of one, so both see the same order of events.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use fastrand::Rng;

use super::*;
use crate::line::{Line, StoreTime, Told};
use crate::store::{Busy, Gone, Holder, Place};

const SLOTS: usize = 7;
const STEPS: usize = 60;
/// How much time may really pass.
const SLACK: Duration = Duration::from_millis(400);

#[test]
fn random_histories_go_as_specified() {
    histories(1);
}

/// Several verbs in one script, on one key after the other and on several keys.
#[test]
fn random_histories_go_as_specified_in_batches() {
    histories(3);
}

/// Plays so many histories at the same time.
fn histories(at_once: u64) {
    let server = Redis::with().clock().start();
    let seed = std::env::var("PALISADE_SEED")
        .ok()
        .map(|seed| seed.parse().unwrap());
    let first = seed.unwrap_or_else(|| fastrand::u64(..1 << 40));
    let count = if seed.is_some() {
        1
    } else {
        std::env::var("PALISADE_HISTORIES").map_or(120, |count| count.parse().unwrap())
    };
    let mut world = World::new(&server);
    let mut played = 0;
    for seed in first..first + count {
        println!("PALISADE_SEED={seed}");
        played += world.play(seed, at_once);
    }
    assert!(
        played as u64 > count * STEPS as u64 / 2,
        "only {played} steps were played: the machine is too slow for this test"
    );
}

#[derive(Debug)]
enum Op {
    Claim(Box<Claim>),
    Renew(usize, By),
    Release(usize, By, Ending),
    Downgrade(usize, By),
    Proclaim(usize, By),
    Revoke(usize, By),
    ClearMarks,
}

/// The fence that an event carries.
#[derive(Clone, Copy, Debug)]
enum By {
    Nothing,
    Its,
    Wrong,
}

struct World<'a> {
    server: &'a Redis,
    client: Client,
    inbox: Connection,
    /// How far the server's clock was moved, over all histories.
    ahead: u64,
    made: u128,
}

/// One history.
struct History {
    key: String,
    flavour: usize,
    line: Line,
    slots: Vec<Option<Claim>>,
    /// The latest fence of each claim, as the line counts.
    fence_of: HashMap<ClaimId, Fence>,
    /// The line's fences, and the server's.
    fences: BTreeMap<Fence, Fence>,
    inboxes: HashMap<ClaimId, String>,
    /// Whether so much time has passed at once that a key may be gone.
    may_forget: bool,
}

/// A call to the server, and its expected reply.
struct Ask {
    call: Call,
    expected: Expected,
    /// The expected pushes, each with its inbox.
    told: Vec<(Told, String)>,
}

enum Expected {
    /// The flag: whether the line is then without waiters.
    Answer(Box<Claim>, Result<Answer, crate::line::ClaimError>, bool),
    Standing(Claim, Standing),
    Released(Released),
    Revoked(Revoked),
    Cleared(bool),
}

impl World<'_> {
    fn new(server: &Redis) -> World<'_> {
        let mut inbox = redis::Client::open(server.url())
            .unwrap()
            .get_connection()
            .unwrap();
        inbox.set_read_timeout(Some(secs(10))).unwrap();
        inbox
            .send_packed_command(&redis::cmd("PSUBSCRIBE").arg("in:*").get_packed_command())
            .unwrap();
        inbox.recv_response().unwrap();
        World {
            server,
            client: Client::of(server),
            inbox,
            ahead: 0,
            made: 0,
        }
    }

    fn now(&mut self) -> StoreTime {
        let (secs, micros): (u64, u64) = redis::cmd("TIME").query(&mut self.client.0).unwrap();
        StoreTime::at(Duration::from_micros(secs * 1_000_000 + micros))
    }

    fn play(&mut self, seed: u64, at_once: u64) -> usize {
        let mut rng = Rng::with_seed(seed);
        let mut histories: Vec<History> = (0..at_once)
            .map(|number| History::new(format!("palisade:1:{{{seed}-{number}}}"), rng.usize(..4)))
            .collect();
        let begun = Instant::now();
        for step in 0..STEPS {
            let pause = match rng.u8(..20) {
                0..=10 => 0,
                11..=15 => 1,
                16..=18 => rng.u64(2..5),
                _ => *rng.choice(&[6, 12, 700, 4000]).unwrap(),
            };
            if pause > 0 {
                self.ahead += pause;
                self.server.clock().set_ahead(secs(self.ahead));
            }
            histories
                .iter_mut()
                .for_each(|history| history.may_forget |= pause >= 600);
            let now = self.now();
            let mut asked = Vec::new();
            for (number, history) in histories.iter_mut().enumerate() {
                // Two on one key, one after the other, where they are batched.
                for _ in 0..if at_once > 1 { rng.usize(..3) } else { 1 } {
                    let Some(op) = self.op(&mut rng, history) else {
                        continue;
                    };
                    let context = format!("seed {seed}, step {step}, history {number}, {op:?}");
                    asked.extend(
                        history
                            .ask(op, now, &mut rng)
                            .map(|ask| (number, ask, context)),
                    );
                }
            }
            let calls: Vec<&Call> = asked.iter().map(|(_, ask, _)| &ask.call).collect();
            let replies = if at_once > 1 {
                self.client.run_batched(&calls)
            } else {
                self.client.run_each(&calls)
            };
            let mut heard = self.heard().into_iter();
            // The machine was busy for too long: the order of events is not certain any more.
            if begun.elapsed() > SLACK {
                return step;
            }
            for ((number, ask, context), reply) in asked.into_iter().zip(replies) {
                let news: Vec<_> = heard.by_ref().take(ask.told.len()).collect();
                histories[number].same(ask, &reply, &news, &context);
            }
            assert_eq!(
                heard.collect::<Vec<_>>(),
                [],
                "seed {seed}, step {step}: no such push was expected"
            );
            for history in &mut histories {
                self.same_view(
                    history,
                    begun,
                    &format!("seed {seed}, step {step}, {}", history.key),
                );
            }
            if begun.elapsed() > SLACK / 2 {
                return step + 1;
            }
        }
        STEPS
    }

    fn op(&mut self, rng: &mut Rng, history: &mut History) -> Option<Op> {
        let flavour = history.flavour;
        let slot = rng.usize(..SLOTS);
        let by = *rng
            .choice(&[
                By::Nothing,
                By::Nothing,
                By::Nothing,
                By::Its,
                By::Its,
                By::Its,
                By::Its,
                By::Wrong,
            ])
            .unwrap();
        Some(match rng.u8(..22) {
            0..=8 => {
                let alive = |claim: &Claim| history.line.knows(claim.id);
                let again = |claim: &Claim| alive(claim) || claim.id.bits().is_multiple_of(7);
                if !history.slots[slot].as_ref().is_some_and(again) {
                    self.made += 1;
                    history.slots[slot] = Some(some_claim(rng, self.made, flavour));
                }
                Op::Claim(Box::new(history.slots[slot].clone()?))
            }
            9..=12 => Op::Renew(slot, by),
            13..=17 => {
                let ending = match rng.u8(..12) {
                    0..=8 => Ending::Release,
                    9..=10 => Ending::Undo,
                    _ if flavour == 0 => Ending::Release,
                    _ => Ending::Seal(secs(rng.u64(..4))),
                };
                Op::Release(slot, by, ending)
            }
            18 => Op::Downgrade(slot, by),
            19 => Op::Proclaim(slot, by),
            20 => Op::Revoke(slot, by),
            _ => Op::ClearMarks,
        })
    }

    /// All that was published since the last call.
    fn heard(&mut self) -> Vec<(String, Vec<u8>)> {
        let _: i64 = self.client.ask(&["PUBLISH", "in:", "over"]);
        let mut heard = Vec::new();
        loop {
            let (_, _, inbox, payload): (String, String, String, Vec<u8>) =
                redis::from_redis_value(self.inbox.recv_response().unwrap()).unwrap();
            if inbox == "in:" {
                return heard;
            }
            heard.push((inbox, payload));
        }
    }

    fn same_view(&mut self, history: &mut History, begun: Instant, context: &str) {
        let name = Name::new("orders").unwrap();
        let now = self.now();
        let expected = history.line.view(now, &name);
        let found = view(&self.client.run(&show(&history.key)), &name).unwrap();
        if begun.elapsed() > SLACK {
            return;
        }
        let Some(found) = found else {
            assert!(
                expected.is_free(),
                "{context}: nothing is shown of {expected:?}"
            );
            return;
        };
        let spans = |line: &LineView| {
            let marks = line.marks;
            [
                marks.closed_for,
                marks.ran_ago,
                marks.due_in,
                marks.done_for,
            ]
        };
        for (expected, found) in spans(&expected).into_iter().zip(spans(&found)) {
            if expected.is_some() || found.is_some() {
                near(expected, found, &format!("{context}: marks"));
            }
        }
        assert_eq!(expected.kind, found.kind, "{context}");
        assert_eq!(
            expected.holders.len(),
            found.holders.len(),
            "{context}: {expected:?} {found:?}"
        );
        for (expected, found) in expected.holders.into_iter().zip(found.holders) {
            history.same_holder(Some(expected), Some(found), context);
        }
        let waiters = |view: &LineView| {
            view.waiters
                .iter()
                .map(|waiter| (waiter.owner.clone(), waiter.mode))
                .collect::<Vec<_>>()
        };
        let expected = history.line.view(now, &name);
        let found = view(&self.client.run(&show(&history.key)), &name)
            .unwrap()
            .unwrap();
        if begun.elapsed() > SLACK {
            return;
        }
        assert_eq!(waiters(&expected), waiters(&found), "{context}");
        for (expected, found) in expected.waiters.iter().zip(&found.waiters) {
            near(expected.waited, found.waited, context);
        }
    }
}

fn some_claim(rng: &mut Rng, number: u128, flavour: usize) -> Claim {
    let rarely = |rng: &mut Rng, from: u64| {
        (flavour != 0 && rng.u8(..5) == 0).then(|| secs(rng.u64(from..8)))
    };
    let (kind, mode) = match (flavour, rng.u8(..12)) {
        (0, _) => (Kind::Mutex, Mode::Exclusive),
        (1 | 2, 0..=4) => (Kind::RwLock, Mode::Shared),
        (1 | 2, 5..=7) => (Kind::RwLock, Mode::Exclusive),
        (1 | 2, 8..=10) => (Kind::Mutex, Mode::Exclusive),
        (1 | 2, _) => (Kind::Semaphore { limit: 3 }, Mode::Permits(1)),
        (_, 0) => (Kind::Mutex, Mode::Exclusive),
        (_, 1) => (Kind::Semaphore { limit: 4 }, Mode::Permits(1)),
        _ => (Kind::Semaphore { limit: 3 }, Mode::Permits(rng.u32(..5))),
    };
    let lease = if rng.u8(..8) == 0 {
        2000
    } else {
        rng.u64(1..9)
    };
    Claim {
        kind,
        mode,
        lease: secs(lease),
        queue: rng.u8(..7) > 0,
        min_hold: rarely(rng, 1),
        once_per: rarely(rng, 0),
        ..mutex(number)
    }
}

#[track_caller]
fn near(expected: Option<Duration>, found: Option<Duration>, context: &str) {
    match (expected, found) {
        (Some(expected), Some(found)) if expected.abs_diff(found) < SLACK => {}
        _ => panic!("{context}: {expected:?} was expected, found is {found:?}"),
    }
}

impl History {
    fn new(key: String, flavour: usize) -> History {
        History {
            key,
            flavour,
            line: Line::default(),
            slots: vec![None; SLOTS],
            fence_of: HashMap::new(),
            fences: BTreeMap::new(),
            inboxes: HashMap::new(),
            may_forget: false,
        }
    }

    /// Applies the event to the line, and returns the call for the server.
    fn ask(&mut self, op: Op, now: StoreTime, rng: &mut Rng) -> Option<Ask> {
        let mut told = Vec::new();
        let (call, expected) = match op {
            Op::Claim(wanted) => {
                let inbox = format!("in:{}", rng.u8(..));
                let expected = self.line.claim(now, &wanted, &mut told);
                let call = claim(&self.key, &wanted, &inbox);
                self.inboxes.insert(wanted.id, inbox);
                (
                    call,
                    Expected::Answer(wanted, expected, self.line.waiters.is_empty()),
                )
            }
            Op::Renew(slot, by) => {
                let claim = self.slots[slot].clone()?;
                let (fence, its) = self.fence(claim.id, by);
                let inbox = if rng.u8(..3) == 0 {
                    format!("in:{}", rng.u8(..))
                } else {
                    self.inboxes[&claim.id].clone()
                };
                let expected = self.line.renew(now, claim.id, fence, &mut told);
                let call = renew(&self.key, &known(&claim, its), &inbox);
                if !matches!(expected, Standing::Gone(_)) {
                    self.inboxes.insert(claim.id, inbox);
                }
                (call, Expected::Standing(claim, expected))
            }
            Op::Release(slot, by, ending) => {
                let claim = self.slots[slot].clone()?;
                let (fence, its) = self.fence(claim.id, by);
                let expected = self.line.release(now, claim.id, fence, ending, &mut told);
                (
                    release(&self.key, &known(&claim, its), ending),
                    Expected::Released(expected),
                )
            }
            Op::Downgrade(slot, by) => {
                let claim = self.slots[slot].clone()?;
                let (Some(fence), its) = self.fence(claim.id, by) else {
                    return None;
                };
                let expected = self.line.downgrade(now, claim.id, fence, &mut told);
                (
                    downgrade(&self.key, &known(&claim, its)),
                    Expected::Standing(claim, expected),
                )
            }
            Op::Proclaim(slot, by) => {
                let claim = self.slots[slot].clone()?;
                let (Some(fence), its) = self.fence(claim.id, by) else {
                    return None;
                };
                let value = "x".repeat(rng.usize(..12));
                let expected = self.line.proclaim(now, claim.id, fence, &value, &mut told);
                (
                    proclaim(&self.key, &known(&claim, its), &value),
                    Expected::Standing(claim, expected),
                )
            }
            Op::ClearMarks => (
                clear_marks(&self.key),
                Expected::Cleared(self.line.clear_marks(now, &mut told)),
            ),
            Op::Revoke(slot, by) => {
                let claim = self.slots[slot].clone()?;
                let (Some(fence), Some(its)) = self.fence(claim.id, by) else {
                    return None;
                };
                (
                    revoke(&self.key, its),
                    Expected::Revoked(self.line.revoke(now, fence, &mut told)),
                )
            }
        };
        // As it is now: later events may change it.
        let told = told
            .into_iter()
            .map(|told| (told, self.inboxes[&told.claim()].clone()))
            .collect();
        Some(Ask {
            call,
            expected,
            told,
        })
    }

    fn same(&mut self, ask: Ask, reply: &Value, news: &[(String, Vec<u8>)], context: &str) {
        match ask.expected {
            Expected::Answer(wanted, expected, no_line) => {
                self.same_answer(
                    &wanted,
                    expected,
                    claim_answer(reply, &wanted),
                    no_line,
                    context,
                );
            }
            Expected::Standing(claim, expected) => {
                self.same_standing(&claim, expected, standing(reply, &claim).unwrap(), context);
            }
            Expected::Released(expected) => {
                assert_eq!(expected, released(reply).unwrap(), "{context}")
            }
            Expected::Cleared(expected) => {
                assert_eq!(expected, cleared(reply).unwrap(), "{context}")
            }
            Expected::Revoked(expected) => match (expected, revoked(reply).unwrap()) {
                (Revoked::OtherHolder { fence }, Revoked::OtherHolder { fence: found }) => {
                    self.same_fence(fence, found, context)
                }
                (expected, found) => assert_eq!(expected, found, "{context}"),
            },
        }
        self.same_news(&ask.told, news, context);
    }

    /// The fence to come with, for the line and for the server.
    fn fence(&self, claim: ClaimId, by: By) -> (Option<Fence>, Option<Fence>) {
        match by {
            By::Nothing => (None, None),
            By::Wrong => (Some(Fence::MAX), Some(Fence::MAX)),
            By::Its => match self.fence_of.get(&claim) {
                Some(fence) => (Some(*fence), Some(self.fences[fence])),
                None => (None, None),
            },
        }
    }

    /// The two count differently, but in the same order.
    fn same_fence(&mut self, expected: Fence, found: Fence, context: &str) {
        let known = *self.fences.entry(expected).or_insert(found);
        assert_eq!(known, found, "{context}");
        assert!(
            self.fences
                .range(..expected)
                .all(|(_, lower)| *lower < found),
            "{context}: {:?}",
            self.fences
        );
        assert!(
            self.fences
                .range(expected..)
                .skip(1)
                .all(|(_, higher)| *higher > found),
            "{context}: {:?}",
            self.fences
        );
    }

    fn granted(&mut self, claim: ClaimId, expected: Fence, found: Fence, context: &str) {
        self.same_fence(expected, found, context);
        self.fence_of.insert(claim, expected);
    }

    fn same_answer(
        &mut self,
        claim: &Claim,
        expected: Result<Answer, crate::line::ClaimError>,
        found: Result<Answer>,
        no_line: bool,
        context: &str,
    ) {
        match (expected, found) {
            (Ok(Answer::Granted(expected)), Ok(Answer::Granted(found))) => {
                assert_eq!(expected.lease, found.lease, "{context}");
                self.granted(claim.id, expected.fence, found.fence, context);
            }
            (Ok(Answer::Queued(expected)), Ok(Answer::Queued(found))) => {
                let is_first = expected.ahead == Some(0);
                self.same_place(expected, found, is_first, context);
            }
            (Ok(Answer::Busy(expected)), Ok(Answer::Busy(found))) => {
                self.same_busy(expected, found, no_line, context)
            }
            (Ok(Answer::Sealed), Ok(Answer::Sealed)) => {}
            (Err(expected), Err(found)) => {
                let expected = expected.of(&claim.name);
                assert_eq!(expected.to_string(), found.to_string(), "{context}")
            }
            (expected, found) => panic!("{context}: {expected:?} was expected, found is {found:?}"),
        }
    }

    fn same_standing(&mut self, claim: &Claim, expected: Standing, found: Standing, context: &str) {
        match (expected, found) {
            (Standing::Held(expected), Standing::Held(found)) => {
                assert_eq!(expected.lease, found.lease, "{context}");
                self.granted(claim.id, expected.fence, found.fence, context);
            }
            (Standing::Waiting(expected), Standing::Waiting(found)) => {
                self.same_place(expected, found, true, context)
            }
            // The key has expired, and its last fence with it.
            (Standing::Gone(Gone::Ended), Standing::Gone(Gone::Unknown)) if self.may_forget => {}
            (expected, found) => assert_eq!(expected, found, "{context}"),
        }
    }

    fn same_place(&mut self, expected: Place, found: Place, exact: bool, context: &str) {
        if exact || found.ahead.is_some() {
            assert_eq!(expected.ahead, found.ahead, "{context}");
        }
        if exact || found.ask_in.is_some() {
            near(expected.ask_in, found.ask_in, context);
        }
        assert_eq!(expected.lease, found.lease, "{context}");
        assert_eq!(
            found.holder, None,
            "{context}: a waiter asks for the holder at the end of its wait"
        );
    }

    fn same_busy(&mut self, expected: Busy, found: Busy, no_line: bool, context: &str) {
        assert_eq!(
            (expected.too_soon, expected.closed),
            (found.too_soon, found.closed),
            "{context}"
        );
        if found.ask_in.is_some() || no_line {
            near(expected.ask_in, found.ask_in, context);
        }
        self.same_holder(expected.holder, found.holder, context);
    }

    fn same_holder(&mut self, expected: Option<Holder>, found: Option<Holder>, context: &str) {
        let (Some(expected), Some(found)) = (&expected, &found) else {
            assert_eq!(expected, found, "{context}");
            return;
        };
        self.same_fence(expected.fence, found.fence, context);
        assert_eq!(
            (&expected.owner, &expected.reason, expected.mode),
            (&found.owner, &found.reason, found.mode),
            "{context}"
        );
        near(expected.held, found.held, context);
        near(expected.lease_left, found.lease_left, context);
    }

    fn same_news(
        &mut self,
        expected: &[(Told, String)],
        found: &[(String, Vec<u8>)],
        context: &str,
    ) {
        assert_eq!(
            expected.len(),
            found.len(),
            "{context}: {expected:?} {found:?}"
        );
        for ((expected, told_in), (inbox, payload)) in expected.iter().zip(found) {
            let (claim, news) = push(payload).unwrap();
            assert_eq!((expected.claim(), told_in), (claim, inbox), "{context}");
            match (expected, news) {
                (Told::Granted { fence, .. }, Push::Granted(found)) => {
                    self.granted(claim, *fence, found, context)
                }
                (Told::Gone { why, .. }, Push::Gone(found)) => assert_eq!(*why, found, "{context}"),
                (expected, found) => {
                    panic!("{context}: {expected:?} was expected, heard was {found:?}")
                }
            }
        }
    }
}

/// Not a part of the random histories: no claim of theirs has a session.
#[test]
fn no_script_says_that_a_session_ended() {
    assert_eq!(push(format!("x{}", id(1).reveal()).as_bytes()), None);
    assert!(!matches!(
        standing(&Value::BulkString(b"x".to_vec()), &mutex(1)),
        Ok(Standing::Gone(Gone::SessionEnded))
    ));
}
