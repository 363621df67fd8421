//! The one keep-alive stream of a client: requests go out, and responses come back in the same
//! order.
//!
//! A leader answers a keep-alive out of its memory. One that was paused or cut off may not know yet
//! that another leads, which has not heard of this renewal and ends the lease sooner. So a
//! keep-alive counts only if no other leader was elected before it:
//!
//! ```text
//! keep-alive sent ─► the member notes its term ─► the leader renews ─► response ─► linearizable read, made by a majority
//!                    T                                                             T: it counts. Else it is sent again
//! ```
//!
//! A member that has applied an entry of term T asks no leader of an earlier term. And a majority
//! that serves the leader of term T after the renewal had not elected another one before it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::cluster::Cluster;
use super::proto::{LEASE_KEEP_ALIVE, LeaseKeepAliveRequest, LeaseKeepAliveResponse};
use super::spawn;
use crate::error::{Error, Result};
use crate::lease::{BootClock, Clock, Moment};

/// Before a keep-alive is sent again because of a new leader.
const NEW_LEADER: Duration = Duration::from_millis(20);

/// A renewal that a majority stands behind.
pub(crate) struct Renewed {
    /// When the keep-alive was sent.
    pub(crate) sent: Moment,
    /// For how many seconds from then on; 0 when the lease has ended.
    pub(crate) left: i64,
}

pub(crate) struct KeepAlive {
    cluster: Arc<Cluster>,
    stream: Mutex<Option<Arc<Stream>>>,
}

/// One stream, from its opening to its end.
struct Stream {
    /// The member that it goes to.
    member: usize,
    out: mpsc::UnboundedSender<LeaseKeepAliveRequest>,
    pending: Mutex<Pending>,
}

#[derive(Default)]
struct Pending {
    /// Leases whose response is awaited, in the order of the requests.
    requests: VecDeque<(i64, oneshot::Sender<Result<LeaseKeepAliveResponse>>)>,
    /// Why no response will come any more.
    ended: Option<Error>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl KeepAlive {
    pub(crate) fn new(cluster: &Arc<Cluster>) -> KeepAlive {
        KeepAlive {
            cluster: Arc::clone(cluster),
            stream: Mutex::new(None),
        }
    }

    /// Renews a lease. `key` is read to see which leader has a majority: the user must have the
    /// right to read it.
    pub(crate) async fn renew(&self, lease: i64, key: &[u8], limit: Duration) -> Result<Renewed> {
        let mut member = self.cluster.current();
        let renewing = async {
            let mut attempt = 1;
            loop {
                let stream = self.stream();
                member = stream.member;
                let sent = BootClock.now();
                match stream.renew(lease).await {
                    Ok(response) => {
                        let term = response.header.as_ref().map(|header| header.raft_term);
                        if term.is_some() && term == self.cluster.term(key).await? {
                            return Ok(Renewed {
                                sent,
                                left: response.ttl,
                            });
                        }
                        tokio::time::sleep(NEW_LEADER).await;
                        continue;
                    }
                    Err(error) => self.give_up(&stream, error),
                }
                // Another member may answer; and a stream that was open before may have died
                // unnoticed.
                if attempt >= self.cluster.attempts() {
                    return Err(stream.why());
                }
                attempt += 1;
            }
        };
        match tokio::time::timeout(limit, renewing).await {
            Ok(outcome) => outcome,
            Err(_) => {
                let silent = self.cluster.silent(member);
                let hung = locked(&self.stream)
                    .clone()
                    .filter(|stream| stream.member == member);
                if let Some(stream) = hung {
                    self.give_up(&stream, silent.clone());
                }
                self.cluster.turn_from(member);
                Err(silent)
            }
        }
    }

    /// The stream, opened when there is none.
    fn stream(&self) -> Arc<Stream> {
        let mut current = locked(&self.stream);
        if let Some(stream) = &*current
            && locked(&stream.pending).ended.is_none()
        {
            return Arc::clone(stream);
        }
        let (out, requests) = mpsc::unbounded_channel();
        let stream = Arc::new(Stream {
            member: self.cluster.current(),
            out,
            pending: Mutex::default(),
        });
        spawn(run(
            Arc::clone(&self.cluster),
            Arc::clone(&stream),
            requests,
        ));
        *current = Some(Arc::clone(&stream));
        stream
    }

    fn give_up(&self, stream: &Arc<Stream>, why: Error) {
        stream.end(why);
        let mut current = locked(&self.stream);
        if current
            .as_ref()
            .is_some_and(|current| Arc::ptr_eq(current, stream))
        {
            *current = None;
        }
    }
}

impl Stream {
    async fn renew(&self, lease: i64) -> Result<LeaseKeepAliveResponse> {
        let (reply, response) = oneshot::channel();
        {
            let mut pending = locked(&self.pending);
            if let Some(ended) = &pending.ended {
                return Err(ended.clone());
            }
            pending.requests.push_back((lease, reply));
            // Under the lock, so that the order is the same. If it cannot be sent, the end of the
            // stream answers it.
            let _ = self.out.send(LeaseKeepAliveRequest { id: lease });
        }
        response.await.unwrap_or_else(|_| Err(self.why()))
    }

    fn receive(&self, response: LeaseKeepAliveResponse) {
        let mut pending = locked(&self.pending);
        // A response without a request must not put all others out of step.
        while let Some((lease, reply)) = pending.requests.pop_front() {
            if lease == response.id {
                let _ = reply.send(Ok(response));
                return;
            }
        }
    }

    fn end(&self, why: Error) {
        let mut pending = locked(&self.pending);
        let why = pending.ended.get_or_insert(why).clone();
        for (_, reply) in pending.requests.drain(..) {
            let _ = reply.send(Err(why.clone()));
        }
    }

    fn why(&self) -> Error {
        locked(&self.pending)
            .ended
            .clone()
            .unwrap_or_else(|| Error::unavailable("the keep-alive stream has ended"))
    }
}

async fn run(
    cluster: Arc<Cluster>,
    stream: Arc<Stream>,
    requests: mpsc::UnboundedReceiver<LeaseKeepAliveRequest>,
) {
    let member = stream.member;
    let opened = cluster
        .open::<_, LeaseKeepAliveResponse>(member, LEASE_KEEP_ALIVE, requests)
        .await;
    // From here on only its owner holds it: a stream that was given up ends.
    let weak = Arc::downgrade(&stream);
    drop(stream);
    let why = match opened {
        Err(error) => error,
        Ok(mut responses) => loop {
            let next = responses.message().await;
            let Some(stream) = weak.upgrade() else { return };
            match next {
                Ok(Some(response)) => stream.receive(response),
                Ok(None) => {
                    break cluster
                        .stream_ended(member, &tonic::Status::unavailable("the stream has ended"));
                }
                Err(status) => break cluster.stream_ended(member, &status),
            }
        },
    };
    if let Some(stream) = weak.upgrade() {
        stream.end(why);
    }
}
