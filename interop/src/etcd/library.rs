use std::path::Path;
use std::process::Command;

use super::elector::Elector;
use super::etcdctl::{Etcdctl, Way};
use crate::candidate::Candidate;
use crate::ours::{Kind, Ours};
use crate::participant::{Fault, Participant};
use crate::peer::{Peer, installed};

/// A program of this family, ours included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// Palisade.
    Ours,
    /// Palisade, to read.
    OurReader,
    /// Palisade with `format=plain`.
    OurPlain,
    /// Go: `concurrency.Mutex` of etcd's client.
    Go,
    /// `etcdctl lock NAME`.
    EtcdctlHolds,
    /// `etcdctl lock NAME COMMAND`.
    EtcdctlRuns,
    /// Palisade's election.
    OurElection,
    /// Go: `concurrency.Election`.
    GoElection,
    /// `etcdctl elect NAME VALUE`.
    EtcdctlElects,
    /// Go: enters whatever the answer was.
    IgnoresTheAnswer,
    /// Go: deletes the line before it enters it.
    DeletesWithoutComparing,
    /// Go: looks whether the line is empty, and writes its key in another step.
    LooksThenWrites,
}

impl Library {
    /// Those of others.
    pub const PEERS: [Self; 3] = [Self::Go, Self::EtcdctlHolds, Self::EtcdctlRuns];

    /// Those with a mistake, which show that the judge sees it.
    pub const SABOTEURS: [Self; 3] = [
        Self::IgnoresTheAnswer,
        Self::DeletesWithoutComparing,
        Self::LooksThenWrites,
    ];

    /// Those that take part in elections, ours first.
    pub const ELECTIONS: [Self; 3] = [Self::OurElection, Self::GoElection, Self::EtcdctlElects];

    const OURS: [Self; 3] = [Self::Ours, Self::OurReader, Self::OurPlain];

    /// Its name, by which a driver knows it too.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => "palisade",
            Self::OurReader => "palisade-reader",
            Self::OurPlain => "palisade-plain",
            Self::Go => "mutex",
            Self::EtcdctlHolds => "etcdctl-holds",
            Self::EtcdctlRuns => "etcdctl-runs",
            Self::OurElection => "palisade-election",
            Self::GoElection => "election",
            Self::EtcdctlElects => "etcdctl-elects",
            Self::IgnoresTheAnswer => "ignores-the-answer",
            Self::DeletesWithoutComparing => "deletes-without-comparing",
            Self::LooksThenWrites => "looks-then-writes",
        }
    }

    /// The program of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let all = Self::OURS
            .into_iter()
            .chain(Self::PEERS)
            .chain(Self::ELECTIONS)
            .chain(Self::SABOTEURS);
        all.into_iter().find(|library| library.name() == name)
    }

    /// What it proclaims as a driver of this process.
    fn value(self) -> String {
        self.value_of(std::process::id())
    }

    /// What the driver with this process number proclaims when it leads.
    #[must_use]
    pub fn value_of(self, pid: u32) -> String {
        format!("{}-{pid}", self.name())
    }

    /// Whether it can ask once, without a wait. etcdctl cannot, and nor can an election of Go.
    #[must_use]
    pub fn can_try(self) -> bool {
        !matches!(
            self,
            Self::EtcdctlHolds | Self::EtcdctlRuns | Self::EtcdctlElects | Self::GoElection
        )
    }

    /// Starts its driver, for the server at `http://HOST:PORT`. `rust` is the driver of those that
    /// are in Rust.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub fn start(self, url: &str, rust: impl AsRef<Path>) -> Result<Peer, Fault> {
        let mut command = match self {
            Self::Ours
            | Self::OurReader
            | Self::OurPlain
            | Self::OurElection
            | Self::EtcdctlHolds
            | Self::EtcdctlRuns
            | Self::EtcdctlElects => {
                let mut driver = Command::new(rust.as_ref());
                driver.arg("etcd");
                driver
            }
            Self::Go
            | Self::GoElection
            | Self::IgnoresTheAnswer
            | Self::DeletesWithoutComparing
            | Self::LooksThenWrites => Command::new(installed("etcd-go")?.join("driver")),
        };
        command.args([self.name(), url]);
        Peer::start(self.name(), command)
    }

    /// Those that are in Rust, in this process: what the driver serves.
    ///
    /// # Errors
    ///
    /// When it cannot connect, or is in another language.
    pub fn connect(self, url: &str) -> Result<Box<dyn Participant>, Fault> {
        let members = url
            .strip_prefix("http://")
            .ok_or_else(|| Fault::new(format!("{url} is not http://HOST:PORT")))?;
        match self {
            Self::Ours => Ok(Box::new(Ours::connect(
                &format!("etcd://{members}"),
                Kind::Mutex,
            )?)),
            Self::OurReader => Ok(Box::new(Ours::connect(
                &format!("etcd://{members}"),
                Kind::Read,
            )?)),
            Self::OurPlain => Ok(Box::new(Ours::connect(
                &format!("etcd://{members}?format=plain"),
                Kind::Mutex,
            )?)),
            Self::EtcdctlHolds => Ok(Box::new(Etcdctl::new(url, Way::Holds))),
            Self::EtcdctlRuns => Ok(Box::new(Etcdctl::new(url, Way::Runs))),
            Self::OurElection => Ok(Box::new(Candidate::connect(
                &format!("etcd://{members}"),
                self.value(),
            )?)),
            Self::EtcdctlElects => Ok(Box::new(Elector::new(url, self.value()))),
            other => Err(Fault::new(format!("{} is not in Rust", other.name()))),
        }
    }
}
