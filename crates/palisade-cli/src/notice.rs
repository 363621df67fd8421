//! Messages to people: on stderr, one line each.

use std::io::{ErrorKind, IsTerminal, Write};
use std::sync::OnceLock;

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
        Notices {
            quiet,
            verbose,
            terminal: std::io::stderr().is_terminal(),
        }
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

    pub(crate) fn is_verbose(self) -> bool {
        self.verbose
    }

    /// Whether a line that is written over and over is in place.
    pub(crate) fn can_update(self) -> bool {
        self.terminal && !self.quiet
    }

    /// Writes the updating line; empty clears it. A line that is wider than the terminal would not
    /// be written over.
    pub(crate) fn update(self, message: &str) {
        if self.can_update() {
            let message = cut(&printable(message), columns());
            let _ = write!(std::io::stderr(), "\r\x1b[2K{message}");
        }
    }
}

/// How wide the terminal is, where it says so.
fn columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(rustix::stdio::stderr()).ok()?;
    (size.ws_col > 0).then_some(size.ws_col.into())
}

/// Cuts text to one column less than there are, in the middle: the beginning says of what it
/// speaks, and the end has the place in line.
fn cut(text: &str, columns: Option<usize>) -> String {
    // Some letters take two columns, none of those below does.
    let width = |letter: &char| if *letter < '\u{300}' { 1 } else { 2 };
    let room = columns.map_or(usize::MAX, |columns| columns.saturating_sub(1));
    if text.chars().map(|letter| width(&letter)).sum::<usize>() <= room {
        return text.to_owned();
    }
    let fitting = |letters: &mut dyn Iterator<Item = char>, mut room: usize| -> Vec<char> {
        letters
            .take_while(|letter| {
                let fits = width(letter) <= room;
                room = room.saturating_sub(width(letter));
                fits
            })
            .collect()
    };
    let Some(room) = room.checked_sub(1) else {
        return String::new();
    };
    let tail = room * 2 / 5;
    let head = fitting(&mut text.chars(), room - tail);
    let tail = fitting(&mut text.chars().rev(), tail);
    head.into_iter()
        .chain(['…'])
        .chain(tail.into_iter().rev())
        .collect()
}

fn say(message: &str) {
    let _ = writeln!(std::io::stderr(), "palisade: {}", printable(message));
}

/// Prints data. A reader that has gone has seen enough; any other error is a failure.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    match write_out(text) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|error| Failure::internal(format!("cannot write: {error}"))),
    }
}

/// Writes data to stdout, all of it.
pub(crate) fn write_out(text: &str) -> std::io::Result<()> {
    let mut stdout = std::io::stdout();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
}

/// Names and owners come from others: control characters are shown, not sent to the terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .flat_map(|letter| {
            if letter.is_control() {
                letter.escape_default().collect()
            } else {
                vec![letter]
            }
        })
        .collect()
}

/// The flags of our own command line that choose the store.
static STORE_FLAGS: OnceLock<String> = OnceLock::new();

/// From now on, commands to copy choose the store as this one does: without these flags they would
/// ask another store, where the name is free.
pub(crate) fn copy_store_flags(flags: String) {
    let _ = STORE_FLAGS.set(flags);
}

/// A command to copy: this verb of palisade on a name, with these flags. The name comes from
/// others, and a shell reads it.
pub(crate) fn to_copy(verb: &str, name: &str, flags: &str) -> String {
    let word = quoted(name);
    let store = STORE_FLAGS.get().map_or("", String::as_str);
    // A name that looks like a flag must not become one.
    let words = if name.starts_with('-') {
        ["palisade", verb, flags, store, "--", &word]
    } else {
        ["palisade", verb, &word, flags, store, ""]
    };
    words
        .into_iter()
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

/// A word for the shell. Control characters are escaped as bash, zsh and ksh know it: `$'...'`.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "_-./:@%+=,".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    if !word.contains(char::is_control) {
        return format!("'{}'", word.replace('\'', r"'\''"));
    }
    let mut text = "$'".to_owned();
    for letter in word.chars() {
        match letter {
            '\'' | '\\' => text.extend(['\\', letter]),
            letter if letter.is_control() => {
                let mut bytes = [0; 4];
                // Octal: of three digits, so that no digit behind it belongs to it.
                text.extend(
                    letter
                        .encode_utf8(&mut bytes)
                        .bytes()
                        .map(|byte| format!("\\{byte:03o}")),
                );
            }
            letter => text.push(letter),
        }
    }
    text.push('\'');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_in_its_middle() {
        assert_eq!(cut("abcdefgh", None), "abcdefgh");
        assert_eq!(cut("abcdefgh", Some(9)), "abcdefgh");
        assert_eq!(cut("abcdefgh", Some(8)), "abcd…gh");
        assert_eq!(cut("abcdefgh", Some(7)), "abc…gh");
        assert_eq!(cut("字字字字", Some(7)), "字…字", "two columns each");
        assert_eq!(cut("abcdefgh", Some(2)), "…");
        assert_eq!(cut("abcdefgh", Some(1)), "");
    }

    #[test]
    fn commands_to_copy_are_safe_in_a_shell() {
        assert_eq!(to_copy("show", "orders/42", ""), "palisade show orders/42");
        assert_eq!(
            to_copy("release", "a$(id)", "--fence 7"),
            "palisade release 'a$(id)' --fence 7"
        );
        assert_eq!(to_copy("show", "it's", ""), r"palisade show 'it'\''s'");
        assert_eq!(
            to_copy("show", "a\n'1\\", ""),
            r"palisade show $'a\012\'1\\'"
        );
        assert_eq!(
            to_copy("release", "--yes", "--fence 7"),
            "palisade release --fence 7 -- --yes"
        );
        assert_eq!(to_copy("show", "größe", ""), "palisade show größe");
        assert_eq!(quoted(""), "''");
    }
}
