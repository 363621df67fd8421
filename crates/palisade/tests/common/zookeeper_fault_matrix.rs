//! Every format and every kind of ZooKeeper's locks as one table: a holder, and a
//! waiter behind it.

use std::collections::BTreeSet;
use std::time::Duration;

use palisade::{AnyMode, Client, Guard, Released, Result};
use palisade_conformance::eventually;
use palisade_testkit::proxy::Proxy;
use palisade_testkit::zookeeper::{Raw, ZooKeeper};

use super::actors::connect;
use super::zookeeper::{LONG, Pair, nodes, proxy};

/// How a lock is taken.
#[derive(Clone, Copy, Debug)]
pub enum Take {
    Mutex,
    Read,
    Write,
    /// So many of two.
    Permits(u32),
}

impl Take {
    pub async fn acquire(
        self,
        client: &Client,
        name: &str,
        lease: Duration,
    ) -> Result<Guard<AnyMode>> {
        let rwlock = || client.rwlock(name).lease(lease).store_wait(LONG);
        match self {
            Take::Mutex => client
                .mutex(name)
                .lease(lease)
                .store_wait(LONG)
                .acquire()
                .await
                .map(Guard::into_any_mode),
            Take::Read => rwlock().read().await.map(Guard::into_any_mode),
            Take::Write => rwlock().write().await.map(Guard::into_any_mode),
            Take::Permits(count) => {
                let pool = client.semaphore(name, 2).lease(lease).store_wait(LONG);
                pool.acquire_many(count).await.map(Guard::into_any_mode)
            }
        }
    }

    /// How many nodes its grant is.
    fn nodes(self) -> usize {
        if let Take::Permits(count) = self {
            count as usize
        } else {
            1
        }
    }
}

pub struct Row {
    pub what: &'static str,
    pub format: &'static str,
    pub holds: Take,
    pub waits: Take,
    /// Whether who waits has a node. Without a line it has only a watch.
    pub has_line: bool,
    /// The request for the grant of a waiter, where there is one: the beginning of what a
    /// `multi` makes.
    pub taken_by: Option<&'static str>,
}

const KAZOO: Row = Row {
    what: "kazoo",
    format: "kazoo",
    holds: Take::Mutex,
    waits: Take::Mutex,
    has_line: true,
    taken_by: None,
};
const CURATOR: Row = Row {
    what: "curator",
    format: "curator",
    ..KAZOO
};

pub const ROWS: [Row; 8] = [
    KAZOO,
    Row {
        what: "kazoo-reader-behind",
        holds: Take::Write,
        waits: Take::Read,
        ..KAZOO
    },
    Row {
        what: "kazoo-writer-behind",
        holds: Take::Read,
        waits: Take::Write,
        ..KAZOO
    },
    Row {
        what: "plain",
        format: "plain",
        has_line: false,
        ..KAZOO
    },
    Row {
        what: "reader-behind",
        holds: Take::Write,
        waits: Take::Read,
        ..CURATOR
    },
    Row {
        what: "writer-behind",
        holds: Take::Read,
        waits: Take::Write,
        ..CURATOR
    },
    Row {
        what: "permit",
        holds: Take::Permits(2),
        waits: Take::Permits(1),
        taken_by: Some("lease-"),
        ..CURATOR
    },
    Row {
        what: "permits",
        holds: Take::Permits(1),
        waits: Take::Permits(2),
        taken_by: Some("lease-"),
        ..CURATOR
    },
];

/// A row on a server: each of the two has a client, and a proxy before it.
pub struct Scene<'a> {
    pub row: &'static Row,
    pub server: &'a ZooKeeper,
    pub holders: Proxy,
    pub waiters: Proxy,
    holder: Client,
    waiter: Client,
    lease: Duration,
}

