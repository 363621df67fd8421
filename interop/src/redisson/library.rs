use std::fmt;
use std::path::Path;
use std::process::Command;

use super::sabotage::{Mistake, Saboteur};
use crate::host::Host;
use crate::ours::{Kind, Ours};
use crate::participant::{Fault, Participant};
use crate::peer::{Peer, installed};

/// Started for a few seconds: the compiler that takes time is left out.
const JAVA_OPTIONS: [&str; 4] = [
    "-Xmx128m",
    "-Xshare:auto",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
];

/// Whose program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Palisade with `format=redisson`.
    Ours,
    /// Redisson, the newest.
    New,
    /// Redisson 3.45.
    Old,
    /// Redisson's keys, used with a mistake, to show that the judge sees it.
    Saboteur(Mistake),
}

/// Which lock: the names are Redisson's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// `RLock`.
    Lock,
    /// `RLock` that is entered again by its holder.
    Again,
    /// `RFairLock`.
    Fair,
    /// `RFencedLock`.
    Fenced,
    /// `RSpinLock`.
    Spin,
    /// The read side of `RReadWriteLock`.
    Read,
    /// Its write side.
    Write,
    /// `RSemaphore` with two permits.
    Semaphore,
    /// `RPermitExpirableSemaphore` with two permits.
    Permit,
    /// `RedissonMultiLock` of the locks `NAME-1` and `NAME-2`.
    Multi,
    /// `RCountDownLatch` of two: it is acquired when it is open, and a release counts it down.
    Latch,
}

/// One lock of one program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Library(pub Program, pub Lock);

impl Program {
    const ALL: [Self; 7] = [
        Self::Ours,
        Self::New,
        Self::Old,
        Self::Saboteur(Mistake::IgnoresTheAnswer),
        Self::Saboteur(Mistake::DeletesTheLock),
        Self::Saboteur(Mistake::HasOneOwner),
        Self::Saboteur(Mistake::ReadsWithoutALease),
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Ours => "palisade",
            Self::New => "redisson",
            Self::Old => "redisson-3.45",
            Self::Saboteur(Mistake::IgnoresTheAnswer) => "ignores-the-answer",
            Self::Saboteur(Mistake::DeletesTheLock) => "deletes-the-lock",
            Self::Saboteur(Mistake::HasOneOwner) => "has-one-owner",
            Self::Saboteur(Mistake::ReadsWithoutALease) => "reads-without-a-lease",
        }
    }

    /// Starts a Java with this version of Redisson, for the server at `redis://HOST:PORT`, or for a
    /// cluster at `redis+cluster://HOST:PORT,…`.
    ///
    /// # Errors
    ///
    /// When it does not start, or this is another program.
    pub fn host(self, url: &str) -> Result<Host, Fault> {
        let jars = match self {
            Self::New => "lib",
            Self::Old => "lib-3.45",
            _ => return Err(Fault::new(format!("{} is not in Java", self.name()))),
        };
        let place = installed("redis-java")?;
        let path = std::env::join_paths([place.join(jars).join("*"), place.join("classes")])
            .map_err(Fault::of)?;
        let mut java = Command::new("java");
        java.args(JAVA_OPTIONS)
            .arg("-cp")
            .arg(path)
            .args(["Driver", self.name(), url]);
        Host::start(self.name(), java)
    }
}

impl Lock {
    const ALL: [Self; 11] = [
        Self::Lock,
        Self::Again,
        Self::Fair,
        Self::Fenced,
        Self::Spin,
        Self::Read,
        Self::Write,
        Self::Semaphore,
        Self::Permit,
        Self::Multi,
        Self::Latch,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Again => "again",
            Self::Fair => "fair",
            Self::Fenced => "fenced",
            Self::Spin => "spin",
            Self::Read => "read",
            Self::Write => "write",
            Self::Semaphore => "semaphore",
            Self::Permit => "permit",
            Self::Multi => "multi",
            Self::Latch => "latch",
        }
    }

    /// How Java knows it.
    #[must_use]
    pub fn in_java(self) -> &'static str {
        match self {
            Self::Again => Self::Lock.name(),
            other => other.name(),
        }
    }

    /// What it is in Palisade.
    fn kind(self) -> Kind {
        match self {
            Self::Lock | Self::Fair | Self::Fenced | Self::Spin => Kind::Mutex,
            Self::Again => Kind::Again,
            Self::Read => Kind::Read,
            Self::Write => Kind::Write,
            Self::Semaphore | Self::Permit => Kind::Permit(2),
            Self::Multi => Kind::Two,
            Self::Latch => Kind::Latch(2),
        }
    }

    /// What ours must be told to use the same keys.
    fn words(self) -> &'static str {
        match self {
            Self::Fair => "format=redisson&fair=yes",
            Self::Fenced => "format=redisson&fenced=yes",
            Self::Permit => "format=redisson&expirable=yes",
            _ => "format=redisson",
        }
    }
}

impl Library {
    /// The library of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let all = Program::ALL
            .into_iter()
            .flat_map(|program| Lock::ALL.map(|lock| Self(program, lock)));
        all.into_iter().find(|library| library.to_string() == name)
    }

    /// Starts it in a process of its own, for the server at `redis://HOST:PORT`, or for a
    /// cluster at `redis+cluster://HOST:PORT,…`. `rust` is the driver
    /// of those that are in Rust.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub fn start(self, url: &str, rust: impl AsRef<Path>) -> Result<Peer, Fault> {
        let Self(program, lock) = self;
        match program {
            Program::New | Program::Old => program.host(url)?.hand(lock.in_java()),
            Program::Ours | Program::Saboteur(_) => {
                let mut driver = Command::new(rust.as_ref());
                driver.args(["redisson", &self.to_string(), url]);
                Peer::start(self.to_string(), driver)
            }
        }
    }

    /// Those that are in Rust, in this process: what the driver serves.
    ///
    /// # Errors
    ///
    /// When it cannot connect, or is in another language.
    pub fn connect(self, url: &str) -> Result<Box<dyn Participant>, Fault> {
        let Self(program, lock) = self;
        match program {
            Program::Ours => {
                let url = format!("{url}?{}", lock.words());
                Ok(Box::new(Ours::connect(&url, lock.kind())?))
            }
            Program::Saboteur(mistake) => Ok(Box::new(Saboteur::connect(url, mistake, lock)?)),
            Program::New | Program::Old => Err(Fault::new(format!("{self} is not in Rust"))),
        }
    }
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.0.name(), self.1.name())
    }
}
