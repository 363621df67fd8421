//! The driver of the participants that are in Rust, or are told what to do by Rust: `interop-driver
//! STORE LIBRARY URL`. See `peers/PROTOCOL.md`.

use std::env::args;

use palisade_interop::protocol::error;
use palisade_interop::{Fault, Participant, etcd, redis, redisson, serve, sql, zookeeper};

fn main() -> Result<(), Fault> {
    let args: Vec<String> = args().skip(1).collect();
    let [store, library, url] = &args[..] else {
        return Err(Fault::new("usage: interop-driver STORE LIBRARY URL"));
    };
    match connect(store, library, url) {
        Ok(mut participant) => serve(&mut *participant),
        Err(fault) => {
            // Where `ready` is expected, so that the failed test says why.
            println!("{}", error(&fault));
            Err(fault)
        }
    }
}

fn connect(store: &str, library: &str, url: &str) -> Result<Box<dyn Participant>, Fault> {
    let unknown = || Fault::new(format!("unknown library {library} of {store}"));
    match store {
        "redis" => redis::Library::named(library)
            .ok_or_else(unknown)?
            .connect(url),
        "redisson" => redisson::Library::named(library)
            .ok_or_else(unknown)?
            .connect(url),
        "etcd" => etcd::Library::named(library)
            .ok_or_else(unknown)?
            .connect(url),
        "zookeeper" => zookeeper::Library::named(library)
            .ok_or_else(unknown)?
            .connect(url),
        "sql" => sql::Library::named(library)
            .ok_or_else(unknown)?
            .connect(url),
        other => Err(Fault::new(format!("unknown store {other}"))),
    }
}
