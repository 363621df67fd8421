//! What is asked on a session: written to its connection, and matched with the answers.
//!
//! Whoever asks writes to the socket himself, if nothing else is on its way: that spares the connection's task a wake, and him the time
//! until it has woken. Otherwise the connection's task writes, all that has gathered in one go.
//!
//! ```text
//! asks ──► pending ──┬─ nothing on its way: by whoever asks ──► socket
//!                    └─ else: by the connection's task ───────► socket
//! ```

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::{Notify, oneshot};

use super::failure::Failed;
use super::proto::Request;
use crate::error::{Error, ErrorKind};
use crate::lease::{BootClock, Clock, Moment};

pub(super) type Answer = Result<Reply, Failed>;

/// A good answer.
pub(super) struct Reply {
    /// The newest transaction that the server had done: its own, for a request that is one.
    pub(super) zxid: i64,
    pub(super) body: Vec<u8>,
}

/// Shared by all who ask on a session and the task that serves its connection.
#[derive(Default)]
pub(super) struct Pipe {
    state: Mutex<State>,
    /// Wakes the connection's task.
    stirred: Notify,
}

#[derive(Default)]
struct State {
    /// Not sent yet.
    pending: VecDeque<Pending>,
    /// Sent, and not answered yet.
    flights: VecDeque<Flight>,
    /// Of what is sent: what the socket has not taken yet.
    rest: Vec<u8>,
    /// The number of the last request on this connection.
    xid: i32,
    link: Link,
    /// Whether the connection's task will look in time whether something is overdue.
    is_timed: bool,
    /// Whether anything was sent since it looked.
    is_busy: bool,
    end: Option<End>,
}

/// What there is to write to.
#[derive(Default)]
enum Link {
    /// No connection, but there may be one.
    #[default]
    Down,
    /// A connection that only its task writes to.
    Up,
    /// A connection that anybody may write to.
    Open(Arc<OwnedWriteHalf>),
    /// There will be none any more.
    Over,
}

/// How a session is let go of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Nobody has it any more: it is ended.
    Close,
    /// It lives on until its time is over, or somebody takes it up.
    Leave,
}

struct Pending {
    request: Request,
    reply: oneshot::Sender<Answer>,
    until: Moment,
}

/// A request that waits for its answer.
pub(super) struct Flight {
    xid: i32,
    pub(super) sent: Moment,
    pub(super) op: i32,
    pub(super) by_leader: bool,
    until: Moment,
    /// Taken when it is too late for an answer, and nobody waits for it any more.
    reply: Option<oneshot::Sender<Answer>>,
}

impl Flight {
    /// Whoever asked may have left.
    pub(super) fn answer(self, answer: Answer) {
        if let Some(reply) = self.reply {
            drop(reply.send(answer));
        }
    }
}

/// What the connection's task finds when it looks at the time.
pub(super) enum Look {
    /// To look again then, if at all.
    At(Option<Moment>),
    /// The server has not answered in time.
    Overdue,
}

/// Without the lock: this runs the waker of whoever waits.
fn tell_late(reply: oneshot::Sender<Answer>) {
    drop(reply.send(Err(Failed::Unsure(Error::unavailable("ZooKeeper has not answered in time")))));
}

impl Pipe {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a request up, which leaves with the next [`flush`](Pipe::flush). Until then it waits for an answer; if none can come any
    /// more, the receiver hears of no answer.
    pub(super) fn ask(&self, request: Request, until: Moment) -> oneshot::Receiver<Answer> {
        let (reply, answer) = oneshot::channel();
        let mut state = self.lock();
        if !matches!(state.link, Link::Over) {
            state.pending.push_back(Pending { request, reply, until });
        }
        answer
    }

