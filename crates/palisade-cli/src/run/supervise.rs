//! The command, from its start to its end, and the release of the lock.

use std::io;
use std::os::fd::AsRawFd;

use palisade::{Released, Status};
use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};

use super::child::{Child, ChildSetup, State};
use super::renewals::Renewals;
use super::signals::Signals;
use super::terminal::Terminal;
use super::{End, FAREWELL, LOST_FAREWELL, MARGIN, Session, sleep_until, watcher};
use crate::args::OnLost;
use crate::exit::{Exit, Failure};
use crate::held::Held;

impl Session {
    /// Runs the command to its end, whatever ends it; then gives the lock back.
    pub(super) async fn supervise(
        &mut self,
        held: Held,
        signals: &mut Signals,
    ) -> Result<End, Failure> {
        let failed = |message: String| Failure {
            exit: Exit::FAILED_AFTER_ACQUIRING,
            message,
        };
        let listen = |kind| {
            signal(kind).map_err(|error| failed(format!("cannot listen to signals: {error}")))
        };
        let mut ended = listen(SignalKind::child())?;
        let mut stop_key = listen(SignalKind::from_raw(Signal::TSTP.as_raw()))?;
        let mut terminal = Terminal::ours();
        let setup = ChildSetup {
            variables: self.variables(&held),
            liveness: self
                .store
                .locks()
                .liveness()
                .map(|descriptor| descriptor.as_raw_fd()),
            terminal: terminal.as_ref().and_then(Terminal::for_a_start),
            watcher: self.watcher.for_a_start(self.deadline(&held)),
        };
        let child = match Child::start(&self.job.command, setup) {
            Ok(child) => child,
            Err(error) => {
                self.watcher.disarm();
                return Ok(End::Here(self.not_started(held, &error).await));
            }
        };
        let events = Events {
            signals,
            ended: &mut ended,
            stop_key: &mut stop_key,
        };
        let end = self
            .attend(&held, &child, &mut terminal, events)
            .await
            .map_err(failed)?;
        self.watcher.disarm();
        drop(terminal);
        match end {
            End::Here(_) => self.give_back(held).await,
            // The store frees the name by itself, if it has not. Telling it helps, but is not worth
            // much waiting.
            End::Lost { .. } => {
                if !matches!(
                    tokio::time::timeout(LOST_FAREWELL, held.release()).await,
                    Ok(Ok(Released::Done | Released::AlreadyLost))
                ) {
                    self.store.is_silent();
                }
            }
        }
        Ok(end)
    }

    /// The environment of the command. `None` takes a variable of an outer run away.
    fn variables(&self, held: &Held) -> Vec<(&'static str, Option<String>)> {
        let fences = (self.job.names.len() > 1).then(|| {
            let fences = held.members().iter();
            let fences = fences.map(|one| (one.name().to_owned(), one.fence().to_string().into()));
            serde_json::Value::Object(fences.collect()).to_string()
        });
        vec![
            ("PALISADE_NAME", Some(self.name().to_owned())),
            ("PALISADE_FENCE", Some(held.fence(self.name()))),
            ("PALISADE_FENCES", fences),
            ("PALISADE_OWNER", Some(self.owner.clone())),
            ("PALISADE_STORE", Some(self.store.scheme.clone())),
            (
                "PALISADE_LEASE_MS",
                Some(held.lease().as_millis().to_string()),
            ),
        ]
    }

    async fn not_started(&self, held: Held, error: &io::Error) -> Exit {
        let program = self
            .job
            .command
            .first()
            .map(|program| program.to_string_lossy().into_owned())
            .unwrap_or_default();
        // Nothing ran: the once-per mark is taken back.
        held.undo().await;
        self.notices.error(&format!("{program}: {error}"));
        if error.kind() == io::ErrorKind::NotFound {
            Exit::NOT_FOUND
        } else {
            Exit::NOT_EXECUTABLE
        }
    }

    /// When the watcher is to kill the command by itself, because this process is stopped.
    fn deadline(&self, held: &Held) -> watcher::Deadline {
        if self.job.on_lost == OnLost::Ignore {
            return watcher::Deadline::NEVER;
        }
        watcher::Deadline::after(|| held.remaining().saturating_sub(MARGIN))
    }

