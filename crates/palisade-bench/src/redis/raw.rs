//! The server's limit: the commands of a lock without its logic, sent by a fast client.

use std::thread::JoinHandle;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, Cmd, IntoConnectionInfo, Script, Value};
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use super::Result;

const DELETE_IF_MINE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
const EXTEND_IF_MINE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0";

/// As long as those of other clients.
pub(super) const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// Connects; whatever drives the connection lives on the runtime that this is called on.
pub(crate) async fn connect(url: &str) -> Result<MultiplexedConnection> {
    let info = url.into_connection_info()?.set_tcp_settings(no_delay());
    // No limit: a timer per request is not the server's cost, and BLPOP waits as long as it takes.
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let mut connection = Client::open(info)?
        .get_multiplexed_async_connection_with_config(&config)
        .await?;
    for script in [DELETE_IF_MINE, EXTEND_IF_MINE] {
        Script::new(script).load_async(&mut connection).await?;
    }
    Ok(connection)
}

/// Without it, the kernel holds back the second of two small requests.
pub(super) fn no_delay() -> TcpSettings {
    TcpSettings::default().set_nodelay(true)
}

/// A connection whose driver has a thread of its own, as the connections of a library that needs no
/// runtime of its caller's.
pub(super) struct OwnThread {
    pub(super) connection: MultiplexedConnection,
    /// The thread ends when this is dropped.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl OwnThread {
    pub(super) fn connect(url: &str) -> Result<OwnThread> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let connection = runtime.block_on(connect(url))?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("raw-driver".into())
            .spawn(move || {
                // An error means that the sender is gone, which is how it stops.
                runtime.block_on(stopped).unwrap_or_default();
            })?;
        Ok(OwnThread {
            connection,
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

fn key(name: &str) -> String {
    format!("raw:{name}")
}

/// The command that takes a lock.
pub(crate) fn take(name: &str, lease: Duration) -> Cmd {
    let millis = lease.as_millis() as u64;
    let mut take = redis::cmd("SET");
    take.arg(key(name))
        .arg(TOKEN)
        .arg("NX")
        .arg("PX")
        .arg(millis);
    take
}

/// The command that gives it back, on a connection of [`connect`].
pub(crate) fn give_back(name: &str) -> Cmd {
    let mut give_back = redis::cmd("EVALSHA");
    let delete = Script::new(DELETE_IF_MINE);
    give_back
        .arg(delete.get_hash())
        .arg(1)
        .arg(key(name))
        .arg(TOKEN);
    give_back
}

/// The commands of one lock, written once.
pub(super) struct RawLock {
    connection: MultiplexedConnection,
    take: Cmd,
    give_back: Cmd,
    extend: Cmd,
}

impl RawLock {
    pub(super) fn new(connection: MultiplexedConnection, name: &str, lease: Duration) -> RawLock {
        let extend = Script::new(EXTEND_IF_MINE);
        let (key, millis) = (key(name), lease.as_millis() as u64);
        let mut lock = RawLock {
            connection,
            take: take(name, lease),
            give_back: give_back(name),
            extend: redis::cmd("EVALSHA"),
        };
        lock.extend
            .arg(extend.get_hash())
            .arg(1)
            .arg(&key)
            .arg(TOKEN)
            .arg(millis);
        lock
    }

    pub(super) async fn take(&mut self) -> Result<()> {
        match self.take.query_async(&mut self.connection).await? {
            Value::Okay => Ok(()),
            other => Err(format!("raw: not taken: {other:?}").into()),
        }
    }

    pub(super) async fn give_back(&mut self) -> Result<()> {
        let found = self.give_back.query_async(&mut self.connection).await?;
        if found {
            Ok(())
        } else {
            Err("raw: lost before it was given back".into())
        }
    }

    /// Whether it was still there.
    pub(super) async fn extend(&mut self) -> Result<bool> {
        Ok(self.extend.query_async(&mut self.connection).await?)
    }
}
