//! Just enough of ZooKeeper's protocol to create and delete nodes without a client library.

use std::collections::VecDeque;
use std::io::{self, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

const CREATE: i32 = 1;
const DELETE: i32 = 2;
const EXISTS: i32 = 3;
const GET_CHILDREN: i32 = 8;
const CLOSE: i32 = -11;

/// In place of the number of a request: a watch has fired.
const EVENT: i32 = -1;

const NO_NODE: i32 = -101;
const NODE_EXISTS: i32 = -110;

/// The kind of node to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Make {
    /// One that stays.
    Persistent,
    /// One that ends with the session, with the parent's next number at the end of its name.
    EphemeralSequential,
}

/// A session that is kept alive by nothing but its requests. It is closed when this is dropped.
#[derive(Debug)]
pub struct Raw {
    stream: TcpStream,
    next: i32,
    /// The paths of the watches that have fired while something else was waited for.
    told: VecDeque<String>,
}

impl Raw {
    /// Opens a session. Everything fails that takes longer than it lasts.
    pub fn open(address: SocketAddr, session: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, session)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(session))?;
        let mut raw = Self {
            stream,
            next: 0,
            told: VecDeque::new(),
        };
        let mut hello = Vec::new();
        hello.extend(0_i32.to_be_bytes());
        hello.extend(0_i64.to_be_bytes());
        hello.extend(
            i32::try_from(session.as_millis())
                .unwrap_or(i32::MAX)
                .to_be_bytes(),
        );
        hello.extend(0_i64.to_be_bytes());
        put(&mut hello, &[0; 16]);
        hello.push(0);
        raw.write(&hello)?;
        raw.read()?;
        Ok(raw)
    }

    /// Makes a node that all may use. Gives its path; nothing when it is there already.
    pub fn create(&mut self, path: &str, data: &[u8], make: Make) -> io::Result<Option<String>> {
        let made = self.ask(CREATE, &creating(path, data, make), NODE_EXISTS)?;
        made.map(|answer| text(&mut answer.as_slice())).transpose()
    }

    /// Creates a node in a queue and lists the queue, in one round trip. Gives the node's path and
    /// the names of all children.
    pub fn stand(
        &mut self,
        line: &str,
        prefix: &str,
        data: &[u8],
    ) -> io::Result<(String, Vec<String>)> {
        let mut out = Vec::new();
        self.put(
            &mut out,
            CREATE,
            &creating(&format!("{line}/{prefix}"), data, Make::EphemeralSequential),
        );
        self.put(&mut out, GET_CHILDREN, &listing(line));
        self.stream.write_all(&out)?;
        let refused = || io::Error::other("ZooKeeper refuses a node");
        let made = self.answer(self.next - 1, 0)?.ok_or_else(refused)?;
        let listed = self.answer(self.next, 0)?.ok_or_else(refused)?;
        Ok((text(&mut made.as_slice())?, names(&listed)?))
    }

    /// Deletes a node of any session. Says whether it was there.
    pub fn delete(&mut self, path: &str) -> io::Result<bool> {
        Ok(self.ask(DELETE, &deleting(path), NO_NODE)?.is_some())
    }

    /// Watches a node, if it is there. Says whether it is.
    pub fn watch(&mut self, path: &str) -> io::Result<bool> {
        let mut body = Vec::new();
        put(&mut body, path.as_bytes());
        body.push(1);
        Ok(self.ask(EXISTS, &body, NO_NODE)?.is_some())
    }

    /// Waits until a watch fires, and gives its path.
    pub fn told(&mut self) -> io::Result<String> {
        if let Some(path) = self.told.pop_front() {
            return Ok(path);
        }
        let message = self.read()?;
        event(&message)?.ok_or_else(|| io::Error::other("an answer to no request"))
    }

    /// Makes a node below each of these, deletes it, and again, all at once on this one session:
    /// how often, until then.
    pub fn cycles(&mut self, parents: &[String], end: Instant) -> io::Result<u64> {
        let mut answers = BufReader::with_capacity(1 << 16, self.stream.try_clone()?);
        let (mut out, mut count) = (Vec::new(), 0);
        let create = |parent: &String| {
            creating(
                &format!("{parent}/node-"),
                b"raw",
                Make::EphemeralSequential,
            )
        };
        // In the order of their answers; with the parent while the node is made.
        let mut waiting = VecDeque::new();
        for parent in parents {
            self.put(&mut out, CREATE, &create(parent));
            waiting.push_back((parent, true));
        }
        while let Some((parent, is_made)) = waiting.pop_front() {
            if answers.buffer().is_empty() && !out.is_empty() {
                self.stream.write_all(&out)?;
                out.clear();
            }
            let message = read(&mut answers)?;
            let mut rest = message.as_slice();
            let (_number, _transaction, code) =
                (int(&mut rest)?, take::<8>(&mut rest)?, int(&mut rest)?);
            if code != 0 {
                return Err(io::Error::other(format!(
                    "ZooKeeper refuses with code {code}"
                )));
            }
            if is_made {
                self.put(&mut out, DELETE, &deleting(&text(&mut rest)?));
                waiting.push_back((parent, false));
                continue;
            }
            count += 1;
            if Instant::now() < end {
                self.put(&mut out, CREATE, &create(parent));
                waiting.push_back((parent, true));
            }
        }
        Ok(count)
    }

    /// Adds a request to those that go out together.
    fn put(&mut self, out: &mut Vec<u8>, kind: i32, body: &[u8]) {
        self.next += 1;
        let head = [self.next.to_be_bytes(), kind.to_be_bytes()].concat();
        put(out, &[&head, body].concat());
    }

    /// The names of a node's children; none when it is not there.
    pub fn children(&mut self, path: &str) -> io::Result<Vec<String>> {
        self.ask(GET_CHILDREN, &listing(path), NO_NODE)?
            .map_or(Ok(Vec::new()), |answer| names(&answer))
    }

    /// The body of the answer; nothing when the server refuses with this code.
    fn ask(&mut self, kind: i32, body: &[u8], refused: i32) -> io::Result<Option<Vec<u8>>> {
        self.next += 1;
        let mut request = Vec::with_capacity(body.len() + 8);
        request.extend(self.next.to_be_bytes());
        request.extend(kind.to_be_bytes());
        request.extend(body);
        self.write(&request)?;
        self.answer(self.next, refused)
    }

    fn answer(&mut self, asked: i32, refused: i32) -> io::Result<Option<Vec<u8>>> {
        let answer = loop {
            let message = self.read()?;
            match event(&message)? {
                Some(path) => self.told.push_back(path),
                None => break message,
            }
        };
        let mut rest = answer.as_slice();
        let (number, _transaction, code) =
            (int(&mut rest)?, take::<8>(&mut rest)?, int(&mut rest)?);
        match code {
            _ if number != asked => Err(io::Error::other(format!(
                "an answer to request {number}, and not {asked}"
            ))),
            0 => Ok(Some(rest.to_vec())),
            code if code == refused => Ok(None),
            code => Err(io::Error::other(format!(
                "ZooKeeper refuses with code {code}"
            ))),
        }
    }

    fn write(&mut self, message: &[u8]) -> io::Result<()> {
        let mut framed = Vec::with_capacity(message.len() + 4);
        put(&mut framed, message);
        self.stream.write_all(&framed)
    }

    fn read(&mut self) -> io::Result<Vec<u8>> {
        read(&mut self.stream)
    }
}

