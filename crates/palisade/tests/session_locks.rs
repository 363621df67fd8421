//! The session locks of PostgreSQL and MariaDB under faults: no lock outlives its claim on the server,
//! the holder is told before the server frees it, and connections are bounded.

#![cfg(all(feature = "postgres", feature = "mysql"))]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::actors::{
    Believer, connect, gets_in, give_back, is_told, number, rise, soon, wait_for,
};
use common::ms;
use palisade::{Client, ErrorKind, Released, Status};
use palisade_conformance::eventually;
use palisade_testkit::mariadb::MariaDb;
use palisade_testkit::pgbouncer::PgBouncer;
use palisade_testkit::postgres::Postgres;
use palisade_testkit::proxy::{Proxy, Way};

/// So long that no test waits for its end: a lock that leaks stays for all of it.
const LONG: Duration = Duration::from_secs(120);

/// A server, and what it says about session locks.
trait Server: Send + Sync + 'static {
    fn start() -> Self;
    fn address(&self) -> std::net::SocketAddr;
    fn restart(&self);
    /// The URL for an address that leads to it.
    fn url_at(&self, address: std::net::SocketAddr) -> String;
    /// How many locks are held or waited for.
    fn locks(&self) -> usize;
    /// How many sessions the clients have.
    fn sessions(&self) -> usize;
    /// Ends all sessions of clients.
    fn end_sessions(&self);

    fn url(&self) -> String {
        self.url_at(self.address())
    }
}

impl Server for Postgres {
    fn start() -> Postgres {
        Postgres::start()
    }

    fn address(&self) -> std::net::SocketAddr {
        self.address()
    }

    fn restart(&self) {
        (**self).restart();
    }

    fn url_at(&self, address: std::net::SocketAddr) -> String {
        format!("postgres://locker:lockpw@{address}/locks?format=session")
    }

    fn locks(&self) -> usize {
        let count = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
        self.sql(count).parse().expect("a number")
    }

    fn sessions(&self) -> usize {
        let count = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'locker'";
        self.sql(count).parse().expect("a number")
    }

    fn end_sessions(&self) {
        self.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'locker'");
    }
}

impl Server for MariaDb {
    fn start() -> MariaDb {
        let server = MariaDb::start();
        server.sql("INSTALL SONAME 'metadata_lock_info'");
        server
    }

    fn address(&self) -> std::net::SocketAddr {
        self.address()
    }

    fn restart(&self) {
        (**self).restart();
    }

    fn url_at(&self, address: std::net::SocketAddr) -> String {
        format!("mysql://locker:lockpw@{address}/locks?format=session")
    }

    fn locks(&self) -> usize {
        let held = "SELECT count(*) FROM information_schema.METADATA_LOCK_INFO WHERE LOCK_TYPE = 'User lock'";
        let waited =
            "SELECT count(*) FROM information_schema.PROCESSLIST WHERE STATE = 'User lock'";
        let number = |sql| self.sql(sql).parse::<usize>().expect("a number");
        number(held) + number(waited)
    }

    fn sessions(&self) -> usize {
        let count = "SELECT count(*) FROM information_schema.PROCESSLIST WHERE USER = 'locker'";
        self.sql(count).parse().expect("a number")
    }

    fn end_sessions(&self) {
        let ids = self.sql("SELECT ID FROM information_schema.PROCESSLIST WHERE USER = 'locker'");
        for id in ids.lines() {
            // It may have ended by itself.
            let _ = self.try_sql(&format!("KILL {id}"));
        }
    }
}

async fn nothing_is_left<S: Server>(server: &Arc<S>) {
    eventually("nothing is locked or waited for", async || {
        let server = Arc::clone(server);
        let locks = tokio::task::spawn_blocking(move || server.locks()).await;
        locks.expect("no panic") == 0
    })
    .await;
}

async fn locks<S: Server>(server: &Arc<S>, count: usize) {
    eventually("so many locks", async || {
        let server = Arc::clone(server);
        let locks = tokio::task::spawn_blocking(move || server.locks()).await;
        locks.expect("no panic") == count
    })
    .await;
}

