//! In a cluster Redisson announces releases in the shard of the lock, and hears nothing of others.

use std::time::Duration;

use palisade_interop::redisson::{Library, Lock, Program};
use palisade_interop::{Contest, Fault, Host, Peer, Witness};
use palisade_testkit::redis::Redis;
use palisade_testkit::shared;

use super::exclusion::{PROMPT, to_and_fro};
use super::{LONG, PATIENCE, gone_from, ours, warm};
use crate::contests::show;

/// Each is woken by the other, and they exclude each other under contention.
#[test]
fn both_meet_in_the_shard_of_the_lock() -> Result<(), Fault> {
    let cluster = shared::redis_cluster();
    let host = Program::New.host(&cluster.url())?;
    for lock in [Lock::Lock, Lock::Fair, Lock::Fenced, Lock::Write] {
        let (mut our, mut their) = (
            start(ours(), lock, &host)?,
            start(Program::New, lock, &host)?,
        );
        let name = shared::name("shard");
        let title = format!("{} in a cluster", Library(Program::New, lock));
        to_and_fro(&name, &title, &mut our, &mut their, PROMPT)?;
        gone_from(cluster.primary_of(&name), &name);
    }
    for lock in [Lock::Lock, Lock::Fair] {
        contest(lock, &host)?;
    }
    Ok(())
}

fn start(program: Program, lock: Lock, host: &Host) -> Result<Peer, Fault> {
    match program {
        Program::New => host.hand(lock.in_java()),
        other => Library(other, lock).start(
            &shared::redis_cluster().url(),
            env!("CARGO_BIN_EXE_interop-driver"),
        ),
    }
}

fn contest(lock: Lock, host: &Host) -> Result<(), Fault> {
    let redis = Redis::start();
    let libraries =
        [ours(), ours(), Program::New, Program::New].map(|program| Library(program, lock));
    let peers = libraries
        .iter()
        .map(|Library(program, lock)| start(*program, *lock, host));
    let mut participants = warm(&libraries, peers.collect::<Result<_, Fault>>()?)?;
    let contest = Contest {
        wait: PATIENCE,
        lease: LONG,
        ..Contest::new(shared::name("shard"), Duration::from_secs(2))
    };
    let outcome = contest.run(&mut participants, &Witness::new(&redis.url())?)?;
    show(
        &format!("ours and Redisson in a cluster, {lock:?}"),
        &outcome,
    );
    outcome.assert_fair(1);
    Ok(())
}
