//! `run`: acquire, run a command, release, and exit with its code. `elect`: the same, and again
//! when the lead was lost.

pub(crate) mod acquire;
mod child;
mod progress;
mod renewals;
pub(crate) mod signals;
mod stop;
mod supervise;
mod terminal;
pub(crate) mod watcher;

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use self::signals::Signals;
use self::watcher::Watcher;
use crate::args::{ClaimArgs, Common, HoldArgs, ModeArgs, OnLost, RunArgs, StopArgs};
use crate::config::{self, Store};
use crate::exit::{Exit, Failure};
use crate::lock::{self, Lock, Terms};
use crate::notice::Notices;

/// Between the last KILL and the moment at which the store may admit another: the kernel needs time
/// to end processes.
const MARGIN: Duration = Duration::from_millis(100);
/// The lease of a lock that was asked for without one.
const DEFAULT_LEASE: Duration = Duration::from_secs(30);

/// How long the release of a lock that is held may keep us from leaving.
const FAREWELL: Duration = Duration::from_secs(5);

/// The same for a lock that is lost.
const LOST_FAREWELL: Duration = Duration::from_millis(900);

/// The same for the withdrawal of a claim: a signal asks to leave at once.
const WITHDRAWAL: Duration = Duration::from_millis(300);

/// A command that is to run under a lock.
pub(crate) struct Job {
    /// The name, and those to be held with it.
    pub(crate) names: Vec<String>,
    pub(crate) hold: HoldArgs,
    pub(crate) claim: ClaimArgs,
    pub(crate) role: Role,
    pub(crate) on_lost: OnLost,
    pub(crate) stop: StopArgs,
    pub(crate) command: Vec<OsString>,
}

/// What the command runs as.
pub(crate) enum Role {
    /// The holder of a lock. When it is lost, that is the end.
    Holder(ModeArgs),
    /// The leader of an election, with this value, or the owner's name. After a loss it campaigns
    /// again.
    Leader(Option<String>),
}

impl From<RunArgs> for Job {
    fn from(args: RunArgs) -> Job {
        let mut names = vec![args.hold.name.clone()];
        names.extend(args.also);
        Job {
            names,
            hold: args.hold,
            claim: args.claim,
            role: Role::Holder(args.mode),
            on_lost: args.on_lost,
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
    runtime()?.block_on(Session::begin(common, job, notices, watcher)?.run())
}

/// A runtime of one thread, and it is the main one: it lives as long as palisade, and the command's
/// parent-death signal with it.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.map_err(|error| Failure::internal(format!("cannot start: {error}")))
}

/// One run.
struct Session {
    job: Job,
    /// Before the store, which waits for the last hold on its client when it is dropped.
    lock: Lock,
    store: Store,
    owner: String,
    /// The owner as others see it: a leader's is its value.
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
        job: Job,
        notices: Notices,
        watcher: Watcher,
    ) -> Result<Session, Failure> {
        let store = config::connect(common, notices)?;
        let grace = grace(&job)?;
        let owner = job.claim.owner.clone();
        let owner = owner.unwrap_or_else(|| default_owner(&job));
        // A command that is not stopped needs no time for it, and its hold ends in the store.
        let stops = job.on_lost != OnLost::Ignore;
        let max_hold = job.stop.max_hold;
        if stops {
            check_max_hold(max_hold, job.hold.min_hold)?;
        }
        let margin = stops.then_some(grace + MARGIN);
        let (locks, hold, claim) = (store.locks(), &job.hold, &job.claim);
        let terms = Terms {
            hold,
            claim,
            // The lock itself would end then, while the command is still being stopped.
            max_hold: max_hold.filter(|_| !stops),
        };
        let (lock, shown) = match (&job.role, job.names.as_slice()) {
            (Role::Holder(mode), [_]) => (
                Lock::new(locks, (terms, mode), &owner, margin, false)?,
                owner.clone(),
            ),
            (Role::Holder(mode), names) => (
                Lock::several(locks, (terms, mode), names, &owner, margin)?,
                owner.clone(),
            ),
            (Role::Leader(value), _) => {
                let value = value.as_ref().unwrap_or(&owner).clone();
                (Lock::election(locks, terms, value.clone(), margin)?, value)
            }
        };
        for name in &job.names {
            store.explain_key(name, notices);
        }
        Ok(Session {
            job,
            store,
            lock,
            owner,
            shown,
            grace,
            max_hold: max_hold.filter(|_| stops),
            notices,
            watcher,
        })
    }

    async fn run(mut self) -> Result<Exit, Failure> {
        let mut signals = Signals::listen()?;
        loop {
            match self.once(&mut signals).await? {
                End::Here(exit) => return Ok(exit),
                End::Lost { leaving } => {
                    if leaving || matches!(self.job.role, Role::Holder(_)) {
                        return Ok(self.job.stop.lost_exit_code.map_or(Exit::LOST, Exit));
                    }
                    self.notices
                        .notice(&format!("{}: campaigning again", self.name()));
                }
            }
        }
    }

    /// The name; with `--also`, the first of them.
    fn name(&self) -> &str {
        &self.job.hold.name
    }

    /// Acquires, and runs the command once.
    async fn once(&mut self, signals: &mut Signals) -> Result<End, Failure> {
        let begun = Instant::now();
        let held = match self.acquire(signals).await? {
            Ok(held) => held,
            Err(exit) => return Ok(End::Here(exit)),
        };
        let waited = palisade::show_duration(begun.elapsed());
        for member in held.members() {
            let (name, fence) = (member.name(), member.fence());
            self.notices
                .explain(&format!("acquired {name} after {waited}, fence {fence}"));
        }
        let quarter = held.lease() / 4;
        if self.job.stop.kill_after.is_none() {
            // The server may grant less than was hoped for.
            self.grace = self.grace.min(quarter);
        }
        if self.grace > quarter {
            held.undo().await;
            let message = format!(
                "--kill-after {:?} is more than a quarter of the granted lease; give less",
                self.grace
            );
            return Err(Failure::usage(message));
        }
        self.supervise(held, signals).await
    }
}

/// How one turn with the lock has ended.
enum End {
    /// With this code, and for good.
    Here(Exit),
    /// The lock was lost, and the command stopped.
    Lost {
        /// Whether a signal had asked for the end before the command was stopped.
        leaving: bool,
    },
}

fn default_owner(job: &Job) -> String {
    let program = job.command.first().map(|program| {
        Path::new(program)
            .file_name()
            .unwrap_or(program)
            .to_string_lossy()
    });
    lock::default_owner(std::process::id(), &program.unwrap_or_default())
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

fn check_max_hold(longest: Option<Duration>, shortest: Option<Duration>) -> Result<(), Failure> {
    match (longest, shortest) {
        (Some(Duration::ZERO), _) => Err(Failure::usage(
            "--max-hold 0 is over at once; give a longer time",
        )),
        (Some(longest), Some(shortest)) if longest < shortest => Err(Failure::usage(
            "--max-hold is shorter than --min-hold; swap them?",
        )),
        _ => Ok(()),
    }
}

async fn sleep_until(at: Option<tokio::time::Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