fn rounds(normally: usize, soak: usize) -> usize {
    match std::env::var_os("PALISADE_SOAK") {
        Some(_) => soak,
        None => normally,
    }
}

/// A waiter is cancelled at the moment at which the server grants it the lock.
async fn a_cancel_against_a_grant_leaks_nothing<S: Server>() {
    let server = Arc::new(S::start());
    let (ours, theirs) = (connect(server.url()), connect(server.url()));
    let (holder, waiter) = (ours.mutex("n").lease(LONG), theirs.mutex("n").lease(LONG));
    let mut granted = 0;
    for round in 0..rounds(300, 3000) {
        let guard = soon("free", holder.acquire()).await.expect("free");
        let waiting = wait_for(&waiter);
        // Long enough for most to be queued on the server.
        tokio::time::sleep(Duration::from_micros(3000)).await;
        let release = tokio::spawn(give_back(guard));
        tokio::time::sleep(Duration::from_micros(fastrand::u64(0..800))).await;
        waiting.abort();
        if let Ok(Ok(guard)) = waiting.await {
            granted += 1;
            drop(guard);
        }
        soon("released", release).await.expect("no panic");
        if round % 100 == 99 {
            nothing_is_left(&server).await;
        }
    }
    println!("{granted} were granted");
    nothing_is_left(&server).await;
    // Not even for a moment: it is free at once.
    let guard = soon("free", ours.mutex("n").lease(LONG).try_acquire()).await;
    give_back(guard.expect("an answer").expect("free")).await;
    theirs.shutdown().await;
}

/// Tasks of several clients hold and wait, and a tenth of the waits is cancelled.
async fn many_cycles_leave_nothing<S: Server>() {
    const TASKS: usize = 12;
    let server = Arc::new(S::start());
    let clients: Vec<Client> = (0..3).map(|_| connect(server.url())).collect();
    let (counter, last) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let cycles = rounds(600, 10_000) / TASKS;
    let mut tasks = Vec::new();
    for task in 0..TASKS {
        let mutex = clients[task % clients.len()].mutex("n").lease(LONG);
        let (counter, last) = (Arc::clone(&counter), Arc::clone(&last));
        tasks.push(tokio::spawn(async move {
            let mut held = 0;
            for cycle in 0..cycles {
                if cycle % 10 == 0 {
                    let wait = Duration::from_micros(fastrand::u64(0..4000));
                    if let Ok(Ok(guard)) = tokio::time::timeout(wait, mutex.acquire()).await {
                        drop(guard);
                    }
                    continue;
                }
                let guard = mutex.acquire().await.expect("granted");
                let seen = counter.load(Ordering::SeqCst);
                tokio::task::yield_now().await;
                counter.store(seen + 1, Ordering::SeqCst);
                let before = last.swap(number(&guard), Ordering::SeqCst);
                assert!(before < number(&guard), "{} after {before}", number(&guard));
                assert_eq!(guard.release().await.expect("released"), Released::Done);
                held += 1;
            }
            held
        }));
    }
    let mut held = 0;
    for task in tasks {
        let done = tokio::time::timeout(Duration::from_secs(300), task).await;
        held += done.expect("in time").expect("no panic");
    }
    assert_eq!(counter.load(Ordering::SeqCst), held, "two held at once");
    nothing_is_left(&server).await;
    for client in &clients {
        client.shutdown().await;
        assert_eq!(client.stats().kept, 0);
    }
}

