//! Callers that are not polled while the connections to their store are lost and restored, and
//! callers whose wakers panic.
//!
//! That they hold up no other request on a good network is in the suite: `checks::runtimes`.

mod common;

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use common::actors::{connect, give_back, is_renewed, soon};
use palisade::{Client, Guard, Mutex, Result};
use palisade_testkit::proxy::{Proxy, Way};
use tokio::runtime::Builder;

/// Of a lock that is to be renewed: as short as each of the stores allows.
const SHORT: Duration = Duration::from_secs(4);

/// A client behind a proxy, and one that goes around it.
struct Scene {
    proxy: Proxy,
    client: Client,
    outside: Client,
    /// Whether a few connections serve any number of requests, so that no more are opened.
    is_multiplexed: bool,
}

impl Scene {
    fn before(server: SocketAddr, url: impl Fn(SocketAddr) -> String) -> Scene {
        let proxy = Proxy::start(server);
        Scene {
            client: connect(url(proxy.address())),
            outside: connect(url(server)),
            proxy,
            is_multiplexed: true,
        }
    }

    fn short(&self, name: &str) -> Mutex {
        self.client.mutex(name).lease(SHORT)
    }
}

type Going<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

/// Polls once, without a waker.
fn begin<T>(future: &mut Going<T>) {
    begin_with(future, Waker::noop());
}

fn begin_with<T>(future: &mut Going<T>, waker: &Waker) {
    assert!(
        future
            .as_mut()
            .poll(&mut Context::from_waker(waker))
            .is_pending(),
        "it cannot be ready at once"
    );
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("the test wants a panic here");
    }
}

fn run(scene: &Scene) {
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        wakers_that_panic_harm_no_other(scene).await;
        connections_are_restored(scene).await;
        a_dropped_release_is_repeated(scene).await;
    });
}

/// The wakers of some callers panic. The requests of the others are answered, on the same
/// connections: new ones are refused.
async fn wakers_that_panic_harm_no_other(scene: &Scene) {
    let kept = scene.short("kept").acquire().await.expect("a grant");
    let long = scene.client.mutex("long").acquire().await.expect("a grant");
    let panics = Waker::from(Arc::new(Panics));
    for (round, waker) in [Waker::noop(), &panics, &panics, &panics]
        .into_iter()
        .enumerate()
    {
        let mut claims: Vec<Going<Guard>> = Vec::new();
        for number in 0..10 {
            let lock = scene.client.mutex(format!("panics-{round}-{number}"));
            let mut claim: Going<Guard> = Box::pin(async move { lock.acquire().await });
            begin_with(&mut claim, waker);
            claims.push(claim);
            let lock = scene.client.mutex(format!("other-{number}"));
            let other = soon("an answer", lock.try_acquire())
                .await
                .expect("no error");
            give_back(other.expect("it is free")).await;
        }
        if round == 0 && scene.is_multiplexed {
            // By now all connections are open.
            is_renewed(&kept).await;
            scene.proxy.refuse();
        }
        for claim in claims {
            give_back(soon("it comes to its end", claim).await.expect("a grant")).await;
        }
    }
    is_renewed(&kept).await;
    scene.proxy.heal();
    give_back(kept).await;
    give_back(long).await;
}

/// Claims are in flight, and are not polled when the connection is lost: it is restored without
/// them.
async fn connections_are_restored(scene: &Scene) {
    let kept = scene.short("kept").acquire().await.expect("a grant");
    let names: Vec<String> = (0..50).map(|number| format!("unpolled-{number}")).collect();
    let mut claims: Vec<Going<Guard>> = Vec::new();
    for name in &names {
        let lock = scene.client.mutex(name);
        let mut claim: Going<Guard> = Box::pin(async move { lock.acquire().await });
        begin(&mut claim);
        claims.push(claim);
    }
    scene.proxy.reset();
    is_renewed(&kept).await;
    is_renewed(&kept).await;
    give_back(
        soon("another gets in", scene.client.mutex("other").acquire())
            .await
            .expect("a grant"),
    )
    .await;
    // Some are polled again, and the others dropped.
    claims.truncate(25);
    for claim in claims {
        give_back(soon("it comes to its end", claim).await.expect("a grant")).await;
    }
    assert!(kept.is_held());
    give_back(kept).await;
    soon("withdrawn", scene.client.shutdown()).await;
    for name in names {
        assert!(
            scene
                .outside
                .show(&name)
                .await
                .expect("an answer")
                .is_none(),
            "{name} is left"
        );
    }
}

