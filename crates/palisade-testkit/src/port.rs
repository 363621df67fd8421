//! Ports that are ours for as long as we hold them.

use std::fmt;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

/// Below the range from which the kernel takes the ports of outgoing connections: from there, any
/// client could take the port of a server that is just restarting. The bus of Redis Cluster, 10000
/// higher, still lies below it too.
const RANGE: Range<u16> = 10_000..22_000;
const BUS: u16 = 10_000;

/// A free port. No other testkit on this machine gets it while this value lives, also while the
/// server is down.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    _claims: Vec<Claim>,
}

impl Port {
    pub(crate) fn new() -> Self {
        Self::find(&[0])
    }

    /// A port for a node of Redis Cluster, which takes a second one.
    pub(crate) fn with_bus() -> Self {
        Self::find(&[0, BUS])
    }

    fn find(offsets: &[u16]) -> Self {
        loop {
            // At random, so that parallel test binaries seldom look at the same ones.
            let number = fastrand::u16(RANGE);
            if let Some(claims) = offsets.iter().map(|offset| free(number + offset)).collect() {
                return Self {
                    number,
                    _claims: claims,
                };
            }
        }
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number.fmt(f)
    }
}

fn free(number: u16) -> Option<Claim> {
    let claim = Claim::on(&format!("port-{number}"))?;
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, number)).ok()?;
    Some(claim)
}

/// Something that only one process of this machine can have: a socket in the abstract namespace. It
/// leaves no file, and the kernel gives it back however its owner ends. Like ports, it belongs to
/// one network namespace.
#[derive(Debug)]
pub(crate) struct Claim {
    _socket: UnixListener,
}

impl Claim {
    pub(crate) fn on(name: &str) -> Option<Self> {
        let address = SocketAddr::from_abstract_name(format!("palisade-testkit-{name}")).ok()?;
        Some(Self {
            _socket: UnixListener::bind_addr(&address).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_claim_is_exclusive_until_it_is_dropped() {
        let name = format!("test-{}", std::process::id());
        let first = Claim::on(&name).expect("no other claim exists");
        assert!(Claim::on(&name).is_none());
        drop(first);
        // A program that another test starts at this moment has it open until it is executed.
        crate::eventually("it is free again", Duration::from_secs(10), || {
            Claim::on(&name).ok_or_else(|| "another process has it".to_owned())
        });
    }

    #[test]
    fn a_port_in_use_is_not_free() {
        let port = Port::with_bus();
        let number = port.number();
        drop(port);
        // A program that another test starts at this moment has our last look at the port open
        // until it is executed.
        let _listener =
            crate::eventually("the port is free again", Duration::from_secs(10), || {
                TcpListener::bind((Ipv4Addr::LOCALHOST, number)).map_err(|error| error.to_string())
            });
        assert!(free(number).is_none());
    }
}
