//! Errors for replies that are not the answer that a verb expects.

use crate::error::Error;

/// A reply that this version does not know.
pub(super) fn unexpected() -> Error {
    Error::protocol(
        "the answer of the lock routines cannot be read; is Palisade the same version everywhere, \
         and does no other program write to its tables?",
    )
}
