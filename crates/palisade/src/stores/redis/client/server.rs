//! A server, as one connection knows it: which scripts it has, whether it is a primary, how many replicas it has.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redis::{Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};

use super::PushHandler;
use super::address::Address;
use super::connection::{Connection, connect, unanswered};
use super::failure::{self, Remedy, final_error};
use super::replica_wait::ReplicaWait;
use super::script::{Call, EncodeCall};
use super::settings::ClientSettings;
use crate::error::{Error, Result};

pub(crate) struct Server {
    pub(crate) address: Address,
    connection: Connection,
    /// One bit for each script that the server has had on this connection.
    scripts: AtomicU64,
    /// How many replicas the server had when it was last asked.
    replicas: AtomicUsize,
    replica_wait: ReplicaWait,
    /// Whether the server tells of changes of its keys; asked for at first need.
    notifies_of_keys: OnceLock<bool>,
}

impl Server {
    /// Connects and logs in. The connection lives in the runtime that this runs in.
    pub(super) async fn connect(
        settings: &ClientSettings,
        address: Address,
        handler: Arc<dyn PushHandler>,
    ) -> Result<Arc<Server>> {
        let connection = connect(
            &address,
            settings.tls.as_ref(),
            &settings.login,
            Some(handler),
        )
        .await;
        Ok(Arc::new(Server {
            connection: connection.map_err(|error| final_error(&error, &address))?,
            address,
            scripts: AtomicU64::new(0),
            replicas: AtomicUsize::new(0),
            replica_wait: ReplicaWait::default(),
            notifies_of_keys: OnceLock::new(),
        }))
    }

    /// Asks whether the server is a primary, and how many replicas it has. A replica takes no writes.
    pub(super) async fn check_role(&self) -> Result<(), Remedy> {
        let role = self
            .ask(redis::cmd("ROLE"))
            .await
            .map_err(|error| failure::remedy(&error, &self.address))?;
        let unknown = || {
            Remedy::Tell(Error::protocol(format!(
                "{} does not say what it is",
                self.address
            )))
        };
        let Value::Array(parts) = role else {
            return Err(unknown());
        };
        match (parts.first().and_then(text), parts.get(2)) {
            (Some("master"), Some(Value::Array(replicas))) => {
                self.replicas.store(replicas.len(), Ordering::Relaxed);
                Ok(())
            }
            (Some("slave"), _) => Err(Remedy::Leave(Error::unavailable(format!(
                "{} is a replica and takes no writes",
                self.address
            )))),
            (Some("sentinel"), _) => Err(Remedy::Tell(Error::bad_url(format!(
                "{} is a sentinel; write redis+sentinel://{0}/master",
                self.address
            )))),
            _ => Err(unknown()),
        }
    }

    /// How many replicas the server had when it was last asked.
    pub(super) fn replicas(&self) -> usize {
        self.replicas.load(Ordering::Relaxed)
    }

    /// How many of `replicas` have everything that was written on this connection before this call, waiting for them for a while.
    pub(super) async fn wait_for_replicas(
        self: &Arc<Self>,
        replicas: usize,
        patience: Duration,
    ) -> RedisResult<usize> {
        self.replica_wait.join(self, replicas, patience).await
    }

    pub(super) fn replica_wait(&self) -> &ReplicaWait {
        &self.replica_wait
    }

    /// Sends one command.
    pub(crate) async fn ask(&self, command: Cmd) -> RedisResult<Value> {
        self.connection
            .request(&command.get_packed_command())
            .await?
            .extract_error()
    }

    /// Calls a script: by its hash once the server has had it on this connection, else whole. The reply may have errors in it.
    pub(crate) async fn call(&self, call: &impl EncodeCall) -> RedisResult<Value> {
        let reply = match self.connection.request(&self.encode(call)).await? {
            Value::ServerError(error) if is_no_script(&error.clone().into()) => {
                self.connection.request(&call.whole()).await?
            }
            reply => reply,
        };
        match reply {
            Value::ServerError(error) => Err(error.into()),
            reply => Ok(reply),
        }
    }

    /// The same for a key that is just moving to this server.
    pub(super) async fn call_asking(&self, call: &Call) -> RedisResult<Value> {
        let requests = [redis::cmd("ASKING").get_packed_command(), call.whole()].concat();
        let mut replies = self.connection.requests(&requests, 2).await?;
        replies
            .pop()
            .map_or_else(|| Err(unanswered()), Value::extract_error)
    }

    /// Calls many in one pipeline; each has its own reply.
    pub(super) async fn call_all(
        &self,
        calls: impl Iterator<Item = &Call>,
    ) -> RedisResult<Vec<RedisResult<Value>>> {
        let requests: Vec<Cow<'_, [u8]>> = calls.map(|call| self.encode(call)).collect();
        let replies = self
            .connection
            .requests(&requests.concat(), requests.len())
            .await?;
        Ok(replies.into_iter().map(Value::extract_error).collect())
    }

    fn encode<'a>(&self, call: &'a impl EncodeCall) -> Cow<'a, [u8]> {
        let bit = call.script().bit();
        // A server that has lost its scripts since says so, and is sent the script whole.
        if self.scripts.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
            call.whole().into()
        } else {
            call.by_hash()
        }
    }

    pub(crate) async fn subscribe(&self, channel: &str) -> RedisResult<()> {
        self.ask(redis::cmd("SUBSCRIBE").arg(channel).to_owned())
            .await
            .map(drop)
    }

    pub(crate) async fn unsubscribe(&self, channel: &str) -> RedisResult<()> {
        self.ask(redis::cmd("UNSUBSCRIBE").arg(channel).to_owned())
            .await
            .map(drop)
    }

    /// Whether the server tells of keys that are deleted or expire: it is configured so, and we may know.
    pub(crate) async fn notifies_of_keys(&self) -> bool {
        if let Some(known) = self.notifies_of_keys.get() {
            return *known;
        }
        // Several callers may ask at the same time: none depends on another one being polled.
        let flags = match self
            .ask(
                redis::cmd("CONFIG")
                    .arg("GET")
                    .arg("notify-keyspace-events")
                    .to_owned(),
            )
            .await
        {
            Ok(Value::Map(pairs)) => pairs.into_iter().next().map(|(_, value)| value),
            Ok(Value::Array(mut parts)) => parts.pop(),
            _ => None,
        };
        let flags = flags.as_ref().and_then(text).unwrap_or_default();
        let has = |flag| flags.contains(flag) || flags.contains('A');
        *self
            .notifies_of_keys
            .get_or_init(|| flags.contains('K') && has('g') && has('x'))
    }

    /// Closes the connection: all requests in flight fail.
    pub(super) fn close(&self) {
        self.connection.close();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.connection.is_closed()
    }

    /// Completes when the connection is over; says whether the server or the network ended it.
    pub(crate) async fn ended(&self) -> bool {
        self.connection.ended().await
    }

    /// How many requests were answered, and whether any is in flight.
    pub(super) fn progress(&self) -> (u64, bool) {
        self.connection.progress()
    }
}

fn is_no_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}
