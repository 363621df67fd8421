//! One connection to one server, in the runtime of whoever asks.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use redis::{Cmd, ErrorKind, RedisError, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use super::super::batch::Carrier;
use super::super::settings::Settings;
use super::address::Address;
use super::connect::connect;
use super::connection::{Connection, Listens, unanswered};
use super::failure::{self, Remedy};
use super::replica_wait::ReplicaWait;
use super::script::{Call, Calls, Together};
use crate::error::{Error, Result};
use crate::stores::gather::Gather;

/// Who hears what a connection says by itself. Called by the connection's own task: must not block.
pub(crate) trait Hears: Send + Sync + 'static {
    /// A message came on a channel.
    fn message(&self, channel: &[u8], payload: &[u8]);
    /// The connection has ended: by the server or the network, or else with the runtime it lived in.
    fn ended(&self, by_server: bool);
}

pub(crate) struct Link {
    pub(crate) address: Address,
    /// Set once it is in use: the end of a link that never was is no news.
    in_use: Arc<AtomicBool>,
    connection: Connection,
    /// Fires when the link must not be used any more.
    broken: CancellationToken,
    /// One bit for each script that the server has had from this link.
    scripts: AtomicU64,
    sent: AtomicU64,
    answered: AtomicU64,
    /// How many replicas the server had when it was last asked.
    replicas: AtomicUsize,
    pub(crate) replica_wait: ReplicaWait,
    /// What goes to the server together.
    gather: Arc<Gather<Carrier>>,
    /// Whether the server tells what becomes of its keys; asked for at first need.
    tells_of_keys: OnceCell<bool>,
}

impl Link {
    /// Connects and logs in. The connection lives in the runtime that this runs in.
    pub(crate) async fn open(settings: &Settings, address: Address, hears: impl Hears) -> Result<Arc<Link>> {
        let (broken, in_use) = (CancellationToken::new(), Arc::new(AtomicBool::new(false)));
        let ears = Ears { hears, broken: broken.clone(), in_use: Arc::clone(&in_use) };
        // Nothing here has a time limit: that is ours, since the runtime that we are called in may have no timers.
        let connection = connect(settings, &address, ears).await.map_err(|error| told(&error, &address))?;
        let link = |link: &Weak<Link>| Link {
            address,
            in_use,
            connection,
            broken,
            scripts: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            replicas: AtomicUsize::new(0),
            replica_wait: ReplicaWait::default(),
            gather: Carrier::gather(Weak::clone(link), Handle::current()),
            tells_of_keys: OnceCell::new(),
        };
        Ok(Arc::new_cyclic(link))
    }

    /// Asks the server what it is. A replica is not asked for locks.
    pub(crate) async fn look_at_role(&self) -> Result<(), Remedy> {
        let role = self.ask(redis::cmd("ROLE")).await.map_err(|error| failure::remedy(&error, &self.address))?;
        match role {
            Value::Array(parts) => match (parts.first().and_then(text), parts.get(2)) {
                (Some("master"), Some(Value::Array(replicas))) => {
                    self.replicas.store(replicas.len(), Ordering::Relaxed);
                    Ok(())
                }
                (Some("slave"), _) => {
                    Err(Remedy::FindPrimary(Error::unavailable(format!("{} is a replica and takes no writes", self.address))))
                }
                (Some("sentinel"), _) => Err(Remedy::Tell(Error::bad_url(format!(
                    "{} is a sentinel; write redis+sentinel://{0}/master",
                    self.address
                )))),
                _ => Err(Remedy::Tell(Error::protocol(format!("{} does not say what it is", self.address)))),
            },
            _ => Err(Remedy::Tell(Error::protocol(format!("{} does not say what it is", self.address)))),
        }
    }

    /// How many replicas the server had when it was last asked.
    pub(crate) fn replicas(&self) -> usize {
        self.replicas.load(Ordering::Relaxed)
    }

    /// Sends one command.
    pub(crate) async fn ask(&self, command: Cmd) -> RedisResult<Value> {
        self.answer(&command.get_packed_command()).await?.extract_error()
    }

    /// The answer to a request as it came: it may be an error, or have errors in it.
    async fn answer(&self, request: &[u8]) -> RedisResult<Value> {
        // Whoever asked a link that is broken may have asked elsewhere since: then it is not even sent.
        let _counted = self.expect();
        self.connection.answer(request).await
    }

    /// Calls a script: by its hash once the server has had it from here, else whole.
    pub(crate) async fn call(&self, call: &Call) -> RedisResult<Value> {
        let answer = match self.answer(&self.request(call)).await? {
            Value::ServerError(error) if is_no_script(&error.clone().into()) => self.answer(&call.whole()).await?,
            answer => answer,
        };
        answer.extract_error()
    }

    /// The same, together with what others call at the same time.
    pub(crate) async fn call_together(&self, call: Arc<Call>) -> RedisResult<Value> {
        self.gather.ask(call).await.unwrap_or_else(|| Err(unanswered()))
    }

    /// Calls several as one: what is wrong with the script is the same for each, else each has its own answer.
    pub(crate) async fn call_group(&self, calls: &Together<'_>) -> RedisResult<Vec<RedisResult<Value>>> {
        let answer = match self.answer(&self.request(calls)).await? {
            Value::ServerError(error) if is_no_script(&error.clone().into()) => self.answer(&calls.whole()).await?,
            answer => answer,
        };
        match answer {
            Value::Array(answers) if answers.len() == calls.count() => {
                Ok(answers.into_iter().map(Value::extract_error).collect())
            }
            Value::ServerError(error) => Err(error.into()),
            _ => Err((ErrorKind::UnexpectedReturnType, "the server does not answer each of those that asked together").into()),
        }
    }