/// An administrator ends the sessions of all clients: holders are told, and waiters get in.
async fn ended_sessions_are_told<S: Server>() {
    let server = Arc::new(S::start());
    let (ours, theirs) = (connect(server.url()), connect(server.url()));
    let mutex = ours.mutex("n").lease(ms(3000));
    let guard = soon("free", mutex.acquire()).await.expect("free");
    let other = soon("free", ours.mutex("other").lease(ms(3000)).acquire()).await;
    let other = other.expect("free");
    let waiter = wait_for(&theirs.mutex("n").lease(ms(3000)));
    locks(&server, 3).await;
    tokio::task::block_in_place(|| server.end_sessions());
    is_told(&guard).await;
    is_told(&other).await;
    let mut next = gets_in(waiter).await;
    // Its own session may have been granted the lock just before its end.
    while !soon("an answer", next.verify()).await.expect("an answer") {
        let again = theirs.mutex("n").lease(ms(3000));
        next = soon("free", again.acquire()).await.expect("free");
    }
    rise(&[number(&guard), number(&next)]);
    let lost = soon("an answer", guard.release()).await;
    assert_eq!(lost.expect("an answer"), Released::AlreadyLost);
    assert!(next.is_held(), "the late release freed it");
    give_back(next).await;
    nothing_is_left(&server).await;
}

/// The server crashes, and comes back: no claim holds anything, and fences go on.
async fn a_restart_is_survived<S: Server>() {
    let server = Arc::new(S::start());
    let (ours, theirs) = (connect(server.url()), connect(server.url()));
    let mutex = ours.mutex("n").lease(ms(3000));
    let guard = soon("free", mutex.acquire()).await.expect("free");
    // On a busy machine the recovery takes longer than a caller waits for a store by default.
    let waiter = wait_for(&theirs.mutex("n").lease(ms(3000)).store_wait(LONG));
    locks(&server, 2).await;
    tokio::task::block_in_place(|| server.restart());
    is_told(&guard).await;
    let next = tokio::time::timeout(LONG, waiter).await;
    let next = next.expect("in time").expect("no panic").expect("granted");
    rise(&[number(&guard), number(&next)]);
    give_back(next).await;
    drop(guard);
    nothing_is_left(&server).await;
}

/// A holder that is cut off is told by its own clock before the server ends its session, which it
/// does in time.
async fn a_holder_that_is_cut_off_is_told_first<S: Server>() {
    let server = Arc::new(S::start());
    let proxy = tokio::task::block_in_place(|| Proxy::start(server.address()));
    let (ours, theirs) = (
        connect(server.url_at(proxy.address())),
        connect(server.url()),
    );
    let lease = ms(3000);
    let guard = soon("free", ours.mutex("n").lease(lease).acquire()).await;
    let guard = Arc::new(guard.expect("free"));
    let waiter = wait_for(&theirs.mutex("n").lease(lease));
    locks(&server, 2).await;
    let (believer, cut) = (Believer::watch(Arc::clone(&guard)), Instant::now());
    proxy.swallow(Way::Both);
    let next = gets_in(waiter).await;
    let admitted = Instant::now();
    assert!(!guard.is_held(), "two believe that they hold");
    let believed = believer.last_belief().expect("it held");
    assert!(believed < admitted, "told {:?} late", believed - admitted);
    // As long as the lease, counted from the last renewal, and half a second for a busy machine.
    let took = admitted - cut;
    assert!(
        took > lease / 2 && took < lease + ms(1500),
        "freed after {took:?}"
    );
    rise(&[number(&guard), number(&next)]);
    proxy.heal();
    give_back(next).await;
    drop(guard);
    nothing_is_left(&server).await;
}

/// A waiter that is cut off is granted the lock, and cannot know: the server frees it after a lease.
async fn a_waiter_that_is_cut_off_holds_for_a_lease_at_most<S: Server>() {
    let server = Arc::new(S::start());
    let proxy = tokio::task::block_in_place(|| Proxy::start(server.address()));
    let (cut, ours) = (
        connect(server.url_at(proxy.address())),
        connect(server.url()),
    );
    let lease = ms(3000);
    let guard = soon("free", ours.mutex("n").lease(lease).acquire()).await;
    let guard = guard.expect("free");
    let dead = wait_for(&cut.mutex("n").lease(lease));
    locks(&server, 2).await;
    let live = wait_for(&ours.mutex("n").lease(lease));
    locks(&server, 3).await;
    proxy.swallow(Way::Both);
    let freed = Instant::now();
    give_back(guard).await;
    let next = gets_in(live).await;
    assert!(
        freed.elapsed() < lease + ms(2000),
        "after {:?}",
        freed.elapsed()
    );
    assert_eq!(next.status(), Status::Held);
    dead.abort();
    give_back(next).await;
    drop(proxy);
}

