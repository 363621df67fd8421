use std::fmt;

/// Why something could not be started or did not answer. The public calls panic with it: a test has
/// no better answer.
#[derive(Clone, Debug)]
pub(crate) struct Failure(String);

impl Failure {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }

    /// Another process took the port between our check and the server's bind. All servers word this
    /// alike.
    pub(crate) fn is_port_taken(&self) -> bool {
        self.0.contains("ddress already in use")
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self(error.to_string())
    }
}

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// Panics with the plain text of the failure, where `unwrap` would show its `Debug` form.
pub(crate) trait OrPanic<T> {
    #[track_caller]
    fn or_panic(self) -> T;
}

impl<T, E: fmt::Display> OrPanic<T> for Result<T, E> {
    fn or_panic(self) -> T {
        match self {
            Ok(value) => value,
            Err(failure) => panic!("{failure}"),
        }
    }
}
