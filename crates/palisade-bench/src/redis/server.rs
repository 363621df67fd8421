//! The private server that both sides use, and its own CPU time.

use std::time::Duration;

use palisade_testkit::redis::Redis;

use crate::compare::network::Network;
use crate::compare::{self, Result, start_quietly};

pub(super) struct Server {
    redis: Redis,
    url: String,
    _network: Network,
}

impl Server {
    pub(super) fn start(rtt: Option<Duration>) -> Result<Server> {
        let redis = start_quietly(Redis::start)?;
        let network = Network::to(redis.address(), rtt)?;
        let url = format!("redis://{}", network.address);
        Ok(Server {
            redis,
            url,
            _network: network,
        })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Deletes every key, so that one part does not burden the next.
    pub(super) fn clear(&self) -> Result<()> {
        Ok(self.redis.try_call(&["FLUSHALL"]).map(drop)?)
    }
}

impl compare::Server for Server {
    fn pid(&self) -> u32 {
        self.redis.pid()
    }

    fn cpu(&self) -> Result<Duration> {
        cpu(&self.redis)
    }
}

/// CPU time that a server has used so far. Its own figure has microseconds; the kernel's table counts
/// in hundredths of a second.
pub(crate) fn cpu(redis: &Redis) -> Result<Duration> {
    let said = redis.try_call(&["INFO", "cpu"])?.text();
    let seconds = |what: &str| {
        said.lines().find_map(|line| {
            line.strip_prefix(what)?
                .strip_prefix(':')?
                .trim()
                .parse::<f64>()
                .ok()
        })
    };
    match (seconds("used_cpu_user"), seconds("used_cpu_sys")) {
        (Some(user), Some(kernel)) => Ok(Duration::try_from_secs_f64(user + kernel)?),
        _ => Err("the server does not say what CPU time it has used".into()),
    }
}
