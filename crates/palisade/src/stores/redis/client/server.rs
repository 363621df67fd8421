//! A server, seen through one connection: the scripts that it has, its role, its replicas.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use redis::{Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};

use super::PushHandler;
use super::address::Address;
use super::connection::{Connection, Progress, connect, unanswered};
use super::failure::{self, Remedy, final_error};
use super::replicas::ReplicaWait;
use super::script::Call;
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
    /// Whether the server sends keyspace events; asked at first use.
    notifies_of_keys: OnceLock<bool>,
    /// Asked at first use.
    facts: OnceLock<Facts>,
}

/// A server's own account of its process.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// Random, and another one after each start.
    pub(crate) run_id: String,
    /// For how long it has run, at least, by its own clock.
    pub(crate) up_for: Duration,
    pub(crate) is_in_cluster: bool,
    /// Its clock in microseconds; servers before 7.0 do not say.
    pub(crate) time: Option<u64>,
    /// When the answer came.
    pub(crate) at: Instant,
}

impl Facts {
    /// Reads the reply to `INFO server`.
    fn read(info: &str) -> Option<Facts> {
        let fact = |name: &str| {
            info.lines().find_map(|line| {
                let (word, value) = line.trim_end().split_once(':')?;
                (word == name).then_some(value)
            })
        };
        // Below zero where the clock was set back since the start.
        let seconds: i64 = fact("uptime_in_seconds")?.parse().ok()?;
        let seconds = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        Some(Facts {
            run_id: fact("run_id")?.to_owned(),
            // Both ends of the count are whole seconds.
            up_for: seconds.saturating_sub(Duration::from_secs(1)),
            is_in_cluster: fact("redis_mode") == Some("cluster"),
            time: fact("server_time_usec").and_then(|time| time.parse().ok()),
            at: Instant::now(),
        })
    }
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
            facts: OnceLock::new(),
        }))
    }

    /// Asks whether the server is a primary, and how many replicas it has. A replica takes no
    /// writes.
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

    /// How many of `replicas` have everything that was written on this connection before this call,
    /// waiting for them for a while.
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

    /// Calls a script: by its hash once the server has had it on this connection, else whole. The
    /// reply may have errors in it.
    pub(crate) async fn call(&self, call: &Call) -> RedisResult<Value> {
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

    /// The same for a key that is moving to this server.
    pub(super) async fn call_asking(&self, call: &Call) -> RedisResult<Value> {
        let requests = [redis::cmd("ASKING").get_packed_command(), call.whole()].concat();
        let mut replies = self.connection.requests(&requests, 2).await?;
        replies
            .pop()
            .map_or_else(|| Err(unanswered()), Value::extract_error)
    }

    /// Calls many in one pipeline; each has its own reply.
    pub(crate) async fn call_all(
        &self,
        calls: impl Iterator<Item = &Call>,
    ) -> RedisResult<Vec<RedisResult<Value>>> {
        let requests: Vec<Vec<u8>> = calls.map(|call| self.encode(call)).collect();
        let replies = self
            .connection
            .requests(&requests.concat(), requests.len())
            .await?;
        Ok(replies.into_iter().map(Value::extract_error).collect())
    }

    fn encode(&self, call: &Call) -> Vec<u8> {
        let bit = call.script().bit();
        // A server that has lost its scripts since replies NOSCRIPT, and gets the script whole.
        if self.scripts.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
            call.whole()
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

    /// Subscribes to messages that are sent within the shard of this channel.
    pub(crate) async fn subscribe_sharded(&self, channel: &str) -> RedisResult<()> {
        self.ask(redis::cmd("SSUBSCRIBE").arg(channel).to_owned())
            .await
            .map(drop)
    }

    pub(crate) async fn unsubscribe_sharded(&self, channel: &str) -> RedisResult<()> {
        let request = redis::cmd("SUNSUBSCRIBE").arg(channel).get_packed_command();
        self.connection
            .leave_shard(&request)
            .await?
            .extract_error()
            .map(drop)
    }

    /// Whether the server sends events of keys that are deleted or expire. `false` where the user may
    /// not read its configuration.
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

    /// The server's account of its process, as it was when this connection was new.
    pub(crate) async fn facts(&self) -> Result<&Facts> {
        if let Some(known) = self.facts.get() {
            return Ok(known);
        }
        let reply = self
            .ask(redis::cmd("INFO").arg("server").to_owned())
            .await
            .map_err(|error| final_error(&error, &self.address))?;
        let unknown = || Error::protocol(format!("{} does not say what it is", self.address));
        let facts = text(&reply).and_then(Facts::read).ok_or_else(unknown)?;
        Ok(self.facts.get_or_init(|| facts))
    }

    /// Closes the connection: all requests in flight fail.
    pub(super) fn close(&self) {
        self.connection.close();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.connection.is_closed()
    }

    /// Completes when the connection is over; `true` when the server or the network ended it.
    pub(crate) async fn ended(&self) -> bool {
        self.connection.ended().await
    }

    pub(crate) fn progress(&self) -> Progress {
        self.connection.progress()
    }
}

pub(crate) fn is_no_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text),
        _ => None,
    }
}
