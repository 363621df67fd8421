//! From flags to a lock: what `run`, `elect` and `acquire` share.

use std::sync::Arc;
use std::time::Duration;

use palisade::store::Holder;
use palisade::{
    AnyMode, Client, Election, Error, Guard, Leadership, Mutex, OncePer, RwLock, Semaphore,
    WaitLimit, show_duration,
};

use crate::args::{HoldArgs, ModeArgs};
use crate::config::Store;
use crate::exit::{Exit, Failure};
use crate::notice::{Notices, to_copy};

/// A lock of whichever kind the flags ask for.
#[derive(Clone)]
pub(crate) enum Lock {
    Mutex(Mutex),
    OncePer(OncePer),
    Reader(RwLock),
    Writer(RwLock),
    Permits(Semaphore, u32),
    /// With the value that the leader proclaims.
    Election(Election, String),
}

/// What the wait came to.
pub(crate) enum Acquired {
    Held(Guard<AnyMode>),
    /// Busy with one attempt, or too soon for once-per.
    Busy,
}

macro_rules! with_options {
    ($lock:expr, $args:expr, $owner:expr, $stop_margin:expr, $detachable:expr) => {{
        let mut lock = $lock.owner_label($owner).store_wait(store_wait($args));
        if let Some(lease) = $args.lease {
            lock = lock.lease(lease);
        }
        if let Some(margin) = $stop_margin {
            lock = lock.stop_margin(margin);
        }
        if let Some(longest) = $args.max_hold {
            lock = lock.max_hold(longest);
        }
        if let Some(shortest) = $args.min_hold {
            lock = lock.min_hold(shortest);
        }
        if let Some(reason) = &$args.reason {
            lock = lock.reason(reason);
        }
        if $detachable { lock.detachable() } else { lock }
    }};
}

/// Never longer than the wait itself.
fn store_wait(args: &HoldArgs) -> Duration {
    args.wait
        .map_or(args.store_wait, |wait| args.store_wait.min(wait))
}

impl Lock {
    pub(crate) fn new(
        locks: &Client,
        (args, mode): (&HoldArgs, &ModeArgs),
        owner: &str,
        stop_margin: Option<Duration>,
        detachable: bool,
    ) -> Result<Lock, Failure> {
        let name = &args.name;
        let lock = match (mode.shared, mode.exclusive, mode.limit, mode.once_per) {
            (true, ..) => Lock::Reader(with_options!(
                locks.rwlock(name),
                args,
                owner,
                stop_margin,
                detachable
            )),
            (_, true, ..) => Lock::Writer(with_options!(
                locks.rwlock(name),
                args,
                owner,
                stop_margin,
                detachable
            )),
            (_, _, Some(limit), _) => {
                let semaphore = with_options!(
                    locks.semaphore(name, limit),
                    args,
                    owner,
                    stop_margin,
                    detachable
                );
                let permits = mode.permits.unwrap_or(1);
                if permits == 0 || permits > limit {
                    return Err(Failure::usage(format!(
                        "--permits {permits} of --limit {limit}: give 1 to {limit}"
                    )));
                }
                Lock::Permits(semaphore, permits)
            }
            (_, _, _, Some(period)) => Lock::OncePer(
                with_options!(locks.mutex(name), args, owner, stop_margin, detachable)
                    .once_per(period),
            ),
            _ => Lock::Mutex(with_options!(
                locks.mutex(name),
                args,
                owner,
                stop_margin,
                detachable
            )),
        };
        lock.checked(args)
    }

    /// An election of candidates with this value.
    pub(crate) fn election(
        locks: &Client,
        args: &HoldArgs,
        value: String,
        stop_margin: Option<Duration>,
    ) -> Result<Lock, Failure> {
        let election = with_options!(locks.election(&args.name), args, &value, stop_margin, false);
        Lock::Election(election, value).checked(args)
    }

