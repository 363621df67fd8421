//! The locks of one process of a contest.

use std::process::ExitCode;

use super::super::raw::Raw;
use crate::compare::Result;
use crate::compare::caller_kind::CallerKind;
use crate::compare::ours;
use crate::compare::worker::{Contender, contend};

const NAME: &str = "handoff";

/// Runs as one process of a contest.
pub(crate) fn worker(words: &[&str]) -> ExitCode {
    match words {
        ["ours", url] => contend(CallerKind::CurrentThread, async || {
            ours::connect(url, NAME).await
        }),
        ["server", url] => contend(CallerKind::CurrentThread, async || Raw::connect(url).await),
        _ => ExitCode::from(64),
    }
}

impl Contender for Raw {
    /// The key.
    type Held = Vec<u8>;

    async fn take(&mut self) -> Result<Vec<u8>> {
        self.lock(NAME).await
    }

    async fn give_back(&mut self, key: Vec<u8>) -> Result<()> {
        self.unlock(key).await
    }
}
