//! From flags to a lock: what `run`, `elect` and `acquire` share.

use std::time::Duration;

use palisade::{
    AnyMode, Client, Election, Error, Guard, Leadership, Member, Multi, Mutex, OncePer, RwLock,
    Semaphore, WaitLimit,
};

use crate::args::{ClaimArgs, HoldArgs, ModeArgs};
use crate::exit::Failure;
use crate::held::Held;

/// A lock of the kind that the flags ask for.
#[derive(Clone)]
pub(crate) enum Lock {
    Mutex(Mutex),
    OncePer(OncePer),
    Reader(RwLock),
    Writer(RwLock),
    Permits(Semaphore, u32),
    /// Several names, all or nothing.
    Several(Multi),
    /// With the value that the leader proclaims.
    Election(Election, String),
}

/// The outcome of a wait.
pub(crate) enum Acquired {
    Held(Held),
    /// Busy with one attempt, or too soon for once-per.
    Busy,
}

macro_rules! with_options {
    ($lock:expr, $args:expr, $owner:expr, $stop_margin:expr, $detachable:expr) => {{
        let Terms {
            hold,
            claim,
            max_hold,
        } = $args;
        let mut lock = $lock.owner($owner).store_wait($args.store_wait());
        if let Some(lease) = hold.lease {
            lock = lock.lease(lease);
        }
        if let Some(margin) = $stop_margin {
            lock = lock.stop_margin(margin);
        }
        if let Some(longest) = max_hold {
            lock = lock.max_hold(longest);
        }
        if let Some(shortest) = hold.min_hold {
            lock = lock.min_hold(shortest);
        }
        if let Some(reason) = &claim.reason {
            lock = lock.reason(reason);
        }
        if $detachable { lock.detachable() } else { lock }
    }};
}

/// The options that every lock takes.
#[derive(Clone, Copy)]
pub(crate) struct Terms<'a> {
    pub(crate) hold: &'a HoldArgs,
    pub(crate) claim: &'a ClaimArgs,
    pub(crate) max_hold: Option<Duration>,
}

impl Terms<'_> {
    /// Never longer than the wait itself.
    fn store_wait(self) -> Duration {
        let patience = self.claim.store_wait.0;
        self.hold.wait.map_or(patience, |wait| patience.min(wait))
    }
}

impl Lock {
    pub(crate) fn new(
        locks: &Client,
        (args, mode): (Terms<'_>, &ModeArgs),
        owner: &str,
        stop_margin: Option<Duration>,
        detachable: bool,
    ) -> Result<Lock, Failure> {
        let name = &args.hold.name;
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

    /// Several names, in the same mode.
    pub(crate) fn several(
        locks: &Client,
        (args, mode): (Terms<'_>, &ModeArgs),
        names: &[String],
        owner: &str,
        stop_margin: Option<Duration>,
    ) -> Result<Lock, Failure> {
        let member = |name: &String| -> Member {
            if mode.shared || mode.exclusive {
                let lock = with_options!(locks.rwlock(name), args, owner, stop_margin, false);
                if mode.shared {
                    Member::read(&lock)
                } else {
                    Member::write(&lock)
                }
            } else {
                with_options!(locks.mutex(name), args, owner, stop_margin, false).into()
            }
        };
        Lock::Several(Multi::of(names.iter().map(member))).checked(args)
    }

    /// An election of candidates with this value.
    pub(crate) fn election(
        locks: &Client,
        args: Terms<'_>,
        value: String,
        stop_margin: Option<Duration>,
    ) -> Result<Lock, Failure> {
        let election = with_options!(
            locks.election(&args.hold.name),
            args,
            &value,
            stop_margin,
            false
        );
        Lock::Election(election, value).checked(args)
    }

    fn checked(self, args: Terms<'_>) -> Result<Lock, Failure> {
        const SHORTEST: Duration = Duration::from_secs(1);
        if args.hold.lease.is_some_and(|lease| lease < SHORTEST) {
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
            Lock::Several(locks) => locks.check(),
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
            Lock::Several(locks) => {
                let held = locks.acquire_within(wait).await?.map(Held::Several);
                return Ok(held.map_or(Acquired::Busy, Acquired::Held));
            }
            Lock::Election(election, value) => {
                election.campaign_within(value, wait).await?.map(any_mode)
            }
        };
        Ok(held.map_or(Acquired::Busy, |guard| Acquired::Held(Held::One(guard))))
    }
}

fn any_mode(leadership: Leadership) -> Guard<AnyMode> {
    leadership.into_guard().into_any_mode()
}

/// Host, process and what is run: enough to find who holds a lock.
pub(crate) fn default_owner(process: u32, what: &str) -> String {
    let host = rustix::system::uname();
    format!("{}:{process}:{what}", host.nodename().to_string_lossy())
}
