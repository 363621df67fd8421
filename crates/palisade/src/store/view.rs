//! What people are shown of a store.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Kind, Mode};
use crate::error::Error;
#[cfg(any(feature = "redis", feature = "etcd", feature = "zookeeper"))]
use crate::error::{ErrorKind, Result};
use crate::fence::Fence;
use crate::name::Name;

/// Who holds a name, for people to read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Who.
    pub owner: String,
    /// Why, where the holder said.
    pub reason: Option<String>,
    /// The fence of its grant; [`Fence::NONE`] where the format has none.
    pub fence: Fence,
    /// How it holds.
    pub mode: Mode,
    /// For how long it has held, where the store knows.
    pub held: Option<Duration>,
    /// How long its lease still runs, where the store knows.
    pub lease_left: Option<Duration>,
}

/// Who waits for a name, for people to read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiter {
    /// Who.
    pub owner: String,
    /// Why, where the waiter said.
    pub reason: Option<String>,
    /// How it wants to hold.
    pub mode: Mode,
    /// For how long it has waited, where the store knows.
    pub waited: Option<Duration>,
}

/// What to inspect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Query {
    /// The line of one name, with its waiters.
    Show(Name),
    /// The lines whose names begin so, in the store's own order, page by page.
    List {
        /// How the names begin; empty for all.
        prefix: String,
        /// [`Page::next`] of the page before; `None` for the first.
        after: Option<String>,
    },
    /// The holders of one name without its waiters, the first one first. The owner of a leader is what it proclaims.
    Leader(Name),
}

/// The line of one name, as seen from outside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineView {
    /// The name.
    pub name: String,
    /// What it serves as.
    pub kind: Kind,
    /// Who holds it.
    pub holders: Vec<Holder>,
    /// Who waits, in order.
    pub waiters: Vec<Waiter>,
    /// Whether the store knows the waiters; if not, `waiters` says nothing.
    pub waiters_known: bool,
    /// Why the line cannot be read, and then nothing else here says anything: another program or a newer version has written it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl LineView {
    /// A line that cannot be read. In a list it stands beside the others.
    pub fn unreadable(name: &Name, error: &Error) -> LineView {
        LineView {
            name: name.as_str().to_owned(),
            kind: Kind::Mutex,
            holders: Vec::new(),
            waiters: Vec::new(),
            waiters_known: false,
            error: Some(error.to_string()),
        }
    }

    /// In a list: an error of one line is shown in its place. Any other error, as of the server, is the list's.
    #[cfg(any(feature = "redis", feature = "etcd", feature = "zookeeper"))]
    pub(crate) fn or_unreadable(
        name: &Name,
        lines: Result<Vec<LineView>>,
    ) -> Result<Vec<LineView>> {
        match lines {
            Err(error) if error.kind() == ErrorKind::Protocol => {
                Ok(vec![LineView::unreadable(name, &error)])
            }
            lines => lines,
        }
    }
}

/// One page of lines.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Page {
    /// The lines.
    pub lines: Vec<LineView>,
    /// Where the next page begins; `None` after the last.
    pub next: Option<String>,
}