    /// Sends what was asked. Never waits: what the socket does not take at once is left to the connection's task.
    pub(super) fn flush(&self) {
        let mut state = self.lock();
        if state.pending.is_empty() {
            return;
        }
        let is_quiet = state.flights.is_empty() && state.rest.is_empty();
        let stirs = match &state.link {
            Link::Open(socket) if is_quiet => {
                let socket = Arc::clone(socket);
                state.write_pending();
                let taken = socket.try_write(&state.rest).unwrap_or(0);
                state.rest.drain(..taken);
                // An error comes again when the task writes.
                !state.rest.is_empty() || !std::mem::replace(&mut state.is_timed, true)
            }
            _ => true,
        };
        drop(state);
        if stirs {
            self.stirred.notify_one();
        }
    }

    /// Lets go of the session.
    pub(super) fn end(&self, end: End) {
        self.lock().end.get_or_insert(end);
        self.stirred.notify_one();
    }

    // For the connection's task.

    /// There is a connection, which others may write to as well if its socket is given.
    pub(super) fn is_up(&self, socket: Option<Arc<OwnedWriteHalf>>) {
        let mut state = self.lock();
        state.link = socket.map_or(Link::Up, Link::Open);
        (state.xid, state.is_timed) = (0, false);
        drop(state);
        // What was asked meanwhile.
        self.stirred.notify_one();
    }

    /// Returns when there is something to write, to look after, or to end.
    pub(super) async fn stirred(&self) {
        self.stirred.notified().await;
    }

    /// What is to be written, and how the session ends, if it does.
    pub(super) fn outgoing(&self) -> (Vec<u8>, Option<End>) {
        let mut state = self.lock();
        state.write_pending();
        if state.end == Some(End::Close) {
            let xid = state.next_xid();
            Request::close().write(xid, &mut state.rest);
        }
        (std::mem::take(&mut state.rest), state.end)
    }

    /// The request that the server has answered; `None` when it was none of ours, or out of order.
    pub(super) fn answered(&self, xid: i32) -> Option<Flight> {
        self.lock().flights.pop_front().filter(|flight| flight.xid == xid)
    }

    /// Looks whether an answer is overdue, and when to look next. `limit` is how long an answer may take.
    pub(super) fn look(&self, now: Moment, limit: Duration) -> Look {
        let mut state = self.lock();
        let is_busy = std::mem::take(&mut state.is_busy);
        let Some(first) = state.flights.front() else {
            // Whoever asks does not wake us for each request: only if we would not look in time.
            state.is_timed = is_busy;
            return Look::At(is_busy.then(|| now + limit));
        };
        let overdue = first.sent + limit;
        if overdue <= now {
            return Look::Overdue;
        }
        state.is_timed = true;
        let (mut next, mut late) = (overdue, Vec::new());
        for flight in &mut state.flights {
            if flight.reply.is_some() && flight.until > now {
                next = next.min(flight.until);
                break;
            }
            late.extend(flight.reply.take());
        }
        drop(state);
        late.into_iter().for_each(tell_late);
        Look::At(Some(next))
    }

    /// Tells those who ask while there is no connection when it is too late for them. Never ends.
    pub(super) async fn tell_the_late(&self) -> ! {
        loop {
            let now = BootClock.now();
            let (next, late) = {
                let mut state = self.lock();
                let count = state.pending.iter().take_while(|pending| pending.until <= now).count();
                let late: Vec<Pending> = state.pending.drain(..count).collect();
                (state.pending.front().map(|pending| pending.until.since(now)), late)
            };
            late.into_iter().for_each(|late| tell_late(late.reply));
            match next {
                Some(left) => drop(tokio::time::timeout(left, self.stirred()).await),
                None => self.stirred().await,
            }
        }
    }

    /// The connection is lost. Everybody who waits for an answer is told that none will come. What was sent may have been done, except
    /// behind a login that was refused.
    pub(super) fn is_lost(&self, error: &Error) {
        let flights = {
            let mut state = self.lock();
            state.link = Link::Down;
            state.rest.clear();
            std::mem::take(&mut state.flights)
        };
        for flight in flights {
            flight.answer(Err(match error.kind() {
                ErrorKind::Denied => Failed::Never(error.clone()),
                _ => Failed::Unsure(error.clone()),
            }));
        }
    }

