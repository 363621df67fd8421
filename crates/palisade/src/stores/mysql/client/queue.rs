//! The statements that wait for a connection, and the tasks that run them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mysql_async::Row;
use tokio::sync::{Notify, oneshot};

use super::connection::{Connection, Failure};
use super::settings::ClientSettings;
use super::{Contact, How, Session, Statement};

/// How long a connection has for a statement at least: it is closed if it does not answer in time.
const SHORTEST: Duration = Duration::from_millis(250);
/// The pauses between attempts to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Job {
    pub(super) statement: Statement,
    pub(super) until: Instant,
    pub(super) wanted: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
    pub(super) reply: oneshot::Sender<Result<(Vec<Row>, Session), Failure>>,
}

pub(super) struct Queue {
    settings: Arc<ClientSettings>,
    contact: Arc<dyn Contact>,
    lanes: Vec<Lane>,
    jobs: Mutex<Jobs>,
    /// Whether the last attempt to reach the server failed.
    down: AtomicBool,
}

#[derive(Default)]
struct Lane {
    /// Raised when its connection is lost: the session is another one afterwards.
    generation: AtomicU64,
    woken: Notify,
}

#[derive(Default)]
struct Jobs {
    pinned: Vec<VecDeque<Job>>,
    urgent: VecDeque<Job>,
    others: VecDeque<Job>,
    /// The lanes that have nothing to do, the last one to become so at the end: so a caller that
    /// asks one thing after another uses one connection.
    idle: Vec<usize>,
    started: usize,
    closed: bool,
}

impl Queue {
    pub(super) fn new(
        lanes: usize,
        settings: &Arc<ClientSettings>,
        contact: &Arc<dyn Contact>,
    ) -> Arc<Queue> {
        Arc::new(Queue {
            settings: Arc::clone(settings),
            contact: Arc::clone(contact),
            lanes: (0..lanes).map(|_| Lane::default()).collect(),
            jobs: Mutex::new(Jobs {
                pinned: (0..lanes).map(|_| VecDeque::new()).collect(),
                ..Jobs::default()
            }),
            down: AtomicBool::new(false),
        })
    }

    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn generation(&self, lane: usize) -> u64 {
        self.lanes[lane].generation.load(Ordering::Acquire)
    }

    /// Adds a job, and wakes or starts a lane for it.
    pub(super) fn push(self: &Arc<Queue>, job: Job, pinned: Option<usize>, how: &How) {
        let urgent = how.urgent && !how.waits;
        let mut jobs = self.jobs();
        if jobs.closed {
            return;
        }
        let lane = match pinned {
            Some(lane) => {
                jobs.pinned[lane].push_back(job);
                let is_idle = jobs.idle.contains(&lane);
                jobs.idle.retain(|idle| *idle != lane);
                is_idle.then_some(lane)
            }
            None if urgent => {
                jobs.urgent.push_back(job);
                jobs.idle.pop()
            }
            None => {
                if how.urgent {
                    jobs.others.push_front(job);
                } else {
                    jobs.others.push_back(job);
                }
                let last = jobs.idle.iter().rposition(|lane| self.is_for_all(*lane));
                last.map(|last| jobs.idle.remove(last))
            }
        };
        if let Some(lane) = lane {
            self.lanes[lane].woken.notify_one();
        } else if pinned.is_none()
            && jobs.started < self.lanes.len()
            && (urgent || self.is_for_all(jobs.started))
        {
            let lane = jobs.started;
            jobs.started += 1;
            tokio::spawn(Arc::clone(self).work(lane));
        }
    }

    /// Whether a lane runs all jobs. The last one runs urgent ones only: claims that wait for a locked
    /// row must not hold up renewals and releases.
    fn is_for_all(&self, lane: usize) -> bool {
        lane + 1 < self.lanes.len()
    }

