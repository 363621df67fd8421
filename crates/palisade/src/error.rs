//! One error type for every store: a small kind to match on, a sentence for people, and whether
//! trying again may help.

use std::fmt;
use std::sync::Arc;

use crate::lease::LossReason;
use crate::store::Holder;

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

type Source = Box<dyn std::error::Error + Send + Sync + 'static>;

/// The kind of an error, for programs.
///
/// Busy is not in this list: `try_acquire` answers `Ok(None)` when another claim holds the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The wait ran out. [`Error::holder`] names the holder.
    Timeout,
    /// The grant is gone: another claim may hold the lock now.
    Lost(LossReason),
    /// The store cannot be reached, or did not answer in time.
    Unavailable,
    /// The store refused our credentials or our rights.
    Denied,
    /// A name, URL, option or combination of options that cannot work.
    Config,
    /// This store, or this format of it, cannot do what was asked. Its
    /// [`Capability`](crate::store::Capability) says so.
    Unsupported,
    /// The store gave an answer that this version does not understand.
    Protocol,
    /// Waiting would never end: the owner waits for itself.
    Deadlock,
}

/// An error: its [`kind`](Error::kind), a message that says what to do next, and the cause.
///
/// Cheap to clone. No message holds a password or a claim id.
#[derive(Clone)]
pub struct Error(Arc<Inner>, Request);

/// The fate of the request that failed, as far as it is known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Request {
    /// It may have arrived.
    Unknown,
    NeverSent,
}

struct Inner {
    kind: ErrorKind,
    message: String,
    retry: bool,
    url: bool,
    holder: Option<Holder>,
    source: Option<Source>,
}

impl Error {
    /// An error of the given kind. `message` says what happened and what to do next.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let retry = matches!(kind, ErrorKind::Timeout | ErrorKind::Unavailable);
        let inner = Inner {
            kind,
            message: message.into(),
            retry,
            url: false,
            holder: None,
            source: None,
        };
        Error(Arc::new(inner), Request::Unknown)
    }

    /// The wait ran out while this holder held the lock, where the store knows.
    pub(crate) fn timeout(holder: Option<Holder>, message: impl Into<String>) -> Self {
        let inner = Inner {
            kind: ErrorKind::Timeout,
            message: message.into(),
            retry: true,
            url: false,
            holder,
            source: None,
        };
        Error(Arc::new(inner), Request::Unknown)
    }

    /// The store cannot be reached, or did not answer in time.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, message)
    }

    /// A name, URL, option or combination that cannot work.
    pub fn config(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Config, message)
    }

    /// A URL that cannot work: of kind [`Config`](ErrorKind::Config), and
    /// [`blames_url`](Error::blames_url).
    pub fn bad_url(message: impl Into<String>) -> Self {
        let inner = Inner {
            kind: ErrorKind::Config,
            message: message.into(),
            retry: false,
            url: true,
            holder: None,
            source: None,
        };
        Error(Arc::new(inner), Request::Unknown)
    }

    /// This store or format cannot do what was asked.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }

    /// The store gave an answer that we do not understand.
    pub fn protocol(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Protocol, message)
    }

    /// The grant is gone.
    pub fn lost(reason: LossReason) -> Self {
        Self::new(
            ErrorKind::Lost(reason),
            format!("the lock was lost: {reason}"),
        )
    }

    /// Keeps the cause of this error.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Source>) -> Self {
        let Inner {
            kind,
            message,
            retry,
            url,
            holder,
            ..
        } = &*self.0;
        let (message, holder) = (message.clone(), holder.clone());
        self.0 = Arc::new(Inner {
            kind: *kind,
            message,
            retry: *retry,
            url: *url,
            holder,
            source: Some(source.into()),
        });
        self
    }

    /// The same, where it is certain that nothing was sent: the store has no trace of the claim.
    #[must_use]
    #[cfg(any(
        feature = "redis",
        feature = "etcd",
        feature = "zookeeper",
        feature = "postgres",
        feature = "mysql"
    ))]
    pub(crate) fn with_nothing_sent(mut self) -> Self {
        self.1 = Request::NeverSent;
        self
    }

    /// The same, where an earlier attempt of the same request may have arrived.
    #[must_use]
    #[cfg(feature = "postgres")]
    pub(crate) fn with_earlier_attempt(mut self) -> Self {
        self.1 = Request::Unknown;
        self
    }

    /// Whether it is certain that nothing was sent.
    pub(crate) fn nothing_was_sent(&self) -> bool {
        self.1 == Request::NeverSent
    }

    /// The kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The holder of the lock when a wait ran out, as the store last said; `None` where the store
    /// does not know.
    pub fn holder(&self) -> Option<&Holder> {
        self.0.holder.as_ref()
    }

    /// Whether the same call may succeed later without a change by the caller.
    pub fn retry_may_help(&self) -> bool {
        self.0.retry
    }

    /// Whether it is the store's URL that must be changed, also where only the store's answer has
    /// shown it: a sentinel where a server was expected, a database that is not there. Not for a
    /// name or an option of the call.
    pub fn blames_url(&self) -> bool {
        self.0.url
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Error");
        shown
            .field("kind", &self.0.kind)
            .field("message", &self.0.message);
        if let Some(source) = &self.0.source {
            shown.field("source", source);
        }
        shown.finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}
