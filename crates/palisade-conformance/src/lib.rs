//! The checks that every store passes: plain async functions over a [`Subject`], chosen by the store's capability.
//!
//! A store's test is one line. It makes a test of every check, and each opens its own connections:
//!
//! ```ignore
//! palisade_conformance::suite!(palisade_conformance::Subject::new(|| my_store()));
//! ```
//!
//! A check that the store's capability rules out says so and passes: the capability is what the store promises, and a promise
//! that is not made is not checked. Everything else panics with what was expected.

pub mod checks;
pub mod faults;
mod subject;
mod suite;

pub use subject::{PATIENCE, Subject, eventually};

/// Runs one check to its end, on a runtime of its own.
///
/// # Panics
///
/// When the check fails.
pub fn run(name: &str, check: impl AsyncFn(&Subject) -> Verdict, subject: &Subject) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    if let Verdict::NotPromised(what) = runtime.block_on(check(subject)) {
        let capability = subject.capability();
        println!("{name}: {} in the format {} does not promise {what}", capability.store, capability.format);
    }
}

/// What a check came to, if it did not fail.
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
