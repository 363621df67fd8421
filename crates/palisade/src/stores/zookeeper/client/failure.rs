//! How a request can fail.

use super::jute::Broken;
use super::proto::Code;
use crate::error::{Error, ErrorKind};

/// Why a request has no good answer.
#[derive(Clone, Debug)]
pub(crate) enum Failed {
    /// The server refused it.
    Refused(Code),
    /// The session has ended, and with it everything that hung on it.
    Ended,
    /// It was not sent: its caller has left.
    NotSent,
    /// It may have been done or not.
    Unsure(Error),
    /// It cannot work, and was not done.
    Never(Error),
}

impl Failed {
    pub(crate) fn is(&self, code: Code) -> bool {
        matches!(self, Failed::Refused(refused) if *refused == code)
    }
}

/// The longest request: a server closes the connection of one that sends more than
/// `jute.maxbuffer`, a megabyte.
pub(crate) const LONGEST: usize = 1_000_000;

/// A node that may be missing.
pub(crate) trait OrMissing<T> {
    /// `None` where there is no such node.
    fn or_missing(self) -> Result<Option<T>, Failed>;
}

impl<T> OrMissing<T> for Result<T, Failed> {
    fn or_missing(self) -> Result<Option<T>, Failed> {
        match self {
            Ok(there) => Ok(Some(there)),
            Err(Failed::Refused(Code::NoNode)) => Ok(None),
            Err(failed) => Err(failed),
        }
    }
}

impl From<Broken> for Failed {
    fn from(_: Broken) -> Failed {
        Failed::Never(Error::protocol(
            "the server answered what this version does not understand",
        ))
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        if error.kind() == ErrorKind::Unavailable {
            Failed::Unsure(error)
        } else {
            Failed::Never(error)
        }
    }
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Error {
        match failed {
            Failed::Unsure(error) | Failed::Never(error) => error,
            Failed::Ended => Error::unavailable("the session with ZooKeeper has ended"),
            Failed::NotSent => Error::unavailable("the request was given up before it was sent")
                .with_nothing_sent(),
            Failed::Refused(code) => refusal(code),
        }
    }
}

fn refusal(code: Code) -> Error {
    match code {
        Code::NoAuth => Error::new(
            ErrorKind::Denied,
            "ZooKeeper denies a right on a node; see docs/stores/zookeeper.md for the rights that are needed",
        ),
        Code::AuthFailed => Error::new(
            ErrorKind::Denied,
            "ZooKeeper refused the user or the password",
        ),
        Code::InvalidAcl => Error::new(
            ErrorKind::Denied,
            "ZooKeeper does not take the login for an ACL; is its scheme switched off?",
        ),
        Code::LoginRequired => Error::new(
            ErrorKind::Denied,
            "ZooKeeper wants a login that this client has not made; see auth= in docs/stores/zookeeper.md",
        ),
        Code::NoChildrenForEphemerals => {
            Error::config("a node of ZooKeeper's that ends with its session cannot have children")
        }
        Code::Unimplemented => {
            Error::unsupported("the server is older than ZooKeeper 3.5, which this store needs")
        }
        Code::NotReadOnly => Error::unavailable("the server has no quorum and takes no writes"),
        Code::NoNode | Code::NodeExists | Code::NotEmpty | Code::BadVersion | Code::RolledBack => {
            Error::unavailable("the nodes have changed under the request")
        }
        Code::SessionExpired | Code::SessionMoved => {
            Error::unavailable("the session is not with this server any more")
        }
        Code::Other(number) => Error::protocol(format!(
            "ZooKeeper refused a request with the error {number}"
        )),
    }
}

/// The client's runtime has ended before there was an answer.
pub(crate) fn client_ended() -> Error {
    Error::unavailable("the client has ended while it asked ZooKeeper")
}