    /// There will be no connection any more.
    pub(super) fn is_over(&self) {
        let (flights, pending) = {
            let mut state = self.lock();
            state.link = Link::Over;
            (std::mem::take(&mut state.flights), std::mem::take(&mut state.pending))
        };
        // Their wakers run, and may ask again.
        drop((flights, pending));
    }
}

impl State {
    fn next_xid(&mut self) -> i32 {
        self.xid = self.xid.checked_add(1).unwrap_or(1);
        self.xid
    }

    /// Puts what is pending behind what is to be written. Whoever has left meanwhile is not asked for.
    fn write_pending(&mut self) {
        // Dated before it is sent.
        let sent = BootClock.now();
        while let Some(Pending { request, reply, until }) = self.pending.pop_front() {
            if reply.is_closed() {
                continue;
            }
            let xid = self.next_xid();
            request.write(xid, &mut self.rest);
            let Request { op, by_leader, .. } = request;
            self.flights.push_back(Flight { xid, sent, op, by_leader, until, reply: Some(reply) });
            self.is_busy = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    const LATER: Duration = Duration::from_secs(60);

    /// A connection that anybody may write to, and its other end.
    async fn open() -> (Pipe, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (theirs, _) = listener.accept().await.unwrap();
        let pipe = Pipe::default();
        pipe.is_up(Some(Arc::new(ours.into_split().1)));
        (pipe, theirs)
    }

    fn asked(pipe: &Pipe, request: Request) -> oneshot::Receiver<Answer> {
        let answer = pipe.ask(request, BootClock.now() + LATER);
        pipe.flush();
        answer
    }

    /// The number of the next request, and how long it is.
    async fn arrives(theirs: &mut TcpStream) -> (i32, usize) {
        let length = theirs.read_u32().await.unwrap() as usize;
        let mut message = vec![0; length];
        theirs.read_exact(&mut message).await.unwrap();
        (i32::from_be_bytes(*message.first_chunk().unwrap()), length)
    }

    #[tokio::test]
    async fn who_asks_alone_writes_and_others_are_written_for() {
        let (pipe, mut theirs) = open().await;
        let first = asked(&pipe, Request::sync("/"));
        assert_eq!(arrives(&mut theirs).await.0, 1);
        let others = [asked(&pipe, Request::sync("/")), asked(&pipe, Request::sync("/"))];
        let (out, end) = pipe.outgoing();
        assert_eq!((out.len(), end), (2 * 17, None), "both in one piece");
        pipe.answered(1).unwrap().answer(Ok(Reply { zxid: 7, body: Vec::new() }));
        assert_eq!(first.await.unwrap().ok().unwrap().zxid, 7);
        assert!(pipe.answered(3).is_none(), "out of order");
        pipe.is_over();
        for other in others {
            assert!(other.await.is_err(), "there will be no answer");
        }
    }

    #[tokio::test]
    async fn what_the_socket_does_not_take_is_left_to_the_task() {
        let (pipe, mut theirs) = open().await;
        let long = "x".repeat(32 << 20);
        let _answer = asked(&pipe, Request::sync(&long));
        let (rest, _) = pipe.outgoing();
        assert!(!rest.is_empty() && rest.len() < long.len(), "{} are left", rest.len());
        let mut taken = vec![0; 16 + long.len() - rest.len()];
        theirs.read_exact(&mut taken).await.unwrap();
        assert_eq!(theirs.try_read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "nothing is there twice");
    }

    #[tokio::test]
    async fn who_waits_too_long_is_told() {
        let (pipe, _theirs) = open().await;
        let (now, limit) = (BootClock.now(), Duration::from_secs(30));
        let late = pipe.ask(Request::sync("/"), now + Duration::from_secs(1));
        pipe.flush();
        let Look::At(Some(next)) = pipe.look(now, limit) else { panic!("something is on its way") };
        assert_eq!(next, now + Duration::from_secs(1));
        assert!(matches!(pipe.look(next, limit), Look::At(Some(_))), "its answer may still come");
        assert!(matches!(late.await.unwrap(), Err(Failed::Unsure(_))));
        assert!(matches!(pipe.look(now + LATER, limit), Look::Overdue));
    }
}
