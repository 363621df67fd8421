//! Callers that are not polled: their runtime is blocked, or stands still.

use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use palisade::lease::BootClock;
use palisade::store::Order;
use palisade::{Client, Guard, Released, Result};
use tokio::time::timeout;

use super::{
    Acquiring, acquiring, aside, in_line, is_renewed, nothing_is_left, one_thread, poll_once,
    release, rises, short_lease,
};
use crate::faults::Faulty;
use crate::{Subject, Verdict, eventually, needs, patience};

/// More than any client sends at once.
const CLAIMS: usize = 200;

/// Claims that were begun, and are never polled again while others of the same client go on: on
/// free names, and one in line. Later some of them are awaited, and the others dropped.
pub async fn unpolled_claims_hold_up_no_other(subject: &Subject) -> Verdict {
    needs!(subject.is_as_it_is(), "other runtimes for other kinds");
    for connected in [false, true] {
        let (client, outside) = (subject.client(), subject.client());
        let [waits, other, short] = ["waits", "other", "short"]
            .map(|name| subject.name(&format!("still-{connected}-{name}")));
        let names: Vec<String> = (0..CLAIMS)
            .map(|number| subject.name(&format!("still-{connected}-{number}")))
            .collect();
        let blocker = outside.mutex(&waits).acquire().await.expect("acquired");
        if connected {
            release(client.mutex(&other).acquire().await.expect("acquired")).await;
        }
        let mut claims: Vec<Acquiring> = names
            .iter()
            .map(|name| acquiring(&client.mutex(name)))
            .collect();
        claims.push(acquiring(&client.mutex(&waits)));
        let (mut claims, still) = aside(move || {
            let still = one_thread();
            let claims: Vec<Begun> = claims
                .into_iter()
                .map(|claim| still.block_on(async { Begun::poll_once(claim) }))
                .collect();
            (claims, still)
        })
        .await;
        let begun = Instant::now();
        for _ in 0..10 {
            release(
                timeout(patience(), client.mutex(&other).acquire())
                    .await
                    .expect("not held up")
                    .expect("acquired"),
            )
            .await;
        }
        let held = client
            .mutex(&short)
            .lease(short_lease(subject))
            .acquire()
            .await
            .expect("acquired");
        assert!(
            begun.elapsed() < patience() / 4,
            "held up for {:?}",
            begun.elapsed()
        );
        is_renewed(&held).await;
        release(held).await;
        drop(claims.pop());
        for (number, claim) in claims.into_iter().enumerate() {
            if number % 2 == 0 {
                let held = timeout(patience(), claim.acquired())
                    .await
                    .expect("it is free")
                    .expect("acquired");
                release(held).await;
            }
        }
        in_line(&outside, &waits, 0).await;
        release(blocker).await;
        aside(move || drop(still)).await;
        let all: Vec<&str> = names
            .iter()
            .chain([&waits, &other, &short])
            .map(String::as_str)
            .collect();
        nothing_is_left(&client, &outside, &all).await;
    }
    Verdict::Kept
}

/// A claim that was polled once. A store that answers at once has granted it by then.
enum Begun {
    Pending(Acquiring),
    Ready(Box<Result<Guard>>),
}

impl Begun {
    fn poll_once(mut claim: Acquiring) -> Begun {
        match poll_once(&mut claim) {
            Poll::Ready(acquired) => Begun::Ready(Box::new(acquired)),
            Poll::Pending => Begun::Pending(claim),
        }
    }

    async fn acquired(self) -> Result<Guard> {
        match self {
            Begun::Pending(claim) => claim.await,
            Begun::Ready(acquired) => *acquired,
        }
    }
}