    fn checked(self, args: &HoldArgs) -> Result<Lock, Failure> {
        const SHORTEST: Duration = Duration::from_secs(1);
        if args.lease.is_some_and(|lease| lease < SHORTEST) {
            return Err(Failure::usage(
                "a lease shorter than 1s is lost too easily by a command; give 1s to 24h",
            ));
        }
        self.check()?;
        Ok(self)
    }

    fn check(&self) -> Result<(), Error> {
        match self {
            Lock::Election(election, _) => election.check(),
            Lock::Mutex(lock) => lock.check(),
            Lock::OncePer(lock) => lock.check(),
            Lock::Reader(lock) | Lock::Writer(lock) => lock.check(),
            Lock::Permits(lock, _) => lock.check(),
        }
    }

    /// Waits in line as the flags say.
    pub(crate) async fn acquire(&self, args: &HoldArgs) -> Result<Acquired, Error> {
        let wait = match args.wait {
            _ if args.once => WaitLimit::Now,
            Some(Duration::ZERO) => WaitLimit::Now,
            Some(longest) => WaitLimit::AtMost(longest),
            None => WaitLimit::Forever,
        };
        let held = match self {
            Lock::Mutex(lock) => lock.acquire_within(wait).await?.map(Guard::into_any_mode),
            Lock::OncePer(lock) => lock.acquire_within(wait).await?.map(Guard::into_any_mode),
            Lock::Reader(lock) => lock.read_within(wait).await?.map(Guard::into_any_mode),
            Lock::Writer(lock) => lock.write_within(wait).await?.map(Guard::into_any_mode),
            Lock::Permits(lock, count) => lock
                .acquire_many_within(*count, wait)
                .await?
                .map(Guard::into_any_mode),
            Lock::Election(election, value) => {
                election.campaign_within(value, wait).await?.map(any_mode)
            }
        };
        Ok(held.map_or(Acquired::Busy, Acquired::Held))
    }
}

fn any_mode(leadership: Leadership) -> Guard<AnyMode> {
    leadership.into_guard().into_any_mode()
}

/// Says who holds the name, or why it was not acquired, and answers with the code for that.
pub(crate) async fn not_acquired(
    store: &Store,
    args: &HoldArgs,
    mode: &ModeArgs,
    error: Option<&Error>,
    notices: Notices,
) -> Result<Exit, Failure> {
    let holder = match error {
        // The store was just asked for the holder.
        Some(error) => error.holder().cloned(),
        None => store
            .locks()
            .show(&args.name)
            .await
            .ok()
            .flatten()
            .and_then(|line| line.holders.into_iter().next()),
    };
    if error.is_some() && holder.is_none() {
        store.is_silent();
    }
    let (name, closer) = (&args.name, to_copy("show", &args.name, ""));
    match holder {
        Some(holder) => notices.notice(&format!(
            "{name} is {}; look closer with: {closer}",
            held_by(&holder)
        )),
        None if mode.once_per.is_some() => {
            notices.notice(&format!("{name}: skipped, a run began within the period"))
        }
        None => notices.notice(&format!("{name} is busy; look closer with: {closer}")),
    }
    Ok(args.busy_exit_code.map_or(Exit::BUSY, Exit))
}

/// Holder, reason and how long.
pub(crate) fn held_by(holder: &Holder) -> String {
    let reason = holder
        .reason
        .as_ref()
        .map(|reason| format!(" ({reason})"))
        .unwrap_or_default();
    let held = holder
        .held
        .map(|held| format!(" for {}", show_duration(held)))
        .unwrap_or_default();
    format!("held by {}{reason}{held}", holder.owner)
}

/// Host, process and what is run: enough to find who holds a lock.
pub(crate) fn default_owner(what: &str) -> Arc<str> {
    let host = rustix::system::uname();
    format!(
        "{}:{}:{what}",
        host.nodename().to_string_lossy(),
        std::process::id()
    )
    .into()
}
