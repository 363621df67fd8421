//! The other end of a contest's pipes: one process that takes the lock in a loop.

use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;

use palisade::lease::{BootClock, Clock};

use super::Result;
use super::caller_kind::{Caller, CallerKind};
use crate::usage;

/// A process that wants a lock.
pub(crate) trait Contender {
    /// Its value while it holds.
    type Held;

    /// Run by the first of all processes before they start.
    async fn begin(&mut self) -> Result<()> {
        Ok(())
    }

    async fn take(&mut self) -> Result<Self::Held>;

    async fn give_back(&mut self, held: Self::Held) -> Result<()>;
}

/// Runs as one process of a contest, by a caller of this kind.
pub(crate) fn contend<C: Contender>(
    kind: CallerKind,
    connect: impl AsyncFnOnce() -> Result<C>,
) -> ExitCode {
    match Caller::new(kind).and_then(|caller| caller.wait(take_part(connect))) {
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

async fn take_part<C: Contender>(connect: impl AsyncFnOnce() -> Result<C>) -> Result<String> {
    let mut lock = connect().await?;
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
        (Some(Ok(start)), Some(Ok(length)), Some(Ok(first))) => Ok((
            Duration::from_nanos(start),
            Duration::from_nanos(length),
            first == 1,
        )),
        _ => Err("a worker was not told when to start".into()),
    }
}

/// When it got the lock, and how long it had waited, for each turn until the end. One more turn
/// after the end lets the others finish theirs.
async fn run(lock: &mut impl Contender, end: Duration) -> Result<Vec<(Duration, Duration)>> {
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