    /// The same for a key that is just moving here.
    pub(crate) async fn call_asking(&self, call: &Call) -> RedisResult<Value> {
        let requests = [redis::cmd("ASKING").get_packed_command(), call.whole()].concat();
        let mut answers = self.answers(&requests, 2).await?;
        answers.pop().map_or_else(|| Err(unanswered()), Value::extract_error)
    }

    /// Calls many in one pipeline; each has its own answer.
    pub(crate) async fn call_all(&self, calls: &[Call]) -> Result<Vec<RedisResult<Value>>, RedisError> {
        let requests: Vec<Cow<'_, [u8]>> = calls.iter().map(|call| self.request(call)).collect();
        let answers = self.answers(&requests.concat(), calls.len()).await?;
        Ok(answers.into_iter().map(Value::extract_error).collect())
    }

    fn request<'a>(&self, call: &'a impl Calls) -> Cow<'a, [u8]> {
        let bit = call.script().bit();
        // A script that somebody has flushed since is found missing, and sent whole.
        if self.scripts.fetch_or(bit, Ordering::Relaxed) & bit == 0 { call.whole().into() } else { call.by_hash() }
    }

    async fn answers(&self, requests: &[u8], count: usize) -> RedisResult<Vec<Value>> {
        let _counted = self.expect();
        self.connection.answers(requests, count).await
    }

    pub(crate) async fn subscribe(&self, channel: &str) -> RedisResult<()> {
        self.ask(redis::cmd("SUBSCRIBE").arg(channel).to_owned()).await.map(drop)
    }

    pub(crate) async fn unsubscribe(&self, channel: &str) -> RedisResult<()> {
        self.ask(redis::cmd("UNSUBSCRIBE").arg(channel).to_owned()).await.map(drop)
    }

    /// Whether the server tells of keys that are deleted or expire: it was told to, and we may know.
    pub(crate) async fn tells_of_keys(&self) -> bool {
        let ask = || async {
            let mut ask = redis::cmd("CONFIG");
            ask.arg("GET").arg("notify-keyspace-events");
            let flags = match self.ask(ask).await {
                Ok(Value::Map(pairs)) => pairs.into_iter().next().map(|(_, value)| value),
                Ok(Value::Array(mut parts)) => parts.pop(),
                _ => None,
            };
            let flags = flags.as_ref().and_then(text).unwrap_or_default();
            let has = |flag| flags.contains(flag) || flags.contains('A');
            flags.contains('K') && has('g') && has('x')
        };
        *self.tells_of_keys.get_or_init(ask).await
    }

    /// Counts as a request without its answer for as long as it lives: if no answer at all comes meanwhile, the link is given up.
    pub(crate) fn expect(&self) -> Counted<'_> {
        self.sent.fetch_add(1, Ordering::AcqRel);
        Counted(self)
    }

    /// From now on its end is told.
    pub(crate) fn take_into_use(&self) {
        self.in_use.store(true, Ordering::Release);
    }

    /// Ends the link for everybody who waits for an answer on it.
    pub(crate) fn give_up(&self) {
        self.connection.close();
        self.broken.cancel();
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.connection.is_closed()
    }

    /// Completes when the link is broken.
    pub(crate) async fn ended(&self) {
        self.broken.cancelled().await;
    }

    /// How many requests were answered, and whether any waits for its answer. Asked from time to time, by whoever watches over it.
    pub(crate) fn progress(&self) -> (u64, bool) {
        self.connection.remind();
        let answered = self.answered.load(Ordering::Acquire);
        (answered, self.sent.load(Ordering::Acquire) != answered)
    }

    /// Whether enough replicas have everything that was written on this link until now.
    pub(crate) async fn confirmed(
        self: &Arc<Self>,
        runtime: &Handle,
        replicas: usize,
        patience: std::time::Duration,
    ) -> Result<bool> {
        let count = self.replica_wait.join(self, runtime, replicas, patience).await;
        count.map(|count| count >= replicas)
    }
}

/// Counts a request as answered however its wait ends.
pub(crate) struct Counted<'a>(&'a Link);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.answered.fetch_add(1, Ordering::AcqRel);
    }
}

pub(crate) fn is_no_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(redis::ServerErrorKind::NoScript)
}

/// What to tell of an error when there is nothing to be done about it.
pub(crate) fn told(error: &RedisError, address: &Address) -> Error {
    match failure::remedy(error, address) {
        Remedy::Reconnect(error) | Remedy::FindPrimary(error) | Remedy::Tell(error) => error,
        Remedy::SendWhole | Remedy::AskAgain | Remedy::Redirect { .. } => {
            Error::unavailable(format!("{address} sends us elsewhere, again and again"))
        }
    }
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// The link's own ears, in the hands of the connection.
struct Ears<H: Hears> {
    hears: H,
    broken: CancellationToken,
    in_use: Arc<AtomicBool>,
}

impl<H: Hears> Listens for Ears<H> {
    fn message(&self, channel: &[u8], payload: &[u8]) {
        self.hears.message(channel, payload);
    }

    fn over(&self) {
        self.broken.cancel();
    }

    fn ended(&self, by_server: bool) {
        if self.in_use.load(Ordering::Acquire) {
            self.hears.ended(by_server);
        }
    }
}
