//! A database whose clock steps: fences rise, no lease becomes longer than it was asked for, and no
//! name is closed for longer.

#![cfg(all(feature = "postgres", feature = "mysql"))]

mod common;

use std::net::SocketAddr;
use std::time::Duration;

use common::actors::{
    connect, gets_in, give_back, is_renewed, is_told, number, rise, soon, wait_for,
};
use common::{in_line, ms};
use palisade::Client;
use palisade_testkit::clock::Clock;
use palisade_testkit::mariadb::MariaDb;
use palisade_testkit::postgres::Postgres;
use palisade_testkit::proxy::{Proxy, Way};

const HOUR: Duration = Duration::from_secs(3600);
/// So long that no test waits for its end.
const LONG: Duration = Duration::from_secs(120);

trait Server {
    const SCHEME: &str;
    fn begin() -> Self;
    fn socket(&self) -> SocketAddr;
    fn clock(&self) -> &Clock;

    fn client(&self) -> Client {
        Self::client_by(self.socket())
    }

    fn client_of(&self, format: &str) -> Client {
        let words = format!("locks?zone=utc&format={format}");
        connect(Self::url_by(self.socket()).replace("locks", &words))
    }

    fn client_by(address: SocketAddr) -> Client {
        connect(Self::url_by(address))
    }

    fn url_by(address: SocketAddr) -> String {
        format!("{}://locker:lockpw@{address}/locks", Self::SCHEME)
    }
}

impl Server for Postgres {
    const SCHEME: &str = "postgres";

    fn begin() -> Postgres {
        Postgres::with().clock().start()
    }

    fn socket(&self) -> SocketAddr {
        self.address()
    }

    fn clock(&self) -> &Clock {
        self.clock()
    }
}

impl Server for MariaDb {
    const SCHEME: &str = "mysql";

    fn begin() -> MariaDb {
        MariaDb::with().clock().start()
    }

    fn socket(&self) -> SocketAddr {
        self.address()
    }

    fn clock(&self) -> &Clock {
        self.clock()
    }
}

/// One cycle, and its fence.
async fn cycle(client: &Client, name: &str) -> u64 {
    let guard = soon("a grant", client.mutex(name).lease(LONG).acquire()).await;
    let guard = guard.expect("a grant");
    let fence = number(&guard);
    give_back(guard).await;
    fence
}

/// Not so in `shedlock`, where a lock that was given back has an end in the future then.
async fn fences_rise_whatever_the_clock_does<S: Server>() {
    let server = S::begin();
    for clients in [
        [server.client(), server.client()],
        [server.client_of("simple"), server.client_of("simple")],
    ] {
        let mut fences = Vec::new();
        for step in ["right", "ahead", "right", "back", "back", "right"] {
            match step {
                "ahead" => server.clock().set_ahead(HOUR),
                "back" => server.clock().set_back(HOUR),
                _ => server.clock().set_right(),
            }
            for client in &clients {
                fences.push(cycle(client, "jumps").await);
            }
        }
        rise(&fences);
    }
}

/// A step ahead ends every lease: holders are told, and the next in line gets in. The store frees by its
/// own clock, so it breaks no promise.
async fn a_clock_that_steps_ahead_keeps_no_claim_out<S: Server>() {
    let server = S::begin();
    let (holder, waiter) = (server.client(), server.client());
    let held = holder.mutex("ahead").lease(ms(3000));
    let held = soon("free", held.acquire()).await.expect("free");
    let waiting = wait_for(&waiter.mutex("ahead").lease(LONG));
    in_line(&holder, "ahead", 1).await;
    server.clock().set_ahead(HOUR);
    // The waiter's own place has ended, too: it asks again.
    let next = gets_in(waiting).await;
    is_told(&held).await;
    rise(&[number(&held), number(&next)]);
    give_back(next).await;
}

/// A step back makes leases seem to begin in the future: they last as long as was asked, and not an hour
/// more. That is so for a holder that lives, for one that has crashed, and for a waiter that has.
async fn a_clock_that_steps_back_keeps_no_claim_out<S: Server>() {
    let server = S::begin();
    let (holder, waiter) = (server.client(), server.client());
    let held = holder.mutex("back").lease(ms(3000));
    let held = soon("free", held.acquire()).await.expect("free");
    // The first in line is cut off, without a word.
    let proxy = tokio::task::block_in_place(|| Proxy::start(server.socket()));
    let dead = wait_for(&S::client_by(proxy.address()).mutex("back").lease(LONG));
    in_line(&holder, "back", 1).await;
    proxy.swallow(Way::Both);
    let crashed = holder.mutex("crashed").lease(ms(2000)).auto_renew(false);
    let crashed = soon("free", crashed.acquire()).await.expect("free");
    let waiting = ["back", "crashed"].map(|name| wait_for(&waiter.mutex(name).lease(LONG)));
    in_line(&holder, "back", 2).await;
    in_line(&holder, "crashed", 1).await;
    server.clock().set_back(HOUR);
    is_renewed(&held).await;
    is_renewed(&held).await;
    let [behind_the_dead, waiting] = waiting;
    assert!(!behind_the_dead.is_finished());
    let next = gets_in(waiting).await;
    rise(&[number(&crashed), number(&next)]);
    give_back(next).await;
    give_back(held).await;
    give_back(gets_in(behind_the_dead).await).await;
    dead.abort();
}

/// A minimum hold is no longer than it was asked for, either.
async fn a_clock_that_steps_back_closes_no_name_for_longer<S: Server>() {
    let server = S::begin();
    let client = server.client();
    // A lease that reaches beyond the step hides it.
    let closed = client.mutex("closed").lease(2 * HOUR).min_hold(ms(2000));
    give_back(soon("free", closed.acquire()).await.expect("free")).await;
    server.clock().set_back(HOUR);
    give_back(
        soon("open again", client.mutex("closed").acquire())
            .await
            .expect("free"),
    )
    .await;
}

macro_rules! both {
    ($($test:ident)*) => {
        $(mod $test {
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                super::$test::<Postgres>().await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn mariadb() {
                super::$test::<MariaDb>().await;
            }
        })*
    };
}

both! {
    fences_rise_whatever_the_clock_does
    a_clock_that_steps_ahead_keeps_no_claim_out
    a_clock_that_steps_back_keeps_no_claim_out
    a_clock_that_steps_back_closes_no_name_for_longer
}