    /// Stays with the command until it has ended.
    async fn attend(
        &mut self,
        held: &Held,
        child: &Child,
        terminal: &mut Option<Terminal>,
        events: Events<'_>,
    ) -> Result<End, String> {
        let Events {
            signals,
            ended,
            stop_key,
        } = events;
        let mut stop = Box::pin(held.must_stop());
        let mut renewals = Renewals::new(self.notices);
        let (mut told, mut leaving) = (false, false);
        let mut kill_at: Option<tokio::time::Instant> = None;
        let mut continue_at: Option<tokio::time::Instant> = None;
        let over_at = self
            .max_hold
            .and_then(|longest| tokio::time::Instant::now().checked_add(longest));
        let exit = loop {
            match child
                .look()
                .map_err(|error| format!("cannot wait for the command: {error}"))?
            {
                State::Ended(exit) => break exit,
                State::Stopped(by) => continue_at = self.let_go_on(child, terminal, by),
                State::Runs => {}
            }
            // Before the state is read: a change after that is not missed.
            let changed = held.changed();
            let mut look_at = None;
            if !told {
                // After a loss the command has its grace: the last deadline stands until the stop.
                if !held.remaining().is_zero() {
                    self.watcher.extend(child.group(), self.deadline(held));
                }
                look_at = renewals.look(held);
            }
            tokio::select! {
                biased;
                _ = ended.recv() => {}
                signal = signals.next() => {
                    leaving |= ends(signal) || told && signal == Signal::HUP;
                    child.signal(signal);
                }
                () = stop.as_mut(), if !told => {
                    told = true;
                    if !self.was_stopped() {
                        let (why, left) = self.why_lost(held);
                        kill_at = self.stop(child, &why, left);
                    }
                }
                // Ctrl-Z, where the terminal is not lent: stopped, we could neither renew nor stop
                // the command.
                _ = stop_key.recv() => self.notices.notice("the command holds a lock; it is not stopped"),
                () = sleep_until(continue_at) => {
                    continue_at = None;
                    lend(terminal, child);
                    child.signal(Signal::CONT);
                }
                () = sleep_until(over_at), if !told => {
                    told = true;
                    // The lease has longer to go than that, or it would have been called lost.
                    kill_at = self.stop(child, "the longest hold was reached", self.grace);
                }
                () = sleep_until(kill_at) => {
                    child.signal(Signal::KILL);
                    kill_at = None;
                }
                () = changed, if !told => {}
                () = sleep_until(look_at) => {}
            }
        };
        if self.job.on_lost == OnLost::Ignore {
            return Ok(End::Here(exit));
        }
        if told || self.was_stopped() {
            self.clear_the_group(child, kill_at).await;
            return Ok(End::Lost { leaving });
        }
        Ok(End::Here(exit))
    }

    /// Whether this process was stopped, so that its watcher had to kill the command. Says so.
    fn was_stopped(&mut self) -> bool {
        let killed = self.watcher.has_killed();
        if killed {
            self.notices.error(&format!(
                "{} is lost (palisade was stopped, and could not renew it); the command was killed",
                self.name()
            ));
        }
        killed
    }

    /// Why the lock is lost, or about to be, and how long the command may take to end.
    fn why_lost(&self, held: &Held) -> (String, std::time::Duration) {
        match held.status() {
            Status::Lost(reason) => (reason.to_string(), self.grace),
            Status::Held | Status::AtRisk => (
                "the lease could not be renewed in time".to_owned(),
                held.remaining().saturating_sub(MARGIN),
            ),
        }
    }

    async fn give_back(&self, held: Held) {
        let name = self.name();
        match tokio::time::timeout(FAREWELL, held.release()).await {
            Ok(Ok(Released::Done | Released::AlreadyLost)) => {}
            Ok(Ok(Released::Unknown)) | Err(_) => {
                // One more chance, in the background, while it is cheap.
                let last = std::time::Duration::from_secs(1);
                let _ = tokio::time::timeout(last, self.store.locks().shutdown()).await;
                self.notices.error(&format!(
                    "{name}: not released, the store does not answer; it ends with its lease"
                ));
            }
            Ok(Err(error)) => self.notices.error(&format!(
                "{name}: not released: {error}; it ends with its lease"
            )),
        }
    }
}

/// Whether a signal asks for the end. A hang-up may as well ask a command to read its files again.
fn ends(signal: Signal) -> bool {
    [Signal::INT, Signal::TERM, Signal::QUIT].contains(&signal)
}

/// What a run listens to.
struct Events<'a> {
    signals: &'a mut Signals,
    ended: &'a mut tokio::signal::unix::Signal,
    stop_key: &'a mut tokio::signal::unix::Signal,
}

/// Lends the terminal to the command, if it is ours, or has become ours meanwhile.
pub(super) fn lend(terminal: &mut Option<Terminal>, child: &Child) -> bool {
    if terminal.is_none() {
        *terminal = Terminal::ours();
    }
    if let Some(terminal) = terminal {
        terminal.lend(child.group());
    }
    terminal.is_some()
}
