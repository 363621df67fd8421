//! Random histories on a server and on [`Line`], which must agree.
//!
//! Spans are whole seconds, and the server's clock is moved by whole seconds. The time that really
//! passes is a fraction of one, so both see the same order of events.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use fastrand::Rng;

use crate::error::Result;
use crate::fence::Fence;
use crate::line::{ClaimError, Line, StoreTime, Told};
use crate::name::Name;
use crate::store::{
    Answer, Busy, Change, Claim, ClaimId, ClaimRef, Ending, Holder, Kind, LineView, Mode, Place,
    Query, Revoked, Standing, Store,
};

const SLOTS: usize = 7;
const STEPS: usize = 60;
/// How much time may really pass.
const SLACK: Duration = Duration::from_millis(800);
const NAME: &str = "orders";

/// A server whose clock can be moved.
#[async_trait]
trait Server: Send + Sync {
    fn url(&self) -> String;
    fn set_ahead(&self, by: Duration);
    async fn now(&self) -> StoreTime;
}

async fn random_histories_go_as_specified(server: &dyn Server) {
    let seed = std::env::var("PALISADE_SEED")
        .ok()
        .map(|seed| seed.parse().unwrap());
    let first = seed.unwrap_or_else(|| fastrand::u64(..1 << 40));
    let count = if seed.is_some() {
        1
    } else {
        std::env::var("PALISADE_HISTORIES").map_or(80, |count| count.parse().unwrap())
    };
    let mut world = World {
        server,
        store: crate::stores::open(server.url().parse().unwrap()).unwrap(),
        ahead: 0,
        made: 0,
    };
    let mut played = 0;
    for seed in first..first + count {
        println!("PALISADE_SEED={seed}");
        played += world.play(seed).await;
    }
    assert!(
        played as u64 > count * STEPS as u64 / 2,
        "only {played} steps were played: the machine is too slow for this test"
    );
}

#[cfg(feature = "mysql")]
mod mysql {
    use mysql_async::Pool;
    use mysql_async::prelude::Queryable;
    use palisade_testkit::mariadb::MariaDb;

    use super::*;

    struct Timed(MariaDb, Pool);

    #[async_trait]
    impl Server for Timed {
        fn url(&self) -> String {
            self.0.url()
        }

        fn set_ahead(&self, by: Duration) {
            self.0.clock().set_ahead(by);
        }

