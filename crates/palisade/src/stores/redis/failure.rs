//! Errors for replies that are not the answer that a verb expects.

use redis::Value;

use crate::error::Error;

/// The first part of a reply by which a script of the format `palisade` refuses.
const REFUSAL: &[u8] = b"?";

/// Why a script of the format `palisade` did not do its work, if its reply says so.
pub(super) fn refused(reply: &Value) -> Error {
    let parts = match reply {
        Value::ServerError(error) => {
            return Error::protocol(format!(
                "the script of the lock failed on the Redis server: {error}"
            ));
        }
        Value::Array(parts) => parts.as_slice(),
        _ => return unexpected(),
    };
    let [Value::BulkString(mark), why, ..] = parts else {
        return unexpected();
    };
    if mark != REFUSAL {
        return unexpected();
    }
    Error::protocol(match why {
        Value::BulkString(why) if why == b"type" => {
            "the key of this name holds something that is no lock of ours; use another prefix, or delete the key if it is not needed"
        }
        Value::BulkString(why) if why == b"version" => {
            "the key of this name was written by a newer version of Palisade; upgrade this program, or use another prefix"
        }
        _ => {
            "the key of this name cannot be read: another program has written to it; \
             use another prefix, or delete the key when the lock is not held"
        }
    })
}

/// Whether the script refused.
pub(super) fn is_refused(parts: &[Value]) -> bool {
    matches!(parts.first(), Some(Value::BulkString(mark)) if mark == REFUSAL)
}

/// A reply that this version does not know.
pub(in crate::stores) fn unexpected() -> Error {
    Error::protocol(
        "the reply of the Redis server cannot be read; is Palisade the same version everywhere, and does no other program write to this key?",
    )
}
