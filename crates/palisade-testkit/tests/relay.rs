//! The relay, in front of a server that sends everything back.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use palisade_testkit::relay::Relay;

const PATIENCE: Duration = Duration::from_secs(60);

/// The server's end of the next connection.
fn server() -> (SocketAddr, impl FnOnce() -> TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    (listener.local_addr().expect("bound"), move || {
        patient(listener.accept().expect("a connection").0)
    })
}

fn connect(relay: &Relay) -> TcpStream {
    patient(TcpStream::connect(relay.address()).expect("a connection"))
}

fn patient(stream: TcpStream) -> TcpStream {
    stream.set_nodelay(true).expect("a socket");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    stream
}

/// Sends back what comes, until the client ends.
fn echo(mut stream: TcpStream) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        stream
            .write_all(&buffer[..length])
            .expect("the client reads");
    }
}

fn is_over(mut stream: &TcpStream) -> bool {
    match stream.read(&mut [0]) {
        Ok(length) => length == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

#[test]
fn a_round_trip_takes_as_long_as_asked() {
    for rtt in [Duration::from_micros(200), Duration::from_millis(2)] {
        let (address, accept) = server();
        let relay = Relay::start(address, rtt);
        let mut client = connect(&relay);
        let server = thread::spawn(move || echo(accept()));
        let trip = |_| {
            let begun = Instant::now();
            client.write_all(b"x").expect("room");
            client.read_exact(&mut [0]).expect("an answer");
            begun.elapsed()
        };
        // The least of many: how much more it is says nothing about a relay on a machine with other
        // work.
        let least = (0..500).map(trip).min().expect("some");
        assert!(least >= rtt, "{least:?} for {rtt:?}");
        assert!(
            least < rtt + Duration::from_micros(200),
            "{least:?} for {rtt:?}"
        );
        drop(client);
        server.join().expect("no panic");
    }
}

#[test]
fn order_and_throughput_are_kept() {
    const NUMBERS: u32 = 4_000_000;
    let rtt = Duration::from_millis(100);
    let (address, accept) = server();
    let relay = Relay::start(address, rtt);
    let mut client = connect(&relay);
    let server = thread::spawn(move || echo(accept()));
    let mut sender = client.try_clone().expect("a socket");
    let begun = Instant::now();
    let sending = thread::spawn(move || {
        // In pieces of a hundred bytes at first: each is a chunk of its own.
        for number in 0..NUMBERS / 1000 {
            let piece: Vec<u8> = (0..1000)
                .flat_map(|at| (number * 1000 + at).to_be_bytes())
                .collect();
            let size = if number < 10 { 100 } else { piece.len() };
            piece
                .chunks(size)
                .for_each(|part| sender.write_all(part).expect("room"));
        }
    });
    let mut received = vec![0; 4 * NUMBERS as usize];
    client.read_exact(&mut received).expect("all of it");
    let took = begun.elapsed();
    assert!(
        received
            .chunks(4)
            .zip(0..NUMBERS)
            .all(|(bytes, number)| bytes == number.to_be_bytes()),
        "out of order"
    );
    // 16 MB are hundreds of chunks: a relay that holds back one after the other would need more
    // than ten seconds.
    assert!(took >= rtt && took < Duration::from_secs(5), "{took:?}");
    sending.join().expect("no panic");
    drop(client);
    server.join().expect("no panic");
}

#[test]
fn an_end_is_passed_on_after_what_came_before_it() {
    let rtt = Duration::from_millis(100);
    let (address, accept) = server();
    let relay = Relay::start(address, rtt);
    let mut client = connect(&relay);
    let mut server = accept();
    let begun = Instant::now();
    client.write_all(b"last").expect("room");
    client.shutdown(std::net::Shutdown::Write).expect("open");
    let mut read = Vec::new();
    server.read_to_end(&mut read).expect("an end in order");
    assert_eq!(read, b"last");
    assert!(begun.elapsed() >= rtt / 2, "{:?}", begun.elapsed());
    // The other direction is still open.
    server.write_all(b"answer").expect("room");
    drop(server);
    let mut read = Vec::new();
    client.read_to_end(&mut read).expect("an end in order");
    assert_eq!(read, b"answer");
}

#[test]
fn a_connection_that_is_dropped_ends_at_the_other_side() {
    let (address, accept) = server();
    let relay = Relay::start(address, Duration::from_millis(1));
    let client = connect(&relay);
    let server = accept();
    drop(client);
    assert!(is_over(&server));
}

#[test]
fn a_relay_that_is_dropped_closes_its_connections() {
    let (address, accept) = server();
    let relay = Relay::start(address, Duration::from_millis(1));
    let client = connect(&relay);
    let server = accept();
    let late = relay.address();
    drop(relay);
    assert!(is_over(&client) && is_over(&server));
    assert!(TcpStream::connect(late).is_err());
}

#[test]
fn a_server_that_is_gone_ends_the_connection() {
    let (address, accept) = server();
    drop(accept);
    let relay = Relay::start(address, Duration::from_millis(1));
    assert!(is_over(&connect(&relay)));
}
