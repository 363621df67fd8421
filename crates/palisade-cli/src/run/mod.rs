//! `run`: acquire, run a command, release, and exit with its code.

mod child;
mod signals;
mod terminal;
pub(crate) mod watcher;

use std::cell::Cell;
use std::convert::Infallible;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use palisade::{AnyMode, Client, ErrorKind, Guard, Released, Status};
use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};

use self::child::{Child, Gifts, State};
use self::signals::Signals;
use self::terminal::Terminal;
use self::watcher::Watcher;
use crate::args::{Common, LockArgs, OnLost, RunArgs};
use crate::config::{self, Store};
use crate::exit::{Exit, Failure};
use crate::lock::{self, Acquired, Lock};
use crate::notice::Notices;

/// Between the last KILL and the moment at which the store may admit another: the kernel needs time to end processes.
const MARGIN: Duration = Duration::from_millis(100);
/// The lease of a lock that was asked for without one.
const DEFAULT_LEASE: Duration = Duration::from_secs(30);

/// How long a withdrawal or a release may keep us from leaving.
const FAREWELL: Duration = Duration::from_secs(5);

pub(crate) fn run(
    common: &Common,
    args: RunArgs,
    notices: Notices,
    watcher: Option<io::Result<Watcher>>,
) -> Result<Exit, Failure> {
    let watcher = match watcher {
        Some(Ok(watcher)) => watcher,
        Some(Err(error)) => return Err(Failure::internal(format!("cannot fork: {error}"))),
        None => return Err(Failure::internal("no watcher")),
    };
    // One thread, and it is the main one: it lives as long as palisade, and the command's parent-death signal with it.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::internal(format!("cannot start: {error}")))?;
    runtime.block_on(Session::begin(common, args, notices, watcher)?.run())
}

/// One run.
struct Session {
    args: RunArgs,
    /// Before the store, which waits for the last hold on its client when it is dropped.
    lock: Lock,
    store: Store,
    owner: String,
    grace: Duration,
    /// When it is over the command is stopped, and the lock held until it is.
    max_hold: Option<Duration>,
    notices: Notices,
    watcher: Watcher,
}

impl Session {
    fn begin(common: &Common, mut args: RunArgs, notices: Notices, watcher: Watcher) -> Result<Session, Failure> {
        let store = config::connect(common, notices)?;
        let grace = grace(&args)?;
        let program = args.command.first().map(|program| Path::new(program).file_name().unwrap_or(program).to_string_lossy());
        let owner = args.lock.owner.clone();
        let owner = owner.unwrap_or_else(|| lock::default_owner(&program.unwrap_or_default()).to_string());
        // One that nobody stops needs no time for it, and its hold ends in the store.
        let stops = args.on_lost != OnLost::Ignore;
        let max_hold = if stops { take_max_hold(&mut args.lock)? } else { None };
        let lock = Lock::new(store.locks(), &args.lock, &owner, stops.then_some(grace + MARGIN), false)?;
        Ok(Session { args, store, lock, owner, grace, max_hold, notices, watcher })
    }

    async fn run(mut self) -> Result<Exit, Failure> {
        let mut signals = Signals::listen().map_err(|error| Failure::internal(format!("cannot listen to signals: {error}")))?;
        let begun = Instant::now();
        let guard = match self.acquire(&mut signals).await? {
            Ok(guard) => guard,
            Err(exit) => return Ok(exit),
        };
        let waited = palisade::show_duration(begun.elapsed());
        self.notices.explain(&format!("acquired {} after {waited}, fence {}", self.args.lock.name, guard.fence()));
        let quarter = guard.lease() / 4;
        if self.args.kill_after.is_none() {
            // The server may grant less than was hoped for.
            self.grace = self.grace.min(quarter);
        }
        if self.grace > quarter {
            let _ = guard.undo().await;
            let message = format!("--kill-after {:?} is more than a quarter of the granted lease; give less", self.grace);
            return Err(Failure::usage(message));
        }
        self.supervise(guard, &mut signals).await
    }

