//! How a command is stopped when the lock is lost, and continued when a key has stopped it.

use std::time::Duration;

use rustix::process::Signal;

use super::Session;
use super::child::Child;
use super::supervise::lend;
use super::terminal::Terminal;
use super::watcher::Deadline;
use crate::args::OnLost;

impl Session {
    /// Tells the command to stop, and says when to kill it.
    pub(super) fn stop(
        &mut self,
        child: &Child,
        why: &str,
        left: Duration,
    ) -> Option<tokio::time::Instant> {
        let name = self.name();
        match self.job.on_lost {
            OnLost::Ignore => {
                self.notices.error(&format!(
                    "{name} is lost ({why}); the command goes on without it"
                ));
                None
            }
            OnLost::Kill => {
                self.notices
                    .error(&format!("{name} is lost ({why}); the command is killed"));
                child.signal(Signal::KILL);
                None
            }
            OnLost::Term => {
                self.notices
                    .error(&format!("{name} is lost ({why}); the command is stopped"));
                child.signal(Signal::TERM);
                // One that was stopped by Ctrl-Z would never hear it.
                child.signal(Signal::CONT);
                // This process may be stopped before that time.
                self.watcher.extend(child.group(), Deadline::after(|| left));
                Some(tokio::time::Instant::now() + left)
            }
        }
    }

    /// The command has ended; what it has left in its group must be gone before the store may admit
    /// another.
    pub(super) async fn clear_the_group(
        &self,
        child: &Child,
        kill_at: Option<tokio::time::Instant>,
    ) {
        const LOOK_EVERY: Duration = Duration::from_millis(10);
        let kill_at = kill_at.unwrap_or_else(tokio::time::Instant::now);
        // The kernel does not tell the end of a process that is not our child.
        while child.group_is_alive() && tokio::time::Instant::now() < kill_at {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        child.signal(Signal::KILL);
    }

    /// A command that was stopped would hold the lock and do nothing: it is continued, now or when
    /// this says.
    pub(super) fn let_go_on(
        &self,
        child: &Child,
        terminal: &mut Option<Terminal>,
        by: i32,
    ) -> Option<tokio::time::Instant> {
        if by == Signal::TTIN.as_raw() || by == Signal::TTOU.as_raw() {
            if !lend(terminal, child) {
                // Without a terminal to lend it stops again at once: not in a circle.
                return Some(tokio::time::Instant::now() + Duration::from_secs(1));
            }
        } else {
            self.notices
                .notice("the command holds a lock and was stopped; it is continued");
        }
        child.signal(Signal::CONT);
        None
    }
}