fn read(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let mut message = vec![0; u32::from_be_bytes(length) as usize];
    from.read_exact(&mut message)?;
    Ok(message)
}

fn creating(path: &str, data: &[u8], make: Make) -> Vec<u8> {
    let mut body = Vec::new();
    put(&mut body, path.as_bytes());
    put(&mut body, data);
    // One entry: all rights, for anyone.
    body.extend(1_i32.to_be_bytes());
    body.extend(31_i32.to_be_bytes());
    put(&mut body, b"world");
    put(&mut body, b"anyone");
    let flags: i32 = if make == Make::Persistent { 0 } else { 3 };
    body.extend(flags.to_be_bytes());
    body
}

fn deleting(path: &str) -> Vec<u8> {
    let mut body = Vec::new();
    put(&mut body, path.as_bytes());
    body.extend((-1_i32).to_be_bytes());
    body
}

/// Without a watch.
fn listing(path: &str) -> Vec<u8> {
    let mut body = Vec::new();
    put(&mut body, path.as_bytes());
    body.push(0);
    body
}

fn names(answer: &[u8]) -> io::Result<Vec<String>> {
    let mut rest = answer;
    (0..int(&mut rest)?).map(|_| text(&mut rest)).collect()
}

/// The path of a watch that has fired, if the message says so.
fn event(message: &[u8]) -> io::Result<Option<String>> {
    let mut rest = message;
    if int(&mut rest)? != EVENT {
        return Ok(None);
    }
    // The transaction and the error, then what happened and how the session is.
    take::<12>(&mut rest)?;
    take::<8>(&mut rest)?;
    text(&mut rest).map(Some)
}

impl Drop for Raw {
    fn drop(&mut self) {
        // Without it the session ends by itself, later.
        let _ = self.ask(CLOSE, &[], 0);
    }
}

/// Bytes with their number in front.
fn put(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend(u32::try_from(bytes.len()).expect("short").to_be_bytes());
    to.extend(bytes);
}

fn take<const N: usize>(rest: &mut &[u8]) -> io::Result<[u8; N]> {
    let (first, others) = rest
        .split_first_chunk::<N>()
        .ok_or(io::ErrorKind::UnexpectedEof)?;
    *rest = others;
    Ok(*first)
}

fn int(rest: &mut &[u8]) -> io::Result<i32> {
    take(rest).map(i32::from_be_bytes)
}

fn text(rest: &mut &[u8]) -> io::Result<String> {
    let length = usize::try_from(int(rest)?).map_err(io::Error::other)?;
    let (text, others) = rest
        .split_at_checked(length)
        .ok_or(io::ErrorKind::UnexpectedEof)?;
    *rest = others;
    String::from_utf8(text.to_vec()).map_err(io::Error::other)
}
