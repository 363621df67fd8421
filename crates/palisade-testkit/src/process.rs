//! One server process: started, asked until it is ready, stopped, paused, killed.

use std::ffi::OsString;
use std::fs::{self, File};
use std::net::IpAddr;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::Signal;

use crate::dir::Dir;
use crate::error::{Failure, OrPanic, Result};
use crate::lan::Place;
use crate::port::Port;
use crate::ready::{PATIENCE, within};
use crate::{command, process_tree, spawner};

/// How much of the log an error shows: enough for the backtrace of a server that crashed.
const TAIL_LINES: usize = 80;

/// How a server is started, again and again.
pub(crate) struct Recipe {
    pub(crate) program: &'static str,
    pub(crate) args: Vec<OsString>,
    pub(crate) env: Vec<(&'static str, OsString)>,
    /// For servers that refuse to run as root.
    pub(crate) user: Option<&'static str>,
    /// The signal for an orderly end.
    pub(crate) stop: Signal,
    pub(crate) place: Place,
}

impl Recipe {
    pub(crate) fn new(program: &'static str, place: &Place) -> Self {
        Self {
            program,
            args: Vec::new(),
            env: Vec::new(),
            user: None,
            stop: Signal::TERM,
            place: place.clone(),
        }
    }

    pub(crate) fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Each wrapper execs the next, so the pid that we get is that of the server itself.
    fn command(&self) -> Result<Command> {
        let mut words: Vec<OsString> = Vec::new();
        if let Some(name) = self.place.namespace() {
            words.push(command::find("ip")?.into());
            words.extend(["netns", "exec", name].map(OsString::from));
        }
        if let Some(user) = self.user.filter(|_| is_root()) {
            words.push(command::find("setpriv")?.into());
            // A change of user makes the kernel forget the wish to die with the parent, so it is
            // asked again after it.
            words
                .extend([format!("--reuid={user}"), format!("--regid={user}")].map(OsString::from));
            words.extend(["--init-groups", "--pdeathsig=KILL", "--"].map(OsString::from));
        }
        words.push(command::find(self.program)?.into());
        let mut command = Command::new(&words[0]);
        command::clean(&mut command);
        command
            .args(&words[1..])
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)));
        Ok(command)
    }
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Says whether the server answers, or why not.
pub(crate) type Probe = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// A real server, private to this test: its own process group, port and directory. Dropping it
/// kills it and removes the directory; if the whole process ends, in whatever way, the kernel kills
/// it.
///
/// All calls take `&self`, so that a server can be shared. They panic when they fail, with the tail
/// of the server's log.
pub struct Server {
    recipe: Recipe,
    ready: Probe,
    child: Mutex<Option<Child>>,
    dir: Dir,
    _ports: Vec<Port>,
}

impl Server {
    /// Starts it and does not wait. The nodes of a cluster get ready together only.
    pub(crate) fn launch(recipe: Recipe, dir: Dir, ports: Vec<Port>, ready: Probe) -> Result<Self> {
        let server = Self {
            recipe,
            ready,
            child: Mutex::new(None),
            dir,
            _ports: ports,
        };
        *server.child() = Some(server.spawn()?);
        Ok(server)
    }

    /// Starts it and returns when it answers.
    pub(crate) fn start(recipe: Recipe, dir: Dir, ports: Vec<Port>, ready: Probe) -> Result<Self> {
        let server = Self::launch(recipe, dir, ports, ready)?;
        server.wait_ready()?;
        Ok(server)
    }

