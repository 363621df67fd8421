//! `run`: acquire, run a command, release, and exit with its code. `elect`: the same, and again when the lead was lost.

mod child;
mod signals;
mod terminal;
pub(crate) mod watcher;

use std::cell::Cell;
use std::convert::Infallible;
use std::ffi::OsString;
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
use crate::args::{Common, HoldArgs, ModeArgs, OnLost, RunArgs, StopArgs};
use crate::config::{self, Store};
use crate::exit::{Exit, Failure};
use crate::lock::{self, Acquired, Lock};
use crate::notice::Notices;

/// Between the last KILL and the moment at which the store may admit another: the kernel needs time to end processes.
const MARGIN: Duration = Duration::from_millis(100);
/// The lease of a lock that was asked for without one.
const DEFAULT_LEASE: Duration = Duration::from_secs(30);

/// How long the release of a lock that is held may keep us from leaving.
const FAREWELL: Duration = Duration::from_secs(5);

/// The same for a withdrawal, and for a lock that is lost.
const LOST_FAREWELL: Duration = Duration::from_millis(900);

/// A command that is to run under a lock.
pub(crate) struct Job {
    pub(crate) hold: HoldArgs,
    pub(crate) role: Role,
    pub(crate) stop: StopArgs,
    pub(crate) command: Vec<OsString>,
}

/// What the command runs as.
pub(crate) enum Role {
    /// The holder of a lock. When it is lost, that is the end.
    Holder(ModeArgs),
    /// The leader of an election, with this value, or the owner's name. Whoever has lost the lead campaigns again.
    Leader(Option<String>),
}

impl From<RunArgs> for Job {
    fn from(args: RunArgs) -> Job {
        Job {
            hold: args.lock.hold,
            role: Role::Holder(args.lock.mode),
            stop: args.stop,
            command: args.command,
        }
    }
}

pub(crate) fn run(
    common: &Common,
    job: Job,
    notices: Notices,
    watcher: Option<io::Result<Watcher>>,
) -> Result<Exit, Failure> {
    let watcher = match watcher {
        Some(Ok(watcher)) => watcher,
        Some(Err(error)) => return Err(Failure::internal(format!("cannot fork: {error}"))),
        None => return Err(Failure::internal("no watcher")),
    };
    // One thread, and it is the main one: it lives as long as palisade, and the command's parent-death signal with it.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| Failure::internal(format!("cannot start: {error}")))?;
    runtime.block_on(Session::begin(common, job, notices, watcher)?.run())
}

/// One run.
struct Session {
    job: Job,
    /// Before the store, which waits for the last hold on its client when it is dropped.
    lock: Lock,
    store: Store,
    owner: String,
    /// What others see of us.
    shown: String,
    grace: Duration,
    /// When it is over the command is stopped, and the lock held until it is.
    max_hold: Option<Duration>,
    notices: Notices,
    watcher: Watcher,
}

impl Session {
    fn begin(
        common: &Common,
        mut job: Job,
        notices: Notices,
        watcher: Watcher,
    ) -> Result<Session, Failure> {
        let store = config::connect(common, notices)?;
        let grace = grace(&job)?;
        let program = job.command.first().map(|program| {
            Path::new(program)
                .file_name()
                .unwrap_or(program)
                .to_string_lossy()
        });
        let owner = job.hold.owner.clone();
        let owner =
            owner.unwrap_or_else(|| lock::default_owner(&program.unwrap_or_default()).to_string());
        // One that nobody stops needs no time for it, and its hold ends in the store.
        let stops = job.stop.on_lost != OnLost::Ignore;
        let max_hold = if stops {
            take_max_hold(&mut job.hold)?
        } else {
            None
        };
        let margin = stops.then_some(grace + MARGIN);
        let (lock, shown) = match &job.role {
            Role::Holder(mode) => (
                Lock::new(store.locks(), (&job.hold, mode), &owner, margin, false)?,
                owner.clone(),
            ),
            Role::Leader(value) => {
                let value = value.as_ref().unwrap_or(&owner).clone();
                (
                    Lock::election(store.locks(), &job.hold, value.clone(), margin)?,
                    value,
                )
            }
        };
        Ok(Session {
            job,
            store,
            lock,
            owner,
            shown,
            grace,
            max_hold,
            notices,
            watcher,
        })
    }

