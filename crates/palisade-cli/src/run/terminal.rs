//! The terminal: lent to the command while it runs, and taken back.

use std::cell::Cell;
use std::fs::File;
use std::io::IsTerminal;
use std::os::fd::{AsRawFd, RawFd};

use rustix::process::Pid;

/// A terminal whose foreground is ours.
pub(super) struct Terminal {
    terminal: File,
    ours: Pid,
    lent: Cell<bool>,
}

impl Terminal {
    /// Our terminal, if we are in its foreground. Standard input may be another file: a command may
    /// ask on the terminal for a password.
    pub(super) fn ours() -> Option<Terminal> {
        let terminal = File::options()
            .read(true)
            .write(true)
            .open("/dev/tty")
            .ok()?;
        let ours = rustix::process::getpgrp();
        let in_front = rustix::termios::tcgetpgrp(&terminal).ok() == Some(ours);
        in_front.then(|| Terminal {
            terminal,
            ours,
            lent: Cell::new(false),
        })
    }

    /// The terminal for a command that is about to start, if it is to be in the foreground from the
    /// start. Not in a pipeline: a pager beside us needs the terminal too, and a command that reads
    /// it after all is given it then.
    pub(super) fn for_a_start(&self) -> Option<RawFd> {
        let whole = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        whole.then(|| {
            self.lent.set(true);
            self.terminal.as_raw_fd()
        })
    }

    /// Puts a group into the foreground.
    pub(super) fn lend(&self, group: Pid) {
        self.lent.set(true);
        self.set_foreground(group);
    }

    /// Puts a group into the foreground, also from the background.
    fn set_foreground(&self, group: Pid) {
        // From the background this call is answered with a stop, unless that signal is ignored.
        // SAFETY: sets the disposition of one signal and restores it; no handler is installed, and
        // no command is started between.
        #[allow(unsafe_code, reason = "there is no safe way to ignore a signal")]
        unsafe {
            let before = libc::signal(libc::SIGTTOU, libc::SIG_IGN);
            let _ = rustix::termios::tcsetpgrp(&self.terminal, group);
            libc::signal(libc::SIGTTOU, before);
        }
    }
}

impl Drop for Terminal {
    /// Takes the terminal back.
    fn drop(&mut self) {
        if self.lent.get() {
            self.set_foreground(self.ours);
        }
    }
}
