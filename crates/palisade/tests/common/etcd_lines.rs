//! The ways to hold a name of etcd and to wait for it, as a table: what is true of one must be true
//! of all.

use std::time::Duration;

use palisade::{AnyMode, Client, Guard, LossReason, Released, Result};
use palisade_conformance::eventually;
use palisade_testkit::etcd::Etcd;

use super::actors::{Confirmed, connect, number};
use super::etcd::{LIMIT, LONG, Metrics, Pair, line_is};

/// The kind and mode of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    Mutex,
    Write,
    Read,
    /// Two of three permits.
    Permits,
}

impl Takes {
    pub async fn take(
        self,
        client: &Client,
        name: &str,
        lease: Duration,
    ) -> Result<Guard<AnyMode>> {
        let rwlock = || client.rwlock(name).lease(lease).store_wait(LONG);
        Ok(match self {
            Takes::Mutex => client
                .mutex(name)
                .lease(lease)
                .store_wait(LONG)
                .acquire()
                .await?
                .into_any_mode(),
            Takes::Write => rwlock().write().await?.into_any_mode(),
            Takes::Read => rwlock().read().await?.into_any_mode(),
            Takes::Permits => client
                .semaphore(name, 3)
                .lease(lease)
                .store_wait(LONG)
                .acquire_many(2)
                .await?
                .into_any_mode(),
        })
    }
}

/// A holder, and a waiter behind it.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    pub what: &'static str,
    pub format: &'static str,
    pub holder: Takes,
    pub waiter: Takes,
    /// Whether who waits stands in the store.
    pub queues: bool,
}

pub const LINES: [Line; 5] = [
    Line {
        what: "mutex",
        format: "mutex",
        holder: Takes::Mutex,
        waiter: Takes::Mutex,
        queues: true,
    },
    Line {
        what: "reader",
        format: "mutex",
        holder: Takes::Write,
        waiter: Takes::Read,
        queues: true,
    },
    Line {
        what: "writer",
        format: "mutex",
        holder: Takes::Read,
        waiter: Takes::Write,
        queues: true,
    },
    Line {
        what: "permits",
        format: "mutex",
        holder: Takes::Permits,
        waiter: Takes::Permits,
        queues: true,
    },
    Line {
        what: "plain",
        format: "plain",
        holder: Takes::Mutex,
        waiter: Takes::Mutex,
        queues: false,
    },
];

impl Line {
    /// The holders and the waiters, once they are in line.
    pub fn shape(&self) -> (usize, usize) {
        (1, usize::from(self.queues))
    }

    /// The watches of both: of each key its owner's, and the waiter's of what it waits for.
    fn watches(&self) -> u64 {
        if self.queues { 3 } else { 2 }
    }
}

/// Clients of one address, in both formats: one to hold and one to wait.
pub struct Clients {
    mutex: [Client; 2],
    plain: [Client; 2],
}

impl Clients {
    /// `url` without the format, but with a query.
    pub fn of(url: &str) -> Clients {
        let pair = |format: &str| [(); 2].map(|()| connect(format!("{url}&format={format}")));
        Clients {
            mutex: pair("mutex"),
            plain: pair("plain"),
        }
    }

    pub fn holder(&self, line: &Line) -> &Client {
        &self.of_format(line)[0]
    }

    pub fn waiter(&self, line: &Line) -> &Client {
        &self.of_format(line)[1]
    }

    fn of_format(&self, line: &Line) -> &[Client; 2] {
        if line.format == "plain" {
            &self.plain
        } else {
            &self.mutex
        }
    }
}

/// A pair of each line, through one fault.
pub struct Pairs {
    pairs: Vec<(Line, String, Pair<AnyMode>)>,
    outside: Client,
}

impl Pairs {
    /// All hold, all wait, and all watch. `outside` sees it.
    pub async fn begin(
        server: &Etcd,
        holders: &Clients,
        waiters: &Clients,
        outside: &Client,
        name: &str,
        lease: Duration,
    ) -> Pairs {
        let before = Metrics::of(server).watches();
        let mut pairs = Vec::new();
        for line in LINES {
            let name = format!("{name}-{}", line.what);
            let held = line
                .holder
                .take(holders.holder(&line), &name, lease)
                .await
                .expect("a grant");
            let (client, waits) = (waiters.waiter(&line).clone(), name.clone());
            let pair = Pair::of(held, async move {
                line.waiter.take(&client, &waits, lease).await
            });
            pairs.push((line, name, pair));
        }
        for (line, name, _) in &pairs {
            line_is(outside, name, line.shape()).await;
        }
        let watches = before + LINES.iter().map(Line::watches).sum::<u64>();
        eventually("all watch", async || {
            Metrics::of(server).watches() >= watches
        })
        .await;
        Pairs {
            pairs,
            outside: outside.clone(),
        }
    }

    /// The holders still hold, and the waiters still wait.
    #[track_caller]
    pub fn stand(&self) {
        self.pairs.iter().for_each(|(_, _, pair)| pair.stands());
    }

    pub fn fences(&self) -> Vec<u64> {
        self.pairs
            .iter()
            .map(|(_, _, pair)| number(&pair.held))
            .collect()
    }

    /// Every holder is confirmed again after this fault.
    pub async fn confirmed_after(&self, fault: impl FnOnce()) {
        let before: Vec<Confirmed> = self
            .pairs
            .iter()
            .map(|(_, _, pair)| Confirmed::of(&pair.held))
            .collect();
        fault();
        for (confirmed, (_, _, pair)) in before.into_iter().zip(&self.pairs) {
            confirmed.again(&pair.held).await;
        }
    }

    /// Every holder is told that its lock is lost.
    pub async fn are_told(&self, why: LossReason) {
        for (line, _, pair) in &self.pairs {
            let reason = tokio::time::timeout(LIMIT, pair.held.lost()).await;
            assert_eq!(reason, Ok(why), "{}", line.what);
        }
    }

    /// All holders release, all waiters get in, and no other is there; then these go as well, and
    /// nothing is left.
    pub async fn hand_over(self) {
        for (line, name, pair) in self.pairs {
            let next = pair.hands_over().await;
            is_alone(&self.outside, &line, &name, next).await;
        }
    }

    /// All lose their locks for this reason, and only then do the waiters get in.
    pub async fn lose_it_to_the_next(self, why: LossReason) {
        for (line, name, pair) in self.pairs {
            let (reason, next) = pair.loses_it_to_the_next().await;
            assert_eq!(reason, why, "{}", line.what);
            is_alone(&self.outside, &line, &name, next).await;
        }
    }

    /// The same, where the store itself drops the grants.
    pub async fn have_it_dropped(self, why: LossReason) {
        for (line, name, pair) in self.pairs {
            let (reason, next) = pair.has_it_dropped().await;
            assert_eq!(reason, why, "{}", line.what);
            is_alone(&self.outside, &line, &name, next).await;
        }
    }
}

/// The holder is the only one, and its name is free afterwards.
pub async fn is_alone(outside: &Client, line: &Line, name: &str, guard: Guard<AnyMode>) {
    println!("{} holds", line.what);
    assert!(guard.is_held(), "{}", line.what);
    line_is(outside, name, (1, 0)).await;
    let released = tokio::time::timeout(LIMIT, guard.release())
        .await
        .expect("an answer in time")
        .expect("an answer");
    assert!(
        matches!(released, Released::Done | Released::Unknown),
        "{}: {released:?}",
        line.what
    );
    line_is(outside, name, (0, 0)).await;
}
