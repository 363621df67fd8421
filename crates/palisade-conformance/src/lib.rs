//! The checks that every store passes: plain async functions over a [`Subject`], chosen by the
//! store's capability.
//!
//! [`suite!`] makes a test of every check, and each opens its own connections. `docs/stores/own.md`
//! shows how.
//!
//! A check that the store's capability rules out says so and passes: the capability is what the
//! store promises, and a promise that is not made is not checked. Everything else panics with what
//! was expected.

pub mod around;
mod as_mutex;
pub mod checks;
pub mod faults;
mod subject;
mod suite;

pub use as_mutex::{Adapted, As};
pub use subject::{Hook, Hooks, PATIENCE, Subject, eventually, in_vain, patience, set_patience};
pub use suite::{CHECKS, Check, run};

/// The result of a check that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// The promise is kept.
    Kept,
    /// The store's capability does not make this promise.
    NotPromised(&'static str),
}

/// Ends a check that the store's capability rules out.
#[macro_export]
macro_rules! needs {
    ($promised:expr, $what:literal) => {
        if !$promised {
            return $crate::Verdict::NotPromised($what);
        }
    };
}

/// The example of the page for authors of stores is compiled as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/stores/own.md")]
struct OwnStore;