impl<'a> Scene<'a> {
    pub fn set(row: &'static Row, server: &'a ZooKeeper, lease: Duration) -> Scene<'a> {
        let (holders, waiters) = (proxy(server), proxy(server));
        let client = |at: &Proxy| connect(url(row, at.address()));
        Scene {
            row,
            server,
            lease,
            holder: client(&holders),
            waiter: client(&waiters),
            holders,
            waiters,
        }
    }

    fn name(&self) -> &'static str {
        self.row.what
    }

    fn path(&self) -> String {
        format!("/lock/{}", self.name())
    }

    /// The nodes of all holders and waiters, with their sessions.
    pub fn nodes(&self) -> Vec<(String, i64)> {
        let below = format!("{}/", self.path());
        nodes(self.server)
            .into_iter()
            .filter(|(node, _)| *node == self.path() || node.starts_with(&below))
            .collect()
    }

    /// The sessions that have a node, or watch the one that there is.
    fn sessions(&self) -> BTreeSet<i64> {
        let mut sessions: BTreeSet<i64> = self
            .nodes()
            .into_iter()
            .map(|(_, session)| session)
            .collect();
        if !self.row.has_line {
            sessions.extend(watchers(self.server, &self.path()));
        }
        sessions
    }

    pub async fn hold(&self) -> Guard<AnyMode> {
        let held = self
            .row
            .holds
            .acquire(&self.holder, self.name(), self.lease)
            .await
            .expect("a grant");
        assert_eq!(
            self.nodes().len(),
            self.row.holds.nodes(),
            "{}",
            self.row.what
        );
        held
    }

    /// The session of a client that has no other.
    #[track_caller]
    pub fn session(&self) -> i64 {
        let sessions = self.sessions();
        assert_eq!(sessions.len(), 1, "{}", self.row.what);
        sessions.into_iter().next().expect("one")
    }

    /// Lets the other wait for this.
    pub async fn wait_behind(&self, held: Guard<AnyMode>) -> Pair<AnyMode> {
        let (holds, row, client, lease) =
            (self.session(), self.row, self.waiter.clone(), self.lease);
        let pair = Pair::of(held, async move {
            row.waits.acquire(&client, row.what, lease).await
        });
        self.waits_beside(&[holds]).await;
        pair
    }

    pub async fn begin(&self) -> Pair<AnyMode> {
        let held = self.hold().await;
        self.wait_behind(held).await
    }

    /// The session of the waiter, which is none of these.
    pub async fn waits_beside(&self, others: &[i64]) -> i64 {
        let found = || {
            self.sessions()
                .into_iter()
                .find(|session| !others.contains(session))
        };
        eventually(&format!("{}: a claim waits", self.row.what), async || {
            found().is_some()
        })
        .await;
        found().expect("it was there")
    }

    /// Each has exactly its own nodes.
    pub fn has_no_more_nodes_than(&self, holders: usize, waiters: usize) {
        let wanted = holders * self.row.holds.nodes() + if self.row.has_line { waiters } else { 0 };
        assert_eq!(
            self.nodes().len(),
            wanted,
            "{}: {:?}",
            self.row.what,
            self.nodes()
        );
    }

    /// The last one leaves, and nothing stays. Both clients live: their end would end their
    /// sessions.
    pub async fn ends_with(&self, last: Guard<AnyMode>) {
        assert!(last.is_held(), "{}", self.row.what);
        assert_eq!(
            self.nodes().len(),
            self.row.waits.nodes(),
            "{}: {:?}",
            self.row.what,
            self.nodes()
        );
        assert_eq!(
            last.release().await.expect("an answer"),
            Released::Done,
            "{}",
            self.row.what
        );
        self.is_empty().await;
        // The next claim has a higher fence, and no phantom before it.
        let next = tokio::time::timeout(super::pair::LIMIT, self.hold())
            .await
            .expect("no claim is before it");
        assert_eq!(
            next.release().await.expect("an answer"),
            Released::Done,
            "{}",
            self.row.what
        );
    }

    pub async fn is_empty(&self) {
        eventually(&format!("{}: no node is left", self.row.what), async || {
            self.nodes().is_empty()
        })
        .await;
    }

    /// A waiter that soon gives up.
    pub fn waits_for_a_while(&self) -> tokio::task::JoinHandle<Result<Guard<AnyMode>>> {
        let (row, client, lease) = (self.row, self.waiter.clone(), self.lease);
        tokio::spawn(async move { row.waits.acquire(&client, row.what, lease).await })
    }

    /// An operator deletes everything of the name.
    pub fn delete_all(&self) {
        let mut operator =
            Raw::open(self.server.address(), Duration::from_secs(10)).expect("a session");
        delete_below(&mut operator, &self.path());
    }
}

pub fn url(row: &Row, at: std::net::SocketAddr) -> String {
    format!("zk://{at}/lock?format={}&request_timeout=2s", row.format)
}

fn delete_below(operator: &mut Raw, path: &str) {
    // The last in line first, and the line before what is held: otherwise a waiter may be admitted
    // in between, and lose that again.
    let mut children = operator.children(path).expect("an answer");
    children
        .sort_by_key(|child| std::cmp::Reverse(child[child.len().saturating_sub(10)..].to_owned()));
    for child in children {
        delete_below(operator, &format!("{path}/{child}"));
    }
    // Refused where another claim has come back meanwhile.
    let _ = operator.delete(path);
}

/// The sessions that watch a node.
fn watchers(server: &ZooKeeper, path: &str) -> Vec<i64> {
    let said = server.ask("wchp");
    let lines = said.lines().skip_while(|line| *line != path).skip(1);
    let hex = lines.map_while(|line| line.strip_prefix("\t0x"));
    hex.map(|hex| {
        u64::from_str_radix(hex, 16)
            .expect("a session")
            .cast_signed()
    })
    .collect()
}