    /// Waits in line. A signal leaves at once, and leaves no place in the line behind.
    async fn acquire(&self, signals: &mut Signals) -> Result<Result<Guard<AnyMode>, Exit>, Failure> {
        let args = &self.args.lock;
        let locks = self.store.locks();
        let shown = Cell::new(false);
        let acquired = tokio::select! {
            biased;
            signal = signals.leave() => Err(signal),
            acquired = self.lock.acquire(args) => Ok(acquired),
            // Never ends.
            never = show_the_wait(locks, args, &self.owner, self.notices, &shown) => match never {},
        };
        if shown.get() {
            self.notices.update("");
        }
        match acquired {
            Ok(Ok(Acquired::Held(guard))) => Ok(Ok(guard)),
            Ok(Ok(Acquired::Busy)) => lock::not_acquired(locks, args, None, self.notices).await.map(Err),
            Ok(Err(error)) if matches!(error.kind(), ErrorKind::Timeout { .. }) => {
                lock::not_acquired(locks, args, Some(&error), self.notices).await.map(Err)
            }
            Ok(Err(error)) => Err(error.into()),
            Err(signal) => {
                // The claim is withdrawn by now, or on its way.
                let _ = tokio::time::timeout(FAREWELL, locks.shutdown()).await;
                Ok(Err(Exit::of_signal(signal.as_raw())))
            }
        }
    }

    /// Runs the command to its end, whatever ends it; then gives the lock back.
    async fn supervise(mut self, guard: Guard<AnyMode>, signals: &mut Signals) -> Result<Exit, Failure> {
        let failed = |message: String| Failure { exit: Exit::FAILED_AFTER_ACQUIRING, message };
        let mut ended = signal(SignalKind::child()).map_err(|error| failed(format!("cannot listen to signals: {error}")))?;
        let stop_key = signal(SignalKind::from_raw(Signal::TSTP.as_raw()));
        let mut stop_key = stop_key.map_err(|error| failed(format!("cannot listen to signals: {error}")))?;
        let mut terminal = Terminal::ours();
        let gifts = Gifts {
            variables: self.variables(&guard),
            liveness: self.store.locks().liveness().map(|descriptor| descriptor.as_raw_fd()),
            terminal: terminal.as_ref().and_then(Terminal::for_a_start),
        };
        let child = match Child::start(&self.args.command, gifts) {
            Ok(child) => child,
            Err(error) => return Ok(self.not_started(guard, &error).await),
        };
        self.watcher.arm(child.group());
        let ears = Ears { signals, ended: &mut ended, stop_key: &mut stop_key };
        let (exit, stopped) = self.attend(&guard, &child, &mut terminal, ears).await.map_err(failed)?;
        self.watcher.disarm();
        drop(terminal);
        self.give_back(guard).await;
        Ok(if stopped { self.args.lost_exit_code.map_or(Exit::LOST, Exit) } else { exit })
    }

    /// What the command sees.
    fn variables(&self, guard: &Guard<AnyMode>) -> Vec<(&'static str, String)> {
        vec![
            ("PALISADE_NAME", self.args.lock.name.clone()),
            ("PALISADE_FENCE", guard.fence().to_string()),
            ("PALISADE_OWNER", self.owner.clone()),
            ("PALISADE_STORE", self.store.scheme.clone()),
            ("PALISADE_LEASE_MS", guard.lease().as_millis().to_string()),
        ]
    }

    async fn not_started(&self, guard: Guard<AnyMode>, error: &io::Error) -> Exit {
        let program = self.args.command.first().map(|program| program.to_string_lossy().into_owned()).unwrap_or_default();
        // Nothing ran: the once-per mark is taken back.
        let _ = guard.undo().await;
        self.notices.error(&format!("{program}: {error}"));
        if error.kind() == io::ErrorKind::NotFound { Exit::NOT_FOUND } else { Exit::NOT_EXECUTABLE }
    }

