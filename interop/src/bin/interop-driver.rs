//! The driver of the participants that are in Rust: `interop-driver LIBRARY REDIS-URL`. See `peers/PROTOCOL.md`.

use std::env::args;

use palisade_interop::protocol::error;
use palisade_interop::redis::Library;
use palisade_interop::{Fault, serve};

fn main() -> Result<(), Fault> {
    let args: Vec<String> = args().skip(1).collect();
    let [library, url] = &args[..] else { return Err(Fault::new("usage: interop-driver LIBRARY REDIS-URL")) };
    let library = Library::named(library).ok_or_else(|| Fault::new(format!("unknown library {library}")))?;
    match library.connect(url) {
        Ok(mut participant) => serve(&mut *participant),
        Err(fault) => {
            // Where `ready` is expected, so that the failed test says why.
            println!("{}", error(&fault));
            Err(fault)
        }
    }
}
