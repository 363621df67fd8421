//! Replies that are no answer of our scripts.

use redis::Value;

use crate::error::Error;

/// Why a script of the format `palisade` could not do its work, if it says so.
pub(super) fn no_answer(reply: &Value) -> Error {
    let Value::Array(parts) = reply else {
        return match reply {
            Value::ServerError(error) => Error::protocol(format!(
                "the script of the lock failed on the Redis server: {error}"
            )),
            _ => strange(),
        };
    };
    match parts.as_slice() {
        [Value::BulkString(mark), why, ..] if mark == b"?" => match why {
            Value::BulkString(why) if why == b"type" => Error::protocol(
                "the key of this name holds something that is no lock of ours; use another prefix, or delete the key if it is not needed",
            ),
            Value::BulkString(why) if why == b"version" => Error::protocol(
                "the key of this name was written by a newer version of Palisade; upgrade this program, or use another prefix",
            ),
            _ => Error::protocol(
                "the key of this name cannot be read: another program has written to it; \
                 use another prefix, or delete the key when the lock is not held",
            ),
        },
        _ => strange(),
    }
}

/// Whether a script says that it could not do its work.
pub(super) fn is_no_answer(parts: &[Value]) -> bool {
    matches!(parts.first(), Some(Value::BulkString(mark)) if mark == b"?")
}

pub(super) fn strange() -> Error {
    Error::protocol(
        "the Redis server answered what this version of Palisade does not understand; is it the same version everywhere?",
    )
}

/// A reply to a script of the format `simple`.
pub(super) fn unreadable() -> Error {
    Error::protocol(
        "the server's answer to a script cannot be read; does another program write to this key?",
    )
}
