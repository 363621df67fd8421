//! Views of a store, for people.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Kind, Mode};
use crate::error::Error;
#[cfg(any(
    feature = "redis",
    feature = "etcd",
    feature = "zookeeper",
    feature = "mysql"
))]
use crate::error::{ErrorKind, Result};
use crate::fence::Fence;
use crate::name::Name;

/// A holder of a name, for people to read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The owner.
    pub owner: String,
    /// The reason, where one was given.
    pub reason: Option<String>,
    /// The fence of its grant; [`Fence::NONE`] where the format has none.
    pub fence: Fence,
    /// Its mode.
    pub mode: Mode,
    /// For how long it has held, where the store knows.
    pub held: Option<Duration>,
    /// How long its lease still runs, where the store knows.
    pub lease_left: Option<Duration>,
}

/// A waiter for a name, for people to read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiter {
    /// The owner.
    pub owner: String,
    /// The reason, where one was given.
    pub reason: Option<String>,
    /// The mode it asks for.
    pub mode: Mode,
    /// For how long it has waited, where the store knows.
    pub waited: Option<Duration>,
}

/// A query of the lines.
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
    /// The holders of one name without its waiters, the first one first. The owner of a leader is
    /// the value that it proclaims.
    Leader(Name),
}

/// The line of one name, as seen from outside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineView {
    /// The name.
    pub name: String,
    /// Its kind.
    pub kind: Kind,
    /// Its holders.
    pub holders: Vec<Holder>,
    /// Its waiters, in order.
    pub waiters: Vec<Waiter>,
    /// Whether the store knows the waiters; if not, `waiters` says nothing.
    pub waiters_known: bool,
    /// The marks that keep claims out although no claim holds.
    #[serde(default, skip_serializing_if = "Marks::is_empty")]
    pub marks: Marks,
    /// Why the line cannot be read: another program or a newer version has written it. The other
    /// fields are empty then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The marks that `min_hold`, `once_per` and `once` leave behind, as time by the store's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marks {
    /// How long a `min_hold` still keeps the name closed, whatever its holder does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed_for: Option<Duration>,
    /// How long ago the last `once_per` grant was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ran_ago: Option<Duration>,
    /// In how long a claim with the same `once_per` as the last is granted again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_in: Option<Duration>,
    /// How long the store still remembers that the work of a `once` is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done_for: Option<Duration>,
}

impl Marks {
    /// Whether nothing was left behind.
    pub fn is_empty(&self) -> bool {
        *self == Marks::default()
    }
}

impl LineView {
    /// The line of a name that is not in use.
    pub fn free(name: impl Into<String>) -> LineView {
        LineView {
            name: name.into(),
            kind: Kind::Mutex,
            holders: Vec::new(),
            waiters: Vec::new(),
            waiters_known: true,
            marks: Marks::default(),
            error: None,
        }
    }

    /// Whether there is nothing to show: no holder, no waiter, no mark.
    pub fn is_free(&self) -> bool {
        self.holders.is_empty()
            && self.waiters.is_empty()
            && self.marks.is_empty()
            && self.error.is_none()
    }

    /// A line that cannot be read, for a list.
    pub fn unreadable(name: &Name, error: &Error) -> LineView {
        LineView {
            waiters_known: false,
            error: Some(error.to_string()),
            ..LineView::free(name.as_str())
        }
    }

    /// In a list, an error of one line is shown in its place. Any other error, such as one of the
    /// server, fails the list.
    #[cfg(any(
        feature = "redis",
        feature = "etcd",
        feature = "zookeeper",
        feature = "mysql"
    ))]
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
