//! One direction of one connection: a reader that stamps messages with the time of their delivery,
//! and a writer that keeps it.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::select;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use super::Way;
use super::plan::{Flow, Plan, Shared};
use crate::protocol::Protocol;

/// Messages between reader and writer. A network holds only so much; then the sender waits.
const IN_FLIGHT: usize = 1024;

/// How a connection ended.
pub(super) enum End {
    /// Both sides closed.
    Closed,
    /// One side reset it, or we did.
    Reset,
    /// A reply was lost on purpose.
    ReplyLost,
}

struct Message {
    due: Instant,
    bytes: Vec<u8>,
    /// It is the reply that shall be lost.
    lose: bool,
}

pub(super) struct Pump<'a> {
    pub(super) way: Way,
    pub(super) shared: &'a Shared,
    /// Set while a request whose reply shall be lost is in flight.
    pub(super) losing: &'a AtomicBool,
    /// How many freezes there were when the connection was made.
    pub(super) born: u64,
}

impl Pump<'_> {
    pub(super) async fn run(self, from: ReadHalf<'_>, to: WriteHalf<'_>) -> Result<(), End> {
        let (queue, messages) = mpsc::channel(IN_FLIGHT);
        tokio::try_join!(self.read(from, queue), self.write(messages, to)).map(drop)
    }

    async fn read(&self, mut from: ReadHalf<'_>, queue: mpsc::Sender<Message>) -> Result<(), End> {
        let mut plan = self.shared.plan.subscribe();
        let mut cutter = Cutter::new(if self.way == Way::ToClient {
            self.shared.protocol
        } else {
            Protocol::Bytes
        });
        let mut last = Instant::now();
        loop {
            self.until(|flow| flow != Flow::Stall).await;
            let read = select! {
                biased;
                // A stall must hold for what is sent after it, also when it arrives while we
                // already wait for it.
                _ = plan.changed() => continue,
                read = from.read_buf(&mut cutter.bytes) => read,
            };
            match read {
                Ok(0) => {
                    if !cutter.bytes.is_empty() {
                        self.enqueue(std::mem::take(&mut cutter.bytes), &mut last, &queue)
                            .await;
                    }
                    return Ok(());
                }
                Ok(_) => {
                    while let Some(bytes) = cutter.next() {
                        self.enqueue(bytes, &mut last, &queue).await;
                    }
                }
                Err(_) => {
                    // Its news travels like everything else.
                    self.until(|flow| flow == Flow::Pass).await;
                    return Err(End::Reset);
                }
            }
        }
    }

    async fn enqueue(&self, bytes: Vec<u8>, last: &mut Instant, queue: &mpsc::Sender<Message>) {
        let latency = self.shared.latency(self.plan().faults(self.way));
        // Jitter must not let one overtake another: this is TCP.
        *last = (*last).max(Instant::now() + latency);
        let lose = self.way == Way::ToClient && self.losing.load(Ordering::SeqCst);
        // The writer outlives the reader, unless the connection ends.
        queue
            .send(Message {
                due: *last,
                bytes,
                lose,
            })
            .await
            .ok();
    }

    async fn write(
        &self,
        mut messages: mpsc::Receiver<Message>,
        mut to: WriteHalf<'_>,
    ) -> Result<(), End> {
        let mut is_open = true;
        while let Some(message) = messages.recv().await {
            sleep_until(message.due).await;
            self.until(|flow| flow != Flow::Stall).await;
            let plan = self.plan();
            if self.flow(&plan) == Flow::Swallow {
                continue;
            }
            if message.lose {
                self.shared.lost.fetch_add(1, Ordering::SeqCst);
                return Err(End::ReplyLost);
            }
            if self.way == Way::ToClient
                && plan
                    .lose
                    .as_ref()
                    .is_some_and(|is_it| is_it(&message.bytes))
            {
                self.shared.lost.fetch_add(1, Ordering::SeqCst);
                continue;
            }
            if self.way == Way::ToServer && self.shared.takes_reply_of(&message.bytes) {
                self.losing.store(true, Ordering::SeqCst);
            }
            // A receiver that is gone tells the sender in the other direction, which has faults of
            // its own.
            is_open = is_open && self.deliver(&message.bytes, &mut to).await.is_ok();
        }
        self.until(|flow| flow == Flow::Pass).await;
        to.shutdown().await.ok();
        Ok(())
    }

    async fn deliver(&self, mut bytes: &[u8], to: &mut WriteHalf<'_>) -> io::Result<()> {
        // Asked for each piece, so that healing also ends a long message.
        while let Some(rate) = self
            .plan()
            .faults(self.way)
            .rate
            .filter(|_| !bytes.is_empty())
        {
            // Twenty pieces in a second, so that it is slow rather than late.
            let length = usize::try_from(rate / 20)
                .unwrap_or(usize::MAX)
                .clamp(1, bytes.len());
            sleep(Duration::from_secs_f64(length as f64 / f64::from(rate))).await;
            to.write_all(&bytes[..length]).await?;
            bytes = &bytes[length..];
        }
        to.write_all(bytes).await
    }

    fn flow(&self, plan: &Plan) -> Flow {
        if plan.freezes > self.born {
            Flow::Stall
        } else {
            plan.faults(self.way).flow
        }
    }

    fn plan(&self) -> Plan {
        self.shared.plan.borrow().clone()
    }

    async fn until(&self, is_so: impl Fn(Flow) -> bool) {
        let mut plan = self.shared.plan.subscribe();
        plan.wait_for(|plan| is_so(self.flow(plan))).await.ok();
    }
}

/// Cuts what arrives into messages.
struct Cutter {
    protocol: Protocol,
    bytes: Vec<u8>,
    first: bool,
}

impl Cutter {
    fn new(protocol: Protocol) -> Self {
        Self {
            protocol,
            bytes: Vec::with_capacity(16 * 1024),
            first: true,
        }
    }

    fn next(&mut self) -> Option<Vec<u8>> {
        let length = self.protocol.message(&self.bytes, self.first)?;
        self.first = false;
        Some(self.bytes.drain(..length).collect())
    }
}
