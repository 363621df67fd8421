//! How one process tells another's waiter: a datagram to the socket of just that client.
//!
//! A datagram carries the claim's id, which only those know who can read the database. It is sent without waiting: a client
//! whose socket is full, or gone, learns the same from its next heartbeat.

use std::io;
use std::os::unix::net::UnixDatagram as Sender;
use std::sync::OnceLock;

use tokio::net::UnixDatagram;
use tokio::sync::Notify;

use super::lines::Letter;
use super::liveness::Folder;
use crate::fence::Fence;
use crate::line::Told;
use crate::store::{ClaimId, Event, Gone, Woken};
use crate::stores::mailboxes::Mailboxes;

/// The letters to one client.
#[derive(Default)]
pub(super) struct Inbox {
    socket: OnceLock<UnixDatagram>,
    bound: Notify,
    pub(super) mailboxes: Mailboxes,
    sender: OnceLock<Sender>,
}

impl Inbox {
    /// Makes the client's socket. Inside the client's runtime.
    pub(super) fn bind(&self, folder: &Folder, client: &str) -> io::Result<()> {
        if self.socket.get().is_none() {
            let socket = UnixDatagram::bind(folder.socket(client))?;
            let _ = self.socket.set(socket);
            self.bound.notify_waiters();
        }
        Ok(())
    }

    /// Delivers letters until one is an event.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point: a letter is either in the socket or delivered.
    pub(super) async fn next(&self) -> Event {
        loop {
            let bound = self.bound.notified();
            let Some(socket) = self.socket.get() else {
                bound.await;
                continue;
            };
            let mut letter = [0; LETTER];
            // Never ready means never pushed: heartbeats go on.
            let Ok(length) = socket.recv(&mut letter).await else { return std::future::pending().await };
            if let Some(event) = letter.get(..length).and_then(|letter| self.deliver(decode(letter)?)) {
                return event;
            }
        }
    }

    fn deliver(&self, told: Told) -> Option<Event> {
        match told {
            Told::Granted { claim, fence } => {
                self.mailboxes.push(claim, Woken::Granted(fence));
                None
            }
            Told::Gone { claim, why } => {
                self.mailboxes.push(claim, Woken::Ask);
                Some(Event::Gone { claim, why })
            }
        }
    }

    /// Sends letters, each to the client of its claim.
    pub(super) fn send(&self, folder: &Folder, letters: Vec<Letter>) {
        for letter in letters {
            let Some(sender) = self.sender() else { return };
            // Full or gone: see above.
            let _ = sender.send_to(&encode(letter.told), folder.socket(&letter.client));
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

/// What it is, the claim, and a number.
const LETTER: usize = 1 + 16 + 8;
const GRANTED: u8 = b'G';
const GONE: u8 = b'X';

fn encode(told: Told) -> [u8; LETTER] {
    let (what, claim, number) = match told {
        Told::Granted { claim, fence } => (GRANTED, claim, fence.get()),
        Told::Gone { claim, why } => (GONE, claim, REASONS.iter().position(|reason| *reason == why).unwrap_or(0) as u64),
    };
    let mut letter = [0; LETTER];
    letter[0] = what;
    letter[1..17].copy_from_slice(&claim.bits().to_be_bytes());
    letter[17..].copy_from_slice(&number.to_be_bytes());
    letter
}

/// Only what [`encode`] writes; anything else is not for us.
fn decode(letter: &[u8]) -> Option<Told> {
    let (what, rest) = letter.split_first()?;
    let (claim, number) = rest.split_first_chunk::<16>()?;
    let claim = ClaimId::from_bits(u128::from_be_bytes(*claim));
    let number = u64::from_be_bytes(number.try_into().ok()?);
    match *what {
        GRANTED => Some(Told::Granted { claim, fence: Fence::new(number)? }),
        GONE => Some(Told::Gone { claim, why: *REASONS.get(usize::try_from(number).ok()?)? }),
        _ => None,
    }
}

const REASONS: [Gone; 6] = [Gone::Expired, Gone::Taken, Gone::Revoked, Gone::SessionEnded, Gone::Sealed, Gone::TooSoon];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_read_back_and_junk_does_not() {
        let claim = ClaimId::from_bits(u128::MAX - 7);
        let mut all = vec![Told::Granted { claim, fence: Fence::MAX }];
        all.extend(REASONS.map(|why| Told::Gone { claim, why }));
        for told in all {
            assert_eq!(decode(&encode(told)), Some(told));
        }
        for junk in [&b""[..], b"G", &[b'G'; 24], &[b'G'; 26], &[0xff; 25], &[b'X'; 25]] {
            assert_eq!(decode(junk), None, "{junk:?}");
        }
    }
}
