//! Exit codes, and what becomes of errors.

use std::process::ExitCode;

use palisade::{Error, ErrorKind};

/// An exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exit(pub(crate) u8);

impl Exit {
    pub(crate) const DONE: Exit = Exit(0);
    pub(crate) const USAGE: Exit = Exit(64);
    pub(crate) const UNAVAILABLE: Exit = Exit(69);
    pub(crate) const INTERNAL: Exit = Exit(70);
    pub(crate) const BUSY: Exit = Exit(75);
    pub(crate) const DENIED: Exit = Exit(77);
    pub(crate) const CONFIG: Exit = Exit(78);
    pub(crate) const LOST: Exit = Exit(79);
    pub(crate) const FAILED_AFTER_ACQUIRING: Exit = Exit(125);
    pub(crate) const NOT_EXECUTABLE: Exit = Exit(126);
    pub(crate) const NOT_FOUND: Exit = Exit(127);

    /// What a shell says of a process that a signal ended.
    pub(crate) fn of_signal(signal: i32) -> Exit {
        Exit(u8::try_from(128 + signal).unwrap_or(u8::MAX))
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.0)
    }
}

/// A failure: what to say, and the exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure {
            exit: Exit::USAGE,
            message: message.into(),
        }
    }

    pub(crate) fn config(message: impl Into<String>) -> Failure {
        Failure {
            exit: Exit::CONFIG,
            message: message.into(),
        }
    }

    pub(crate) fn internal(message: impl Into<String>) -> Failure {
        Failure {
            exit: Exit::INTERNAL,
            message: message.into(),
        }
    }

    /// An error that came with the URL, before any name was used.
    pub(crate) fn of_url(error: &Error) -> Failure {
        let failure = Failure::from(error.clone());
        if failure.exit == Exit::USAGE {
            Failure {
                exit: Exit::CONFIG,
                ..failure
            }
        } else {
            failure
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let exit = match error.kind() {
            ErrorKind::Timeout => Exit::BUSY,
            ErrorKind::Lost(_) => Exit::LOST,
            ErrorKind::Unavailable => Exit::UNAVAILABLE,
            ErrorKind::Denied => Exit::DENIED,
            ErrorKind::Config if error.blames_url() => Exit::CONFIG,
            ErrorKind::Config | ErrorKind::Unsupported | ErrorKind::Deadlock => Exit::USAGE,
            _ => Exit::INTERNAL,
        };
        Failure {
            exit,
            message: error.to_string(),
        }
    }
}

/// Help and version go to stdout and are fine; everything else that clap says is bad usage.
pub(crate) fn of_usage(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    if error.use_stderr() {
        Exit::USAGE.into()
    } else {
        Exit::DONE.into()
    }
}
