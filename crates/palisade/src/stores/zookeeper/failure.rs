//! What can go wrong with a request, and what it means to us.

use super::jute::Broken;
use super::proto::Code;
use crate::error::{Error, ErrorKind};

/// Why a request has no good answer.
#[derive(Clone, Debug)]
pub(super) enum Failed {
    /// The server refused it.
    Refused(Code),
    /// The session has ended, and with it everything that hung on it.
    Ended,
    /// Nobody knows whether it arrived.
    Unsure(Error),
    /// It cannot work, and was not sent.
    Never(Error),
}

impl Failed {
    pub(super) fn is(&self, code: Code) -> bool {
        matches!(self, Failed::Refused(refused) if *refused == code)
    }
}

/// What one request may have: a server hangs up on more than `jute.maxbuffer`, a megabyte, and with it on all who share the session.
pub(super) const LONGEST: usize = 1_000_000;

/// Refuses what no server would take.
pub(super) fn fits(bytes: usize) -> Result<(), Failed> {
    if bytes <= LONGEST {
        return Ok(());
    }
    Err(Failed::Never(Error::config(
        "the claim is too long for ZooKeeper, which takes 1 MB in one request; ask for fewer permits, or give a shorter reason",
    )))
}

impl From<Broken> for Failed {
    fn from(_: Broken) -> Failed {
        Failed::Never(Error::protocol("the server answered what this version does not understand"))
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        if *error.kind() == ErrorKind::Unavailable { Failed::Unsure(error) } else { Failed::Never(error) }
    }
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Error {
        match failed {
            Failed::Unsure(error) | Failed::Never(error) => error,
            Failed::Ended => Error::unavailable("the session with ZooKeeper has ended"),
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
        Code::AuthFailed => Error::new(ErrorKind::Denied, "ZooKeeper refused the user or the password"),
        Code::InvalidAcl => {
            Error::new(ErrorKind::Denied, "ZooKeeper does not take the login for an ACL; is its scheme switched off?")
        }
        Code::LoginRequired => Error::new(
            ErrorKind::Denied,
            "ZooKeeper wants a login that this client has not made; see auth= in docs/stores/zookeeper.md",
        ),
        Code::NoChildrenForEphemerals => {
            Error::config("the name is used in the format plain, and cannot be used in this one at the same time")
        }
        Code::Unimplemented => Error::unsupported("the server is older than ZooKeeper 3.5, which this store needs"),
        Code::NotReadOnly => Error::unavailable("the server has no quorum and takes no writes"),
        Code::NoNode | Code::NodeExists | Code::NotEmpty | Code::BadVersion | Code::RolledBack => {
            Error::unavailable("the nodes of the name have changed under the request")
        }
        Code::SessionExpired | Code::SessionMoved => Error::unavailable("the session is not with this server any more"),
        Code::Other(number) => Error::protocol(format!("ZooKeeper refused a request with the error {number}")),
    }
}

/// Nobody will say any more what became of it.
pub(super) fn client_ended() -> Error {
    Error::unavailable("the client has ended while it asked ZooKeeper")
}
