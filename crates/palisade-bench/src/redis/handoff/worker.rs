//! The other side of a contest's pipes: one process that wants the lock again and again.

use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;

use palisade::lease::{BootClock, Clock};
use palisade::{Guard, Mutex};
use redis::Cmd;
use redis::aio::MultiplexedConnection;
use tokio::runtime::Builder;

use super::super::lock::released;
use super::super::{Result, raw};
use super::bare::BareLock;
use crate::usage;

const TOKEN: &str = "raw:handoff";

/// In seconds. The token is gone if nobody has had it for so long: better an error than a run without end.
const TOKEN_IS_LOST: u32 = 10;

/// Runs as one process of a contest.
pub(crate) fn worker(words: &[&str]) -> ExitCode {
    let [side, url] = words else { return ExitCode::from(64) };
    let runtime = Builder::new_current_thread().enable_all().build();
    let ended = match runtime {
        Ok(runtime) => runtime.block_on(contend(side, url)),
        Err(error) => Err(error.into()),
    };
    match ended {
        Ok(report) => {
            print!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            // To the contest, which says it once for all processes.
            println!("{error}");
            ExitCode::from(69)
        }
    }
}

async fn contend(side: &str, url: &str) -> Result<String> {
    let mut lock = match side {
        "ours" => Lock::ours(url).await?,
        "floor" => Lock::Floor(BareLock::connect(url).await?),
        _ => Lock::raw(url).await?,
    };
    println!("ready");
    let (start, length, first) = word()?;
    if first {
        lock.begin().await?;
    }
    std::thread::sleep(start.saturating_sub(now()));
    let cpu = usage::cpu();
    let turns = run(&mut lock, start + length).await?;
    let mut report = format!("{}\n", usage::cpu().saturating_sub(cpu).as_nanos());
    for (at, waited) in turns {
        writeln!(report, "{} {}", at.as_nanos(), waited.as_nanos())?;
    }
    Ok(report)
}

fn now() -> Duration {
    BootClock.now().since_zero()
}

/// When to start, for how long, and whether this is the first process.
fn word() -> Result<(Duration, Duration, bool)> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let mut numbers = line.split_whitespace().map(str::parse);
    match (numbers.next(), numbers.next(), numbers.next()) {
        (Some(Ok(start)), Some(Ok(length)), Some(Ok(first))) => {
            Ok((Duration::from_nanos(start), Duration::from_nanos(length), first == 1))
        }
        _ => Err("a worker was not told when to start".into()),
    }
}

/// When it got the lock, and how long it had waited, each time until the end. The last turn, which is after it, lets the others
/// have theirs.
async fn run(lock: &mut Lock, end: Duration) -> Result<Vec<(Duration, Duration)>> {
    let mut turns = Vec::new();
    loop {
        let asked = now();
        let held = lock.take().await?;
        let at = now();
        lock.give_back(held).await?;
        if at >= end {
            return Ok(turns);
        }
        turns.push((at, at.saturating_sub(asked)));
    }
}

enum Lock {
    Ours(Mutex),
    /// A list with one token in it, or none.
    Raw {
        connection: MultiplexedConnection,
        pop: Cmd,
        push: Cmd,
    },
    Floor(BareLock),
}

impl Lock {
    async fn ours(url: &str) -> Result<Lock> {
        let locks = palisade::connect(url).await?;
        // Connects, without standing in the way of the others.
        let warm = locks.mutex(format!("handoff/warm/{}", std::process::id())).acquire().await?;
        released(warm.release().await?)?;
        Ok(Lock::Ours(locks.mutex("handoff")))
    }

    async fn raw(url: &str) -> Result<Lock> {
        let connection = raw::connect(url).await?;
        let (mut pop, mut push) = (redis::cmd("BLPOP"), redis::cmd("RPUSH"));
        pop.arg(TOKEN).arg(TOKEN_IS_LOST);
        push.arg(TOKEN).arg("token");
        Ok(Lock::Raw { connection, pop, push })
    }

    /// Brings the token. Our locks need none.
    async fn begin(&mut self) -> Result<()> {
        match self {
            Lock::Ours(_) | Lock::Floor(_) => Ok(()),
            Lock::Raw { .. } => self.give_back(None).await,
        }
    }

    async fn take(&mut self) -> Result<Option<Guard>> {
        match self {
            Lock::Ours(lock) => Ok(Some(lock.acquire().await?)),
            Lock::Raw { connection, pop, .. } => {
                let popped: Option<(String, String)> = pop.query_async(connection).await?;
                popped.map(|_| None).ok_or_else(|| "raw: the token is lost".into())
            }
            Lock::Floor(lock) => lock.take().await.map(|()| None),
        }
    }

    async fn give_back(&mut self, held: Option<Guard>) -> Result<()> {
        match (self, held) {
            (Lock::Ours(_), Some(guard)) => released(guard.release().await?),
            (Lock::Ours(_), None) => Ok(()),
            (Lock::Raw { connection, push, .. }, _) => Ok(push.exec_async(connection).await?),
            (Lock::Floor(lock), _) => lock.give_back().await,
        }
    }
}
