use super::single::{Redis, Setup};
use crate::error::{OrPanic, Result};

/// Five independent servers that keep what they confirm, for Redlock.
#[derive(Debug)]
pub struct Five {
    nodes: Vec<Redis>,
}

impl Five {
    /// Starts them, each with a clock of its own.
    ///
    /// # Panics
    ///
    /// When one does not start.
    #[must_use]
    pub fn start() -> Self {
        Self::start_as(&Redis::with().durable().clock())
    }

    /// Five that are as asked for.
    ///
    /// # Panics
    ///
    /// When one does not start.
    #[must_use]
    pub fn start_as(setup: &Setup) -> Self {
        Self {
            nodes: start(setup, 5).or_panic(),
        }
    }

    /// The servers.
    #[must_use]
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// All of them as one URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redlock://{}", addresses(&self.nodes))
    }
}

fn start(setup: &Setup, count: usize) -> Result<Vec<Redis>> {
    (0..count).map(|_| setup.try_start()).collect()
}

/// Their addresses in the form of a URL with several hosts.
pub(super) fn addresses(nodes: &[Redis]) -> String {
    nodes
        .iter()
        .map(|node| node.address().to_string())
        .collect::<Vec<_>>()
        .join(",")
}
