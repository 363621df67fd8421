//! What to do about the servers' errors. Messages hold no secret: only the first word of an error
//! is shown, and the rest where it cannot be a secret.

use redis::{ErrorKind as Kind, RedisError, ServerErrorKind};

use super::address::Address;
use crate::error::{Error, ErrorKind};

const OTHER_DATA: &str =
    "the key holds data of another kind; take another name or prefix, or delete that key";

/// What to do about an error.
#[derive(Debug)]
pub(super) enum Remedy {
    /// The server has not seen the script: send its text.
    SendWhole,
    /// Another server has the key, from now on or for this request only.
    Redirect { to: Address, slot: Option<u16> },
    /// The key is moving between two servers: ask again in a moment.
    AskAgain,
    /// The connection is gone.
    Reconnect(Error),
    /// The topology is out of date: another server may be the primary.
    FindPrimary(Error),
    /// The server is a replica: it takes no writes on any connection.
    Leave(Error),
    /// Nothing here helps.
    Tell(Error),
}

pub(super) fn remedy(error: &RedisError, asked: &Address) -> Remedy {
    let unavailable = |what: &str| Error::unavailable(format!("{asked} {what}"));
    match error.kind() {
        Kind::Server(ServerErrorKind::NoScript) => Remedy::SendWhole,
        Kind::Server(kind @ (ServerErrorKind::Moved | ServerErrorKind::Ask)) => {
            match error
                .redirect_node()
                .and_then(|(node, slot)| Some((Address::parse(node, asked)?, slot)))
            {
                Some((to, slot)) => Remedy::Redirect {
                    to,
                    slot: (kind == ServerErrorKind::Moved).then_some(slot),
                },
                None => Remedy::Tell(Error::protocol(format!(
                    "{asked} redirects to a place that cannot be read"
                ))),
            }
        }
        Kind::Server(ServerErrorKind::TryAgain) => Remedy::AskAgain,
        Kind::Server(ServerErrorKind::ReadOnly) => {
            Remedy::Leave(unavailable("is a replica and takes no writes"))
        }
        Kind::Server(ServerErrorKind::ClusterDown) => {
            Remedy::FindPrimary(unavailable("says that its cluster is down"))
        }
        Kind::Server(ServerErrorKind::MasterDown) => {
            Remedy::Leave(unavailable("has lost its primary"))
        }
        Kind::Server(ServerErrorKind::BusyLoading) => {
            Remedy::Tell(unavailable("is still loading its data"))
        }
        Kind::Server(ServerErrorKind::NoPerm) => Remedy::Tell(denied(asked, error)),
        Kind::Server(ServerErrorKind::CrossSlot) => Remedy::Tell(Error::config(
            "the keys are in different slots of the cluster; take a name without braces",
        )),
        Kind::AuthenticationFailed => Remedy::Tell(denied(asked, error)),
        Kind::RESP3NotSupported => Remedy::Tell(Error::unsupported(format!(
            "{asked} is older than Redis 6.0, which this store needs; upgrade it"
        ))),
        Kind::InvalidClientConfig => Remedy::Tell(
            Error::bad_url(format!("{asked}: {}", error.category())).with_source(error.clone()),
        ),
        Kind::Io => Remedy::Reconnect(unreached(error, asked)),
        _ => by_code(error, asked),
    }
}

/// The error to report when nothing more can be done about it.
pub(crate) fn final_error(error: &RedisError, asked: &Address) -> Error {
    match remedy(error, asked) {
        Remedy::Reconnect(error)
        | Remedy::FindPrimary(error)
        | Remedy::Leave(error)
        | Remedy::Tell(error) => error,
        Remedy::SendWhole | Remedy::AskAgain | Remedy::Redirect { .. } => {
            Error::unavailable(format!("{asked}: too many redirections"))
        }
    }
}