/// Many locks that no claim waits for are held by one connection.
async fn many_locks_need_few_connections<S: Server>() {
    let server = Arc::new(S::start());
    let client = connect(server.url());
    let mut guards = Vec::new();
    for number in 0..200 {
        let mutex = client.mutex(format!("n{number}")).lease(LONG);
        guards.push(soon("free", mutex.acquire()).await.expect("free"));
    }
    let sessions = tokio::task::block_in_place(|| (server.sessions(), server.locks()));
    assert_eq!(sessions, (1, 200));
    for guard in guards {
        give_back(guard).await;
    }
    nothing_is_left(&server).await;
}

/// Waiters beyond the bound queue in the client, and all of them get in, also while grants that are
/// held keep every connection.
async fn connections_are_bounded<S: Server>() {
    let server = Arc::new(S::start());
    let (outside, client) = (
        connect(server.url()),
        connect(format!("{}&waits=2", server.url())),
    );
    let names = ["a", "b", "c", "d"];
    let mut held = Vec::new();
    for name in names {
        let mutex = outside.mutex(name).lease(LONG);
        held.push(soon("free", mutex.acquire()).await.expect("free"));
    }
    let waiters = names.map(|name| wait_for(&client.mutex(name).lease(LONG)));
    // Two wait on the server.
    locks(&server, 6).await;
    for guard in held {
        give_back(guard).await;
    }
    // None of them is released before all have got in.
    let mut guards = Vec::new();
    for waiter in waiters {
        guards.push(gets_in(waiter).await);
    }
    // One for claims that do not wait, and two that have waited; one of the other client.
    let sessions = tokio::task::block_in_place(|| server.sessions());
    assert!(sessions <= 4, "{sessions} sessions");
    for guard in guards {
        give_back(guard).await;
    }
    nothing_is_left(&server).await;
}

/// One client's claims for one name exclude each other, though they share a session.
async fn claims_of_one_client_exclude_each_other<S: Server>() {
    let server = Arc::new(S::start());
    let client = connect(server.url());
    let mutex = client.mutex("n").lease(LONG);
    let guard = soon("free", mutex.acquire()).await.expect("free");
    let other = soon("an answer", mutex.try_acquire()).await;
    assert!(other.expect("an answer").is_none(), "held twice");
    let waiter = wait_for(&mutex);
    locks(&server, 2).await;
    give_back(guard).await;
    give_back(gets_in(waiter).await).await;
    let both = tokio::join!(mutex.try_acquire(), mutex.try_acquire());
    let held = [both.0, both.1].map(|guard| guard.expect("an answer").is_some());
    assert!(!(held[0] && held[1]), "held twice");
    nothing_is_left(&server).await;
}

macro_rules! on_both {
    ($($test:ident),* $(,)?) => {
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                super::$test::<super::Postgres>().await;
            })*
        }
        mod mariadb {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                super::$test::<super::MariaDb>().await;
            })*
        }
    };
}

on_both! {
    a_cancel_against_a_grant_leaks_nothing,
    many_cycles_leave_nothing,
    ended_sessions_are_told,
    a_restart_is_survived,
    a_holder_that_is_cut_off_is_told_first,
    a_waiter_that_is_cut_off_holds_for_a_lease_at_most,
    many_locks_need_few_connections,
    connections_are_bounded,
    claims_of_one_client_exclude_each_other,
}

