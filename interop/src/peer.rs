use std::fmt::Display;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::participant::{
    Acquired, Extended, Fault, Fenced, Led, Participant, Proclaimed, Released,
};
use crate::protocol::{READY, Request, Word, read};

/// How long an answer may take beyond what was asked to wait. Far more than any needs, for machines
/// with much else to do.
const PATIENCE: Duration = Duration::from_secs(60);

/// A participant in a process of its own, or a hand of a [`Host`](crate::Host). Its process is killed when this
/// is dropped, the host's with the last of its hands. It ends by itself when this process is killed:
/// then its stdin ends.
#[derive(Debug)]
pub struct Peer {
    label: String,
    process: Arc<Process>,
    /// The number of a hand.
    hand: Option<u32>,
    answers: Receiver<String>,
}

impl Peer {
    /// Starts a driver, and returns when it is ready.
    ///
    /// # Errors
    ///
    /// When it cannot be started; the words name `scripts/setup`, which installs what it needs.
    pub fn start(label: impl Into<String>, command: Command) -> Result<Self, Fault> {
        let label = label.into();
        let (process, answers) = Process::start(&label, command)?;
        let (sender, receiver) = channel();
        answers.to(move |line| sender.send(line).is_ok());
        Self::ready(label, Arc::new(process), None, receiver)
    }

    /// When it says so.
    pub(crate) fn ready(
        label: String,
        process: Arc<Process>,
        hand: Option<u32>,
        answers: Receiver<String>,
    ) -> Result<Self, Fault> {
        let peer = Self {
            label,
            process,
            hand,
            answers,
        };
        match peer.line(Duration::ZERO)?.as_str() {
            READY => Ok(peer),
            other => Err(peer.fault(format!("said {other:?} where it should be ready"))),
        }
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid
    }

    /// Ends its process as a crash does, with SIGKILL, and returns when it is gone.
    pub fn crash(self) {
        self.process.end();
    }

    /// Closes its stdin, as the end of this process would.
    #[must_use = "dropping it kills the process"]
    pub fn hang_up(self) -> Self {
        self.process.hang_up();
        self
    }

    /// Sends a request, whose answer is to be awaited with [`Peer::awaited`]: for what is to happen
    /// in between.
    ///
    /// # Errors
    ///
    /// When it is gone.
    pub fn begin(&mut self, request: &Request) -> Result<(), Fault> {
        let said = match self.hand {
            Some(hand) => self.process.say(format!("{hand} {request}")),
            None => self.process.say(request),
        };
        said.map_err(|fault| self.fault(fault))
    }

    /// The answer to what was [begun](Peer::begin), or None when it does not come in time.
    ///
    /// # Errors
    ///
    /// When it is gone, or answers with an error.
    pub fn awaited<W: Word>(&mut self, longest: Duration) -> Result<Option<W>, Fault> {
        match self.answers.recv_timeout(longest) {
            Ok(line) => read(&line).map(Some).map_err(|fault| self.fault(fault)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(self.fault("it ended")),
        }
    }

    fn ask<W: Word>(&mut self, request: &Request, wait: Duration) -> Result<W, Fault> {
        self.begin(request)?;
        let line = self.line(wait)?;
        read(&line).map_err(|fault| self.fault(fault))
    }

    fn line(&self, wait: Duration) -> Result<String, Fault> {
        self.answers
            .recv_timeout(wait + PATIENCE)
            .map_err(|error| match error {
                RecvTimeoutError::Timeout => {
                    self.fault(format!("no answer within {:?}", wait + PATIENCE))
                }
                RecvTimeoutError::Disconnected => self.fault("it ended"),
            })
    }

    fn fault(&self, what: impl Display) -> Fault {
        Fault::new(format!("{}: {what}", self.label))
    }
}

impl Participant for Peer {
    fn acquire(
        &mut self,
        name: &str,
        lease: Option<Duration>,
        wait: Duration,
    ) -> Result<Acquired, Fault> {
        self.ask(
            &Request::Acquire {
                name: name.to_owned(),
                lease,
                wait,
            },
            wait,
        )
    }

