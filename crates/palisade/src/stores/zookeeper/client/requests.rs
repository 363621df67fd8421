//! The requests of a session: written to its connection, and matched with the answers.
//!
//! A caller writes its request to the socket itself if nothing else is in flight: that spares a
//! wake-up of the connection's task. Otherwise the connection's task writes everything that is
//! queued, in one piece.
//!
//! ```text
//! send ──► queue ──┬─ nothing in flight: written by the caller ──► socket
//!                  └─ otherwise: written by the task ────────────► socket
//! ```

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::{Notify, oneshot};

use super::failure::Failed;
use super::proto::{Frame, Reply};
use crate::error::{Error, ErrorKind};
use crate::lease::{BootClock, Clock, Moment};

pub(super) type Answer = Result<Reply, Failed>;

/// Shared by the callers of a session and the task that serves its connection.
#[derive(Default)]
pub(super) struct Connection {
    state: Mutex<State>,
    /// Wakes the connection's task.
    woken: Notify,
}

#[derive(Default)]
struct State {
    /// Not sent yet.
    queue: VecDeque<Queued>,
    /// Sent, and not answered yet.
    in_flight: VecDeque<InFlight>,
    /// Bytes of sent requests that the socket has not taken yet.
    unwritten: Vec<u8>,
    /// The number of the last request on this connection.
    xid: i32,
    link: Link,
    /// Whether the task will wake up in time to find an overdue answer.
    has_timer: bool,
    /// Whether a request was sent since the task last looked.
    is_busy: bool,
    end: Option<End>,
}

#[derive(Default)]
enum Link {
    /// No connection, but there may be another.
    #[default]
    Down,
    /// A connection that only its task writes to (TLS).
    Up,
    /// A connection that callers write to as well.
    Open(Arc<OwnedWriteHalf>),
    /// There will be no other connection.
    Closed,
}

/// How a session is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It is ended on the server.
    Close,
    /// It lives on until its time is over, or another client takes it up.
    Leave,
}

struct Queued {
    frame: Frame,
    reply: oneshot::Sender<Answer>,
    until: Moment,
}

/// A request that waits for its answer.
pub(super) struct InFlight {
    xid: i32,
    pub(super) sent: Moment,
    pub(super) op: i32,
    pub(super) by_leader: bool,
    until: Moment,
    /// Taken when the caller was told that the answer is late.
    reply: Option<oneshot::Sender<Answer>>,
}

impl InFlight {
    /// The caller may have left.
    pub(super) fn answer(self, answer: Answer) {
        if let Some(reply) = self.reply {
            drop(reply.send(answer));
        }
    }
}

/// What the connection's task finds when it looks at the time.
pub(super) enum Timing {
    /// When to look again, if at all.
    LookAt(Option<Moment>),
    /// The server has not answered in time.
    Overdue,
}

/// Called without the lock: it runs the caller's waker.
fn tell_late(reply: oneshot::Sender<Answer>) {
    drop(reply.send(Err(Failed::Unsure(Error::unavailable(
        "ZooKeeper has not answered in time",
    )))));
}

impl Connection {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a request, which leaves with the next [`flush`](Connection::flush) and waits for its
    /// answer until then. If no answer can come any more, the sender of the receiver is dropped.
    pub(super) fn queue(&self, frame: Frame, until: Moment) -> oneshot::Receiver<Answer> {
        let (reply, answer) = oneshot::channel();
        let mut state = self.lock();
        if !matches!(state.link, Link::Closed) {
            state.queue.push_back(Queued {
                frame,
                reply,
                until,
            });
        }
        answer
    }

    /// Sends what is queued. Never waits: what the socket does not take at once is left to the
    /// connection's task.
    pub(super) fn flush(&self) {
        let mut state = self.lock();
        if state.queue.is_empty() {
            return;
        }
        let is_quiet = state.in_flight.is_empty() && state.unwritten.is_empty();
        let wakes_task = match &state.link {
            Link::Open(socket) if is_quiet => {
                let socket = Arc::clone(socket);
                state.write_queue();
                let taken = socket.try_write(&state.unwritten).unwrap_or(0);
                state.unwritten.drain(..taken);
                // An error comes again when the task writes.
                !state.unwritten.is_empty() || !std::mem::replace(&mut state.has_timer, true)
            }
            _ => true,
        };
        drop(state);
        if wakes_task {
            self.woken.notify_one();
        }
    }

