//! A client of a database that is stopped in the middle of a verb, or after its grant: it holds nothing
//! that has ended, and its stale write is refused.

#![cfg(all(feature = "postgres", feature = "mysql"))]

mod common;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use common::actors::{connect, give_back, is_renewed, rise, soon};
use common::apart::Apart;
use common::ms;
use palisade::fence::file::FencedFile;
use palisade_conformance::eventually;
use palisade_testkit::mariadb::MariaDb;
use palisade_testkit::postgres::Postgres;
use palisade_testkit::proxy::{Proxy, Way};

const LEASE: Duration = Duration::from_millis(2987);

trait Server {
    const SCHEME: &str;
    fn begin() -> Self;
    fn socket(&self) -> SocketAddr;

    fn url_by(address: SocketAddr) -> String {
        format!("{}://locker:lockpw@{address}/locks", Self::SCHEME)
    }
}

impl Server for Postgres {
    const SCHEME: &str = "postgres";

    fn begin() -> Postgres {
        Postgres::start()
    }

    fn socket(&self) -> SocketAddr {
        self.address()
    }
}

impl Server for MariaDb {
    const SCHEME: &str = "mysql";

    fn begin() -> MariaDb {
        MariaDb::start()
    }

    fn socket(&self) -> SocketAddr {
        self.address()
    }
}

/// When the client is stopped.
#[derive(Clone, Copy, PartialEq)]
enum Stopped {
    /// Its claim is done, and the answer waits in its socket.
    InItsClaim,
    /// After its last look at the guard.
    AfterTheGrant,
}

#[test]
#[ignore = "a part of other tests, in a process of its own"]
fn a_client_apart() {
    common::apart::do_as_told(LEASE);
}

async fn is_stopped<S: Server>(when: Stopped) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = FencedFile::new(folder.path().join("orders")).expect("a file");
    let server = S::begin();
    let proxy = tokio::task::block_in_place(|| Proxy::start(server.socket()));
    let outside = connect(S::url_by(server.socket()));
    let mut stopped = Apart::start(&S::url_by(proxy.address()), &file);
    let held = async || {
        let line = outside.show("stopped").await.expect("an answer");
        line.is_some_and(|line| !line.holders.is_empty())
    };
    let mut fences = vec![fence_of(&stopped.ask("claim"))];
    assert_eq!(stopped.ask("write"), "written");
    assert_eq!(stopped.ask("release"), "Done");

    if when == Stopped::InItsClaim {
        proxy.stall(Way::ToClient);
        stopped.tell("claim");
        eventually("it is granted", held).await;
        stopped.stop();
        proxy.heal();
    } else {
        fences.push(fence_of(&stopped.ask("claim")));
        assert_eq!(stopped.ask("look"), "held");
        stopped.stop();
    }
    let begun = Instant::now();
    let next = outside.mutex("stopped").lease(LEASE);
    let next = soon("the lease ends", next.acquire())
        .await
        .expect("a grant");
    assert!(begun.elapsed() < LEASE + ms(3000), "{:?}", begun.elapsed());
    fences.push(next.fence().get());
    rise(&fences);
    file.write(next.fence(), b"by the next").expect("a write");

    stopped.go_on();
    if when == Stopped::InItsClaim {
        let answer = stopped.answer();
        assert!(!answer.starts_with("granted"), "{answer}: {fences:?}");
        stopped.claims("busy");
    } else {
        assert_eq!(stopped.ask("write"), "stale");
        assert_eq!(stopped.ask("look"), "lost");
        assert_eq!(stopped.ask("release"), "AlreadyLost");
    }
    // What it takes back is its own alone.
    is_renewed(&next).await;
    assert_eq!(
        file.read().expect("read").as_deref(),
        Some(&b"by the next"[..])
    );
    give_back(next).await;
    eventually("nothing is left", async || !held().await).await;
    stopped.claims("granted ");
    assert_eq!(stopped.ask("write"), "written");
}

fn fence_of(answer: &str) -> u64 {
    let fence = answer.strip_prefix("granted ");
    fence
        .and_then(|fence| fence.parse().ok())
        .unwrap_or_else(|| panic!("{answer}"))
}

macro_rules! stopped {
    ($($test:ident: $server:ident, $when:ident;)*) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            is_stopped::<$server>(Stopped::$when).await;
        })*
    };
}

stopped! {
    in_its_claim_postgres: Postgres, InItsClaim;
    in_its_claim_mariadb: MariaDb, InItsClaim;
    after_the_grant_postgres: Postgres, AfterTheGrant;
    after_the_grant_mariadb: MariaDb, AfterTheGrant;
}