    async fn run(mut self) -> Result<Exit, Failure> {
        let mut signals = Signals::listen()
            .map_err(|error| Failure::internal(format!("cannot listen to signals: {error}")))?;
        loop {
            match self.once(&mut signals).await? {
                End::Here(exit) => return Ok(exit),
                End::Lost { leaving } => {
                    if leaving || matches!(self.job.role, Role::Holder(_)) {
                        return Ok(self.job.stop.lost_exit_code.map_or(Exit::LOST, Exit));
                    }
                    self.notices
                        .notice(&format!("{}: campaigning again", self.job.hold.name));
                }
            }
        }
    }

    /// Acquires, and runs the command once.
    async fn once(&mut self, signals: &mut Signals) -> Result<End, Failure> {
        let begun = Instant::now();
        let guard = match self.acquire(signals).await? {
            Ok(guard) => guard,
            Err(exit) => return Ok(End::Here(exit)),
        };
        let waited = palisade::show_duration(begun.elapsed());
        self.notices.explain(&format!(
            "acquired {} after {waited}, fence {}",
            self.job.hold.name,
            guard.fence()
        ));
        let quarter = guard.lease() / 4;
        if self.job.stop.kill_after.is_none() {
            // The server may grant less than was hoped for.
            self.grace = self.grace.min(quarter);
        }
        if self.grace > quarter {
            let _ = guard.undo().await;
            let message = format!(
                "--kill-after {:?} is more than a quarter of the granted lease; give less",
                self.grace
            );
            return Err(Failure::usage(message));
        }
        self.supervise(guard, signals).await
    }

    /// Waits in line. A signal leaves at once, and leaves no place in the line behind.
    async fn acquire(
        &self,
        signals: &mut Signals,
    ) -> Result<Result<Guard<AnyMode>, Exit>, Failure> {
        let args = &self.job.hold;
        let locks = self.store.locks();
        let shown = Cell::new(false);
        let acquired = tokio::select! {
            biased;
            signal = signals.leave() => Err(signal),
            acquired = self.lock.acquire(args) => Ok(acquired),
            // Never ends.
            never = show_the_wait(locks, args, &self.shown, self.notices, &shown) => match never {},
        };
        if shown.get() {
            self.notices.update("");
        }
        match acquired {
            Ok(Ok(Acquired::Held(guard))) => Ok(Ok(guard)),
            Ok(Ok(Acquired::Busy)) => self.not_acquired(None).await.map(Err),
            Ok(Err(error)) if error.kind() == ErrorKind::Timeout => {
                self.not_acquired(Some(&error)).await.map(Err)
            }
            Ok(Err(error)) => Err(self.store.failed(error)),
            Err(signal) => {
                // The claim is withdrawn by now, or on its way.
                if tokio::time::timeout(LOST_FAREWELL, locks.shutdown())
                    .await
                    .is_err()
                {
                    self.store.is_silent();
                }
                Ok(Err(Exit::of_signal(signal.as_raw())))
            }
        }
    }

    async fn not_acquired(&self, error: Option<&palisade::Error>) -> Result<Exit, Failure> {
        let plain = ModeArgs::default();
        let mode = match &self.job.role {
            Role::Holder(mode) => mode,
            Role::Leader(_) => &plain,
        };
        lock::not_acquired(&self.store, &self.job.hold, mode, error, self.notices).await
    }

