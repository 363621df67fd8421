//! A queue of bare names: the fewest messages with which a lock can queue, hand over in the step of
//! the release, and tell only the next waiter. Nothing in it expires, and nothing can be inspected.

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, IntoConnectionInfo, ProtocolVersion, PushInfo, PushKind,
    Script,
};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::super::{Result, raw};

/// The fence, or 0 for a claim that waits now.
const CLAIM: &str = "\
if redis.call('EXISTS', KEYS[1]) == 1 then
  redis.call('RPUSH', KEYS[2], ARGV[1])
  return 0
end
local time = redis.call('TIME')
redis.call('SET', KEYS[1], ARGV[1])
return time[1] * 1000000 + time[2]";

const RELEASE: &str = "\
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
local following = redis.call('LPOP', KEYS[2])
if following then
  local time = redis.call('TIME')
  redis.call('SET', KEYS[1], following)
  redis.call('PUBLISH', following, time[1] .. string.sub('00000' .. time[2], -6))
else
  redis.call('DEL', KEYS[1])
end
return 1";

const KEYS: [&str; 2] = ["{floor:handoff}", "{floor:handoff}:line"];

pub(super) struct BareLock {
    connection: MultiplexedConnection,
    /// The messages in our own channel.
    told: UnboundedReceiver<PushInfo>,
    claim: Cmd,
    release: Cmd,
}

impl BareLock {
    pub(super) async fn connect(url: &str) -> Result<BareLock> {
        let info = url.into_connection_info()?;
        let login = info
            .redis_settings()
            .clone()
            .set_protocol(ProtocolVersion::RESP3);
        let info = info
            .set_tcp_settings(raw::no_delay())
            .set_redis_settings(login);
        let (sender, told) = unbounded_channel();
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_push_sender(sender);
        let mut connection = Client::open(info)?
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        let inbox = format!("floor:{}", std::process::id());
        connection.subscribe(&inbox).await?;
        let mut command = async |script: &str| -> Result<Cmd> {
            let hash = Script::new(script).load_async(&mut connection).await?;
            let mut command = redis::cmd("EVALSHA");
            command.arg(hash).arg(KEYS.len()).arg(&KEYS).arg(&inbox);
            Ok(command)
        };
        let (claim, release) = (command(CLAIM).await?, command(RELEASE).await?);
        Ok(BareLock {
            connection,
            told,
            claim,
            release,
        })
    }

    pub(super) async fn take(&mut self) -> Result<()> {
        let fence: u64 = self.claim.query_async(&mut self.connection).await?;
        if fence > 0 {
            return Ok(());
        }
        loop {
            let push = self
                .told
                .recv()
                .await
                .ok_or("floor: the connection has ended")?;
            match push.kind {
                PushKind::Message => return Ok(()),
                PushKind::Disconnection => return Err("floor: the connection has ended".into()),
                _ => {}
            }
        }
    }

    pub(super) async fn give_back(&mut self) -> Result<()> {
        let released: bool = self.release.query_async(&mut self.connection).await?;
        if released {
            Ok(())
        } else {
            Err("floor: lost before it was given back".into())
        }
    }
}
