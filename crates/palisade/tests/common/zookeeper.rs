//! Helpers of the ZooKeeper tests: what the server says of itself, what goes over a connection,
//! and a client of the barest kind.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use palisade::Client;
use palisade_testkit::proxy::{Protocol, Proxy};
use palisade_testkit::zookeeper::ZooKeeper;

use super::actors::connect;
#[allow(unused_imports, reason = "each test binary uses its own part")]
pub use super::pair::*;

/// The shortest session of servers with the usual tick, and soon over.
pub const SHORT: Duration = Duration::from_secs(4);

pub fn client(server: &ZooKeeper) -> Client {
    connect(format!("zk://{}/lock", server.address()))
}

/// A proxy starts by blocking, which a task may not.
pub fn proxy(server: &ZooKeeper) -> Proxy {
    let address = server.address();
    std::thread::spawn(move || Proxy::speaking(Protocol::ZooKeeper, address))
        .join()
        .expect("a proxy")
}

/// The nodes of all sessions, by their path, with the session that each hangs on. Asked of a server
/// that leads or stands alone.
pub fn nodes(server: &ZooKeeper) -> BTreeMap<String, i64> {
    // A server that looks for a leader, or has just found one, does not say.
    let said = palisade_testkit::eventually("a dump", LIMIT, || {
        let said = server.ask("dump");
        if said.contains("Sessions with Ephemerals") {
            Ok(said)
        } else {
            Err(said)
        }
    });
    let ephemeral = said
        .split_once("Sessions with Ephemerals")
        .map_or("", |(_, ephemeral)| ephemeral);
    let (mut nodes, mut session) = (BTreeMap::new(), 0);
    for line in ephemeral.lines() {
        if let Some(id) = line
            .strip_prefix("0x")
            .and_then(|line| line.strip_suffix(':'))
        {
            session = u64::from_str_radix(id, 16)
                .expect("a session")
                .cast_signed();
        }
        if let Some(path) = line.strip_prefix('\t').filter(|path| path.starts_with('/')) {
            nodes.insert(path.to_owned(), session);
        }
    }
    nodes
}

/// The nodes of one name in the order of the line, with their sessions.
pub fn line_of(server: &ZooKeeper, name: &str) -> Vec<(String, i64)> {
    let below = format!("/lock/{name}/");
    let mut line: Vec<_> = nodes(server)
        .into_iter()
        .filter(|(path, _)| path.starts_with(&below))
        .collect();
    line.sort_by_key(|(path, _)| path.rsplit('-').next().map(str::to_owned));
    line
}

/// The numbers of requests, as the protocol has them.
pub mod op {
    pub const DELETE: i32 = 2;
    pub const EXISTS: i32 = 3;
    pub const GET_DATA: i32 = 4;
    pub const GET_CHILDREN: i32 = 8;
    pub const SYNC: i32 = 9;
    pub const MULTI: i32 = 14;
    pub const CREATE: i32 = 15;
    pub const CREATE_CONTAINER: i32 = 19;
}

/// Whether one of these requests is of this kind.
pub fn has(bytes: &[u8], op: i32) -> bool {
    let mut rest = bytes.to_vec();
    frames(&mut rest)
        .iter()
        .any(|frame| number(frame, 4) == Some(op))
}

/// The requests of each kind.
impl std::fmt::Debug for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.counts().requests.fmt(f)
    }
}

/// Takes the whole messages off the front, without their lengths.
pub fn frames(bytes: &mut Vec<u8>) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while let Some(length) = number(bytes, 0).and_then(|length| usize::try_from(length).ok())
        && bytes.len() >= 4 + length
    {
        frames.push(bytes[4..4 + length].to_vec());
        bytes.drain(..4 + length);
    }
    frames
}