    /// Gives up the session.
    pub(super) fn end(&self, end: End) {
        self.lock().end.get_or_insert(end);
        self.woken.notify_one();
    }

    // For the connection's task.

    /// There is a connection. Callers write to it as well if its socket is given.
    pub(super) fn opened(&self, socket: Option<Arc<OwnedWriteHalf>>) {
        let mut state = self.lock();
        state.link = socket.map_or(Link::Up, Link::Open);
        (state.xid, state.has_timer) = (0, false);
        drop(state);
        // Requests were queued meanwhile.
        self.woken.notify_one();
    }

    /// Returns when there is something to write, to time, or to end.
    pub(super) async fn woken(&self) {
        self.woken.notified().await;
    }

    /// The bytes to write, and how the session ends, if it does.
    pub(super) fn take_output(&self) -> (Vec<u8>, Option<End>) {
        let mut state = self.lock();
        state.write_queue();
        if state.end == Some(End::Close) {
            let xid = state.next_xid();
            Frame::close().write(xid, &mut state.unwritten);
        }
        (std::mem::take(&mut state.unwritten), state.end)
    }

    /// The request that the server has answered; `None` when it was none of ours, or out of order.
    pub(super) fn answered(&self, xid: i32) -> Option<InFlight> {
        self.lock()
            .in_flight
            .pop_front()
            .filter(|request| request.xid == xid)
    }

    /// Looks for late answers, and says when to look next. `limit` is how long the server may take.
    pub(super) fn check_time(&self, now: Moment, limit: Duration) -> Timing {
        let mut state = self.lock();
        let is_busy = std::mem::take(&mut state.is_busy);
        let Some(first) = state.in_flight.front() else {
            // Callers wake the task only if it has no timer: not for each request.
            state.has_timer = is_busy;
            return Timing::LookAt(is_busy.then(|| now + limit));
        };
        let overdue = first.sent + limit;
        if overdue <= now {
            return Timing::Overdue;
        }
        state.has_timer = true;
        let (mut next, mut late) = (overdue, Vec::new());
        for request in &mut state.in_flight {
            if request.reply.is_some() && request.until > now {
                next = next.min(request.until);
                break;
            }
            late.extend(request.reply.take());
        }
        drop(state);
        late.into_iter().for_each(tell_late);
        Timing::LookAt(Some(next))
    }

    /// Tells callers that their time is over while there is no connection. Never ends.
    pub(super) async fn expire_queue(&self) -> ! {
        loop {
            let now = BootClock.now();
            let (next, late) = {
                let mut state = self.lock();
                let count = state
                    .queue
                    .iter()
                    .take_while(|queued| queued.until <= now)
                    .count();
                let late: Vec<Queued> = state.queue.drain(..count).collect();
                (
                    state.queue.front().map(|queued| queued.until.since(now)),
                    late,
                )
            };
            late.into_iter().for_each(|late| tell_late(late.reply));
            match next {
                Some(left) => drop(tokio::time::timeout(left, self.woken()).await),
                None => self.woken().await,
            }
        }
    }

    /// The connection is lost: no answer will come to what is in flight. It may have been done,
    /// except behind a login that was refused.
    pub(super) fn lost(&self, error: &Error) {
        let in_flight = {
            let mut state = self.lock();
            state.link = Link::Down;
            state.unwritten.clear();
            std::mem::take(&mut state.in_flight)
        };
        for request in in_flight {
            request.answer(Err(match error.kind() {
                ErrorKind::Denied => Failed::Never(error.clone()),
                _ => Failed::Unsure(error.clone()),
            }));
        }
    }

    /// There will be no other connection.
    pub(super) fn closed(&self) {
        let requests = {
            let mut state = self.lock();
            state.link = Link::Closed;
            (
                std::mem::take(&mut state.in_flight),
                std::mem::take(&mut state.queue),
            )
        };
        // Without the lock: the callers' wakers run, and may send again.
        drop(requests);
    }
}

