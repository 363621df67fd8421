//! A TCP relay that makes the server seem as far away as a network would: it delivers every byte
//! half a round trip late.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use palisade_testkit::redis::Redis;
//! use palisade_testkit::relay::Relay;
//!
//! let redis = Redis::start();
//! let relay = Relay::start(redis.address(), Duration::from_micros(200));
//! // Let the client connect to relay.address().
//! ```
//!
//! [`crate::proxy::Proxy`] delays, too, but by tokio's timers, which count in milliseconds. Here
//! each direction of each connection has a thread that reads and stamps what comes, and a thread
//! that sleeps until it is due. So order is kept, a delay is as exact as the kernel's timers, and
//! throughput is not limited: the time between two chunks stays what it was.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::error::OrPanic;

/// The size of one read: as much as a busy connection has ready.
const CHUNK: usize = 64 * 1024;

/// Chunks in flight in one direction. A network holds only so much; then the sender waits.
const IN_FLIGHT: usize = 4096;

/// The relay. Dropping it closes all its connections.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct State {
    target: SocketAddr,
    /// The delay of one direction.
    delay: Duration,
    over: AtomicBool,
    open: Mutex<Vec<Weak<Connection>>>,
}

/// Both ends; the sockets close when the last thread of the connection ends.
#[derive(Debug)]
struct Connection {
    client: TcpStream,
    server: TcpStream,
}

/// Bytes, or the end of the stream if there are none.
struct Chunk {
    due: Instant,
    bytes: Vec<u8>,
}

impl Relay {
    /// Starts one in front of a server that shall answer after this round trip time, and what it
    /// needs itself.
    ///
    /// # Panics
    ///
    /// When it does not start.
    #[must_use]
    pub fn start(target: SocketAddr, rtt: Duration) -> Self {
        Self::listen(target, rtt).or_panic()
    }

    fn listen(target: SocketAddr, rtt: Duration) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let state = State {
            target,
            delay: rtt / 2,
            over: AtomicBool::new(false),
            open: Mutex::default(),
        };
        let state = Arc::new(state);
        let accepting = Arc::clone(&state);
        let thread = spawn("relay-accept", move || accepting.accept(&listener))?;
        Ok(Self {
            address,
            state,
            thread: Some(thread),
        })
    }

    /// Where clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.state.over.store(true, Ordering::SeqCst);
        // Ends the wait for the next connection.
        TcpStream::connect(self.address).ok();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
        for connection in self.state.open().iter().filter_map(Weak::upgrade) {
            connection.close();
        }
    }
}

impl State {
    fn accept(&self, listener: &TcpListener) {
        for client in listener.incoming().flatten() {
            if self.over.load(Ordering::SeqCst) {
                return;
            }
            // If the server is not there, the client sees its connection end.
            self.carry(client).ok();
        }
    }

    fn carry(&self, client: TcpStream) -> io::Result<()> {
        let server = TcpStream::connect(self.target)?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let connection = Arc::new(Connection { client, server });
        let mut open = self.open();
        open.retain(|other| other.strong_count() > 0);
        open.push(Arc::downgrade(&connection));
        connection.pump(self.delay, |connection| {
            (&connection.client, &connection.server)
        })?;
        connection.pump(self.delay, |connection| {
            (&connection.server, &connection.client)
        })
    }

    fn open(&self) -> MutexGuard<'_, Vec<Weak<Connection>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    /// Carries one direction: from the first of the two to the second.
    fn pump(
        self: &Arc<Self>,
        delay: Duration,
        ends: fn(&Self) -> (&TcpStream, &TcpStream),
    ) -> io::Result<()> {
        let (sender, receiver) = sync_channel(IN_FLIGHT);
        let (reading, writing) = (Arc::clone(self), Arc::clone(self));
        spawn("relay-read", move || read(ends(&reading).0, delay, &sender))?;
        spawn("relay-write", move || {
            // One end is gone, and so nothing can be carried either way.
            if write(ends(&writing).1, &receiver).is_err() {
                writing.close();
            }
        })?;
        Ok(())
    }

    fn close(&self) {
        self.client.shutdown(Shutdown::Both).ok();
        self.server.shutdown(Shutdown::Both).ok();
    }
}

/// Until the end of the stream, or of the thread that writes.
fn read(mut from: &TcpStream, delay: Duration, chunks: &SyncSender<Chunk>) {
    let mut buffer = vec![0; CHUNK];
    loop {
        let length = match from.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // A reset is passed on as an end.
            read => read.unwrap_or(0),
        };
        let chunk = Chunk {
            due: Instant::now() + delay,
            bytes: buffer[..length].to_vec(),
        };
        if chunks.send(chunk).is_err() || length == 0 {
            return;
        }
    }
}

fn write(mut to: &TcpStream, chunks: &Receiver<Chunk>) -> io::Result<()> {
    // Else the kernel may wake this thread 50 µs late, to save power.
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
    for Chunk { due, bytes } in chunks {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if bytes.is_empty() {
            return to.shutdown(Shutdown::Write);
        }
        to.write_all(&bytes)?;
    }
    Ok(())
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name.into()).spawn(work)
}
