use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::participant::{Acquired, Extended, Fault, Participant, Released};

/// What etcdctl does while it holds the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Nothing, until it is interrupted.
    Holds,
    /// It runs a command, and gives the lock back when that has ended.
    Runs,
}

/// The command: prints the key that is held, and ends when it reads a line. When this process is
/// killed, the kernel closes the connection before it ends etcdctl, which must not release in
/// between. So the end of the connection takes effect only later.
const COMMAND: &str =
    r#"echo "$ETCD_LOCK_KEY"; read -r end < "/dev/tcp/127.0.0.1/$0" || sleep 10; exit 0"#;

/// etcd's own tool, a process for each turn.
#[derive(Debug)]
pub struct Etcdctl {
    url: String,
    way: Way,
    held: Option<Turn>,
}

/// One process of it.
#[derive(Debug)]
pub(super) struct Turn {
    child: Child,
    /// The first line is the key, once it is held.
    pub(super) said: Receiver<String>,
    /// What its command waits for.
    command: Option<TcpListener>,
}

impl Etcdctl {
    /// At `http://HOST:PORT`.
    #[must_use]
    pub fn new(url: &str, way: Way) -> Self {
        Self {
            url: url.to_owned(),
            way,
            held: None,
        }
    }

    fn ask(&self, name: &str, lease: Duration) -> Result<Turn, Fault> {
        let mut etcdctl = etcdctl(&self.url);
        etcdctl.args(["lock", "--ttl", &lease.as_secs().max(1).to_string(), name]);
        let command = match self.way {
            Way::Holds => None,
            Way::Runs => {
                let command = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(Fault::of)?;
                let port = command.local_addr().map_err(Fault::of)?.port();
                etcdctl.args(["--", "bash", "-c", COMMAND, &port.to_string()]);
                Some(command)
            }
        };
        Turn::begin(etcdctl, command)
    }
}

/// The tool. The kernel ends it with this process, so that it looks like a crash of its own.
pub(super) fn etcdctl(url: &str) -> Command {
    let mut etcdctl = Command::new("setpriv");
    etcdctl
        .args(["--pdeathsig", "KILL", "etcdctl", "--endpoints", url])
        .env("ETCDCTL_API", "3");
    etcdctl
}

impl Turn {
    pub(super) fn begin(mut etcdctl: Command, command: Option<TcpListener>) -> Result<Turn, Fault> {
        etcdctl
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = etcdctl
            .spawn()
            .map_err(|error| Fault::new(format!("etcdctl: {error}: run scripts/setup")))?;
        let Some(stdout) = child.stdout.take() else {
            unreachable!("it was asked for")
        };
        Ok(Turn {
            child,
            said: lines(stdout),
            command,
        })
    }

    /// Waits until it prints the key that it holds. Says whether that was in time; if not, it is
    /// interrupted.
    pub(super) fn holds_within(&mut self, wait: Duration) -> Result<bool, Fault> {
        match self.said.recv_timeout(wait) {
            Ok(_) => Ok(true),
            Err(RecvTimeoutError::Timeout) => self.interrupt().map(|_| false),
            Err(RecvTimeoutError::Disconnected) => Err(Fault::new(format!(
                "etcdctl ended: {}",
                self.child.wait().map_err(Fault::of)?
            ))),
        }
    }

    /// As ctrl-c does: what waits leaves the line, and what is held is given back.
    pub(super) fn interrupt(&mut self) -> Result<ExitStatus, Fault> {
        // Not yet waited for, so that the number is still its own.
        if let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) {
            kill_process(pid, Signal::INT).map_err(Fault::of)?;
        }
        self.child.wait().map_err(Fault::of)
    }

    pub(super) fn has_ended(&mut self) -> Result<bool, Fault> {
        self.child
            .try_wait()
            .map(|status| status.is_some())
            .map_err(Fault::of)
    }
}

impl Participant for Etcdctl {
    fn acquire(
        &mut self,
        name: &str,
        lease: Option<Duration>,
        wait: Duration,
    ) -> Result<Acquired, Fault> {
        let lease = lease.ok_or_else(|| Fault::new("etcdctl has no lock without an end"))?;
        if wait.is_zero() {
            return Err(Fault::new("etcdctl cannot ask without a wait"));
        }
        let mut turn = self.ask(name, lease)?;
        if !turn.holds_within(wait)? {
            return Ok(Acquired::Busy);
        }
        self.held = Some(turn);
        Ok(Acquired::Yes)
    }

    /// It deletes its key without a comparison, and does not say whether the key was there.
    fn release(&mut self) -> Result<Released, Fault> {
        let Some(mut turn) = self.held.take() else {
            return Ok(Released::NotHeld);
        };
        if turn.has_ended()? {
            return Ok(Released::NotHeld);
        }
        let status = match turn.command.take() {
            None => turn.interrupt()?,
            Some(command) => {
                let (mut waits, _) = command.accept().map_err(Fault::of)?;
                waits.write_all(b"end\n").map_err(Fault::of)?;
                drop(waits);
                turn.child.wait().map_err(Fault::of)?
            }
        };
        if status.success() {
            Ok(Released::Unsaid)
        } else {
            Err(Fault::new(format!("etcdctl ended: {status}")))
        }
    }

    /// It renews by itself for as long as it runs.
    fn extend(&mut self, _: Duration) -> Result<Extended, Fault> {
        let ended = self.held.as_mut().map_or(Ok(true), Turn::has_ended)?;
        Ok(if ended {
            Extended::NotHeld
        } else {
            Extended::Yes
        })
    }
}

/// A pipe has no read with a limit, so a thread reads it. It ends with the child.
fn lines(pipe: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            // A reader of the first line may stop there, but the pipe must not fill up.
            sender.send(line).ok();
        }
    });
    receiver
}
