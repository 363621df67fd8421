//! The command: a process group of its own.

use std::ffi::OsString;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use super::watcher::ForAStart;
use crate::exit::Exit;

pub(super) struct Child {
    /// Also the id of its group.
    pid: Pid,
}

/// The state of the command.
pub(super) enum State {
    Runs,
    /// Stopped by this signal.
    Stopped(i32),
    Ended(Exit),
}

/// What the command is given beside its arguments.
pub(super) struct ChildSetup {
    /// `None` takes a variable away.
    pub(super) variables: Vec<(&'static str, Option<String>)>,
    /// Stays open in the command and its children: while it is, the lock is not taken for
    /// abandoned.
    pub(super) liveness: Option<RawFd>,
    /// The terminal that it is put into the foreground of.
    pub(super) terminal: Option<RawFd>,
    /// Watches its group from the start.
    pub(super) watcher: Option<ForAStart>,
}

impl Child {
    /// Starts the command. From the thread that lives as long as palisade: the parent-death signal
    /// follows the thread.
    pub(super) fn start(command: &[OsString], setup: ChildSetup) -> io::Result<Child> {
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        command.args(arguments).process_group(0);
        for (name, value) in setup.variables {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let (liveness, terminal, watcher) = (setup.liveness, setup.terminal, setup.watcher);
        let parent = rustix::process::getpid();
        // SAFETY: between fork and exec, only calls that are safe there: no allocation, no lock.
        #[allow(unsafe_code, reason = "the only way to act between fork and exec")]
        unsafe {
            command.pre_exec(move || {
                if let Some(watcher) = watcher {
                    watcher.tell();
                }
                prepare(parent, liveness, terminal)
            });
        }
        let started = command.spawn()?;
        let pid = i32::try_from(started.id()).ok().and_then(Pid::from_raw);
        pid.map(|pid| Child { pid })
            .ok_or_else(|| io::Error::other("a process without an id"))
    }

    pub(super) fn group(&self) -> Pid {
        self.pid
    }

    /// Looks at the command, without waiting.
    pub(super) fn look(&self) -> io::Result<State> {
        let seen =
            rustix::process::waitpid(Some(self.pid), WaitOptions::NOHANG | WaitOptions::UNTRACED)?;
        Ok(seen.map_or(State::Runs, |(_, status)| state(status)))
    }

    /// Sends a signal to the whole group.
    pub(super) fn signal(&self, signal: Signal) {
        let _ = rustix::process::kill_process_group(self.pid, signal);
    }

    /// Whether any process is left in the group.
    pub(super) fn group_is_alive(&self) -> bool {
        rustix::process::test_kill_process_group(self.pid).is_ok()
    }
}

fn state(status: WaitStatus) -> State {
    if let Some(signal) = status.stopping_signal() {
        return State::Stopped(signal);
    }
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => State::Ended(Exit(u8::try_from(code & 0xff).unwrap_or(u8::MAX))),
        (_, Some(signal)) => State::Ended(Exit::of_signal(signal)),
        _ => State::Runs,
    }
}

/// In the child, before the command takes over.
fn prepare(parent: Pid, liveness: Option<RawFd>, terminal: Option<RawFd>) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // It may have died before that took effect.
    if rustix::process::getppid() != Some(parent) {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    // SAFETY: plain system calls on descriptors that are open; the signal mask is put back.
    #[allow(unsafe_code, reason = "descriptors by number, between fork and exec")]
    unsafe {
        if let Some(liveness) = liveness {
            libc::fcntl(liveness, libc::F_SETFD, 0);
        }
        if let Some(terminal) = terminal {
            // From the background this call is answered with a stop, unless that signal is blocked.
            let mut blocked: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut blocked);
            libc::sigaddset(&mut blocked, libc::SIGTTOU);
            libc::sigprocmask(libc::SIG_BLOCK, &blocked, &mut before);
            libc::tcsetpgrp(terminal, libc::getpid());
            libc::sigprocmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        }
    }
    Ok(())
}
