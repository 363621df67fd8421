//! What is said to people: on stderr, one line each.

use std::io::{IsTerminal, Write};

/// How much is said.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Notices {
    quiet: bool,
    verbose: bool,
    terminal: bool,
}

impl Notices {
    pub(crate) fn new(quiet: bool, verbose: bool) -> Notices {
        Notices { quiet, verbose, terminal: std::io::stderr().is_terminal() }
    }

    /// Something went wrong: said always.
    pub(crate) fn error(self, message: &str) {
        say(message);
    }

    /// Worth knowing: said unless `-q`.
    pub(crate) fn notice(self, message: &str) {
        if !self.quiet {
            say(message);
        }
    }

    /// Why things are as they are: said with `-v`.
    pub(crate) fn explain(self, message: &str) {
        if self.verbose {
            say(message);
        }
    }

    /// Whether a line that is written over and over is in place.
    pub(crate) fn can_update(self) -> bool {
        self.terminal && !self.quiet
    }

    /// Writes the updating line; empty clears it.
    pub(crate) fn update(self, message: &str) {
        if self.can_update() {
            let _ = write!(std::io::stderr(), "\r\x1b[2K{}", printable(message));
        }
    }
}

fn say(message: &str) {
    let _ = writeln!(std::io::stderr(), "palisade: {}", printable(message));
}

/// Names and owners come from others: what would move a terminal's cursor is shown, not done.
pub(crate) fn printable(text: &str) -> String {
    text.chars().flat_map(|letter| if letter.is_control() { letter.escape_default().collect() } else { vec![letter] }).collect()
}