    fn spawn(&self) -> Result<Child> {
        let mut command = self.recipe.command()?;
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_path())?;
        command
            .current_dir(self.dir.path())
            .stdout(log.try_clone()?)
            .stderr(log);
        spawner::spawn(command).map_err(|error| self.failure(&error.to_string()))
    }

    pub(crate) fn wait_ready(&self) -> Result<()> {
        let answered = within(self.recipe.program, PATIENCE, || {
            let answer = (self.ready)();
            // Checked after the probe: if our server has ended, another process answered in its
            // place.
            if !self.is_running() {
                return Ok(Err(self.failure("it ended before it was ready")));
            }
            answer.map(Ok)
        });
        match answered {
            Ok(result) => result,
            Err(failure) => Err(self.failure(&failure.to_string())),
        }
    }

    /// The process id.
    ///
    /// # Panics
    ///
    /// When it was killed or stopped.
    #[track_caller]
    pub fn pid(&self) -> u32 {
        self.child().as_ref().expect("the server was stopped").id()
    }

    /// The directory with its data and its log, removed with the server.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The address it listens on: loopback, or its own in a [`crate::lan::Lan`].
    pub fn ip(&self) -> IpAddr {
        self.recipe.place.ip()
    }

    /// The last lines of its log.
    pub fn log(&self) -> String {
        let text = fs::read(self.log_path()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
    }

    /// Whether its process is there, paused or not.
    pub fn is_running(&self) -> bool {
        self.child().as_mut().is_some_and(is_running)
    }

    /// Stops the server and its children in the middle of whatever they do, and returns when all
    /// stand still. Connections stay, the kernel takes what is sent, and nothing answers.
    pub fn pause(&self) {
        self.while_running(|pid| process_tree::pause(pid, PATIENCE))
            .or_panic();
    }

    /// Lets it go on after [`Server::pause`].
    pub fn resume(&self) {
        self.while_running(|pid| process_tree::signal(pid, Signal::CONT));
    }

    /// Kills it at once, as a crash would. Data on disk stays, for [`Server::restart`].
    pub fn kill(&self) {
        self.end().or_panic();
    }

    /// Ends it in order, as an operator would.
    pub fn stop(&self) {
        self.resume();
        self.while_running(|pid| process_tree::send(pid, self.recipe.stop));
        within(self.recipe.program, PATIENCE, || {
            if self.is_running() {
                Err("it does not stop".into())
            } else {
                Ok(())
            }
        })
        .or_panic();
        self.kill();
    }

    /// Kills it if it runs, starts it again with the same port and data, and returns when it
    /// answers.
    pub fn restart(&self) {
        self.start_again();
        self.wait_ready().or_panic();
    }

    /// As [`Server::restart`], without waiting: a node of a cluster answers only when enough of the
    /// others run.
    pub fn start_again(&self) {
        self.end().or_panic();
        *self.child() = Some(self.spawn().or_panic());
    }

    fn end(&self) -> Result<()> {
        let Some(mut child) = self.child().take() else {
            return Ok(());
        };
        // Once its end was seen, its pid may belong to another process.
        if !is_running(&mut child) {
            return Ok(());
        }
        let family = process_tree::kill(child.id());
        child.wait()?;
        process_tree::gone(&family, PATIENCE)
    }

    /// Holds the lock meanwhile, so that no other call reaps the process and frees its pid.
    #[track_caller]
    fn while_running<T>(&self, act: impl FnOnce(u32) -> T) -> T {
        let mut child = self.child();
        let running = child
            .as_mut()
            .and_then(|child| is_running(child).then_some(child.id()));
        let Some(pid) = running else {
            panic!(
                "{} does not run; its log ends with:\n{}",
                self.recipe.program,
                self.log()
            )
        };
        act(pid)
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log_path(&self) -> std::path::PathBuf {
        self.dir.path().join("log")
    }

    fn failure(&self, why: &str) -> Failure {
        Failure::new(format!(
            "{}: {why}; its log ends with:\n{}",
            self.recipe.program,
            self.log()
        ))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "{}: its log ends with:\n{}",
                self.recipe.program,
                self.log()
            );
        }
        // Whatever goes wrong here, the kernel kills it with us.
        self.end().ok();
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("program", &self.recipe.program)
            .field("dir", &self.dir)
            .finish_non_exhaustive()
    }
}

fn is_running(child: &mut Child) -> bool {
    matches!(child.try_wait(), Ok(None))
}

/// Starts again with other ports when another process took one first.
pub(crate) fn with_free_ports<T>(start: impl Fn() -> Result<T>) -> Result<T> {
    for _ in 0..5 {
        match start() {
            Err(failure) if failure.is_port_taken() => {}
            other => return other,
        }
    }
    start()
}

/// For calls of the servers' own tools.
pub(crate) const TOOL_LIMIT: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn only_a_taken_port_is_tried_again() {
        let fails_once = |why: &'static str| {
            let asked = Cell::new(0);
            let result = with_free_ports(|| {
                asked.set(asked.get() + 1);
                if asked.get() == 1 {
                    Err(Failure::new(why))
                } else {
                    Ok(())
                }
            });
            (asked.get(), result.is_ok())
        };
        assert_eq!(fails_once("bind: Address already in use"), (2, true));
        assert_eq!(fails_once("no space left"), (1, false));
    }
}
