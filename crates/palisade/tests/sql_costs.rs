//! What the pages of PostgreSQL and MySQL say of the costs: each verb is one request, in each state that
//! a line can be in.

#![cfg(all(feature = "postgres", feature = "mysql"))]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::actors::soon;
use palisade::Fence;
use palisade::store::{
    Answer, Change, Claim, ClaimId, ClaimRef, Ending, Kind, Mode, Released, Revoked, Standing,
    Store,
};
use palisade_conformance::Subject;
use palisade_testkit::mariadb::MariaDb;
use palisade_testkit::postgres::Postgres;

/// Counts the requests that clients have sent.
struct Costs<'s> {
    store: Arc<dyn Store>,
    requests: &'s dyn Fn() -> u64,
    /// What the question costs by itself.
    asking: u64,
}

impl Costs<'_> {
    /// Runs a verb, and checks that it was one request.
    #[track_caller]
    fn one<T, F: Future<Output = T>>(
        &self,
        what: &str,
        verb: impl FnOnce(Arc<dyn Store>) -> F,
    ) -> impl Future<Output = T> {
        let verb = soon(what, verb(Arc::clone(&self.store)));
        async move {
            let before = (self.requests)();
            let answer = verb.await;
            assert_eq!((self.requests)() - before - self.asking, 1, "{what}");
            answer
        }
    }

    async fn claim(&self, what: &str, claim: &Arc<Claim>) -> Answer {
        let claim = Arc::clone(claim);
        let verb = |store: Arc<dyn Store>| async move { store.claim(&claim).await };
        self.one(what, verb).await.expect("an answer")
    }

    async fn renew(&self, what: &str, claims: &[ClaimRef]) -> Vec<Standing> {
        let claims = claims.to_vec();
        let verb = |store: Arc<dyn Store>| async move { store.renew(&claims).await };
        let standings = self.one(what, verb).await.into_iter();
        standings
            .map(|standing| standing.expect("an answer"))
            .collect()
    }

    async fn release(&self, what: &str, claim: &ClaimRef, ending: Ending) -> Released {
        let claim = claim.clone();
        let verb = |store: Arc<dyn Store>| async move { store.release(&claim, ending).await };
        self.one(what, verb).await.expect("an answer")
    }

    async fn change(&self, what: &str, claim: &ClaimRef, to: Change) -> Standing {
        let claim = claim.clone();
        let verb = |store: Arc<dyn Store>| async move { store.change(&claim, to).await };
        self.one(what, verb).await.expect("an answer")
    }

    async fn revoke(&self, what: &str, claim: &Claim, fence: Fence) -> Revoked {
        let name = claim.name.clone();
        let verb = |store: Arc<dyn Store>| async move { store.revoke(&name, fence).await };
        self.one(what, verb).await.expect("an answer")
    }
}

fn fence(answer: &Answer) -> Fence {
    match answer {
        Answer::Granted(grant) => grant.fence,
        other => panic!("not granted: {other:?}"),
    }
}

