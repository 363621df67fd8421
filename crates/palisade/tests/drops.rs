//! Dropping a guard: anywhere, without a runtime, without blocking.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::scripted_store::ScriptedStore;
use common::{Bench, bench, ms};
use palisade::blocking::Wait;
use palisade::lease::BootClock;
use palisade::stores::memory::MemoryStore;
use palisade::{Client, ErrorKind, Guard, Released};
use palisade_conformance::eventually;

fn assert_free(bench: &Bench, name: &str) {
    let begun = Instant::now();
    while bench
        .outside
        .show(name)
        .wait()
        .expect("an answer")
        .is_some()
    {
        assert!(
            begun.elapsed() < palisade_conformance::PATIENCE,
            "{name} is not given back"
        );
        std::thread::sleep(ms(1));
    }
}

fn held(bench: &Bench, name: &str) -> Guard {
    bench.client.mutex(name).acquire().wait().expect("acquired")
}

#[test]
fn outside_of_any_runtime() {
    let bench = bench();
    let guard = held(&bench, "outside");
    std::thread::spawn(move || drop(guard))
        .join()
        .expect("no panic");
    assert_free(&bench, "outside");
}

#[test]
fn inside_of_a_runtime() {
    let bench = bench();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .expect("a runtime");
    let guard = held(&bench, "inside");
    runtime.block_on(async move {
        tokio::spawn(async move { drop(guard) })
            .await
            .expect("no panic")
    });
    assert_free(&bench, "inside");
}

/// The release waits at the gate, and the drop does not.
#[test]
fn a_current_thread_runtime_is_not_blocked() {
    let bench = bench();
    let guard = held(&bench, "current-thread");
    bench.faults.close_gate();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    runtime.block_on(async move { drop(guard) });
    assert!(
        bench
            .outside
            .show("current-thread")
            .wait()
            .expect("an answer")
            .is_some(),
        "released before the gate opened?"
    );
    bench.faults.steps(2);
    assert_free(&bench, "current-thread");
}

#[test]
fn while_a_runtime_shuts_down() {
    let bench = bench();
    let guard = held(&bench, "shutdown");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_time()
        .build()
        .expect("a runtime");
    runtime.spawn(async move {
        let _guard = guard;
        std::future::pending::<()>().await;
    });
    let waiting = bench.client.mutex("shutdown");
    runtime.spawn(async move { waiting.acquire().await });
    drop(runtime);
    assert_free(&bench, "shutdown");
}

#[test]
fn while_a_panic_unwinds() {
    let bench = bench();
    let guard = held(&bench, "panic");
    let panicked = std::thread::spawn(move || {
        let _guard = guard;
        panic!("with the lock held");
    });
    assert!(panicked.join().is_err());
    assert_free(&bench, "panic");
}

/// A store that panics in the caller's thread: a drop never panics, because it may run while
/// another panic unwinds.
#[test]
fn a_store_that_panics_does_not_panic_the_drop() {
    let (scripted, script) =
        ScriptedStore::over(Arc::new(MemoryStore::new(Arc::new(BootClock))), |can| can);
    let client = Client::over(scripted, Arc::new(BootClock));
    let (dropped, released) = (client.mutex("dropped"), client.mutex("released"));
    let (dropped, released) = (
        dropped.acquire().wait().expect("acquired"),
        released.acquire().wait().expect("acquired"),
    );
    script
        .release_panics
        .store(true, std::sync::atomic::Ordering::SeqCst);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(dropped)));
    let answer =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| released.release().wait()));
    assert!(panicked.is_ok(), "the drop panicked");
    let error = answer.expect("no panic").expect_err("the store broke off");
    assert_eq!(error.kind(), ErrorKind::Protocol);
    client.shutdown().wait();
    assert_eq!(client.stats().unsent_releases, 2);
    assert_eq!(client.stats().kept, 0);
}

/// The client goes first; its thread stays until the last release is sent.
#[test]
fn after_the_client() {
    let Bench {
        client,
        outside,
        faults,
    } = bench();
    let guard = client
        .mutex("orphan")
        .lease(ms(300))
        .acquire()
        .wait()
        .expect("acquired");
    drop(client);
    std::thread::sleep(ms(600));
    assert!(guard.is_held(), "renewed though the client is gone");
    faults.close_gate();
    drop(guard);
    faults.steps(2);
    let bench = Bench {
        client: outside.clone(),
        outside,
        faults,
    };
    assert_free(&bench, "orphan");
}

/// `shutdown` waits for releases that are on their way, and for nothing else.
#[tokio::test]
async fn shutdown_drains() {
    let bench = bench();
    let (kept, dropped) = (bench.client.mutex("kept"), bench.client.mutex("dropped"));
    let kept = kept.acquire().await.expect("acquired");
    let dropped = dropped.acquire().await.expect("acquired");
    bench.faults.close_gate();
    drop(dropped);
    assert!(
        tokio::time::timeout(ms(50), bench.client.shutdown())
            .await
            .is_err(),
        "it did not wait for the release"
    );
    bench.faults.steps(2);
    bench.client.shutdown().await;
    assert!(
        bench
            .outside
            .show("dropped")
            .await
            .expect("an answer")
            .is_none()
    );
    assert!(kept.is_held());
    bench.faults.steps(100);
}

/// A release that cannot be sent is tried until the lease has ended, then counted.
#[tokio::test]
async fn an_unsent_release_is_counted() {
    let Bench {
        client,
        outside,
        faults,
    } = bench();
    let guards = [
        client.mutex("later").lease(ms(5000)),
        client.mutex("never").lease(ms(300)),
    ];
    let [later, never] = guards;
    let (later, never) = (
        later.acquire().await.expect("acquired"),
        never.acquire().await.expect("acquired"),
    );
    faults.cut(true);
    let begun = Instant::now();
    assert_eq!(never.release().await.expect("an answer"), Released::Unknown);
    drop(later);
    assert!(
        begun.elapsed() < ms(1000),
        "a release must not wait for a store that is gone"
    );
    eventually("given up", async || client.stats().unsent_releases == 1).await;
    faults.cut(false);
    client.shutdown().await;
    assert!(
        outside.show("later").await.expect("an answer").is_none(),
        "sent when the store was back"
    );
    assert_eq!(client.stats().unsent_releases, 1);
}

/// A guard can go anywhere; so can every future.
#[test]
fn guards_and_futures_are_send() {
    fn send<T: Send>(future: T) -> T {
        future
    }
    fn everywhere<T: Send + Sync + 'static>() {}
    everywhere::<Guard>();
    everywhere::<Guard<palisade::Shared>>();
    everywhere::<Guard<palisade::Permits>>();
    everywhere::<palisade::MultiGuard>();
    everywhere::<palisade::OnceGuard>();
    everywhere::<palisade::Client>();
    everywhere::<palisade::Mutex>();
    everywhere::<palisade::Identity>();
    everywhere::<palisade::Error>();
    everywhere::<palisade::DetachedGrant>();
    let locks = palisade::connect("memory:").wait().expect("a client");
    drop(send(locks.mutex("a").acquire()));
    drop(send(locks.rwlock("a").read()));
    drop(send(locks.semaphore("a", 2).acquire_many(2)));
    drop(send(locks.multi(["a", "b"]).acquire()));
    drop(send(
        locks
            .mutex("a")
            .run(|guard: Arc<Guard>| async move { guard.fence() }),
    ));
    drop(send(
        locks.mutex("a").once_per(Duration::from_secs(1)).acquire(),
    ));
    drop(send(locks.once("a").begin()));
    drop(send(locks.list("")));
}
