//! Questions over plain TCP, for probes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Sends the words of another protocol, and reads what comes until the server closes.
pub(crate) fn ask(address: SocketAddr, request: &str, limit: Duration) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, limit)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    stream.write_all(request.as_bytes())?;
    let mut said = Vec::new();
    stream.read_to_end(&mut said)?;
    Ok(String::from_utf8_lossy(&said).into_owned())
}

/// The answer with its head, or what went wrong.
pub(crate) fn get(address: SocketAddr, path: &str) -> Result<String, String> {
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    let said = ask(address, &request, Duration::from_secs(2)).map_err(|error| error.to_string())?;
    let status = said.lines().next().unwrap_or_default();
    if status.contains(" 200 ") {
        Ok(said)
    } else {
        Err(status.to_owned())
    }
}
