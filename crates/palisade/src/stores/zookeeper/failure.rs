//! Failures that only a lock has.

use super::client::proto::Code;
use super::client::{Failed, LONGEST};
use crate::error::Error;
use crate::name::Name;

/// Refuses a claim that no server would take.
pub(super) fn check_fits(bytes: usize) -> Result<(), Failed> {
    if bytes <= LONGEST {
        return Ok(());
    }
    Err(Failed::Never(Error::config(
        "the claim is too long for ZooKeeper, which takes 1 MB in one request; ask for fewer permits, or give a shorter reason",
    )))
}

/// A node of ours was made, whatever failed after that.
pub(super) fn unsure(failed: Failed) -> Failed {
    match failed {
        Failed::Ended => Failed::Ended,
        other => Failed::Unsure(Error::from(other)),
    }
}

/// The node of a claim is not there, and the claim has to be made again.
pub(super) fn gone() -> Failed {
    Failed::Unsure(Error::unavailable(
        "the claim was gone before ZooKeeper could say where it stands",
    ))
}

/// The answer to a transaction does not fit its steps.
pub(super) fn unexpected() -> Failed {
    Failed::Never(Error::protocol(
        "the server answered what this version does not understand",
    ))
}

/// The name serves one kind now, and another was asked for.
pub(super) fn other_kind(name: &Name, now: &str, wanted: &str) -> Failed {
    Failed::Never(Error::config(format!(
        "{name} is in use as a {now}, and this claim asks for a {wanted}; \
         ask for a {now}, take another name, or wait until it is free"
    )))
}

/// A refusal to make a node in a line, as the user sees it.
pub(super) fn in_line(failed: Failed, name: &Name) -> Failed {
    if failed.is(Code::NoChildrenForEphemerals) {
        return Failed::Never(Error::config(format!(
            "{name} is in use in the format plain; use that format, or take another name"
        )));
    }
    failed
}
