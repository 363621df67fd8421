//! Many processes on one name with nothing to do under it: how fast the lock changes hands.
//!
//! The processes are started, released together, and asked for their results. Each records on a
//! shared clock when it got the lock. Put in order, these records give the sequence of owners. A
//! process that takes the lock twice in a row changes no owner, however fast it is.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use palisade::lease::{BootClock, Clock};

use super::owner_changes::{Turn, owner_changes, unfairness};
use super::round::{Round, spread};
use super::{Result, Server};

/// Of one side.
pub(crate) const PROCESSES: usize = 16;

/// Between the start command and the start: enough for all to receive it.
const GET_READY: Duration = Duration::from_millis(200);

/// Between the start and the first turn that counts: the first wait of a process opens what it
/// needs, on every side.
const SETTLE: Duration = Duration::from_millis(300);

/// The result of all processes of one side in one round.
pub(crate) struct Contest {
    /// Waits, and CPU per acquisition.
    pub(crate) round: Round,
    pub(crate) changes_per_second: f64,
    /// The most acquisitions of a process by the least.
    pub(crate) unfairness: f64,
    /// CPU of all processes for each change, in microseconds.
    pub(crate) client_per_change: f64,
    /// CPU of the server for each change, in microseconds.
    pub(crate) server_per_change: f64,
    /// The server's own counters, for each change.
    pub(crate) counted_per_change: Vec<f64>,
}

impl Contest {
    /// Between processes that are started by this command.
    pub(crate) fn hold(
        server: &impl Server,
        mut command: Command,
        length: Duration,
    ) -> Result<Contest> {
        let mut workers = (0..PROCESSES)
            .map(|_| Worker::start(&mut command))
            .collect::<Result<Vec<_>>>()?;
        workers.iter_mut().try_for_each(Worker::is_ready)?;
        let start = BootClock.now().since_zero() + GET_READY;
        // The first one brings the token, if this side has one.
        workers
            .iter_mut()
            .enumerate()
            .try_for_each(|(process, worker)| worker.go(start, SETTLE + length, process == 0))?;
        let counts_from = start + SETTLE;
        sleep_until(counts_from);
        let (counted_before, before) = (server.counted()?, server.cpu()?);
        sleep_until(counts_from + length);
        // In the same order as before: asking takes time, in which the processes go on.
        let counted = server
            .counted()?
            .into_iter()
            .zip(counted_before)
            .map(|(after, before)| after - before)
            .collect();
        let served = server.cpu()?.saturating_sub(before);
        let (mut turns, mut client) = (Vec::new(), Duration::ZERO);
        for (process, worker) in workers.into_iter().enumerate() {
            client += worker.report(process, &mut turns)?;
        }
        // The processes count their CPU from the start: this is their share of the time that
        // counts.
        let client = client.mul_f64(length.as_secs_f64() / (SETTLE + length).as_secs_f64());
        Ok(Contest::new(
            turns,
            (counts_from, length),
            (client, served),
            counted,
        ))
    }

    fn new(
        mut turns: Vec<Turn>,
        (counts_from, length): (Duration, Duration),
        (client, server): (Duration, Duration),
        counted: Vec<f64>,
    ) -> Contest {
        let changes = owner_changes(&mut turns, counts_from) as f64;
        turns.retain(|turn| turn.at >= counts_from);
        let waits = turns.iter().map(|turn| turn.waited).collect();
        Contest {
            round: Round::new(waits, length, client, server),
            changes_per_second: changes / length.as_secs_f64(),
            unfairness: unfairness(&turns, PROCESSES),
            client_per_change: client.as_secs_f64() * 1e6 / changes,
            server_per_change: server.as_secs_f64() * 1e6 / changes,
            counted_per_change: counted
                .into_iter()
                .map(|counted| counted / changes)
                .collect(),
        }
    }
}

/// Prints all figures of a side.
pub(crate) fn print(who: &str, contests: &[Contest]) {
    let who = format!("{PROCESSES} processes: {who}");
    spread(contests, |contest| contest.changes_per_second).print(&who, "owner changes/s");
    spread(contests, |contest| contest.round.per_second).print(&who, "acquisitions/s");
    spread(contests, |contest| contest.unfairness).print(&format!("{who}, most / least"), "");
    spread(contests, |contest| contest.round.p50).print(&format!("{who}, wait p50"), "µs");
    spread(contests, |contest| contest.round.p99).print(&format!("{who}, wait p99"), "µs");
    spread(contests, |contest| contest.client_per_change)
        .print(&format!("{who}, clients' CPU"), "µs/change");
    spread(contests, |contest| contest.server_per_change)
        .print(&format!("{who}, server CPU"), "µs/change");
}

fn sleep_until(time: Duration) {
    std::thread::sleep(time.saturating_sub(BootClock.now().since_zero()));
}

/// One process, driven over its pipes.
struct Worker {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Worker {
    fn start(command: &mut Command) -> Result<Worker> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let said = child.stdout.take().ok_or("a worker without a pipe")?;
        Ok(Worker {
            child,
            said: BufReader::new(said),
        })
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        match self.said.read_line(&mut line)? {
            0 => Err("a worker ended early".into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }

    fn is_ready(&mut self) -> Result<()> {
        match self.line()?.as_str() {
            "ready" => Ok(()),
            error => Err(error.into()),
        }
    }

    fn go(&mut self, start: Duration, length: Duration, first: bool) -> Result<()> {
        let word = format!(
            "{} {} {}\n",
            start.as_nanos(),
            length.as_nanos(),
            u8::from(first)
        );
        Ok(self
            .child
            .stdin
            .as_mut()
            .ok_or("a worker without a pipe")?
            .write_all(word.as_bytes())?)
    }

    /// Adds its turns; its CPU time is the answer.
    fn report(mut self, process: usize, turns: &mut Vec<Turn>) -> Result<Duration> {
        let first = self.line()?;
        // Anything but a number is an error message.
        let cpu = Duration::from_nanos(first.parse().map_err(|_| first)?);
        let mut text = String::new();
        self.said.read_to_string(&mut text)?;
        for line in text.lines() {
            let (at, waited) = line
                .split_once(' ')
                .ok_or("a worker's report is cut short")?;
            turns.push(Turn {
                process,
                at: Duration::from_nanos(at.parse()?),
                waited: Duration::from_nanos(waited.parse()?),
            });
        }
        Ok(cpu)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
