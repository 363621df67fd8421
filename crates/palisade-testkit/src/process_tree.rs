//! A server and its descendants. PostgreSQL answers from child processes, each in a session of its
//! own, so neither the server's pid nor its process group reaches them.

use std::collections::HashSet;
use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::error::Result;
use crate::ready::within;

/// Whether a process with this id runs. One that ended and was not yet waited for does not.
#[must_use]
pub fn is_alive(pid: u32) -> bool {
    stat(&pid.to_string()).is_some_and(|(state, _)| !matches!(state, 'Z' | 'X'))
}

/// Signals `root` and all its descendants, including those started meanwhile. Returns their ids.
pub(crate) fn signal(root: u32, signal: Signal) -> HashSet<u32> {
    let mut done = HashSet::new();
    loop {
        let fresh: Vec<u32> = family(root)
            .into_iter()
            .filter(|pid| !done.contains(pid))
            .collect();
        if fresh.is_empty() {
            return done;
        }
        for pid in fresh {
            send(pid, signal);
            done.insert(pid);
        }
    }
}

/// Kills `root` and all its descendants, and returns their ids. They are stopped first, so that
/// none can fork, and so that no child of a dead parent becomes an orphan we cannot find.
pub(crate) fn kill(root: u32) -> HashSet<u32> {
    let family = signal(root, Signal::STOP);
    for pid in &family {
        send(*pid, Signal::KILL);
    }
    family
}

/// Stops `root` and all its descendants, and returns when every thread has stopped. The signal
/// alone is a request: one thread may still answer after another took it.
pub(crate) fn pause(root: u32, limit: Duration) -> Result<()> {
    let family = signal(root, Signal::STOP);
    within("a pause", limit, || {
        match family.iter().find(|pid| !stands_still(**pid)) {
            Some(pid) => Err(format!("{pid} still runs")),
            None => Ok(()),
        }
    })
}

fn stands_still(pid: u32) -> bool {
    let threads = numbers(&format!("/proc/{pid}/task"));
    threads
        .map(|thread| stat(&format!("{pid}/task/{thread}")))
        .all(|stat| stat.is_none_or(|(state, _)| matches!(state, 'T' | 't' | 'Z' | 'X')))
}

/// Signals one process. It may have ended meanwhile, which is no failure.
pub(crate) fn send(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        kill_process(pid, signal).ok();
    }
}

/// Returns when none of them runs any more.
pub(crate) fn gone(pids: &HashSet<u32>, limit: Duration) -> Result<()> {
    within("the end of a server's processes", limit, || {
        match pids.iter().find(|pid| is_alive(**pid)) {
            Some(pid) => Err(format!("{pid} still runs")),
            None => Ok(()),
        }
    })
}

fn family(root: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> = numbers("/proc")
        .filter_map(|pid| Some((pid, stat(&pid.to_string())?.1)))
        .collect();
    let mut family = vec![root];
    let mut next = 0;
    while let Some(&parent) = family.get(next) {
        family.extend(
            parents
                .iter()
                .filter(|(_, p)| *p == parent)
                .map(|(pid, _)| *pid),
        );
        next += 1;
    }
    family
}

/// The entries of a folder that are numbers.
fn numbers(folder: &str) -> impl Iterator<Item = u32> + use<> {
    fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// The state and the parent. The program's name, which comes before them in parentheses, may
/// contain anything.
fn stat(process: &str) -> Option<(char, u32)> {
    let text = fs::read(format!("/proc/{process}/stat")).ok()?;
    let text = String::from_utf8_lossy(&text);
    let mut words = text.rsplit_once(')')?.1.split_whitespace();
    Some((words.next()?.chars().next()?, words.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_alive_and_has_a_parent() {
        let me = std::process::id();
        assert!(is_alive(me));
        let (_, parent) = stat(&me.to_string()).expect("a stat");
        assert!(family(parent).contains(&me));
        assert!(!is_alive(u32::MAX));
    }
}
