//! Hosts and ports: one server of a URL's list.

use std::fmt;
use std::net::Ipv6Addr;

use super::bad;
use crate::error::Result;

/// One server of a URL's list.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Host {
    /// A host name in lower case or an IP address; an IPv6 address stands here without its
    /// brackets.
    pub name: String,
    /// The port, where the URL has one.
    pub port: Option<u16>,
}

impl Host {
    /// This host, with the given port unless it has one.
    #[must_use]
    pub fn with_default_port(&self, port: u16) -> Host {
        Host {
            name: self.name.clone(),
            port: self.port.or(Some(port)),
        }
    }
}

/// As in a URL: `h1:6379`, `[::1]:6379`.
impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.contains(':') {
            true => write!(f, "[{}]", self.name)?,
            false => f.write_str(&self.name)?,
        }
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

pub(super) fn write_list(hosts: &[Host], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (place, host) in hosts.iter().enumerate() {
        let comma = if place > 0 { "," } else { "" };
        write!(f, "{comma}{host}")?;
    }
    Ok(())
}

/// Reads `h1:1,h2,[::1]:3`. A host that cannot be read is told by its place: its text may be a
/// password with the `@host` forgotten.
pub(super) fn parse_list(list: &str) -> Result<Vec<Host>> {
    let hosts = list
        .split(',')
        .enumerate()
        .map(|(index, text)| parse(text, index + 1))
        .collect::<Result<Vec<_>>>()?;
    refuse_duplicates(&hosts)?;
    Ok(hosts)
}

pub(super) fn refuse_duplicates(hosts: &[Host]) -> Result<()> {
    match hosts
        .iter()
        .enumerate()
        .find(|&(place, host)| hosts.iter().take(place).any(|earlier| earlier == host))
    {
        Some((_, twice)) => Err(bad(format!("the host {twice} is listed twice"))),
        None => Ok(()),
    }
}

fn parse(text: &str, place: usize) -> Result<Host> {
    let (name, port) = match text.strip_prefix('[') {
        Some(rest) => bracketed(rest, place)?,
        None => named(text, place)?,
    };
    let port = port.map(|digits| parse_port(digits, place)).transpose()?;
    Ok(Host { name, port })
}

fn bracketed(rest: &str, place: usize) -> Result<(String, Option<&str>)> {
    let wrong = || {
        bad(format!(
            "host {place} is not an IPv6 address; write [::1] or [::1]:port"
        ))
    };
    let (address, after) = rest.split_once(']').ok_or_else(wrong)?;
    let address: Ipv6Addr = address.parse().map_err(|_| wrong())?;
    let port = match after {
        "" => None,
        _ => Some(after.strip_prefix(':').ok_or_else(wrong)?),
    };
    Ok((address.to_string(), port))
}

fn named(text: &str, place: usize) -> Result<(String, Option<&str>)> {
    let (name, port) = match text.split_once(':') {
        Some((name, port)) => (name, Some(port)),
        None => (text, None),
    };
    if name.is_empty() {
        return Err(bad(format!("host {place} of the list is empty")));
    }
    if !name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
    {
        return Err(bad(format!(
            "host {place} may have only letters, digits, '-', '.' and '_'"
        )));
    }
    Ok((name.to_ascii_lowercase(), port))
}

fn parse_port(digits: &str, place: usize) -> Result<u16> {
    // `parse` alone would take "+1".
    let number = digits
        .bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| digits.parse().ok())
        .flatten();
    number.filter(|&port| port > 0).ok_or_else(|| {
        bad(format!(
            "the port of host {place} is not a number from 1 to 65535; an IPv6 address needs brackets, a password an @ after it"
        ))
    })
}