        async fn now(&self) -> StoreTime {
            let now = format!("SELECT {}", crate::stores::mysql::NOW);
            let micros: u64 = self
                .1
                .get_conn()
                .await
                .unwrap()
                .query_first(now)
                .await
                .unwrap()
                .unwrap();
            StoreTime::at(Duration::from_micros(micros))
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn random_histories_go_as_specified() {
        let server = MariaDb::with().clock().start();
        // Histories have no time to wait for the disk.
        server.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 2");
        let clock = Pool::from_url(server.url()).unwrap();
        super::random_histories_go_as_specified(&Timed(server, clock)).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn renewals_of_many_names_are_answered_each() {
        super::renewals_of_many_names_are_answered_each(&MariaDb::start().url()).await;
    }
}

#[cfg(feature = "postgres")]
mod postgres {
    use palisade_testkit::postgres::Postgres;
    use tokio_postgres::{Client, NoTls, connect};

    use super::*;

    struct Timed(Postgres, Client);

    #[async_trait]
    impl Server for Timed {
        fn url(&self) -> String {
            self.0.url()
        }

        fn set_ahead(&self, by: Duration) {
            self.0.clock().set_ahead(by);
        }

        async fn now(&self) -> StoreTime {
            let now = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
            let row = self.1.query_one(now, &[]).await.unwrap();
            let micros = row.get::<_, i64>(0).try_into().unwrap();
            StoreTime::at(Duration::from_micros(micros))
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn random_histories_go_as_specified() {
        let server = Postgres::with().clock().start();
        // Histories have no time to wait for the disk.
        server.sql("ALTER SYSTEM SET fsync = off");
        server.sql("SELECT pg_reload_conf()");
        let (clock, connection) = connect(&server.url(), NoTls).await.unwrap();
        tokio::spawn(connection);
        super::random_histories_go_as_specified(&Timed(server, clock)).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn renewals_of_many_names_are_answered_each() {
        super::renewals_of_many_names_are_answered_each(&Postgres::start().url()).await;
    }
}

fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

#[derive(Debug)]
enum Op {
    Claim(Arc<Claim>),
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
    server: &'a dyn Server,
    store: Arc<dyn Store>,
    /// How far the server's clock was moved, over all histories.
    ahead: u64,
    made: u128,
}

/// One history.
struct History {
    name: Name,
    flavour: usize,
    line: Line,
    slots: Vec<Option<Arc<Claim>>>,
    /// The latest fence of each claim, as the line counts.
    fence_of: HashMap<ClaimId, Fence>,
    /// The line's fences, and the server's.
    fences: BTreeMap<Fence, Fence>,
}

impl World<'_> {
    async fn play(&mut self, seed: u64) -> usize {
        let mut rng = Rng::with_seed(seed);
        let mut history = History {
            name: Name::new(format!("{NAME}-{seed}")).unwrap(),
            flavour: rng.usize(..4),
            line: Line::default(),
            slots: vec![None; SLOTS],
            fence_of: HashMap::new(),
            fences: BTreeMap::new(),
        };
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
                self.server.set_ahead(secs(self.ahead));
            }
            let now = self.server.now().await;
            let Some(op) = self.op(&mut rng, &mut history) else {
                continue;
            };
            let context = format!("seed {seed}, step {step}, {op:?}");
            if !self
                .same(&mut history, op, now, begun, &mut rng, &context)
                .await
                || !self.same_view(&mut history, begun, &context).await
            {
                // The machine was busy for too long: the order of events is not certain any more.
                return step;
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
        let by = match rng.u8(..8) {
            0..=2 => By::Nothing,
            3..=6 => By::Its,
            _ => By::Wrong,
        };
        Some(match rng.u8(..22) {
            0..=8 => {
                let alive = |claim: &Arc<Claim>| history.line.knows(claim.id);
                let again = |claim: &Arc<Claim>| alive(claim) || claim.id.bits().is_multiple_of(7);
                if !history.slots[slot].as_ref().is_some_and(again) {
                    self.made += 1;
                    history.slots[slot] = Some(Arc::new(Claim {
                        name: history.name.clone(),
                        ..some_claim(rng, self.made, flavour)
                    }));
                }
                Op::Claim(history.slots[slot].clone()?)
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

    /// Applies an event on both sides, and compares the answers; `false` when it took too long.
    async fn same(
        &mut self,
        history: &mut History,
        op: Op,
        now: StoreTime,
        begun: Instant,
        rng: &mut Rng,
        context: &str,
    ) -> bool {
        let (store, mut told) = (Arc::clone(&self.store), Vec::new());
        let in_time = || begun.elapsed() < SLACK;
        match op {
            Op::Claim(claim) => {
                let mut expected = history.line.clone();
                let answer = expected.claim(now, &claim, &mut told);
                // A claim that never fits is not sent, so nothing happens on the server.
                if matches!(answer, Err(ClaimError::ModeMisfit { .. })) {
                    told.clear();
                } else {
                    history.line = expected;
                }
                let found = store.claim(&claim).await;
                if !in_time() {
                    return false;
                }
                history.same_answer(&claim, answer, found, context);
            }
            Op::Renew(slot, by) => {
                let Some(claim) = history.slots[slot].clone() else {
                    return true;
                };
                let (fence, its) = history.fence(claim.id, by);
                let expected = history.line.renew(now, claim.id, fence, &mut told);
                let mut found = store.renew(&[claim.to_ref(its)]).await;
                if !in_time() {
                    return false;
                }
                let found = found.pop().unwrap().unwrap();
                history.same_standing(&claim, expected, found, context);
            }
            Op::Release(slot, by, ending) => {
                let Some(claim) = history.slots[slot].clone() else {
                    return true;
                };
                let (fence, its) = history.fence(claim.id, by);
                let expected = history
                    .line
                    .release(now, claim.id, fence, ending, &mut told);
                let found = store.release(&claim.to_ref(its), ending).await;
                if !in_time() {
                    return false;
                }
                assert_eq!(expected, found.unwrap(), "{context}");
            }
            Op::Downgrade(slot, by) | Op::Proclaim(slot, by) => {
                let Some(claim) = history.slots[slot].clone() else {
                    return true;
                };
                let (Some(fence), its) = history.fence(claim.id, by) else {
                    return true;
                };
                let value = "x".repeat(rng.usize(..12));
                let line = &mut history.line;
                let (expected, to) = if matches!(op, Op::Downgrade(..)) {
                    let expected = line.downgrade(now, claim.id, fence, &mut told);
                    (expected, Change::Downgrade)
                } else {
                    let expected = line.proclaim(now, claim.id, fence, &value, &mut told);
                    (expected, Change::Proclaim(value.into()))
                };
                let found = store.change(&claim.to_ref(its), to).await;
                if !in_time() {
                    return false;
                }
                history.same_standing(&claim, expected, found.unwrap(), context);
            }
            Op::Revoke(slot, by) => {
                let Some(claim) = history.slots[slot].clone() else {
                    return true;
                };
                let (Some(fence), Some(its)) = history.fence(claim.id, by) else {
                    return true;
                };
                let expected = history.line.revoke(now, fence, &mut told);
                let found = store.revoke(&history.name, its).await;
                if !in_time() {
                    return false;
                }
                match (expected, found.unwrap()) {
                    (Revoked::OtherHolder { fence }, Revoked::OtherHolder { fence: found }) => {
                        history.same_fence(fence, found, context)
                    }
                    (expected, found) => assert_eq!(expected, found, "{context}"),
                }
            }
            Op::ClearMarks => {
                let expected = history.line.clear_marks(now, &mut told);
                let clear = store.extensions().clear_marks.unwrap();
                let found = clear.clear_marks(&history.name).await;
                if !in_time() {
                    return false;
                }
                assert_eq!(expected, found.unwrap(), "{context}");
            }
        }
        // Their fences on the server are seen in the view that follows.
        for told in told {
            if let Told::Granted { claim, fence } = told {
                history.fence_of.insert(claim, fence);
            }
        }
        true
    }

    async fn same_view(&mut self, history: &mut History, begun: Instant, context: &str) -> bool {
        let now = self.server.now().await;
        let expected = history.line.view(now, &history.name);
        let query = Query::Show(history.name.clone());
        let found = self.store.inspect(&query).await.unwrap().lines.pop();
        if begun.elapsed() > SLACK {
            return false;
        }
        let Some(found) = found else {
            assert!(
                expected.is_free(),
                "{context}: nothing is shown of {expected:?}"
            );
            return true;
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
        // Of a name whose last claim has expired, either shows what it was or what it is by now.
        if !expected.holders.is_empty() || !expected.waiters.is_empty() {
            assert_eq!(expected.kind, found.kind, "{context}");
        }
        assert_eq!(
            expected.holders.len(),
            found.holders.len(),
            "{context}: {expected:?} {found:?}"
        );
        for (expected, found) in expected.holders.into_iter().zip(found.holders) {
            history.same_holder(Some(expected), Some(found), context);
        }
        let waiters = |waiters: &[crate::store::Waiter]| -> Vec<(String, Mode)> {
            let each = waiters.iter();
            each.map(|waiter| (waiter.owner.clone(), waiter.mode))
                .collect()
        };
        assert_eq!(
            waiters(&expected.waiters),
            waiters(&found.waiters),
            "{context}"
        );
        for (expected, found) in expected.waiters.iter().zip(&found.waiters) {
            near(expected.waited, found.waited, context);
        }
        true
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
    let id = ClaimId::from_bits(number << 64 | 0xfeed);
    Claim {
        kind,
        mode,
        queue: rng.u8(..7) > 0,
        min_hold: rarely(rng, 1),
        once_per: rarely(rng, 0),
        owner: Arc::from(format!("owner {number}")),
        ..Claim::of_mutex(id, NAME, secs(lease))
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
    /// The fence to come with, for the line and for the server.
    fn fence(&self, claim: ClaimId, by: By) -> (Option<Fence>, Option<Fence>) {
        match by {
            By::Nothing => (None, None),
            By::Wrong => (Some(Fence::MAX), Some(Fence::MAX)),
            By::Its => match self.fence_of.get(&claim) {
                Some(fence) => match self.fences.get(fence) {
                    Some(its) => (Some(*fence), Some(*its)),
                    // Granted and gone before it was seen.
                    None => (None, None),
                },
                None => (None, None),
            },
        }
    }

    /// The two count differently, but in the same order.
    fn same_fence(&mut self, expected: Fence, found: Fence, context: &str) {
        let known = *self.fences.entry(expected).or_insert(found);
        assert_eq!(known, found, "{context}");
        let sorted = self.fences.values().is_sorted_by(|one, next| one < next);
        assert!(sorted, "{context}: {:?}", self.fences);
    }

    fn granted(&mut self, claim: ClaimId, expected: Fence, found: Fence, context: &str) {
        self.same_fence(expected, found, context);
        self.fence_of.insert(claim, expected);
    }

    fn same_answer(
        &mut self,
        claim: &Claim,
        expected: Result<Answer, ClaimError>,
        found: Result<Answer>,
        context: &str,
    ) {
        match (expected, found) {
            (Ok(Answer::Granted(expected)), Ok(Answer::Granted(found))) => {
                assert_eq!(expected.lease, found.lease, "{context}");
                self.granted(claim.id, expected.fence, found.fence, context);
            }
            (Ok(Answer::Queued(expected)), Ok(Answer::Queued(found))) => {
                same_place(expected, found, context);
            }
            (Ok(Answer::Busy(expected)), Ok(Answer::Busy(found))) => {
                self.same_busy(expected, found, context)
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
                same_place(expected, found, context)
            }
            (expected, found) => assert_eq!(expected, found, "{context}"),
        }
    }

    fn same_busy(&mut self, expected: Busy, found: Busy, context: &str) {
        assert_eq!(
            (expected.too_soon, expected.closed),
            (found.too_soon, found.closed),
            "{context}"
        );
        near(expected.ask_in, found.ask_in, context);
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
}

fn same_place(expected: Place, found: Place, context: &str) {
    assert_eq!(expected.ahead, found.ahead, "{context}");
    near(expected.ask_in, found.ask_in, context);
    assert_eq!(expected.lease, found.lease, "{context}");
    assert_eq!(
        found.holder, None,
        "{context}: a waiter asks for the holder at the end of its wait"
    );
}

/// A claim ref is what renewals are made of; several of one client go together.
async fn renewals_of_many_names_are_answered_each(url: &str) {
    let store = crate::stores::open(url.parse().unwrap()).unwrap();
    let mut refs: Vec<ClaimRef> = Vec::new();
    for number in 0..150_u128 {
        let claim = Claim::of_mutex(
            ClaimId::from_bits(number + 1),
            &format!("n{number}"),
            secs(60),
        );
        let claim = Arc::new(claim);
        let fence = match store.claim(&claim).await.unwrap() {
            Answer::Granted(grant) => grant.fence,
            other => panic!("{other:?}"),
        };
        let wrong = number % 3 == 0;
        refs.push(claim.to_ref(Some(if wrong { Fence::MAX } else { fence })));
    }
    // In an order that is not that of the names.
    refs.reverse();
    let standings = store.renew(&refs).await;
    assert_eq!(standings.len(), refs.len());
    for (claim, standing) in refs.iter().zip(standings) {
        match standing.unwrap() {
            Standing::Held(grant) => assert_eq!(Some(grant.fence), claim.fence),
            other => assert_eq!(
                (claim.fence, other),
                (
                    Some(Fence::MAX),
                    Standing::Gone(crate::store::Gone::Unknown)
                )
            ),
        }
    }
}