pub fn number(bytes: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Counts what goes through a proxy, until it is healed. For one connection at a time, since
/// requests may arrive in pieces.
pub struct Tally {
    counts: Arc<Mutex<Counts>>,
    begun: Instant,
}

#[derive(Clone, Default)]
struct Counts {
    requests: BTreeMap<i32, u64>,
    events: u64,
    bytes: u64,
    piece: Vec<u8>,
    /// When the requests were sent that are not answered yet.
    asked: BTreeMap<i32, Instant>,
    slowest: Duration,
}

impl Tally {
    pub fn of(proxy: &Proxy) -> Tally {
        let counts: Arc<Mutex<Counts>> = Arc::default();
        let requests = Arc::clone(&counts);
        proxy.lose_reply_to(move |bytes| {
            let mut counts = requests.lock().unwrap_or_else(PoisonError::into_inner);
            counts.piece.extend(bytes);
            let mut piece = std::mem::take(&mut counts.piece);
            for frame in frames(&mut piece) {
                let xid = number(&frame, 0).unwrap_or_default();
                counts.asked.insert(xid, Instant::now());
                *counts
                    .requests
                    .entry(number(&frame, 4).unwrap_or_default())
                    .or_default() += 1;
            }
            counts.piece = piece;
            false
        });
        let answers = Arc::clone(&counts);
        proxy.lose_if(move |message| {
            let mut counts = answers.lock().unwrap_or_else(PoisonError::into_inner);
            counts.bytes += message.len() as u64;
            let answered = number(message, 4).unwrap_or_default();
            counts.events += u64::from(answered == -1);
            if let Some(asked) = counts.asked.remove(&answered) {
                counts.slowest = counts.slowest.max(asked.elapsed());
            }
            false
        });
        Tally {
            counts,
            begun: Instant::now(),
        }
    }

    fn counts(&self) -> Counts {
        self.counts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// How many requests of each of these kinds were sent.
    pub fn requests<const N: usize>(&self, ops: [i32; N]) -> [u64; N] {
        let counts = self.counts();
        ops.map(|op| counts.requests.get(&op).copied().unwrap_or_default())
    }

    /// How many were sent of all kinds.
    pub fn all(&self) -> u64 {
        self.counts().requests.values().sum()
    }

    /// How many watches have fired.
    pub fn events(&self) -> u64 {
        self.counts().events
    }

    /// How much the server has sent.
    pub fn bytes(&self) -> u64 {
        self.counts().bytes
    }

    /// The longest time that an answer took.
    pub fn slowest(&self) -> Duration {
        self.counts().slowest
    }

    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// How often requests that depend on the clock may have come.
    pub fn ticks(&self, every: Duration) -> u64 {
        1 + (self.begun.elapsed().as_millis() / every.as_millis()) as u64
    }
}

/// A session without a client, by which nodes can be made that are not ours. It lives for ten
/// seconds after the last that was asked.
pub struct RawSession(TcpStream);

impl RawSession {
    pub fn connect(server: &ZooKeeper) -> RawSession {
        let mut raw = RawSession(TcpStream::connect(server.address()).expect("a connection"));
        let hello = [
            &[0; 12][..],
            &10_000_i32.to_be_bytes(),
            &[0; 8],
            &16_i32.to_be_bytes(),
            &[0; 16],
            &[0],
        ]
        .concat();
        drop(raw.ask(&hello));
        raw
    }

    /// Makes a node that ends with this session, and a number behind its name.
    pub fn create(&mut self, path: &str) {
        let text = |text: &[u8]| {
            [
                &i32::try_from(text.len()).expect("short").to_be_bytes()[..],
                text,
            ]
            .concat()
        };
        let acl = [
            &1_i32.to_be_bytes()[..],
            &31_i32.to_be_bytes(),
            &text(b"world"),
            &text(b"anyone"),
        ]
        .concat();
        let (head, ephemeral_sequential) = (
            [1_i32.to_be_bytes(), 1_i32.to_be_bytes()].concat(),
            3_i32.to_be_bytes(),
        );
        let answer = self.ask(
            &[
                head,
                text(path.as_bytes()),
                text(b""),
                acl,
                ephemeral_sequential.to_vec(),
            ]
            .concat(),
        );
        assert_eq!(number(&answer, 12), Some(0), "the error of the answer");
    }

    fn ask(&mut self, message: &[u8]) -> Vec<u8> {
        let length = i32::try_from(message.len()).expect("short").to_be_bytes();
        self.0
            .write_all(&[&length[..], message].concat())
            .expect("written");
        let mut length = [0; 4];
        self.0.read_exact(&mut length).expect("an answer");
        let mut answer = vec![0; usize::try_from(u32::from_be_bytes(length)).expect("a length")];
        self.0.read_exact(&mut answer).expect("an answer");
        answer
    }
}