    /// Runs the command to its end, whatever ends it; then gives the lock back.
    async fn supervise(
        &mut self,
        guard: Guard<AnyMode>,
        signals: &mut Signals,
    ) -> Result<End, Failure> {
        let failed = |message: String| Failure {
            exit: Exit::FAILED_AFTER_ACQUIRING,
            message,
        };
        let mut ended = signal(SignalKind::child())
            .map_err(|error| failed(format!("cannot listen to signals: {error}")))?;
        let stop_key = signal(SignalKind::from_raw(Signal::TSTP.as_raw()));
        let mut stop_key =
            stop_key.map_err(|error| failed(format!("cannot listen to signals: {error}")))?;
        let mut terminal = Terminal::ours();
        let gifts = Gifts {
            variables: self.variables(&guard),
            liveness: self
                .store
                .locks()
                .liveness()
                .map(|descriptor| descriptor.as_raw_fd()),
            terminal: terminal.as_ref().and_then(Terminal::for_a_start),
        };
        let child = match Child::start(&self.job.command, gifts) {
            Ok(child) => child,
            Err(error) => return Ok(End::Here(self.not_started(guard, &error).await)),
        };
        self.watcher.arm(child.group());
        let ears = Ears {
            signals,
            ended: &mut ended,
            stop_key: &mut stop_key,
        };
        let end = self
            .attend(&guard, &child, &mut terminal, ears)
            .await
            .map_err(failed)?;
        self.watcher.disarm();
        drop(terminal);
        match end {
            End::Here(_) => self.give_back(guard).await,
            // The store frees the name by itself, if it has not. Telling it helps, but is not worth much waiting.
            End::Lost { .. } => {
                if !matches!(
                    tokio::time::timeout(LOST_FAREWELL, guard.release()).await,
                    Ok(Ok(Released::Done | Released::AlreadyLost))
                ) {
                    self.store.is_silent();
                }
            }
        }
        Ok(end)
    }

    /// What the command sees.
    fn variables(&self, guard: &Guard<AnyMode>) -> Vec<(&'static str, String)> {
        vec![
            ("PALISADE_NAME", self.job.hold.name.clone()),
            ("PALISADE_FENCE", guard.fence().to_string()),
            ("PALISADE_OWNER", self.owner.clone()),
            ("PALISADE_STORE", self.store.scheme.clone()),
            ("PALISADE_LEASE_MS", guard.lease().as_millis().to_string()),
        ]
    }

    async fn not_started(&self, guard: Guard<AnyMode>, error: &io::Error) -> Exit {
        let program = self
            .job
            .command
            .first()
            .map(|program| program.to_string_lossy().into_owned())
            .unwrap_or_default();
        // Nothing ran: the once-per mark is taken back.
        let _ = guard.undo().await;
        self.notices.error(&format!("{program}: {error}"));
        if error.kind() == io::ErrorKind::NotFound {
            Exit::NOT_FOUND
        } else {
            Exit::NOT_EXECUTABLE
        }
    }

