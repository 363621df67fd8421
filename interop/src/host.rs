use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use crate::participant::Fault;
use crate::peer::{Peer, Process};

type Hands = Mutex<BTreeMap<u32, Sender<String>>>;

/// A driver that serves several participants at once, where a process for each would cost too much.
/// Each line between it and us begins with the number of the hand that it is for.
#[derive(Debug)]
pub struct Host {
    label: String,
    process: Arc<Process>,
    hands: Arc<Hands>,
    next: AtomicU32,
}

impl Host {
    /// Starts a driver, and returns when it is ready.
    ///
    /// # Errors
    ///
    /// When it cannot be started; the words name `scripts/setup`, which installs what it needs.
    pub fn start(label: impl Into<String>, command: Command) -> Result<Self, Fault> {
        let label = label.into();
        let (process, answers) = Process::start(&label, command)?;
        let hands = Arc::new(Hands::default());
        let (sender, ready) = channel();
        let mut switchboard = Switchboard {
            hands: hands.clone(),
            first: Some(sender),
        };
        answers.to(move |line| switchboard.connect(&line));
        let process = Arc::new(process);
        // The first line is the program's own.
        Peer::ready(label.clone(), process.clone(), None, ready)?;
        Ok(Self {
            label,
            process,
            hands,
            next: AtomicU32::default(),
        })
    }

    /// A participant of its own, with a lock of this kind.
    ///
    /// # Errors
    ///
    /// When the driver has ended, or does not know the kind.
    pub fn hand(&self, kind: &str) -> Result<Peer, Fault> {
        let hand = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answers) = channel();
        self.hands
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(hand, sender);
        self.process.say(format!("{hand} open {kind}"))?;
        let label = format!("{}-{kind}", self.label);
        Peer::ready(label, self.process.clone(), Some(hand), answers)
    }
}

/// Tells each hand what is said to it. At the end of the driver no hand is told anything more.
struct Switchboard {
    hands: Arc<Hands>,
    first: Option<Sender<String>>,
}

impl Switchboard {
    fn connect(&mut self, line: &str) -> bool {
        if let Some(first) = self.first.take() {
            return first.send(line.to_owned()).is_ok();
        }
        let mut hands = self.hands.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((hand, said)) = line.split_once(' ')
            && let Ok(hand) = hand.parse()
            && let Some(answers) = hands.get(&hand)
            && answers.send(said.to_owned()).is_err()
        {
            // The hand was closed.
            hands.remove(&hand);
        }
        true
    }
}

impl Drop for Switchboard {
    fn drop(&mut self) {
        self.hands
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }
}
