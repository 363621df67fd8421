//! How one process wakes a waiter of another: a datagram to the socket of that client.
//!
//! A datagram carries the claim's id, which only readers of the database know. It is sent without
//! waiting: a client whose socket is full, or gone, learns the same from its next heartbeat.

use std::io;
use std::os::unix::net::UnixDatagram as Sender;
use std::sync::OnceLock;

use tokio::net::UnixDatagram;

use super::lines::WakeMessage;
use super::liveness::Folder;
use crate::fence::Fence;
use crate::line::Told;
use crate::store::{ClaimId, ClientHandle, Gone};
use crate::stores::kit::line;

/// The messages to one client.
#[derive(Default)]
pub(super) struct Inbox {
    client: OnceLock<ClientHandle>,
    sender: OnceLock<Sender>,
}

impl Inbox {
    pub(super) fn attach(&self, client: ClientHandle) {
        // Attached once.
        let _ = self.client.set(client);
    }

    /// The client that the messages are for; `None` for a store that is used without one.
    pub(super) fn client(&self) -> Option<&ClientHandle> {
        self.client.get()
    }

    /// Makes the client's socket, and delivers its messages for as long as the client's runtime
    /// lives. Once.
    pub(super) fn bind(&self, folder: &Folder, id: &str) -> io::Result<()> {
        let Some(client) = self.client() else {
            return Ok(());
        };
        let _inside = client.runtime().enter();
        let socket = UnixDatagram::bind(folder.socket(id))?;
        let told = client.clone();
        client.runtime().spawn(async move {
            let mut message = [0; MESSAGE];
            // Without a readable socket there are no pushes; heartbeats go on.
            while let Ok(length) = socket.recv(&mut message).await {
                if let Some(news) = message.get(..length).and_then(decode) {
                    line::hear(&told, news);
                }
            }
        });
        Ok(())
    }

    /// Sends messages, each to the client of its claim.
    pub(super) fn send(&self, folder: &Folder, messages: Vec<WakeMessage>) {
        for message in messages {
            let Some(sender) = self.sender() else { return };
            // If the socket is full or gone, the next heartbeat tells the client.
            let _ = sender.send_to(&encode(message.told), folder.socket(&message.client));
        }
    }

    fn sender(&self) -> Option<&Sender> {
        if self.sender.get().is_none() {
            let sender = Sender::unbound().ok()?;
            sender.set_nonblocking(true).ok()?;
            let _ = self.sender.set(sender);
        }
        self.sender.get()
    }
}

/// The type, the claim, and a number.
const MESSAGE: usize = 1 + 16 + 8;
const GRANTED: u8 = b'G';
const GONE: u8 = b'X';

fn encode(told: Told) -> [u8; MESSAGE] {
    let (what, claim, number) = match told {
        Told::Granted { claim, fence } => (GRANTED, claim, fence.get()),
        Told::Gone { claim, why } => (
            GONE,
            claim,
            REASONS
                .iter()
                .position(|reason| *reason == why)
                .unwrap_or(0) as u64,
        ),
    };
    let mut message = [0; MESSAGE];
    message[0] = what;
    message[1..17].copy_from_slice(&claim.bits().to_be_bytes());
    message[17..].copy_from_slice(&number.to_be_bytes());
    message
}

/// Accepts only what [`encode`] writes.
fn decode(message: &[u8]) -> Option<Told> {
    let (what, rest) = message.split_first()?;
    let (claim, number) = rest.split_first_chunk::<16>()?;
    let claim = ClaimId::from_bits(u128::from_be_bytes(*claim));
    let number = u64::from_be_bytes(number.try_into().ok()?);
    match *what {
        GRANTED => Some(Told::Granted {
            claim,
            fence: Fence::new(number)?,
        }),
        GONE => Some(Told::Gone {
            claim,
            why: *REASONS.get(usize::try_from(number).ok()?)?,
        }),
        _ => None,
    }
}

/// In the order of their numbers on the wire: new ones go to the end.
const REASONS: [Gone; 8] = [
    Gone::Expired,
    Gone::Taken,
    Gone::Revoked,
    Gone::SessionEnded,
    Gone::Sealed,
    Gone::TooSoon,
    Gone::Ended,
    Gone::Unknown,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_read_back_and_junk_does_not() {
        let claim = ClaimId::from_bits(u128::MAX - 7);
        let mut all = vec![Told::Granted {
            claim,
            fence: Fence::MAX,
        }];
        all.extend(REASONS.map(|why| Told::Gone { claim, why }));
        for told in all {
            assert_eq!(decode(&encode(told)), Some(told));
        }
        for junk in [
            &b""[..],
            b"G",
            &[b'G'; 24],
            &[b'G'; 26],
            &[0xff; 25],
            &[b'X'; 25],
        ] {
            assert_eq!(decode(junk), None, "{junk:?}");
        }
    }
}