fn by_code(error: &RedisError, asked: &Address) -> Remedy {
    let unavailable = |what: &str| Error::unavailable(format!("{asked} {what}"));
    match error.code() {
        Some("NOAUTH" | "WRONGPASS") => Remedy::Tell(denied(asked, error)),
        Some("NOREPLICAS") => Remedy::Tell(unavailable("has too few replicas to take writes")),
        Some("BUSY") => Remedy::Tell(unavailable(
            "is busy with an endless script; end it with SCRIPT KILL",
        )),
        Some("OOM") => Remedy::Tell(unavailable("is out of memory and takes no writes")),
        Some("MISCONF") => Remedy::Tell(unavailable(
            "cannot save its data and takes no writes; see its log",
        )),
        Some("UNBLOCKED") => Remedy::Leave(unavailable("has just become a replica")),
        Some("WRONGTYPE") => Remedy::Tell(Error::protocol(OTHER_DATA)),
        Some(code) => Remedy::Tell(refusal(code, error, asked)),
        None if error.is_io_error() || error.is_connection_dropped() || error.is_timeout() => {
            Remedy::Reconnect(unreached(error, asked))
        }
        None => Remedy::Tell(
            Error::protocol(format!("{asked}: {}", error.category())).with_source(error.clone()),
        ),
    }
}

/// The message of the operating system or of TLS has no secret, and distinguishes a wrong port from
/// a wrong certificate.
fn unreached(error: &RedisError, asked: &Address) -> Error {
    Error::unavailable(format!("{asked} cannot be reached: {error}")).with_source(error.clone())
}

/// An error with a code that has no case of its own.
fn refusal(code: &str, error: &RedisError, asked: &Address) -> Error {
    // A server repeats an unknown command with its arguments, and a password may be among them.
    let detail = error
        .detail()
        .unwrap_or_default()
        .split(", with args")
        .next()
        .unwrap_or_default();
    // The limit of connections has no code of its own.
    if detail.contains("max number of clients") {
        return Error::unavailable(format!(
            "{asked} has no connection left; raise its maxclients"
        ));
    }
    // A script lacks a right: only later servers say which command it was.
    if detail.contains("The user executing the script can't")
        || detail.contains("ACL failure in script")
    {
        return denied_right(asked, detail.split(" script: ").next().unwrap_or_default());
    }
    if detail.contains("DB index is out of range") {
        return Error::bad_url(format!(
            "{asked} has no database of this number; see databases in its configuration"
        ));
    }
    if detail.contains("WRONGTYPE") {
        return Error::protocol(OTHER_DATA);
    }
    Error::protocol(format!("{asked} refused a request: {code} {detail}"))
}

fn denied(asked: &Address, error: &RedisError) -> Error {
    match error.code() {
        Some("NOAUTH") => Error::new(
            ErrorKind::Denied,
            format!("{asked} wants a user or a password; write them into the URL"),
        ),
        Some("NOPERM") => denied_right(asked, error.detail().unwrap_or_default()),
        _ => Error::new(
            ErrorKind::Denied,
            format!("{asked} refused the user or the password"),
        ),
    }
}

fn denied_right(asked: &Address, what: &str) -> Error {
    let what = what.trim().trim_end_matches('.');
    let message = format!(
        "{asked} denies a right: {what}; see docs/stores/redis.md for the rights that are needed"
    );
    Error::new(ErrorKind::Denied, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is done about an error as it comes over the wire.
    fn remedy_of(answer: &str) -> Remedy {
        let error = redis::parse_redis_value(format!("-{answer}\r\n").as_bytes())
            .unwrap()
            .extract_error()
            .unwrap_err();
        remedy(&error, &Address::new("h", 1))
    }

    /// A server that is no primary any more: all connections to its address are given up.
    #[test]
    fn a_server_that_takes_no_writes_is_left() {
        for answer in [
            "READONLY You can't write against a read only replica.",
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
            "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
        ] {
            assert!(matches!(remedy_of(answer), Remedy::Leave(_)), "{answer}");
        }
    }

    /// The message for an error as it comes over the wire.
    fn told(answer: &str) -> String {
        match remedy_of(answer) {
            Remedy::Tell(error) => format!("{error} {error:?}"),
            _ => panic!("{answer}: nothing is told"),
        }
    }

    #[test]
    fn arguments_that_a_server_repeats_are_not_told() {
        for answer in [
            "ERR unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'me' 'secret' ",
            "ERR unknown subcommand or wrong number of arguments for 'X', with args beginning with: 'secret'",
        ] {
            let told = told(answer);
            assert!(
                told.contains("ERR unknown") && !told.contains("secret"),
                "{told}"
            );
        }
    }
}
