//! What a database must be able to do to keep session locks.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::error::Result;
use crate::fence::Fence;
use crate::name::Name;
use crate::store::{Mode, ServerInfo};

/// A database with session locks.
pub(crate) trait Engine: Send + Sync + Sized + 'static {
    /// The key of a lock on the server.
    type Key: Clone + Eq + Hash + Debug + Send + Sync + 'static;
    type Link: Link<Key = Self::Key>;

    /// The key of a name.
    fn key(&self, name: &Name) -> Result<Self::Key>;

    /// The key for people, and for other programs.
    fn shown(&self, key: &Self::Key) -> String;

    /// How long the server keeps the locks of a silent session for claims of this lease.
    fn length(lease: Duration) -> Duration;

    /// How long one request may take.
    fn request_timeout(&self) -> Duration;

    /// Opens a session that the server ends when it has been silent for so long.
    fn open(&self, length: Duration) -> impl Future<Output = Result<Self::Link>> + Send;

    /// The sessions that hold a key.
    fn holders(&self, key: &Self::Key) -> impl Future<Output = Result<Vec<Seen>>> + Send;

    /// The server's time, as a fence.
    fn now(&self) -> impl Future<Output = Result<Fence>> + Send;

    /// The server that answers.
    fn server(&self) -> impl Future<Output = Result<ServerInfo>> + Send;
}

/// A session of the server that holds a lock, as another session sees it.
pub(crate) struct Seen {
    /// The number of the session.
    pub(crate) session: i64,
    pub(crate) mode: Mode,
    /// What the server knows of the session, for people.
    pub(crate) owner: String,
}

/// One session of the server. Its locks end with it.
///
/// Requests may be made at the same time, unless one of them [waits](Link::wait). Each is sent when
/// its future is polled for the first time, and goes on when that is dropped or not polled any more.
pub(crate) trait Link: Send + Sync + 'static {
    type Key;

    /// The number that the server gave it.
    fn number(&self) -> i64;

    /// Cancelled when it has ended. Cancelling it closes it.
    fn closed(&self) -> &CancellationToken;

    /// Locks a key if that is possible at once, and reads the server's clock after that.
    fn attempt(
        &self,
        key: &Self::Key,
        mode: Mode,
    ) -> impl Future<Output = Result<Option<Fence>>> + Send;

    /// Waits for a key without limit, and reads the server's clock after the grant. `None` when the
    /// wait was ended. After an error, and after `None`, the key may be locked all the same.
    fn wait(
        &self,
        key: &Self::Key,
        mode: Mode,
    ) -> impl Future<Output = Result<Option<Fence>>> + Send;

    /// Unlocks a key; whether it was locked.
    fn unlock(&self, key: &Self::Key, mode: Mode) -> impl Future<Output = Result<bool>> + Send;

    /// Unlocks every key of the session.
    fn unlock_all(&self) -> impl Future<Output = Result<()>> + Send;

    /// Makes a writer a reader in one step. Only where the capability says so.
    fn downgrade(&self, key: &Self::Key) -> impl Future<Output = Result<bool>> + Send;

    /// Shows the server that the session is alive.
    fn beat(&self) -> impl Future<Output = Result<()>> + Send;

    /// Ends the statement of another session that waits. When this returns, it can hit no later one.
    fn interrupt(&self, other: &Self) -> impl Future<Output = Result<()>> + Send;

    /// Whether another session still waits for a lock.
    fn is_waiting(&self, other: &Self) -> impl Future<Output = Result<bool>> + Send;
}
