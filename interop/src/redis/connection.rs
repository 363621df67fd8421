use std::net::SocketAddr;
use std::time::Duration;

use palisade_testkit::resp::{Connection, Reply};

use crate::participant::Fault;

/// One command takes far less. It is here so that nothing hangs for ever.
const LIMIT: Duration = Duration::from_secs(30);

/// Connects to a server at `redis://HOST:PORT`.
pub(crate) fn open(url: &str) -> Result<Connection, Fault> {
    let address = url.strip_prefix("redis://").unwrap_or(url);
    let address: SocketAddr = address
        .parse()
        .map_err(|_| Fault::new(format!("{url} is not redis://IP:PORT")))?;
    Connection::open(address, LIMIT).map_err(Fault::of)
}

/// Sends a command. An error of the server is a fault.
pub(crate) fn call(connection: &mut Connection, words: &[&str]) -> Result<Reply, Fault> {
    match connection.call(words).map_err(Fault::of)? {
        Reply::Error(why) => Err(Fault::new(why)),
        reply => Ok(reply),
    }
}