/// A waiter that is not polled is renewed, and served when its turn comes.
pub async fn an_unpolled_waiter_keeps_its_place(subject: &Subject) -> Verdict {
    needs!(subject.is_as_it_is(), "other runtimes for other kinds");
    needs!(
        subject.capability().waiters_known && subject.capability().order == Order::Fifo,
        "a line that can be seen"
    );
    let (client, outside, lease) = (subject.client(), subject.client(), short_lease(subject));
    let name = subject.name("place");
    let held = outside
        .mutex(&name)
        .lease(lease)
        .acquire()
        .await
        .expect("acquired");
    let mut waits = acquiring(&client.mutex(&name).lease(lease));
    assert!(poll_once(&mut waits).is_pending(), "it is held");
    // Until it stands in line; from then on it is not polled.
    in_line_while_polled(&mut waits, &client, &outside, &name).await;
    // For longer than a waiter lives without renewal. There is nothing else to wait for.
    tokio::time::sleep(lease * 3 / 2).await;
    in_line(&outside, &name, 1).await;
    let first = held.fence();
    release(held).await;
    tokio::time::sleep(lease * 3 / 2).await;
    let next = timeout(patience(), waits)
        .await
        .expect("its turn has come")
        .expect("acquired");
    assert!(next.is_held());
    rises(&outside, first, &next);
    release(next).await;
    nothing_is_left(&client, &outside, &[&name]).await;
    Verdict::Kept
}

/// Polls a waiter until it stands in line, and its client has taken up the answer: from then on the
/// keeper renews its place.
async fn in_line_while_polled(
    waits: &mut Acquiring,
    client: &Client,
    outside: &Client,
    name: &str,
) {
    let stands = async {
        in_line(outside, name, 1).await;
        eventually("the client keeps its place", async || {
            client.stats().kept == 1
        })
        .await;
    };
    tokio::select! {
        biased;
        _ = waits => panic!("the name is held"),
        () = stands => {}
    }
}

/// A release that does not arrive, and is neither polled nor dropped: the lease ends the lock.
pub async fn an_unpolled_release_ends_with_its_lease(subject: &Subject) -> Verdict {
    needs!(subject.is_as_it_is(), "other runtimes for other kinds");
    let name = subject.name("unpolled-release");
    let (faulty, faults) = Faulty::over(subject.store());
    let (client, outside) = (Client::over(faulty, Arc::new(BootClock)), subject.client());
    let held = client
        .mutex(&name)
        .lease(short_lease(subject))
        .acquire()
        .await
        .expect("acquired");
    faults.hang(true);
    let mut unpolled: std::pin::Pin<Box<dyn Future<Output = Result<Released>> + Send>> =
        Box::pin(held.release());
    assert!(poll_once(&mut unpolled).is_pending(), "it does not arrive");
    faults.hang(false);
    let next = outside
        .mutex(&name)
        .acquire_timeout(patience())
        .await
        .expect("the lease has ended");
    release(next).await;
    drop(unpolled);
    nothing_is_left(&client, &outside, &[&name]).await;
    Verdict::Kept
}

/// A runtime whose only thread is blocked by its user: locks are renewed, and an answer that came
/// meanwhile is taken.
pub async fn a_blocked_runtime_keeps_its_locks(subject: &Subject) -> Verdict {
    needs!(subject.is_as_it_is(), "other runtimes for other kinds");
    let (client, outside, lease) = (subject.client(), subject.client(), short_lease(subject));
    let [kept, late] = ["kept", "late"].map(|name| subject.name(&format!("blocked-{name}")));
    let (holds, asks) = (client.mutex(&kept).lease(lease), client.mutex(&late));
    aside(move || {
        one_thread().block_on(async {
            let held = holds.acquire().await.expect("acquired");
            let asked = tokio::spawn(async move { asks.try_acquire().await });
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
            std::thread::sleep(lease * 2);
            assert!(held.is_held(), "renewed meanwhile");
            release(held).await;
            let late = asked
                .await
                .expect("no panic")
                .expect("an answer")
                .expect("it is free");
            release(late).await;
        });
    })
    .await;
    nothing_is_left(&client, &outside, &[&kept, &late]).await;
    Verdict::Kept
}
