//! What the server's errors mean.

use tonic::{Code, Status};

use crate::error::{Error, ErrorKind};
use crate::url::Host;

/// What to do about an error.
pub(crate) enum Remedy {
    /// The token has expired, or the server has forgotten it: log in again.
    LogIn(Error),
    /// The request did not reach this member: another may be asked.
    AskAnother(Error),
    /// The request may have arrived.
    Unsure(Error),
    /// The lease that the request names is gone.
    LeaseGone(Error),
    /// No other attempt helps.
    Fail(Error),
}

pub(crate) fn remedy(status: &Status, asked: &Host) -> Remedy {
    let text = status.message();
    let unavailable =
        |what: &str| Error::unavailable(format!("{asked} {what}")).with_source(status.clone());
    match status.code() {
        Code::Unauthenticated => Remedy::LogIn(denied(asked, "does not take the login any more")),
        Code::InvalidArgument if text.contains("user name is empty") => Remedy::Fail(denied(
            asked,
            "wants a user and a password; write them into the URL",
        )),
        Code::InvalidArgument if text.contains("authentication failed") => {
            Remedy::Fail(denied(asked, "refused the user or the password"))
        }
        // The roles were changed since we logged in.
        Code::InvalidArgument if text.contains("revision of auth store is old") => {
            Remedy::LogIn(denied(asked, "does not take the login any more"))
        }
        Code::PermissionDenied => Remedy::Fail(denied(
            asked,
            "denies a right; see docs/stores/etcd.md for the rights that are needed",
        )),
        Code::NotFound if text.contains("lease not found") => {
            Remedy::LeaseGone(unavailable("does not have our lease any more"))
        }
        Code::ResourceExhausted if text.contains("space exceeded") => Remedy::Fail(unavailable(
            "has no space left and takes no writes; see etcdctl alarm list",
        )),
        Code::ResourceExhausted => Remedy::Fail(unavailable("has too many requests")),
        Code::Unavailable if never_left(status) => Remedy::AskAnother(unavailable(&format!(
            "cannot be reached: {}",
            root_cause(status)
        ))),
        Code::Unavailable => Remedy::Unsure(unavailable(&format!("cannot answer now: {text}"))),
        // How tonic reports a connection that breaks in the middle of a response.
        Code::Unknown | Code::Internal | Code::Cancelled if broke(status) => Remedy::Unsure(
            unavailable(&format!("cannot be reached: {}", root_cause(status))),
        ),
        Code::DeadlineExceeded | Code::Cancelled | Code::Aborted => {
            Remedy::Unsure(unavailable("has not answered in time"))
        }
        // The server is stopping, has no leader at the moment, or reports something else that has
        // no code.
        Code::Unknown => Remedy::Unsure(unavailable(&format!("cannot answer now: {text}"))),
        Code::Unimplemented => Remedy::Fail(Error::unsupported(format!(
            "{asked} is older than etcd 3.4, which this store needs"
        ))),
        _ => Remedy::Fail(
            Error::protocol(format!("{asked} refused a request: {text}"))
                .with_source(status.clone()),
        ),
    }
}

impl Remedy {
    pub(crate) fn into_error(self) -> Error {
        match self {
            Remedy::LogIn(error)
            | Remedy::AskAnother(error)
            | Remedy::Unsure(error)
            | Remedy::LeaseGone(error)
            | Remedy::Fail(error) => error,
        }
    }
}

pub(crate) fn denied(asked: &Host, what: &str) -> Error {
    Error::new(ErrorKind::Denied, format!("{asked} {what}"))
}

/// Whether the request certainly did not reach the server: there was no connection.
fn never_left(status: &Status) -> bool {
    causes(status).any(|cause| cause.is::<tonic::ConnectError>())
}

/// Whether there is a cause besides our own time-out, which is listed as a cause as well.
fn broke(status: &Status) -> bool {
    causes(status)
        .last()
        .is_some_and(|cause| !cause.is::<tonic::TimeoutExpired>())
}

fn root_cause(status: &Status) -> String {
    causes(status)
        .last()
        .map_or_else(|| status.message().to_owned(), |cause| cause.to_string())
}

fn causes(status: &Status) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    std::iter::successors(std::error::Error::source(status), |cause| cause.source())
}