/// A release is lost with its connection, and dropped: the client's thread tries again.
async fn a_dropped_release_is_repeated(scene: &Scene) {
    let kept = scene.short("kept").acquire().await.expect("a grant");
    let held = scene.short("back").acquire().await.expect("a grant");
    scene.proxy.swallow(Way::ToServer);
    let mut back: Going<_> = Box::pin(held.release());
    begin(&mut back);
    scene.proxy.reset();
    scene.proxy.heal();
    is_renewed(&kept).await;
    drop(back);
    give_back(
        soon("the next gets in", scene.outside.mutex("back").acquire())
            .await
            .expect("a grant"),
    )
    .await;
    assert!(kept.is_held(), "nothing else is lost with it");
    give_back(kept).await;
}

#[cfg(feature = "redis")]
#[test]
fn redis() {
    let server = palisade_testkit::redis::Redis::start();
    run(&Scene::before(server.address(), |address| {
        format!("redis://{address}")
    }));
}

#[cfg(feature = "etcd")]
#[test]
fn etcd() {
    let server = palisade_testkit::etcd::Etcd::start();
    run(&Scene::before(server.address(), |address| {
        format!("etcd://{address}/lock")
    }));
}

#[cfg(feature = "zookeeper")]
#[test]
fn zookeeper() {
    let server = palisade_testkit::zookeeper::ZooKeeper::with()
        .long_sessions()
        .start();
    run(&Scene::before(server.address(), |address| {
        format!("zk://{address}/lock")
    }));
}

#[cfg(feature = "postgres")]
#[test]
fn postgres() {
    let server = palisade_testkit::postgres::Postgres::start();
    run(&Scene::before(server.address(), |address| {
        format!("postgres://locker:lockpw@{address}/locks")
    }));
}

#[cfg(feature = "mysql")]
#[test]
fn mysql() {
    let server = palisade_testkit::mariadb::MariaDb::start();
    let scene = Scene::before(server.address(), |address| {
        format!("mysql://locker:lockpw@{address}/locks")
    });
    // A connection runs one statement at a time.
    run(&Scene {
        is_multiplexed: false,
        ..scene
    });
}

/// The first request connects and creates the tables, and is left unpolled at any moment of that: the
/// next one does not wait for it.
#[cfg(any(feature = "postgres", feature = "mysql"))]
async fn first_uses(url: impl Fn(usize) -> String) {
    for polls in 0..12 {
        let client = connect(url(polls));
        let mut first: Going<_> = Box::pin({
            let client = client.clone();
            async move { client.show("first").await }
        });
        // Each poll but the first comes when there is news.
        let part = async {
            for _ in 0..=polls {
                let polled = std::future::poll_fn(|context| {
                    std::task::Poll::Ready(first.as_mut().poll(context))
                });
                if polled.await.is_ready() {
                    return false;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            true
        };
        let unfinished = part.await;
        let other = soon("an answer", client.mutex("other").try_acquire()).await;
        give_back(other.expect("no error").expect("it is free")).await;
        if unfinished {
            soon("it comes to its end", first).await.expect("an answer");
        }
    }
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn the_first_use_of_postgres() {
    let server = palisade_testkit::postgres::Postgres::start();
    let url = server.url();
    first_uses(|number| format!("{url}?schema=s{number}&connect_timeout=30s")).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn the_first_use_of_mysql() {
    let server = palisade_testkit::mariadb::MariaDb::start();
    let url = server.url();
    first_uses(|number| format!("{url}?table=t{number}&connect_timeout=30s")).await;
}
