//! Cancellation: every verb, dropped at every step of the store and of the core.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use palisade::lease::BootClock;
use palisade::{Client, Error, Guard};

use super::mutex::free;
use crate::faults::{Faults, Faulty};
use crate::{Subject, Verdict};

/// The future of a user's call.
type Walked = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

/// A verb on a client behind the gate. The first name is free. Another client holds the second for
/// two steps.
type Verb = fn(Client, String, String) -> Walked;

fn verbs(subject: &Subject) -> Vec<(&'static str, Verb)> {
    let capability = subject.capability();
    let mut verbs: Vec<(&'static str, Verb)> = vec![
        ("acquire", |client, a, _| {
            Box::pin(async move { client.mutex(a).acquire().await.map(drop) })
        }),
        ("acquire, in line", |client, _, b| {
            Box::pin(async move { client.mutex(b).acquire().await.map(drop) })
        }),
        ("try_acquire", |client, a, _| {
            Box::pin(async move { client.mutex(a).try_acquire().await.map(drop) })
        }),
        ("try_acquire, busy", |client, _, b| {
            Box::pin(async move { client.mutex(b).try_acquire().await.map(drop) })
        }),
        ("acquire_timeout", |client, _, b| {
            Box::pin(async move {
                client
                    .mutex(b)
                    .acquire_timeout(Duration::from_millis(20))
                    .await
                    .map(drop)
            })
        }),
        ("acquire_as", |client, _, b| {
            Box::pin(async move {
                let owner = client.identity("owner");
                let outer = client.mutex(&b).acquire_as(&owner).await?;
                let inner = client.mutex(&b).acquire_as(&owner).await?;
                let _ = outer.release().await?;
                inner.release().await.map(drop)
            })
        }),
        ("release", |client, a, _| {
            Box::pin(async move { client.mutex(a).acquire().await?.release().await.map(drop) })
        }),
        ("run", |client, _, b| {
            Box::pin(async move { client.mutex(b).run(async |guard| drop(guard)).await })
        }),
        ("multi", |client, a, b| {
            Box::pin(async move { client.multi([a, b]).acquire().await.map(drop) })
        }),
        ("multi release", |client, a, b| {
            Box::pin(async move {
                let guard = client.multi([a, b]).acquire().await?;
                let _ = guard.release().await;
                Ok(())
            })
        }),
    ];
    if capability.rwlock {
        verbs.push(("read", |client, _, b| {
            Box::pin(async move { client.rwlock(b).read().await.map(drop) })
        }));
        verbs.push(("write", |client, _, b| {
            Box::pin(async move { client.rwlock(b).write().await.map(drop) })
        }));
    }
    if capability.downgrade {
        verbs.push(("downgrade", |client, a, _| {
            Box::pin(async move {
                let guard: Guard = client.rwlock(a).write().await?;
                guard.downgrade().await.map(drop).map_err(Error::from)
            })
        }));
    }
    if capability.once_per {
        verbs.push(("undo", |client, a, _| {
            Box::pin(async move {
                match client
                    .mutex(a)
                    .once_per(Duration::from_millis(1))
                    .acquire()
                    .await?
                {
                    Some(guard) => guard.undo().await.map(drop),
                    None => Ok(()),
                }
            })
        }));
    }
    if capability.once {
        verbs.push(("once", |client, a, _| {
            Box::pin(async move { client.once(a).begin().await.map(drop) })
        }));
    }
    verbs
}

/// Dropping any future of a user at any point withdraws its claim: nothing is left in the store or
/// in the keeper.
pub async fn every_verb_at_every_step(subject: &Subject) -> Verdict {
    let outside = subject.client();
    for (verb, start) in verbs(subject) {
        for steps in 0..100 {
            let (a, b) = (
                subject.name(&format!("{verb}-{steps}-a")),
                subject.name(&format!("{verb}-{steps}-b")),
            );
            let held = outside.mutex(&b).acquire().await.expect("acquired");
            let (faulty, faults) = Faulty::over(subject.store());
            let client = Client::over(faulty, Arc::new(BootClock));
            faults.close_gate();
            let mut future = start(client.clone(), a.clone(), b.clone());
            let done = walk(&mut future, &faults, steps, held).await;
            drop(future);
            faults.steps(10_000);
            client.shutdown().await;
            assert_eq!(
                client.stats().kept,
                0,
                "{verb} after {steps} steps: the keeper still keeps something"
            );
            for name in [&a, &b] {
                free(&outside, name).await;
            }
            if done {
                break;
            }
            assert!(steps < 99, "{verb} never ends");
        }
    }
    Verdict::Kept
}

/// Lets the store take so many steps, polling the future after each. Half-way, the other holder
/// releases. Says whether the future ended.
async fn walk(future: &mut Walked, faults: &Faults, steps: usize, held: Guard) -> bool {
    let mut held = Some(held);
    let poll = |future: &mut Walked| {
        future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
    };
    if poll(future).is_ready() {
        return true;
    }
    for step in 0..steps {
        if step == 2 {
            drop(held.take());
        }
        faults.steps(1);
        let mut ended = false;
        // A verb that waits for the clock or for the other holder takes no step; that is a point to
        // be dropped at, too.
        let begun = std::time::Instant::now();
        while faults.unused_steps() > 0 && !ended && begun.elapsed() < Duration::from_millis(30) {
            ended = poll(future).is_ready();
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        if ended || poll(future).is_ready() {
            return true;
        }
    }
    false
}