    /// Stays with the command until it has ended. The second part says whether it was stopped because the lock was lost.
    async fn attend(
        &self,
        guard: &Guard<AnyMode>,
        child: &Child,
        terminal: &mut Option<Terminal>,
        ears: Ears<'_>,
    ) -> Result<(Exit, bool), String> {
        let Ears { signals, ended, stop_key } = ears;
        let stop = guard.on_lost();
        let mut told = false;
        let mut kill_at: Option<tokio::time::Instant> = None;
        let mut continue_at: Option<tokio::time::Instant> = None;
        let over_at = self.max_hold.and_then(|longest| tokio::time::Instant::now().checked_add(longest));
        let exit = loop {
            match child.look().map_err(|error| format!("cannot wait for the command: {error}"))? {
                State::Ended(exit) => break exit,
                State::Stopped(by) => continue_at = self.let_go_on(child, terminal, by),
                State::Runs => {}
            }
            tokio::select! {
                biased;
                _ = ended.recv() => {}
                signal = signals.next() => child.signal(signal),
                () = stop.cancelled(), if !told => {
                    told = true;
                    let (why, left) = self.why_lost(guard);
                    kill_at = self.stop(child, &why, left);
                }
                // Ctrl-Z, where the terminal is not lent: stopped, we could neither renew nor stop the command.
                _ = stop_key.recv() => self.notices.notice("the command holds a lock; it is not stopped"),
                () = sleep_until(continue_at) => {
                    continue_at = None;
                    lend(terminal, child);
                    child.signal(Signal::CONT);
                }
                () = sleep_until(over_at), if !told => {
                    told = true;
                    // The lease has longer to go than that, or it would have been called lost.
                    kill_at = self.stop(child, "the longest hold was reached", self.grace);
                }
                () = sleep_until(kill_at) => {
                    child.signal(Signal::KILL);
                    kill_at = None;
                }
            }
        };
        let stopped = told && self.args.on_lost != OnLost::Ignore;
        if stopped {
            self.clear_the_group(child, kill_at).await;
        }
        Ok((exit, stopped))
    }

    /// Why the lock is lost, or about to be, and how long the command may take to end.
    fn why_lost(&self, guard: &Guard<AnyMode>) -> (String, Duration) {
        match guard.status() {
            Status::Lost(reason) => (reason.to_string(), self.grace),
            Status::Held | Status::AtRisk => {
                ("the lease could not be renewed in time".to_owned(), guard.remaining().saturating_sub(MARGIN))
            }
        }
    }

    /// Tells the command to stop, and says when to kill it.
    fn stop(&self, child: &Child, why: &str, left: Duration) -> Option<tokio::time::Instant> {
        let name = &self.args.lock.name;
        match self.args.on_lost {
            OnLost::Ignore => {
                self.notices.error(&format!("{name} is lost ({why}); the command goes on without it"));
                None
            }
            OnLost::Kill => {
                self.notices.error(&format!("{name} is lost ({why}); the command is killed"));
                child.signal(Signal::KILL);
                None
            }
            OnLost::Term => {
                self.notices.error(&format!("{name} is lost ({why}); the command is stopped"));
                child.signal(Signal::TERM);
                // One that was stopped by Ctrl-Z would never hear it.
                child.signal(Signal::CONT);
                Some(tokio::time::Instant::now() + left)
            }
        }
    }

