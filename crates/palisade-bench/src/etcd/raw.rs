//! The server's limit: the requests of a lock without its logic. Also the lock that is in the
//! server itself.

use std::sync::atomic::{AtomicI64, Ordering};
use std::thread::JoinHandle;

use prost::Message;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tonic::Request;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use super::proto::{
    Compare, DELETE, DeleteRangeRequest, DeleteRangeResponse, LEASE_GRANT, LOCK, LeaseGrantRequest,
    LeaseGrantResponse, LockRequest, LockResponse, Operand, PutRequest, RequestOp, TXN, TxnRequest,
    TxnResponse, UNLOCK, UnlockRequest, UnlockResponse,
};
use crate::compare::Result;

/// In seconds. Longer than any run, so that nothing has to be kept alive.
const LEASE: i64 = 3600;

/// A connection and one lease, to which all its keys are attached.
#[derive(Clone)]
pub(super) struct Raw {
    channel: Channel,
    lease: i64,
}

impl Raw {
    /// Connects; whatever drives the connection lives on the runtime that this is called on.
    pub(super) async fn connect(url: &str) -> Result<Raw> {
        let channel = Endpoint::from_shared(url.to_owned())?
            .tcp_nodelay(true)
            .connect()
            .await?;
        let mut raw = Raw { channel, lease: 0 };
        let granted: LeaseGrantResponse = raw
            .ask(LEASE_GRANT, LeaseGrantRequest { ttl: LEASE })
            .await?;
        raw.lease = granted.id;
        Ok(raw)
    }

    async fn ask<Q, A>(&self, path: &'static str, question: Q) -> Result<A>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await?;
        let answer = grpc
            .unary(
                Request::new(question),
                PathAndQuery::from_static(path),
                ProstCodec::<Q, A>::default(),
            )
            .await?;
        Ok(answer.into_inner())
    }

    /// The server's own lock: returns when it is ours, with its key.
    pub(super) async fn lock(&self, name: &str) -> Result<Vec<u8>> {
        let question = LockRequest {
            name: name.as_bytes().to_vec(),
            lease: self.lease,
        };
        let answer: LockResponse = self.ask(LOCK, question).await?;
        Ok(answer.key)
    }

    pub(super) async fn unlock(&self, key: Vec<u8>) -> Result<()> {
        self.ask::<_, UnlockResponse>(UNLOCK, UnlockRequest { key })
            .await
            .map(drop)
    }
}

/// How a raw lock is given back.
#[derive(Clone, Copy)]
pub(super) enum GivesBack {
    /// By its key alone: the least that there is.
    ByKey,
    /// Only if the key is the one that was created: the least that is safe.
    ByRevision,
}

/// The requests of one lock, written once.
pub(super) struct RawLock {
    raw: Raw,
    gives_back: GivesBack,
    take: TxnRequest,
    give_back: DeleteRangeRequest,
    /// When the key was created.
    created: AtomicI64,
}

impl RawLock {
    pub(super) fn new(raw: Raw, name: &str, gives_back: GivesBack) -> RawLock {
        let key = format!("raw/{name}").into_bytes();
        let absent = created_at(&key, 0);
        let put = PutRequest {
            key: key.clone(),
            value: b"raw".to_vec(),
            lease: raw.lease,
        };
        let take = TxnRequest {
            compare: vec![absent],
            success: vec![RequestOp {
                put: Some(put),
                delete: None,
            }],
        };
        RawLock {
            raw,
            gives_back,
            take,
            give_back: DeleteRangeRequest { key },
            created: AtomicI64::new(0),
        }
    }

    pub(super) async fn take(&self) -> Result<()> {
        let taken: TxnResponse = self.raw.ask(TXN, self.take.clone()).await?;
        if taken.succeeded {
            let revision = taken.header.map_or(0, |header| header.revision);
            self.created.store(revision, Ordering::Relaxed);
            Ok(())
        } else {
            Err("raw: not taken".into())
        }
    }

    pub(super) async fn give_back(&self) -> Result<()> {
        let is_done = match self.gives_back {
            GivesBack::ByKey => {
                let answer: DeleteRangeResponse =
                    self.raw.ask(DELETE, self.give_back.clone()).await?;
                answer.deleted == 1
            }
            GivesBack::ByRevision => {
                let created = self.created.load(Ordering::Relaxed);
                let deleting = TxnRequest {
                    compare: vec![created_at(&self.give_back.key, created)],
                    success: vec![RequestOp {
                        put: None,
                        delete: Some(self.give_back.clone()),
                    }],
                };
                let answer: TxnResponse = self.raw.ask(TXN, deleting).await?;
                answer.succeeded
            }
        };
        if is_done {
            Ok(())
        } else {
            Err("raw: lost before it was given back".into())
        }
    }
}

fn created_at(key: &[u8], revision: i64) -> Compare {
    Compare {
        result: 0,
        target: 1,
        key: key.to_vec(),
        operand: Some(Operand::CreateRevision(revision)),
    }
}

/// A connection whose driver has a thread of its own, as the connections of a library that needs no
/// runtime of its caller's.
pub(super) struct OwnThread {
    pub(super) raw: Raw,
    /// The thread ends when this is dropped.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl OwnThread {
    pub(super) fn connect(url: &str) -> Result<OwnThread> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let raw = runtime.block_on(Raw::connect(url))?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("raw-driver".into())
            .spawn(move || {
                // An error means that the sender is gone, which is how it stops.
                runtime.block_on(stopped).unwrap_or_default();
            })?;
        Ok(OwnThread {
            raw,
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for OwnThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
