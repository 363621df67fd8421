//! The least that a lock with a fence does with one request per verb: one read, one read of the
//! clock, one write. It shows how much of the distance to the raw limit is the kind of request, and
//! how much is ours.
//!
//! It is no lock to use: it keeps no fence beyond a release, has no queue, and knows one mode.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Script};

use super::{Result, raw};

/// The fence if it was free, else nothing.
const CLAIM: &str = "\
if redis.call('GET', KEYS[1]) then return 0 end
local time = redis.call('TIME')
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return time[1] * 1000000 + time[2]";

const RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

/// As [`raw::connect`], on a server that then knows these scripts.
pub(super) async fn connect(url: &str) -> Result<MultiplexedConnection> {
    let mut connection = raw::connect(url).await?;
    for script in [CLAIM, RELEASE] {
        Script::new(script).load_async(&mut connection).await?;
    }
    Ok(connection)
}

/// The commands of one such lock, written once.
pub(super) struct FloorLock {
    connection: MultiplexedConnection,
    claim: Cmd,
    release: Cmd,
}

impl FloorLock {
    pub(super) fn new(connection: MultiplexedConnection, name: &str, lease: Duration) -> FloorLock {
        let key = format!("floor:{name}");
        let (mut claim, mut release) = (redis::cmd("EVALSHA"), redis::cmd("EVALSHA"));
        claim
            .arg(Script::new(CLAIM).get_hash())
            .arg(1)
            .arg(&key)
            .arg(raw::TOKEN)
            .arg(lease.as_millis() as u64);
        release
            .arg(Script::new(RELEASE).get_hash())
            .arg(1)
            .arg(&key)
            .arg(raw::TOKEN);
        FloorLock {
            connection,
            claim,
            release,
        }
    }

    pub(super) async fn cycle(&mut self) -> Result<()> {
        let fence: u64 = self.claim.query_async(&mut self.connection).await?;
        let released: bool = self.release.query_async(&mut self.connection).await?;
        if fence > 0 && released {
            Ok(())
        } else {
            Err("floor: not taken, or not given back".into())
        }
    }
}
