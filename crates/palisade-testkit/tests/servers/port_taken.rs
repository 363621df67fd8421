//! A port taken by another process is reported as such: only then is another port tried.

use std::net::{SocketAddr, TcpListener};
use std::panic::{AssertUnwindSafe, catch_unwind};

use palisade_testkit::Server;
use palisade_testkit::etcd::Etcd;
use palisade_testkit::mariadb::MariaDb;
use palisade_testkit::postgres::Postgres;
use palisade_testkit::redis::Redis;
use palisade_testkit::zookeeper::ZooKeeper;

fn is_noticed(server: &Server, address: SocketAddr) {
    server.kill();
    let stranger = TcpListener::bind(address).expect("the port is free");
    // It closes every connection at once, so that probes do not wait for it. It ends with the
    // process.
    std::thread::spawn(move || stranger.incoming().for_each(drop));
    let failed = catch_unwind(AssertUnwindSafe(|| server.restart()));
    let message = *failed
        .expect_err("it cannot start")
        .downcast::<String>()
        .expect("a message");
    assert!(message.contains("ddress already in use"), "{message}");
}

#[test]
fn redis() {
    let redis = Redis::start();
    is_noticed(&redis, redis.address());
}

#[test]
fn etcd() {
    let etcd = Etcd::start();
    is_noticed(&etcd, etcd.address());
}

#[test]
fn zookeeper() {
    let zookeeper = ZooKeeper::start();
    is_noticed(&zookeeper, zookeeper.address());
}

#[test]
fn postgres() {
    let postgres = Postgres::start();
    is_noticed(&postgres, postgres.address());
}

#[test]
fn mariadb() {
    let mariadb = MariaDb::start();
    is_noticed(&mariadb, mariadb.address());
}
