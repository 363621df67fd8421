//! Refusals that give the guard back.

use std::fmt;

use crate::error::Error;

/// A refusal that gives the guard back.
pub struct Refused<G> {
    /// The guard. It says whether it still holds.
    pub guard: G,
    /// Why.
    pub error: Error,
}

impl<G> fmt::Debug for Refused<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<G> fmt::Display for Refused<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<G> std::error::Error for Refused<G> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl<G> From<Refused<G>> for Error {
    fn from(refused: Refused<G>) -> Error {
        refused.error
    }
}
