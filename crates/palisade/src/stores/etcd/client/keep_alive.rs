//! The one keep-alive stream of a client: questions go out and answers come back in the same order.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::cluster::Cluster;
use super::proto::{LEASE_KEEP_ALIVE, LeaseKeepAliveRequest, LeaseKeepAliveResponse};
use crate::error::{Error, Result};

pub(crate) struct KeepAlive {
    cluster: Arc<Cluster>,
    stream: Mutex<Option<Arc<Stream>>>,
}

/// One stream, from its opening to its end.
struct Stream {
    /// The member that it goes to.
    place: usize,
    out: mpsc::UnboundedSender<LeaseKeepAliveRequest>,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    /// Who waits for an answer, in the order of the questions.
    questions: VecDeque<(i64, oneshot::Sender<Result<i64>>)>,
    /// Why no answer will come any more.
    ended: Option<Error>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl KeepAlive {
    pub(crate) fn new(cluster: &Arc<Cluster>) -> Arc<KeepAlive> {
        Arc::new(KeepAlive { cluster: Arc::clone(cluster), stream: Mutex::new(None) })
    }

    /// Renews a lease, and says for how many seconds; 0 when it has ended.
    pub(crate) async fn beat(&self, lease: i64, limit: Duration) -> Result<i64> {
        let mut place = self.cluster.current();
        let beating = async {
            let mut attempt = 1;
            loop {
                let stream = self.stream();
                place = stream.place;
                match stream.ask(lease).await {
                    Ok(left) => return Ok(left),
                    Err(error) => self.give_up(&stream, error.clone()),
                }
                // Another member may answer; and a stream that was open before may have died unnoticed.
                if attempt >= self.cluster.attempts() {
                    return Err(stream.why());
                }
                attempt += 1;
            }
        };
        match tokio::time::timeout(limit, beating).await {
            Ok(answer) => answer,
            Err(_) => {
                let silent = self.cluster.silent(place);
                let hung = locked(&self.stream).clone().filter(|stream| stream.place == place);
                if let Some(stream) = hung {
                    self.give_up(&stream, silent.clone());
                }
                self.cluster.turn_from(place);
                Err(silent)
            }
        }
    }

    /// The stream, opened when there is none.
    fn stream(&self) -> Arc<Stream> {
        let mut current = locked(&self.stream);
        if let Some(stream) = &*current
            && locked(&stream.waiting).ended.is_none()
        {
            return Arc::clone(stream);
        }
        let (out, questions) = mpsc::unbounded_channel();
        let stream = Arc::new(Stream { place: self.cluster.current(), out, waiting: Mutex::default() });
        self.cluster.lanes.spawn(run(Arc::clone(&self.cluster), Arc::clone(&stream), questions));
        *current = Some(Arc::clone(&stream));
        stream
    }

    fn give_up(&self, stream: &Arc<Stream>, why: Error) {
        stream.end(why);
        let mut current = locked(&self.stream);
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, stream)) {
            *current = None;
        }
    }
}

impl Stream {
    async fn ask(&self, lease: i64) -> Result<i64> {
        let (reply, answer) = oneshot::channel();
        {
            let mut waiting = locked(&self.waiting);
            if let Some(ended) = &waiting.ended {
                return Err(ended.clone());
            }
            waiting.questions.push_back((lease, reply));
            // Under the lock, so that the order is the same. One that cannot be sent any more is answered by the stream's end.
            let _ = self.out.send(LeaseKeepAliveRequest { id: lease });
        }
        answer.await.unwrap_or_else(|_| Err(self.why()))
    }

    fn answered(&self, answer: &LeaseKeepAliveResponse) {
        let mut waiting = locked(&self.waiting);
        // An answer that nobody asked for would put all others out of step.
        while let Some((lease, reply)) = waiting.questions.pop_front() {
            if lease == answer.id {
                let _ = reply.send(Ok(answer.ttl));
                return;
            }
        }
    }

    fn end(&self, why: Error) {
        let mut waiting = locked(&self.waiting);
        let why = waiting.ended.get_or_insert(why).clone();
        for (_, reply) in waiting.questions.drain(..) {
            let _ = reply.send(Err(why.clone()));
        }
    }

    fn why(&self) -> Error {
        locked(&self.waiting).ended.clone().unwrap_or_else(|| Error::unavailable("the keep-alive stream has ended"))
    }
}

async fn run(cluster: Arc<Cluster>, stream: Arc<Stream>, questions: mpsc::UnboundedReceiver<LeaseKeepAliveRequest>) {
    let place = stream.place;
    let opened = cluster.open::<_, LeaseKeepAliveResponse>(place, LEASE_KEEP_ALIVE, questions).await;
    // From here on only the owner holds it: a stream that was given up ends.
    let weak = Arc::downgrade(&stream);
    drop(stream);
    let why = match opened {
        Err(error) => error,
        Ok(mut answers) => loop {
            let next = answers.message().await;
            let Some(stream) = weak.upgrade() else { return };
            match next {
                Ok(Some(answer)) => stream.answered(&answer),
                Ok(None) => break cluster.stream_ended(place, &tonic::Status::unavailable("the stream has ended")),
                Err(status) => break cluster.stream_ended(place, &status),
            }
        },
    };
    if let Some(stream) = weak.upgrade() {
        stream.end(why);
    }
}