    fn release(&mut self) -> Result<Released, Fault> {
        self.ask(&Request::Release, Duration::ZERO)
    }

    fn extend(&mut self, lease: Duration) -> Result<Extended, Fault> {
        self.ask(&Request::Extend { lease }, Duration::ZERO)
    }

    fn fence(&mut self) -> Result<Fenced, Fault> {
        self.ask(&Request::Fence, Duration::ZERO)
    }

    fn proclaim(&mut self, value: &str) -> Result<Proclaimed, Fault> {
        self.ask(
            &Request::Proclaim {
                value: value.to_owned(),
            },
            Duration::ZERO,
        )
    }

    fn leader(&mut self, name: &str) -> Result<Led, Fault> {
        self.ask(
            &Request::Leader {
                name: name.to_owned(),
            },
            Duration::ZERO,
        )
    }

    fn observe(&mut self, name: &str, wait: Duration) -> Result<Led, Fault> {
        self.ask(
            &Request::Observe {
                name: name.to_owned(),
                wait,
            },
            wait,
        )
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(hand) = self.hand {
            // If the process has ended, there is no hand to close.
            self.process.say(format!("{hand} close")).ok();
        }
    }
}

/// The process of a driver.
#[derive(Debug)]
pub(crate) struct Process {
    pid: u32,
    child: Mutex<Child>,
    /// None after it was hung up on.
    requests: Mutex<Option<ChildStdin>>,
}

impl Process {
    /// Starts it, with the pipe of what it says.
    pub(crate) fn start(label: &str, mut command: Command) -> Result<(Self, Answers), Fault> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| {
                let hint = if error.kind() == ErrorKind::NotFound {
                    ": run scripts/setup"
                } else {
                    ""
                };
                Fault::new(format!(
                    "{label}: cannot start {}: {error}{hint}",
                    command.get_program().to_string_lossy()
                ))
            })?;
        let (Some(requests), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("both were asked for");
        };
        let process = Self {
            pid: child.id(),
            child: Mutex::new(child),
            requests: Mutex::new(Some(requests)),
        };
        Ok((process, Answers(answers)))
    }

    pub(crate) fn say(&self, line: impl Display) -> Result<(), Fault> {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(requests) = &mut *requests else {
            return Err(Fault::new("it was hung up on"));
        };
        // One write, so that the lines of two hands do not mix.
        requests
            .write_all(format!("{line}\n").as_bytes())
            .map_err(Fault::of)
    }

    fn hang_up(&self) {
        *self.requests.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn end(&self) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        // It may have ended by itself, and then there is nothing to do.
        child.kill().ok();
        child.wait().ok();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// What a driver says.
pub(crate) struct Answers(ChildStdout);

impl Answers {
    /// Passes the lines on until that is in vain, or until the driver ends. A pipe has no read with
    /// a limit, so a thread reads it.
    pub(crate) fn to(self, mut pass_on: impl FnMut(String) -> bool + Send + 'static) {
        thread::spawn(move || {
            for line in BufReader::new(self.0).lines().map_while(Result::ok) {
                if !pass_on(line) {
                    return;
                }
            }
        });
    }
}

/// Where `scripts/setup` has put what this folder of `peers/` needs.
///
/// # Errors
///
/// When it is not there, or is of another version; the words name `scripts/setup`.
pub fn installed(peer: &str) -> Result<PathBuf, Fault> {
    // The script alone knows the rule, so that there are no two.
    let asked = Command::new(source("install"))
        .args(["--where", peer])
        .output()
        .map_err(Fault::of)?;
    if !asked.status.success() {
        return Err(Fault::new(String::from_utf8_lossy(&asked.stderr).trim()));
    }
    let place = PathBuf::from(String::from_utf8_lossy(&asked.stdout).trim());
    if place.is_dir() {
        Ok(place)
    } else {
        Err(Fault::new(format!(
            "{peer} is not installed: run scripts/setup"
        )))
    }
}

/// A file of `peers/`.
pub(crate) fn source(path: impl AsRef<Path>) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("peers")
        .join(path)
}
