//! The terminal: lent to the command while it runs, and taken back.

use std::io::IsTerminal;
use std::os::fd::{AsRawFd, RawFd};

use rustix::process::Pid;

/// A terminal whose foreground is ours.
pub(super) struct Terminal {
    ours: Pid,
}

impl Terminal {
    /// The terminal on standard input, if we are in its foreground.
    pub(super) fn ours() -> Option<Terminal> {
        let stdin = std::io::stdin();
        let ours = rustix::process::getpgrp();
        (stdin.is_terminal() && rustix::termios::tcgetpgrp(&stdin).ok() == Some(ours)).then_some(Terminal { ours })
    }

    pub(super) fn descriptor(&self) -> RawFd {
        std::io::stdin().as_raw_fd()
    }

    /// Puts a group into the foreground again.
    pub(super) fn lend(&self, group: Pid) {
        set_foreground(group);
    }
}

impl Drop for Terminal {
    /// Takes the terminal back.
    fn drop(&mut self) {
        set_foreground(self.ours);
    }
}

/// Puts a group into the foreground, also from the background.
fn set_foreground(group: Pid) {
    // SAFETY: sets the disposition of one signal and restores it; no handler is installed, and no command is started between.
    #[allow(unsafe_code, reason = "from the background this call is answered with a stop, unless that signal is ignored")]
    unsafe {
        let before = libc::signal(libc::SIGTTOU, libc::SIG_IGN);
        let _ = rustix::termios::tcsetpgrp(std::io::stdin(), group);
        libc::signal(libc::SIGTTOU, before);
    }
}