    /// The command has ended; what it has left in its group must be gone before the store may admit another.
    async fn clear_the_group(&self, child: &Child, kill_at: Option<tokio::time::Instant>) {
        const LOOK_EVERY: Duration = Duration::from_millis(10);
        let kill_at = kill_at.unwrap_or_else(tokio::time::Instant::now);
        // Nobody tells the end of a process that is not our child.
        while child.group_is_alive() && tokio::time::Instant::now() < kill_at {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        child.signal(Signal::KILL);
    }

    /// A command that was stopped would hold the lock and do nothing: it is continued, now or when this says.
    fn let_go_on(&self, child: &Child, terminal: &mut Option<Terminal>, by: i32) -> Option<tokio::time::Instant> {
        if by == Signal::TTIN.as_raw() || by == Signal::TTOU.as_raw() {
            if !lend(terminal, child) {
                // Without a terminal to lend it stops again at once: not in a circle.
                return Some(tokio::time::Instant::now() + Duration::from_secs(1));
            }
        } else {
            self.notices.notice("the command holds a lock and was stopped; it is continued");
        }
        child.signal(Signal::CONT);
        None
    }

    async fn give_back(&self, guard: Guard<AnyMode>) {
        let name = &self.args.lock.name;
        match tokio::time::timeout(FAREWELL, guard.release()).await {
            Ok(Ok(Released::Done | Released::AlreadyLost)) => {}
            Ok(Ok(Released::Unknown)) | Err(_) => {
                // One more chance, in the background, while it is cheap.
                let _ = tokio::time::timeout(Duration::from_secs(1), self.store.locks().shutdown()).await;
                self.notices.error(&format!("{name}: not released, the store does not answer; it ends with its lease"));
            }
            Ok(Err(error)) => self.notices.error(&format!("{name}: not released: {error}; it ends with its lease")),
        }
    }
}

/// What a run listens to.
struct Ears<'a> {
    signals: &'a mut Signals,
    ended: &'a mut tokio::signal::unix::Signal,
    stop_key: &'a mut tokio::signal::unix::Signal,
}

/// Lends the terminal to the command, if it is ours, or has become ours meanwhile.
fn lend(terminal: &mut Option<Terminal>, child: &Child) -> bool {
    if terminal.is_none() {
        *terminal = Terminal::ours();
    }
    if let Some(terminal) = terminal {
        terminal.lend(child.group());
    }
    terminal.is_some()
}

/// How long the command has between TERM and KILL.
fn grace(args: &RunArgs) -> Result<Duration, Failure> {
    let lease = args.lock.lease.unwrap_or(DEFAULT_LEASE);
    let quarter = lease / 4;
    match args.kill_after {
        None => Ok(quarter.min(Duration::from_secs(5))),
        Some(grace) if grace <= quarter => Ok(grace),
        Some(grace) => Err(Failure::usage(format!(
            "--kill-after {grace:?} is more than a quarter of the lease of {lease:?}; give less, or a longer --lease"
        ))),
    }
}

/// Takes the longest hold out of the options: the lock itself would end then, while the command is still being stopped.
fn take_max_hold(args: &mut LockArgs) -> Result<Option<Duration>, Failure> {
    match (args.max_hold.take(), args.min_hold) {
        (Some(Duration::ZERO), _) => Err(Failure::usage("--max-hold 0 is over at once; give a longer time")),
        (Some(longest), Some(shortest)) if longest < shortest => {
            Err(Failure::usage("--max-hold is shorter than --min-hold; swap them?"))
        }
        (max_hold, _) => Ok(max_hold),
    }
}

async fn sleep_until(at: Option<tokio::time::Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// While waiting on a terminal: one line with holder and position, every second. Never ends.
async fn show_the_wait(locks: &Client, args: &LockArgs, owner: &str, notices: Notices, shown: &Cell<bool>) -> Infallible {
    if !notices.can_update() {
        return std::future::pending().await;
    }
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let Ok(Some(line)) = locks.show(&args.name).await else { continue };
        let holder = line.holders.first().map(lock::held_by).unwrap_or_else(|| "busy".to_owned());
        let place = line.waiters.iter().position(|waiter| waiter.owner == owner);
        let place = place.map(|place| format!(", position {} of {}", place + 1, line.waiters.len())).unwrap_or_default();
        shown.set(true);
        notices.update(&format!("palisade: waiting for {}: {holder}{place}", args.name));
    }
}
