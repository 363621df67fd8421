//! What went wrong with a request, and what may mend it.

use std::time::Duration;

use tokio_postgres::error::SqlState;

use crate::error::{Error, ErrorKind};

/// What may mend a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// Nothing was done, and the same again may succeed: a deadlock, a serialization failure.
    Repeat,
    /// Nothing was done: another session has locked a row for too long.
    Locked,
    /// The connection is of no use any more. The request may have been done.
    Reconnect,
    /// A table or routine is missing.
    Create,
    /// Nothing that this store could do.
    None,
}

pub(crate) struct Failed {
    pub(crate) error: Error,
    pub(crate) remedy: Remedy,
}

/// Nothing was sent.
impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed {
            error,
            remedy: Remedy::None,
        }
    }
}

impl Failed {
    /// The server did not answer in time.
    pub(crate) fn silent(address: &str, limit: Duration) -> Failed {
        Failed {
            error: Error::unavailable(format!("{address} does not answer within {limit:?}")),
            remedy: Remedy::None,
        }
    }

    pub(crate) fn of(error: &tokio_postgres::Error, address: &str) -> Failed {
        let failed = |remedy, error| Failed { error, remedy };
        let Some(said) = error.as_db_error() else {
            let cause = std::error::Error::source(error)
                .map_or_else(|| error.to_string(), ToString::to_string);
            return failed(
                Remedy::Reconnect,
                Error::unavailable(format!("{address}: {cause}")),
            );
        };
        let code = said.code().clone();
        // The statement and its parameters are not in it.
        let text = format!("{address}: {} ({})", said.message(), code.code());
        match code {
            SqlState::T_R_SERIALIZATION_FAILURE | SqlState::T_R_DEADLOCK_DETECTED => {
                failed(Remedy::Repeat, Error::unavailable(text))
            }
            SqlState::LOCK_NOT_AVAILABLE => failed(Remedy::Locked, Error::unavailable(text)),
            SqlState::UNDEFINED_TABLE
            | SqlState::UNDEFINED_FUNCTION
            | SqlState::INVALID_SCHEMA_NAME => failed(
                Remedy::Create,
                Error::config(format!(
                    "{text}; the tables are missing: an administrator can create them by \
                     `palisade schema`, or by what `palisade schema --print` prints"
                )),
            ),
            SqlState::INSUFFICIENT_PRIVILEGE => failed(
                Remedy::None,
                Error::new(
                    ErrorKind::Denied,
                    format!(
                        "{text}; an administrator can create the tables and give rights to them: \
                         see what `palisade schema --print` prints"
                    ),
                ),
            ),
            SqlState::INVALID_PASSWORD | SqlState::INVALID_AUTHORIZATION_SPECIFICATION => failed(
                Remedy::None,
                Error::new(
                    ErrorKind::Denied,
                    format!("{address} refuses the login; check user and password of the URL"),
                ),
            ),
            SqlState::INVALID_CATALOG_NAME => failed(
                Remedy::None,
                Error::bad_url(format!(
                    "{address} has no such database; the path of the URL names it"
                )),
            ),
            SqlState::READ_ONLY_SQL_TRANSACTION => failed(
                Remedy::Reconnect,
                Error::unavailable(format!("{text}; it is not the primary any more")),
            ),
            SqlState::INVALID_TRANSACTION_TERMINATION => failed(
                Remedy::None,
                Error::config(format!(
                    "{text}; a proxy runs statements inside of transactions of its own; \
                     connect to the server itself, or pool by transaction"
                )),
            ),
            SqlState::ADMIN_SHUTDOWN
            | SqlState::CRASH_SHUTDOWN
            | SqlState::CANNOT_CONNECT_NOW
            | SqlState::IDLE_SESSION_TIMEOUT => failed(Remedy::Reconnect, Error::unavailable(text)),
            // After the commit: only the push is lost, and its waiter asks by itself.
            SqlState::PROGRAM_LIMIT_EXCEEDED => failed(
                Remedy::None,
                Error::unavailable(format!(
                    "{text}; does a session listen in a transaction that stays open? see pg_notification_queue_usage()"
                )),
            ),
            // Class 22: data.
            _ if code.code().starts_with("22") => failed(
                Remedy::None,
                Error::config(format!(
                    "{text}; a name, owner, reason or value does not fit: is the encoding of the database UTF8?"
                )),
            ),
            // Class 08: connections; 53: too many of them, a full disk; 57: intervention; 58: the
            // system.
            _ if ["08", "53", "57", "58"].contains(&code.code().get(..2).unwrap_or_default()) => {
                failed(Remedy::None, Error::unavailable(text))
            }
            _ => failed(Remedy::None, Error::protocol(text)),
        }
    }
}
