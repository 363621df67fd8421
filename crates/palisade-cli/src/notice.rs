//! What is said to people: on stderr, one line each.

use std::io::{ErrorKind, IsTerminal, Write};

use crate::exit::Failure;

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

/// Prints data. A reader that has gone has seen enough; whatever else keeps it from being written is a failure.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    match write_out(text) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|error| Failure::internal(format!("cannot write: {error}"))),
    }
}

/// Writes data to stdout, all of it.
pub(crate) fn write_out(text: &str) -> std::io::Result<()> {
    let mut stdout = std::io::stdout();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush())
}

/// Names and owners come from others: what would move a terminal's cursor is shown, not done.
pub(crate) fn printable(text: &str) -> String {
    text.chars().flat_map(|letter| if letter.is_control() { letter.escape_default().collect() } else { vec![letter] }).collect()
}
