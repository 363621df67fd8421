//! The private server that both sides use, and what it has used itself.

use std::panic::{catch_unwind, set_hook, take_hook};
use std::time::Duration;

use palisade_testkit::redis::Redis;

use super::Result;

pub(super) struct Server {
    redis: Redis,
    url: String,
}

impl Server {
    pub(super) fn start() -> Result<Server> {
        let redis = start_quietly()?;
        let url = redis.url();
        Ok(Server { redis, url })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// CPU time of the server so far. It says so itself, to the microsecond; the kernel's table counts in hundredths of a second.
    pub(super) fn cpu(&self) -> Result<Duration> {
        let said = self.redis.try_call(&["INFO", "cpu"])?.text();
        let seconds =
            |what: &str| said.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(':')?.trim().parse::<f64>().ok());
        match (seconds("used_cpu_user"), seconds("used_cpu_sys")) {
            (Some(user), Some(kernel)) => Ok(Duration::try_from_secs_f64(user + kernel)?),
            _ => Err("the server does not say what CPU time it has used".into()),
        }
    }

    /// Forgets every key: the leftovers of one part are not the next one's burden.
    pub(super) fn clear(&self) -> Result<()> {
        Ok(self.redis.try_call(&["FLUSHALL"]).map(drop)?)
    }
}

/// The testkit panics when it cannot start one, which suits tests. Here its words are enough.
fn start_quietly() -> Result<Redis> {
    let hook = take_hook();
    set_hook(Box::new(|_| {}));
    let started = catch_unwind(Redis::start);
    set_hook(hook);
    started.map_err(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        said.unwrap_or("Redis did not start").to_owned().into()
    })
}
