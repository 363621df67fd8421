//! Ends a session of another client, without that client's help.
//!
//! A server derives a session's password from its number alone, with Java's random numbers. Every
//! node of the session shows the number, so any client can resume the session and close it.

use std::io::{Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The constant that every server adds to the number.
const SUPER_SECRET: i64 = 0xB341_5C00;

pub(super) fn end_session(address: SocketAddr, session: i64) -> Result<()> {
    // Its client takes it back as soon as it can, and may be faster.
    while take_and_close(address, session)? {}
    Ok(())
}

/// Takes a session up and closes it; whether there was one.
fn take_and_close(address: SocketAddr, session: i64) -> Result<bool> {
    let limit = Duration::from_secs(10);
    let mut stream = TcpStream::connect_timeout(&address, limit)?;
    stream.set_read_timeout(Some(limit))?;
    let mut hello = Vec::new();
    hello.extend(0_i32.to_be_bytes());
    hello.extend(0_i64.to_be_bytes());
    hello.extend(10_000_i32.to_be_bytes());
    hello.extend(session.to_be_bytes());
    hello.extend(16_i32.to_be_bytes());
    hello.extend(password(session));
    hello.push(0);
    let mut close = Vec::new();
    close.extend(1_i32.to_be_bytes());
    close.extend((-11_i32).to_be_bytes());
    let mut both = framed(&hello);
    both.extend(framed(&close));
    stream.write_all(&both)?;
    let mut answer = Vec::new();
    // Its answers, and then the end.
    drop(stream.read_to_end(&mut answer));
    let granted = answer
        .get(12..20)
        .and_then(|bytes| bytes.try_into().ok())
        .map(i64::from_be_bytes);
    // Only a server that says so has it no more.
    Ok(granted != Some(0))
}

fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("short").to_be_bytes();
    [&length, message].concat()
}

/// The bytes that `new java.util.Random(session ^ secret).nextBytes` gives.
fn password(session: i64) -> [u8; 16] {
    const MASK: u64 = (1 << 48) - 1;
    const FACTOR: u64 = 0x5_DEEC_E66D;
    let mut seed = ((session ^ SUPER_SECRET).cast_unsigned() ^ FACTOR) & MASK;
    let mut bytes = [0; 16];
    for word in bytes.chunks_mut(4) {
        seed = seed.wrapping_mul(FACTOR).wrapping_add(0xB) & MASK;
        let drawn = u32::try_from(seed >> 16).expect("32 bits");
        word.copy_from_slice(&drawn.to_le_bytes());
    }
    bytes
}
