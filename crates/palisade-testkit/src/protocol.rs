//! Where the messages of a protocol end, and which of them are pushed, so that the proxy can lose
//! one and no other.

/// The protocol of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// Unknown: what arrives together counts as one message, and nothing is a push.
    #[default]
    Bytes,
    /// Redis. Pushes are the messages of subscriptions, in the old protocol and in the new.
    Redis,
    /// PostgreSQL without TLS. Pushes are notifications.
    Postgres,
    /// ZooKeeper. Pushes are the events of watches.
    ZooKeeper,
    /// HTTP/2, as etcd speaks it. Messages are its frames; which of them are pushes only their
    /// stream tells.
    Http2,
}

impl Protocol {
    /// The length of the next whole message of a server, or nothing while it is not complete.
    /// `first` is for the first one of a connection.
    pub(crate) fn message(self, bytes: &[u8], first: bool) -> Option<usize> {
        let length = match self {
            Self::Bytes => bytes.len(),
            Self::Redis => redis(bytes)?,
            // One byte without a length: the answer to the question for TLS or for GSS encryption.
            Self::Postgres if first && matches!(bytes, [b'N']) => 1,
            Self::Postgres => 1 + number(bytes.get(1..5)?),
            Self::ZooKeeper => 4 + number(bytes.get(..4)?),
            Self::Http2 => 9 + number(bytes.get(..3)?),
        };
        (1..=bytes.len()).contains(&length).then_some(length)
    }

    /// Whether a message is sent by the server on its own, and not as an answer.
    pub(crate) fn is_push(self, message: &[u8]) -> bool {
        match self {
            Self::Bytes | Self::Http2 => false,
            Self::Redis => is_redis_push(message),
            Self::Postgres => message.first() == Some(&b'A'),
            // After the length comes the number of the request; events have -1.
            Self::ZooKeeper => message.get(4..8) == Some(&[0xff; 4]),
        }
    }
}

fn number(bytes: &[u8]) -> usize {
    bytes
        .iter()
        .fold(0, |sum, byte| sum << 8 | usize::from(*byte))
}

/// The length of one value. An aggregate is as long as its head and all its parts.
fn redis(bytes: &[u8]) -> Option<usize> {
    let head = bytes.windows(2).position(|end| end == b"\r\n")? + 2;
    let count = || {
        std::str::from_utf8(&bytes[1..head - 2])
            .ok()?
            .parse::<i64>()
            .ok()
    };
    match bytes[0] {
        b'$' | b'=' | b'!' => {
            Some(usize::try_from(count()?).map_or(head, |length| head + length + 2))
        }
        b'*' | b'>' | b'~' => parts(bytes, head, count()?),
        b'%' => parts(bytes, head, count()? * 2),
        _ => Some(head),
    }
}

fn parts(bytes: &[u8], head: usize, count: i64) -> Option<usize> {
    (0..count).try_fold(head, |end, _| Some(end + redis(bytes.get(end..)?)?))
}

/// The confirmation of a subscription is an answer, though it looks alike.
fn is_redis_push(message: &[u8]) -> bool {
    let kinds: [&[u8]; 4] = [
        b"3\r\n$7\r\nmessage\r\n",
        b"4\r\n$8\r\npmessage\r\n",
        b"3\r\n$8\r\nsmessage\r\n",
        b"2\r\n$10\r\ninvalidate\r\n",
    ];
    matches!(message, [b'*' | b'>', rest @ ..] if kinds.iter().any(|kind| rest.starts_with(kind)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cut at every place, a message is complete only at its end.
    fn is_whole(protocol: Protocol, message: &[u8]) {
        for end in 0..message.len() {
            assert_eq!(
                protocol.message(&message[..end], false),
                None,
                "{end} of {}",
                message.escape_ascii()
            );
        }
        let followed = [message, b"x"].concat();
        assert_eq!(
            protocol.message(&followed, false),
            Some(message.len()),
            "{}",
            message.escape_ascii()
        );
    }

    #[test]
    fn messages_of_redis() {
        for message in [
            "+OK\r\n",
            ":1\r\n",
            "$-1\r\n",
            "$0\r\n\r\n",
            "$3\r\na\r\n\r\n",
            "*0\r\n",
            "*-1\r\n",
            "%1\r\n+a\r\n:1\r\n",
        ] {
            is_whole(Protocol::Redis, message.as_bytes());
            assert!(!Protocol::Redis.is_push(message.as_bytes()));
        }
        let push = b"*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$2\r\nhi\r\n";
        is_whole(Protocol::Redis, push);
        assert!(Protocol::Redis.is_push(push));
        assert!(!Protocol::Redis.is_push(b"*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n"));
    }

    #[test]
    fn messages_of_the_others() {
        is_whole(Protocol::Postgres, b"A\0\0\0\x06ab");
        assert!(Protocol::Postgres.is_push(b"A\0\0\0\x06ab"));
        assert!(!Protocol::Postgres.is_push(b"Z\0\0\0\x05I"));
        assert_eq!(Protocol::Postgres.message(b"N", true), Some(1));
        let event = b"\0\0\0\x05\xff\xff\xff\xff!";
        is_whole(Protocol::ZooKeeper, event);
        assert!(Protocol::ZooKeeper.is_push(event));
        assert!(!Protocol::ZooKeeper.is_push(b"\0\0\0\x05\0\0\0\x01!"));
        is_whole(Protocol::Http2, b"\0\0\x02\0\0\0\0\0\x01hi");
        assert_eq!(Protocol::Bytes.message(b"abc", false), Some(3));
        assert_eq!(Protocol::Bytes.message(b"", false), None);
    }
}