    pub(super) fn close(&self) {
        let left = {
            let mut jobs = self.jobs();
            jobs.closed = true;
            let pinned: Vec<Job> = jobs.pinned.iter_mut().flat_map(std::mem::take).collect();
            (
                pinned,
                std::mem::take(&mut jobs.urgent),
                std::mem::take(&mut jobs.others),
            )
        };
        // Their callers are told by the end of the channels.
        drop(left);
        for lane in &self.lanes {
            lane.woken.notify_one();
        }
    }

    /// The next job of a lane; an error when there will be none.
    fn next(&self, lane: usize) -> Result<Option<Job>, ()> {
        let mut jobs = self.jobs();
        if jobs.closed {
            return Err(());
        }
        jobs.idle.retain(|idle| *idle != lane);
        let job = jobs.pinned[lane].pop_front();
        let job = job.or_else(|| jobs.urgent.pop_front());
        let job = match job {
            None if self.is_for_all(lane) => jobs.others.pop_front(),
            job => job,
        };
        if job.is_none() {
            jobs.idle.push(lane);
        }
        Ok(job)
    }

    async fn work(self: Arc<Queue>, lane: usize) {
        let mut worker = Worker {
            connection: None,
            pause: Duration::ZERO,
        };
        loop {
            match self.next(lane) {
                Err(()) => break,
                Ok(None) => self.lanes[lane].woken.notified().await,
                Ok(Some(job)) => worker.serve(&self, lane, job).await,
            }
        }
        if let Some(connection) = worker.connection {
            connection.close().await;
        }
    }
}

struct Worker {
    connection: Option<Connection>,
    /// Before the next attempt to connect.
    pause: Duration,
}

impl Worker {
    async fn serve(&mut self, queue: &Queue, lane: usize, job: Job) {
        let ready = self.ready(queue, lane, job.until).await;
        let unwanted = job.wanted.as_ref().is_some_and(|wanted| !wanted());
        let result = match ready {
            // Before a failure to connect: the caller has left in either case.
            _ if unwanted => Err(Failure::Unwanted),
            Err(failure) => Err(failure),
            // It would be sent, and its connection closed for not answering at once.
            Ok(_) if job.until <= Instant::now() => Err(Failure::TooLate),
            Ok(connection) => {
                let left = job.until.saturating_duration_since(Instant::now());
                connection.run(&job.statement, left.max(SHORTEST)).await
            }
        };
        if result.as_ref().is_err_and(Failure::is_end_of_connection) {
            if let Some(connection) = self.connection.take() {
                connection.abandon();
            }
            queue.lanes[lane].generation.fetch_add(1, Ordering::AcqRel);
            if !queue.down.swap(true, Ordering::AcqRel) {
                queue.contact.lost();
            }
        }
        let session = Session {
            lane,
            generation: queue.generation(lane),
        };
        // Without a receiver the caller is gone.
        let _ = job.reply.send(result.map(|rows| (rows, session)));
    }

    async fn ready(
        &mut self,
        queue: &Queue,
        lane: usize,
        until: Instant,
    ) -> Result<&mut Connection, Failure> {
        if self.connection.as_ref().is_some_and(Connection::is_closed) {
            // The server ended it while it was idle.
            self.connection = None;
            queue.lanes[lane].generation.fetch_add(1, Ordering::AcqRel);
            queue.down.store(true, Ordering::Release);
        }
        if self.connection.is_none() {
            if !self.pause.is_zero() {
                let left = until.saturating_duration_since(Instant::now());
                tokio::time::sleep(self.pause.mul_f64(0.5 + fastrand::f64() / 2.0).min(left)).await;
            }
            match Connection::open(&queue.settings).await {
                Ok(connection) => {
                    self.pause = Duration::ZERO;
                    self.connection = Some(connection);
                    if queue.down.swap(false, Ordering::AcqRel) {
                        queue.contact.regained();
                    }
                }
                Err(failure) => {
                    self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
                    return Err(failure);
                }
            }
        }
        self.connection.as_mut().ok_or(Failure::Unwanted)
    }
}
