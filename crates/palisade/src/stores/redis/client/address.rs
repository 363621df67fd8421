//! Where a server listens.

use std::fmt;
use std::sync::Arc;

use crate::url::Host;

/// A host and a port. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Address {
    pub(super) host: Arc<str>,
    pub(super) port: u16,
}

impl Address {
    pub(crate) fn new(host: &str, port: u16) -> Address {
        Address {
            host: host.into(),
            port,
        }
    }

    /// Of a host with a port.
    pub(super) fn of(host: &Host) -> Address {
        Address::new(&host.name, host.port.unwrap_or_default())
    }

    /// Reads `host:port` as a server writes it: IPv6 without brackets, and perhaps nothing before
    /// the colon, which means the server that was asked.
    pub(super) fn parse(text: &str, asked: &Address) -> Option<Address> {
        let (host, port) = text.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port = port.parse().ok().filter(|port| *port > 0)?;
        Some(if host.is_empty() {
            Address {
                host: Arc::clone(&asked.host),
                port,
            }
        } else {
            Address::new(host, port)
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_servers_write_is_read() {
        let asked = Address::new("h0", 1);
        let read = |text| Address::parse(text, &asked);
        assert_eq!(read("10.0.0.1:6379"), Some(Address::new("10.0.0.1", 6379)));
        assert_eq!(read("::1:6379"), Some(Address::new("::1", 6379)));
        assert_eq!(read("[::1]:6379"), Some(Address::new("::1", 6379)));
        assert_eq!(read(":7000"), Some(Address::new("h0", 7000)));
        for bad in ["", "h", "h:", "h:0", "h:65536", "h:x"] {
            assert_eq!(read(bad), None, "{bad}");
        }
        assert_eq!(Address::new("::1", 2).to_string(), "[::1]:2");
    }
}
