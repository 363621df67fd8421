use std::fmt;
use std::path::Path;
use std::process::Command;

use super::sabotage::{Mistake, Saboteur};
use crate::ours::{Kind, Ours};
use crate::participant::{Fault, Participant};
use crate::peer::{Peer, installed, source};

/// What Curator 5.4 is made of where the system has it. It is the same driver, with other classes
/// behind it.
const SYSTEM_JARS: [&str; 7] = [
    "curator-recipes",
    "curator-framework",
    "curator-client",
    "zookeeper",
    "guava",
    "slf4j-api",
    "slf4j-nop",
];

/// Started often and for a few seconds: the compiler that takes time is left out.
const JAVA_OPTIONS: [&str; 4] = [
    "-Xmx64m",
    "-Xshare:auto",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
];

/// Whose program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Palisade.
    Ours,
    /// Palisade with `format=kazoo`.
    OursAsKazoo,
    /// Apache Curator, the newest.
    Curator,
    /// Apache Curator 5.4, as the system has it.
    SystemCurator,
    /// kazoo.
    Kazoo,
    /// Curator's nodes, made with a mistake, to show that the judge sees it.
    Saboteur(Mistake),
}

/// Which lock: the names are Curator's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipe {
    /// `InterProcessMutex`, and kazoo's `Lock`.
    Mutex,
    /// `InterProcessSemaphoreMutex`; ours is a semaphore with a limit of 1.
    SemaphoreMutex,
    /// The read side of `InterProcessReadWriteLock`.
    Read,
    /// Its write side.
    Write,
    /// `InterProcessSemaphoreV2` with a limit of 2.
    Semaphore,
    /// `InterProcessMultiLock` of `NAME-1` and `NAME-2`.
    Multi,
}

/// One lock of one program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Library(pub Program, pub Recipe);

impl Program {
    const ALL: [Self; 7] = [
        Self::Ours,
        Self::OursAsKazoo,
        Self::Curator,
        Self::SystemCurator,
        Self::Kazoo,
        Self::Saboteur(Mistake::IgnoresTheLine),
        Self::Saboteur(Mistake::DeletesTheLine),
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Ours => "palisade",
            Self::OursAsKazoo => "palisade-as-kazoo",
            Self::Curator => "curator",
            Self::SystemCurator => "curator-5.4",
            Self::Kazoo => "kazoo",
            Self::Saboteur(Mistake::IgnoresTheLine) => "ignores-the-line",
            Self::Saboteur(Mistake::DeletesTheLine) => "deletes-the-line",
        }
    }
}

impl Recipe {
    const ALL: [Self; 6] = [
        Self::Mutex,
        Self::SemaphoreMutex,
        Self::Read,
        Self::Write,
        Self::Semaphore,
        Self::Multi,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::SemaphoreMutex => "semaphore-mutex",
            Self::Read => "read",
            Self::Write => "write",
            Self::Semaphore => "semaphore",
            Self::Multi => "multi",
        }
    }

    /// What it is in Palisade.
    fn kind(self) -> Kind {
        match self {
            Self::Mutex => Kind::Mutex,
            Self::SemaphoreMutex => Kind::Permit(1),
            Self::Read => Kind::Read,
            Self::Write => Kind::Write,
            Self::Semaphore => Kind::Permit(2),
            Self::Multi => Kind::Two,
        }
    }
}

impl fmt::Display for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Library {
    /// The library of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let all = Program::ALL
            .into_iter()
            .flat_map(|program| Recipe::ALL.map(|recipe| Self(program, recipe)));
        all.into_iter().find(|library| library.to_string() == name)
    }

    /// Starts its driver, for the server at `zk://HOST:PORT`. `rust` is the driver of those that
    /// are in Rust.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub fn start(self, url: &str, rust: impl AsRef<Path>) -> Result<Peer, Fault> {
        let Self(program, recipe) = self;
        let mut command = match program {
            Program::Ours | Program::OursAsKazoo | Program::Saboteur(_) => {
                let mut driver = Command::new(rust.as_ref());
                driver.args(["zookeeper", &self.to_string()]);
                driver
            }
            Program::Curator | Program::SystemCurator => {
                let place = installed("zookeeper-java")?;
                let jars = if program == Program::Curator {
                    vec![place.join("lib/*")]
                } else {
                    system_jars()?
                };
                let path = std::env::join_paths(jars.into_iter().chain([place.join("classes")]))
                    .map_err(Fault::of)?;
                let mut java = Command::new("java");
                java.args(JAVA_OPTIONS)
                    .arg("-cp")
                    .arg(path)
                    .args(["Driver", &format!("curator-{}", recipe.name())]);
                java
            }
            Program::Kazoo => {
                let mut python =
                    Command::new(installed("zookeeper-python")?.join("venv/bin/python"));
                let recipe = if recipe == Recipe::Mutex {
                    "lock"
                } else {
                    recipe.name()
                };
                python
                    .arg(source("zookeeper-python/driver.py"))
                    .arg(format!("kazoo-{recipe}"));
                python
            }
        };
        command.arg(url);
        Peer::start(self.to_string(), command)
    }

    /// Those that are in Rust, in this process: what the driver serves.
    ///
    /// # Errors
    ///
    /// When it cannot connect, or is in another language.
    pub fn connect(self, url: &str) -> Result<Box<dyn Participant>, Fault> {
        let Self(program, recipe) = self;
        match program {
            Program::Ours => Ok(Box::new(Ours::connect(url, recipe.kind())?)),
            Program::OursAsKazoo => Ok(Box::new(Ours::connect(
                &format!("{url}?format=kazoo"),
                recipe.kind(),
            )?)),
            Program::Saboteur(mistake) => Ok(Box::new(Saboteur::connect(url, mistake, recipe)?)),
            _ => Err(Fault::new(format!("{self} is not in Rust"))),
        }
    }
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.0.name(), self.1.name())
    }
}

fn system_jars() -> Result<Vec<std::path::PathBuf>, Fault> {
    let path = |jar: &str| {
        let path = Path::new("/usr/share/java").join(jar).with_extension("jar");
        if path.exists() {
            Ok(path)
        } else {
            Err(Fault::new(format!(
                "{} is not there: run scripts/setup",
                path.display()
            )))
        }
    };
    SYSTEM_JARS.into_iter().map(path).collect()
}