    /// Stays with the command until it has ended.
    async fn attend(
        &self,
        guard: &Guard<AnyMode>,
        child: &Child,
        terminal: &mut Option<Terminal>,
        ears: Ears<'_>,
    ) -> Result<End, String> {
        let Ears {
            signals,
            ended,
            stop_key,
        } = ears;
        let stop = guard.on_lost();
        let (mut told, mut leaving) = (false, false);
        let mut kill_at: Option<tokio::time::Instant> = None;
        let mut continue_at: Option<tokio::time::Instant> = None;
        let over_at = self
            .max_hold
            .and_then(|longest| tokio::time::Instant::now().checked_add(longest));
        let exit = loop {
            match child
                .look()
                .map_err(|error| format!("cannot wait for the command: {error}"))?
            {
                State::Ended(exit) => break exit,
                State::Stopped(by) => continue_at = self.let_go_on(child, terminal, by),
                State::Runs => {}
            }
            tokio::select! {
                biased;
                _ = ended.recv() => {}
                signal = signals.next() => {
                    leaving |= ends(signal) || told && signal == Signal::HUP;
                    child.signal(signal);
                }
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
        if told && self.job.stop.on_lost != OnLost::Ignore {
            self.clear_the_group(child, kill_at).await;
            return Ok(End::Lost { leaving });
        }
        Ok(End::Here(exit))
    }

    /// Why the lock is lost, or about to be, and how long the command may take to end.
    fn why_lost(&self, guard: &Guard<AnyMode>) -> (String, Duration) {
        match guard.status() {
            Status::Lost(reason) => (reason.to_string(), self.grace),
            Status::Held | Status::AtRisk => (
                "the lease could not be renewed in time".to_owned(),
                guard.remaining().saturating_sub(MARGIN),
            ),
        }
    }

    /// Tells the command to stop, and says when to kill it.
    fn stop(&self, child: &Child, why: &str, left: Duration) -> Option<tokio::time::Instant> {
        let name = &self.job.hold.name;
        match self.job.stop.on_lost {
            OnLost::Ignore => {
                self.notices.error(&format!(
                    "{name} is lost ({why}); the command goes on without it"
                ));
                None
            }
            OnLost::Kill => {
                self.notices
                    .error(&format!("{name} is lost ({why}); the command is killed"));
                child.signal(Signal::KILL);
                None
            }
            OnLost::Term => {
                self.notices
                    .error(&format!("{name} is lost ({why}); the command is stopped"));
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
    fn let_go_on(
        &self,
        child: &Child,
        terminal: &mut Option<Terminal>,
        by: i32,
    ) -> Option<tokio::time::Instant> {
        if by == Signal::TTIN.as_raw() || by == Signal::TTOU.as_raw() {
            if !lend(terminal, child) {
                // Without a terminal to lend it stops again at once: not in a circle.
                return Some(tokio::time::Instant::now() + Duration::from_secs(1));
            }
        } else {
            self.notices
                .notice("the command holds a lock and was stopped; it is continued");
        }
        child.signal(Signal::CONT);
        None
    }

    async fn give_back(&self, guard: Guard<AnyMode>) {
        let name = &self.job.hold.name;
        match tokio::time::timeout(FAREWELL, guard.release()).await {
            Ok(Ok(Released::Done | Released::AlreadyLost)) => {}
            Ok(Ok(Released::Unknown)) | Err(_) => {
                // One more chance, in the background, while it is cheap.
                let _ = tokio::time::timeout(Duration::from_secs(1), self.store.locks().shutdown())
                    .await;
                self.notices.error(&format!(
                    "{name}: not released, the store does not answer; it ends with its lease"
                ));
            }
            Ok(Err(error)) => self.notices.error(&format!(
                "{name}: not released: {error}; it ends with its lease"
            )),
        }
    }
}

/// How one turn with the lock has ended.
enum End {
    /// With this code, and for good.
    Here(Exit),
    /// The lock was lost, and the command stopped.
    Lost {
        /// Whether somebody had told us to end before that was done.
        leaving: bool,
    },
}

/// Whether a signal asks for the end of whoever gets it. A hang-up may as well ask it to read its files again.
fn ends(signal: Signal) -> bool {
    [Signal::INT, Signal::TERM, Signal::QUIT].contains(&signal)
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
fn grace(job: &Job) -> Result<Duration, Failure> {
    let lease = job.hold.lease.unwrap_or(DEFAULT_LEASE);
    let quarter = lease / 4;
    match job.stop.kill_after {
        None => Ok(quarter.min(Duration::from_secs(5))),
        Some(grace) if grace <= quarter => Ok(grace),
        Some(grace) => Err(Failure::usage(format!(
            "--kill-after {grace:?} is more than a quarter of the lease of {lease:?}; give less, or a longer --lease"
        ))),
    }
}

/// Takes the longest hold out of the options: the lock itself would end then, while the command is still being stopped.
fn take_max_hold(args: &mut HoldArgs) -> Result<Option<Duration>, Failure> {
    match (args.max_hold.take(), args.min_hold) {
        (Some(Duration::ZERO), _) => Err(Failure::usage(
            "--max-hold 0 is over at once; give a longer time",
        )),
        (Some(longest), Some(shortest)) if longest < shortest => Err(Failure::usage(
            "--max-hold is shorter than --min-hold; swap them?",
        )),
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
async fn show_the_wait(
    locks: &Client,
    args: &HoldArgs,
    owner: &str,
    notices: Notices,
    shown: &Cell<bool>,
) -> Infallible {
    if !notices.can_update() {
        return std::future::pending().await;
    }
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let Ok(Some(line)) = locks.show(&args.name).await else {
            continue;
        };
        let holder = line
            .holders
            .first()
            .map(lock::held_by)
            .unwrap_or_else(|| "busy".to_owned());
        let place = line.waiters.iter().position(|waiter| waiter.owner == owner);
        let place = place
            .map(|place| format!(", position {} of {}", place + 1, line.waiters.len()))
            .unwrap_or_default();
        shown.set(true);
        notices.update(&format!(
            "palisade: waiting for {}: {holder}{place}",
            args.name
        ));
    }
}
