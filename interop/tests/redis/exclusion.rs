//! Rules between two libraries, in both directions: each of them holds once.

use std::time::{Duration, Instant};

use palisade_interop::protocol::Request;
use palisade_interop::redis::Library;
use palisade_interop::{Acquired, Extended, Fault, Participant, Peer, Released};
use palisade_testkit::eventually;
use palisade_testkit::redis::Redis;

use crate::{LONG, ONCE, PATIENCE, ours, start};

/// The lock, and its key in Redis.
const NAME: &str = "shared";

/// How long a waiter must not get the lock.
const A_WHILE: Duration = Duration::from_millis(300);

/// Redis counts in milliseconds, and by another clock than ours.
const SLACK: Duration = Duration::from_millis(20);

fn both((holder, other): (Library, Library)) -> Result<(Redis, Peer, Peer), Fault> {
    let redis = Redis::start();
    let holder = start(holder, &redis)?;
    let other = start(other, &redis)?;
    Ok((redis, holder, other))
}

/// The other is refused, waits in vain, and gets the lock after the release.
pub(crate) fn holds(pair: (Library, Library)) -> Result<(), Fault> {
    let (redis, mut holder, mut other) = both(pair)?;
    assert_eq!(holder.acquire(NAME, Some(LONG), ONCE)?, Acquired::Yes);
    assert_eq!(other.acquire(NAME, Some(LONG), ONCE)?, Acquired::Busy);
    let token = token(&redis);

    other.begin(&Request::Acquire {
        name: NAME.into(),
        lease: Some(LONG),
        wait: PATIENCE,
    })?;
    assert_eq!(
        other.awaited::<Acquired>(A_WHILE)?,
        None,
        "it waits for the holder"
    );
    assert_eq!(self::token(&redis), token, "the holder's lock was touched");
    assert_ne!(holder.release()?, Released::NotHeld);
    assert_eq!(other.awaited(PATIENCE)?, Some(Acquired::Yes));

    assert_eq!(holder.acquire(NAME, Some(LONG), ONCE)?, Acquired::Busy);
    assert_ne!(other.release()?, Released::NotHeld);
    gone(&redis);
    Ok(())
}

/// The lock of a killed holder is free after its lease, and not before.
pub(crate) fn crashes(pair: (Library, Library)) -> Result<(), Fault> {
    let (_redis, mut holder, mut other) = both(pair)?;
    let lease = Duration::from_secs(1);
    let asked = Instant::now();
    assert_eq!(holder.acquire(NAME, Some(lease), ONCE)?, Acquired::Yes);
    holder.crash();
    assert_eq!(other.acquire(NAME, Some(LONG), PATIENCE)?, Acquired::Yes);
    let after = asked.elapsed();
    assert!(
        after + SLACK >= lease,
        "the lock was free after {after:?} of a lease of {lease:?}"
    );
    Ok(())
}

/// A holder whose lock was taken away by an operator and given to another cannot release or extend
/// it.
pub(crate) fn releases_in_vain(pair: (Library, Library)) -> Result<(), Fault> {
    let (redis, mut loser, mut holder) = both(pair)?;
    assert_eq!(loser.acquire(NAME, Some(LONG), ONCE)?, Acquired::Yes);
    redis.call(&["DEL", NAME]);
    assert_eq!(holder.acquire(NAME, Some(LONG), ONCE)?, Acquired::Yes);
    let token = token(&redis);

    let extended = loser.extend(LONG)?;
    // We ask the store only when a renewal is due, and have not been told yet.
    assert!(
        extended == Extended::NotHeld || pair.0 == Library::Ours,
        "{extended:?}"
    );
    assert_ne!(loser.release()?, Released::Yes);
    assert_eq!(self::token(&redis), token, "the wrong one changed the lock");
    assert_eq!(loser.acquire(NAME, Some(LONG), ONCE)?, Acquired::Busy);
    assert_eq!(holder.extend(LONG)?, Extended::Yes);
    assert_ne!(holder.release()?, Released::NotHeld);
    gone(&redis);
    Ok(())
}

/// A holder that extends keeps the other out for longer than the lease.
pub(crate) fn extends(pair: (Library, Library)) -> Result<(), Fault> {
    let (redis, mut holder, mut other) = both(pair)?;
    let lease = Duration::from_secs(2);
    let asked = Instant::now();
    assert_eq!(holder.acquire(NAME, Some(lease), ONCE)?, Acquired::Yes);
    let token = token(&redis);
    other.begin(&Request::Acquire {
        name: NAME.into(),
        lease: Some(LONG),
        wait: PATIENCE,
    })?;
    while asked.elapsed() < lease.mul_f64(1.3) {
        assert_eq!(
            other.awaited::<Acquired>(Duration::from_millis(100))?,
            None,
            "it got the lock of a holder who extends"
        );
        assert_eq!(holder.extend(lease)?, Extended::Yes);
    }
    assert_eq!(self::token(&redis), token, "it is another grant");
    assert_ne!(holder.release()?, Released::NotHeld);
    assert_eq!(other.awaited(PATIENCE)?, Some(Acquired::Yes));
    Ok(())
}

/// redis-py makes locks without an expiry by default. We wait for those too, and leave them
/// unchanged.
#[test]
fn a_lock_without_an_end_is_respected() -> Result<(), Fault> {
    let (redis, mut holder, mut other) = both((Library::RedisPy, ours()))?;
    assert_eq!(holder.acquire(NAME, None, ONCE)?, Acquired::Yes);
    let token = token(&redis);
    assert_eq!(redis.call(&["PTTL", NAME]).int(), Some(-1), "it has no end");
    assert_eq!(other.acquire(NAME, Some(LONG), ONCE)?, Acquired::Busy);
    other.begin(&Request::Acquire {
        name: NAME.into(),
        lease: Some(LONG),
        wait: PATIENCE,
    })?;
    assert_eq!(
        other.awaited::<Acquired>(A_WHILE)?,
        None,
        "it waits for the holder"
    );
    assert_eq!(self::token(&redis), token);
    assert_eq!(
        redis.call(&["PTTL", NAME]).int(),
        Some(-1),
        "it has no end still"
    );
    assert_eq!(holder.release()?, Released::Yes);
    assert_eq!(other.awaited(PATIENCE)?, Some(Acquired::Yes));
    Ok(())
}

/// A waiter that is killed leaves nothing behind.
#[test]
fn a_waiter_of_ours_that_crashes_leaves_nothing() -> Result<(), Fault> {
    let (redis, mut holder, mut other) = both((Library::RedisPy, ours()))?;
    assert_eq!(holder.acquire(NAME, Some(LONG), ONCE)?, Acquired::Yes);
    other.begin(&Request::Acquire {
        name: NAME.into(),
        lease: Some(LONG),
        wait: PATIENCE,
    })?;
    assert_eq!(other.awaited::<Acquired>(A_WHILE)?, None);
    other.crash();
    assert_eq!(holder.release()?, Released::Yes);
    gone(&redis);
    assert_eq!(holder.acquire(NAME, Some(LONG), ONCE)?, Acquired::Yes);
    Ok(())
}

fn token(redis: &Redis) -> String {
    let token = redis.call(&["GET", NAME]).text();
    assert!(!token.is_empty(), "{NAME} is free");
    token
}

/// rslock answers nothing on a release, so the test reads the key itself.
fn gone(redis: &Redis) {
    eventually("the end of the lock", PATIENCE, || {
        match redis.call(&["EXISTS", NAME]).int() {
            Some(0) => Ok(()),
            other => Err(format!("EXISTS says {other:?}")),
        }
    });
}