/// A server that has become a replica lets its sessions live, and its locks exclude no one on the new
/// primary.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_on_a_server_that_became_read_only_is_told() {
    let server = MariaDb::start();
    let client = connect(format!("{}?format=session", server.url()));
    let mutex = client.mutex("n").lease(ms(3000));
    let guard = soon("free", mutex.acquire()).await.expect("free");
    tokio::task::block_in_place(|| server.sql("SET GLOBAL read_only = 1"));
    is_told(&guard).await;
    tokio::task::block_in_place(|| server.sql("SET GLOBAL read_only = 0"));
    drop(guard);
    give_back(soon("free", mutex.acquire()).await.expect("free")).await;
}

/// A pooler that lends sessions is refused, with a word about what to do.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_is_refused() {
    let server = Postgres::start();
    let pooler = PgBouncer::start(&server);
    let client = connect(format!("{}?format=session", pooler.url()));
    let refused = soon("an answer", client.mutex("n").acquire()).await;
    let refused = refused.expect_err("it lends its sessions");
    assert_eq!(refused.kind(), ErrorKind::Config, "{refused}");
    let said = refused.to_string();
    assert!(
        said.contains("pooler") && said.contains("format=table"),
        "{said}"
    );
}

/// Readers of one client share; a writer becomes a reader in one step.
#[tokio::test(flavor = "multi_thread")]
async fn readers_share_and_a_writer_becomes_one() {
    let server = Arc::new(<Postgres as Server>::start());
    let client = connect(Server::url(&*server));
    let lock = client.rwlock("n").lease(LONG);
    let one = soon("free", lock.read()).await.expect("free");
    let two = soon("shared", lock.try_read()).await.expect("an answer");
    let (two, three) = (two.expect("shared"), soon("shared", lock.read()).await);
    let three = three.expect("shared");
    let writer = soon("an answer", lock.try_write()).await;
    assert!(
        writer.expect("an answer").is_none(),
        "a writer beside readers"
    );
    for reader in [one, two, three] {
        assert_eq!(reader.release().await.expect("released"), Released::Done);
    }
    let writer = soon("free", lock.write()).await.expect("free");
    let fence = number(&writer);
    let (reads, writes) = (lock.clone(), lock.clone());
    let reading = tokio::spawn(async move { reads.read().await });
    locks(&server, 2).await;
    let writing = tokio::spawn(async move { writes.write().await });
    locks(&server, 3).await;
    let reader = soon("an answer", writer.downgrade()).await;
    let reader = reader.expect("downgraded");
    assert_eq!(number(&reader), fence);
    let other = soon("let in", reading).await.expect("no panic");
    let other = other.expect("granted");
    assert!(!writing.is_finished(), "a writer beside readers");
    assert_eq!(other.release().await.expect("released"), Released::Done);
    assert_eq!(reader.release().await.expect("released"), Released::Done);
    let writer = soon("let in", writing).await.expect("no panic");
    let released = writer.expect("granted").release().await;
    assert_eq!(released.expect("released"), Released::Done);
    nothing_is_left(&server).await;
}

/// The key of a name is what its page says, in SQL.
#[tokio::test(flavor = "multi_thread")]
async fn the_key_is_the_one_of_the_page() {
    let server = <Postgres as Server>::start();
    let client = connect(Server::url(&server));
    let guard = soon("free", client.mutex("orders/42").acquire()).await;
    let sql = "SELECT pg_try_advisory_lock(('x' || left(encode(sha256('orders/42'), 'hex'), 16))::bit(64)::bigint)";
    assert_eq!(tokio::task::block_in_place(|| server.sql(sql)), "f");
    give_back(guard.expect("free")).await;
    assert_eq!(tokio::task::block_in_place(|| server.sql(sql)), "t");
    let server = <MariaDb as Server>::start();
    let client = connect(Server::url(&server));
    let guard = soon("free", client.mutex("orders").acquire()).await;
    let sql = "SELECT GET_LOCK('orders', 0)";
    assert_eq!(tokio::task::block_in_place(|| server.sql(sql)), "0");
    give_back(guard.expect("free")).await;
    assert_eq!(tokio::task::block_in_place(|| server.sql(sql)), "1");
}
