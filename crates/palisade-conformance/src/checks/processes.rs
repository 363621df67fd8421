//! Across processes: a helper program is killed, and the others go on.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use palisade::Released;

use super::mutex::{free, waiters};
use crate::{Subject, Verdict, needs, patience};

/// The helper program, driven over its pipes. It is this crate's `taker`.
struct Taker {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Taker {
    /// Starts a process that acquires, and then holds until it is told or killed.
    fn start(url: &str, name: &str, lease: Duration) -> Taker {
        let mut child = Command::new(program())
            .args([url, name, &lease.as_millis().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the helper program is built with the tests");
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        Taker { child, lines }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line");
        line.trim().to_owned()
    }

    fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("ended");
    }
}

impl Drop for Taker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Cargo puts a crate's programs beside the folder of its tests.
fn program() -> PathBuf {
    let test = std::env::current_exe().expect("this program");
    let folder = test
        .parent()
        .and_then(std::path::Path::parent)
        .expect("a folder of tests");
    folder.join("taker")
}

/// Promise 1 and 3 between processes: one holds, the other waits, and the fence rises from one to
/// the other.
pub async fn processes_exclude_each_other(subject: &Subject) -> Verdict {
    needs!(
        subject.is_as_it_is(),
        "anything about kinds that run as a mutex"
    );
    needs!(
        subject.url().is_some(),
        "being reached from another process"
    );
    let name = subject.name("processes");
    let client = subject.client();
    let mut taker = Taker::start(
        subject.url().unwrap_or_default(),
        &name,
        Duration::from_secs(30),
    );
    let theirs: u64 = taker.line().parse().expect("a fence");
    assert!(
        client
            .mutex(&name)
            .try_acquire()
            .await
            .expect("an answer")
            .is_none(),
        "two processes hold it"
    );
    let lock = client.mutex(&name);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    if subject.capability().waiters_known {
        waiters(&client, &name, 1).await;
    }
    taker
        .child
        .stdin
        .as_mut()
        .expect("piped")
        .write_all(b"release\n")
        .expect("told");
    let guard = tokio::time::timeout(patience(), waiting)
        .await
        .expect("handed over")
        .expect("no panic")
        .expect("acquired");
    assert!(guard.fence().get() > theirs || guard.fence().is_none());
    assert_eq!(guard.release().await.expect("released"), Released::Done);
    Verdict::Kept
}

/// A process that is killed with the lock in its hands keeps it for its lease at the longest.
pub async fn a_killed_holder_is_replaced(subject: &Subject) -> Verdict {
    needs!(
        subject.is_as_it_is(),
        "anything about kinds that run as a mutex"
    );
    needs!(
        subject.url().is_some(),
        "being reached from another process"
    );
    let name = subject.name("killed-holder");
    let client = subject.client();
    let lease = subject.capability().min_lease.max(Duration::from_secs(2));
    let mut taker = Taker::start(subject.url().unwrap_or_default(), &name, lease);
    taker.line();
    let lock = client.mutex(&name);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    if subject.capability().waiters_known {
        waiters(&client, &name, 1).await;
    }
    let killed = Instant::now();
    taker.kill();
    let guard = tokio::time::timeout(lease + patience(), waiting)
        .await
        .expect("replaced")
        .expect("no panic")
        .expect("acquired");
    assert!(
        killed.elapsed() <= lease + Duration::from_secs(1),
        "after {:?}",
        killed.elapsed()
    );
    assert_eq!(guard.release().await.expect("released"), Released::Done);
    free(&client, &name).await;
    Verdict::Kept
}

/// Processes that are killed while they wait do not hold up the others for longer than a wait
/// lease, or than their lease where waiters have no other.
pub async fn killed_waiters_hold_up_no_other(subject: &Subject) -> Verdict {
    needs!(
        subject.is_as_it_is(),
        "anything about kinds that run as a mutex"
    );
    needs!(
        subject.url().is_some() && subject.capability().waiters_known,
        "being reached from another process"
    );
    let name = subject.name("killed-waiters");
    let client = subject.client();
    let guard = client.mutex(&name).acquire().await.expect("acquired");
    let mut takers = Vec::new();
    let lease = Duration::from_secs(if subject.capability().short_waits {
        30
    } else {
        5
    });
    for count in 1..=5 {
        takers.push(Taker::start(
            subject.url().unwrap_or_default(),
            &name,
            lease,
        ));
        waiters(&client, &name, count).await;
    }
    let lock = client.mutex(&name);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    waiters(&client, &name, 6).await;
    takers.into_iter().for_each(Taker::kill);
    assert_eq!(guard.release().await.expect("released"), Released::Done);
    let longest = Duration::from_secs(6);
    let guard = tokio::time::timeout(longest, waiting)
        .await
        .expect("not held up")
        .expect("no panic")
        .expect("acquired");
    assert_eq!(guard.release().await.expect("released"), Released::Done);
    Verdict::Kept
}
