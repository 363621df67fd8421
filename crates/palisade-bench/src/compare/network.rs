//! The path from the clients of a run to its server: direct, or through a relay with the delay of a
//! network.
//!
//! The relay is this program, started again, so that its CPU time is not the client's and it is not
//! pinned to the client's core.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use palisade_testkit::relay::Relay;

use super::Result;

pub(crate) struct Network {
    /// Where clients connect.
    pub(crate) address: SocketAddr,
    relay: Option<Child>,
}

impl Network {
    /// To this server, with this round trip time, or with that of the machine itself.
    pub(crate) fn to(server: SocketAddr, rtt: Option<Duration>) -> Result<Network> {
        let Some(rtt) = rtt else {
            return Ok(Network {
                address: server,
                relay: None,
            });
        };
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["relay", &server.to_string(), &rtt.as_nanos().to_string()]);
        let mut relay = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let said = relay.stdout.take();
        let mut network = Network {
            address: server,
            relay: Some(relay),
        };
        let mut line = String::new();
        BufReader::new(said.ok_or("a relay without a pipe")?).read_line(&mut line)?;
        network.address = line.trim().parse().map_err(|_| "the relay did not start")?;
        Ok(network)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if let Some(relay) = &mut self.relay {
            let _ = relay.kill();
            let _ = relay.wait();
        }
    }
}

/// Runs as the relay, until the process that started it ends.
pub(crate) fn relay(words: &[&str]) -> ExitCode {
    let [server, nanos] = words else {
        return ExitCode::from(64);
    };
    let (Ok(server), Ok(nanos)) = (server.parse(), nanos.parse()) else {
        return ExitCode::from(64);
    };
    let relay = Relay::start(server, Duration::from_nanos(nanos));
    println!("{}", relay.address());
    // Nothing is ever written there: this returns at its end.
    let _ = std::io::stdin().read_line(&mut String::new());
    ExitCode::SUCCESS
}
