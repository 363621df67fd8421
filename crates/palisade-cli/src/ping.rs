//! `ping`: connect, log in, ask once, and say which server answers.

use palisade::blocking::Wait;
use palisade::show_duration;
use serde_json::json;

use crate::args::{Common, JsonArgs};
use crate::config;
use crate::exit::{Exit, Failure};
use crate::notice::{Notices, print, printable};

pub(crate) fn ping(common: &Common, args: &JsonArgs, notices: Notices) -> Result<Exit, Failure> {
    let store = config::connect(common, notices)?;
    let pong = store
        .locks()
        .ping()
        .wait()
        .map_err(|error| store.failed(error))?;
    let server = &pong.server;
    if args.json {
        let micros = u64::try_from(pong.latency.as_micros()).unwrap_or(u64::MAX);
        let object = json!({
            "store": store.scheme,
            "format": store.locks().capability().format,
            "server": server.product,
            "version": server.version,
            "role": server.role,
            "address": server.address,
            "latency_ms": micros / 1000,
            "latency_us": micros,
        });
        print(&format!("{object}\n"))?;
        return Ok(Exit::DONE);
    }
    let mut text = server.product.clone();
    for (before, part) in [
        (" ", &server.version),
        (", ", &server.role),
        (" at ", &server.address),
    ] {
        if let Some(part) = part {
            text.push_str(before);
            text.push_str(part);
        }
    }
    let latency = show_duration(pong.latency);
    print(&format!("{}: answers in {latency}\n", printable(&text)))?;
    Ok(Exit::DONE)
}