impl State {
    fn next_xid(&mut self) -> i32 {
        self.xid = self.xid.checked_add(1).unwrap_or(1);
        self.xid
    }

    /// Encodes what is queued. A request whose caller has left is never sent.
    fn write_queue(&mut self) {
        // Dated before it is sent.
        let sent = BootClock.now();
        while let Some(Queued {
            frame,
            reply,
            until,
        }) = self.queue.pop_front()
        {
            if reply.is_closed() {
                continue;
            }
            let xid = self.next_xid();
            frame.write(xid, &mut self.unwritten);
            let Frame { op, by_leader, .. } = frame;
            self.in_flight.push_back(InFlight {
                xid,
                sent,
                op,
                by_leader,
                until,
                reply: Some(reply),
            });
            self.is_busy = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};

    use super::super::proto::Request;
    use super::*;

    const LATER: Duration = Duration::from_secs(60);

    /// A connection that callers write to, and its other end.
    async fn open() -> (Connection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let (theirs, _) = listener.accept().await.unwrap();
        let connection = Connection::default();
        connection.opened(Some(Arc::new(ours.into_split().1)));
        (connection, theirs)
    }

    fn send(connection: &Connection, path: &str) -> oneshot::Receiver<Answer> {
        let answer = connection.queue(Request::sync(path).frame, BootClock.now() + LATER);
        connection.flush();
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
    async fn a_single_caller_writes_and_the_task_writes_for_several() {
        let (connection, mut theirs) = open().await;
        let first = send(&connection, "/");
        assert_eq!(arrives(&mut theirs).await.0, 1);
        let others = [send(&connection, "/"), send(&connection, "/")];
        let (out, end) = connection.take_output();
        assert_eq!((out.len(), end), (2 * 17, None), "both in one piece");
        connection.answered(1).unwrap().answer(Ok(Reply {
            zxid: 7,
            body: Vec::new(),
        }));
        assert_eq!(first.await.unwrap().ok().unwrap().zxid, 7);
        assert!(connection.answered(3).is_none(), "out of order");
        connection.closed();
        for other in others {
            assert!(other.await.is_err(), "there will be no answer");
        }
    }

    #[tokio::test]
    async fn a_request_whose_caller_left_is_not_written() {
        let (connection, mut theirs) = open().await;
        let first = send(&connection, "/");
        assert_eq!(arrives(&mut theirs).await.0, 1);
        drop((send(&connection, "/left"), first));
        assert_eq!(connection.take_output(), (Vec::new(), None));
    }

    #[tokio::test]
    async fn bytes_that_the_socket_does_not_take_are_left_to_the_task() {
        let (connection, mut theirs) = open().await;
        let long = "x".repeat(32 << 20);
        let _answer = send(&connection, &long);
        let (rest, _) = connection.take_output();
        assert!(
            !rest.is_empty() && rest.len() < long.len(),
            "{} are left",
            rest.len()
        );
        let mut taken = vec![0; 16 + long.len() - rest.len()];
        theirs.read_exact(&mut taken).await.unwrap();
        assert_eq!(
            theirs.try_read(&mut [0]).unwrap_err().kind(),
            std::io::ErrorKind::WouldBlock,
            "nothing is there twice"
        );
    }

    #[tokio::test]
    async fn a_caller_that_waits_too_long_is_told() {
        let (connection, _theirs) = open().await;
        let (now, limit) = (BootClock.now(), Duration::from_secs(30));
        let late = connection.queue(Request::sync("/").frame, now + Duration::from_secs(1));
        connection.flush();
        let Timing::LookAt(Some(next)) = connection.check_time(now, limit) else {
            panic!("a request is in flight")
        };
        assert_eq!(next, now + Duration::from_secs(1));
        assert!(
            matches!(connection.check_time(next, limit), Timing::LookAt(Some(_))),
            "its answer may still come"
        );
        assert!(matches!(late.await.unwrap(), Err(Failed::Unsure(_))));
        assert!(matches!(
            connection.check_time(now + LATER, limit),
            Timing::Overdue
        ));
    }
}