async fn each_verb_is_one_request(url: String, requests: &dyn Fn() -> u64, asking: u64) {
    let open = move || palisade::stores::open(url.parse().expect("a good URL")).expect("a store");
    let subject = Subject::new(open);
    let costs = Costs {
        store: subject.store(),
        requests,
        asking,
    };
    let warm = Arc::new(subject.claim("warm"));
    let granted = soon("warm", costs.store.claim(&warm)).await.expect("free");
    let warm = warm.to_ref(Some(fence(&granted)));
    soon("warm", costs.store.renew(std::slice::from_ref(&warm))).await;
    soon("warm", costs.store.release(&warm, Ending::Release))
        .await
        .expect("released");

    let claim = |what: &str, queue: bool| {
        Arc::new(Claim {
            id: ClaimId::from_bits(fastrand::u128(..)),
            lease: Duration::from_secs(600),
            queue,
            ..subject.claim(what)
        })
    };
    // One holder, alone.
    let one = claim("n", true);
    let held = fence(&costs.claim("a new name", &one).await);
    let holder = one.to_ref(Some(held));
    assert_eq!(
        fence(&costs.claim("the same claim again", &one).await),
        held
    );
    costs.renew("a holder", std::slice::from_ref(&holder)).await;
    costs
        .change("a holder is detached", &holder, Change::Detach)
        .await;
    let value = Change::Proclaim("value".into());
    costs.change("a value is proclaimed", &holder, value).await;
    let busy = costs.claim("it is held", &claim("n", false)).await;
    assert!(matches!(busy, Answer::Busy(_)), "{busy:?}");
    let stranger = claim("n", false).to_ref(Some(held));
    let lost = costs.release("another's grant", &stranger, Ending::Release);
    assert_eq!(lost.await, Released::AlreadyLost);
    let other = costs.revoke("another fence", &one, Fence::new(7).expect("a fence"));
    assert_eq!(other.await, Revoked::OtherHolder { fence: held });

    // A line of some waiters.
    let waiters = [claim("n", true), claim("n", true), claim("n", true)];
    for waiter in &waiters {
        let queued = costs.claim("it joins the line", waiter).await;
        assert!(matches!(queued, Answer::Queued(_)), "{queued:?}");
        let again = costs.claim("it is in line", waiter).await;
        assert!(matches!(again, Answer::Queued(_)), "{again:?}");
    }
    let all: Vec<ClaimRef> = waiters.iter().map(|waiter| waiter.to_ref(None)).collect();
    for standing in costs.renew("the whole line", &all).await {
        assert!(matches!(standing, Standing::Waiting(_)), "{standing:?}");
    }
    costs
        .release("a waiter leaves", &all[1], Ending::Undo)
        .await;
    let done = costs.release("a hand-off", &holder, Ending::Release);
    assert_eq!(done.await, Released::Done);
    let standing = costs.renew("it was handed over", &all[..1]).await.remove(0);
    let Standing::Held(next) = standing else {
        panic!("{standing:?}");
    };
    let done = costs.revoke("the holder of a line", &one, next.fence);
    assert_eq!(done.await, Revoked::Done);
    let standing = costs.renew("handed over again", &all[2..]).await.remove(0);
    assert!(matches!(standing, Standing::Held(_)), "{standing:?}");
    costs.release("the last", &all[2], Ending::Release).await;
    assert!(fence(&costs.claim("it is free again", &one).await) > next.fence);
    costs
        .release("without a fence", &one.to_ref(None), Ending::Undo)
        .await;

    // Readers and a writer; permits; a minimum hold; a seal.
    let of = |what: &str, kind: Kind, mode: Mode| {
        Arc::new(Claim {
            kind,
            mode,
            ..Claim::clone(&claim(what, true))
        })
    };
    let limit = Kind::Semaphore { limit: 3 };
    let shared = [
        of("rw", Kind::RwLock, Mode::Shared),
        of("rw", Kind::RwLock, Mode::Shared),
        of("rw", Kind::RwLock, Mode::Exclusive),
        of("permits", limit, Mode::Permits(2)),
        of("permits", limit, Mode::Permits(1)),
        of("permits", limit, Mode::Permits(3)),
    ];
    for claim in &shared {
        let what = format!("{:?}", claim.mode);
        costs.claim(&what, claim).await;
    }
    let all: Vec<ClaimRef> = shared.iter().map(|claim| claim.to_ref(None)).collect();
    costs.renew("readers, a writer, permits", &all).await;
    for claim in &all {
        let what = format!("{:?} ends", claim.claim.mode);
        assert_eq!(
            costs.release(&what, claim, Ending::Release).await,
            Released::Done
        );
    }
    let writer = of("rw", Kind::RwLock, Mode::Exclusive);
    let reader = writer.to_ref(Some(fence(&costs.claim("a writer", &writer).await)));
    costs
        .change("it becomes a reader", &reader, Change::Downgrade)
        .await;
    costs
        .release("it was a writer", &reader, Ending::Release)
        .await;
    let closing = Arc::new(Claim {
        min_hold: Some(Duration::from_secs(600)),
        once_per: Some(Duration::from_secs(600)),
        ..Claim::clone(&claim("marked", true))
    });
    costs.claim("with a minimum hold", &closing).await;
    costs
        .release("it stays closed", &closing.to_ref(None), Ending::Release)
        .await;
    costs.claim("it is closed", &claim("marked", true)).await;
    let name = closing.name.clone();
    let verb = |store: Arc<dyn Store>| async move {
        let clear = store.extensions().clear_marks.expect("marks");
        clear.clear_marks(&name).await
    };
    assert!(
        costs
            .one("the marks are cleared", verb)
            .await
            .expect("an answer")
    );
    let once = claim("once", true);
    costs.claim("to be done once", &once).await;
    costs
        .release(
            "done for good",
            &once.to_ref(None),
            Ending::Seal(Duration::from_secs(600)),
        )
        .await;
    let sealed = costs.claim("it is done", &claim("once", true)).await;
    assert!(matches!(sealed, Answer::Sealed), "{sealed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres() {
    let server = Postgres::start();
    server.sql("ALTER ROLE locker SET log_statement = 'all'");
    let log = server.dir().join("log");
    // Without those of the connection that listens, which are texts.
    let requests = move || {
        let log = std::fs::read_to_string(&log).expect("a log");
        let verbs = log.lines().filter(|line| line.contains("LOG:  execute "));
        verbs.filter(|line| !line.contains("pg_notify")).count() as u64
    };
    each_verb_is_one_request(server.url(), &requests, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mariadb() {
    let server = MariaDb::start();
    let requests = || {
        let said = server.sql("SHOW GLOBAL STATUS LIKE 'Questions'");
        let number = said.split_whitespace().last().expect("a number");
        number.parse().expect("a number")
    };
    let before = requests();
    let asking = requests() - before;
    // Without the connections that wait for bells.
    each_verb_is_one_request(format!("{}?waits=0", server.url()), &requests, asking).await;
}

/// A client that connects after many cycles reads no more for a cycle than one that came before: the dead
/// rows of a name are skipped, also before the server removes them.
#[tokio::test]
async fn dead_rows_of_a_name_are_not_read_again() {
    const CYCLES: u64 = 4000;
    let server = Postgres::start();
    let read = || -> u64 {
        let sum = "SELECT coalesce(sum(heap_blks_hit + heap_blks_read), 0) \
                   FROM pg_statio_user_tables WHERE schemaname = 'palisade'";
        server.sql(sum).parse().expect("a number")
    };
    let cycles = async || {
        let locks = common::actors::connect(server.url());
        for _ in 0..CYCLES {
            let guard = locks.mutex("hot").acquire().await.expect("free");
            guard.release().await.expect("released");
        }
        // The server counts what a session has read at its end.
        locks.shutdown().await;
        drop(locks);
        palisade_conformance::eventually("its sessions have ended", async || {
            let theirs = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'locker'";
            server.sql(theirs) == "0"
        })
        .await;
        read()
    };
    let first = cycles().await;
    server.sql("ALTER TABLE palisade.lock_holder SET (autovacuum_enabled = off)");
    let second = cycles().await - first;
    println!(
        "blocks for a cycle: first {}, later {}",
        first / CYCLES,
        second / CYCLES
    );
    assert!(
        second <= first * 2,
        "{second} after {first} in {CYCLES} cycles"
    );
}
