use std::net::TcpStream;
use std::time::Duration;

use palisade_testkit::etcd;
use palisade_testkit::lan::Lan;
use palisade_testkit::mariadb::MariaDb;
use palisade_testkit::postgres::Postgres;
use palisade_testkit::redis::{Redis, Sentinel};
use palisade_testkit::resp::Connection;

use crate::{PATIENCE, Trace, wait_for};

#[test]
fn a_redis_that_is_cut_off_is_silent_and_comes_back() {
    let lan = Lan::new();
    let host = lan.host();
    let redis = Redis::with().on(&host).start();
    let trace = Trace::of(&redis);
    assert_eq!(redis.address().ip(), host.ip());
    let mut connection = Connection::open(redis.address(), PATIENCE).expect("a connection");
    connection.call(&["PING"]).expect("an answer");
    host.cut();
    connection
        .send(&["SET", "name", "value"])
        .expect("the kernel takes it");
    connection
        .set_limit(Duration::from_millis(300))
        .expect("an open socket");
    assert!(connection.read().is_err(), "it was not cut off");
    assert!(TcpStream::connect_timeout(&redis.address(), Duration::from_millis(300)).is_err());
    host.heal();
    wait_for("the late answer", || connection.read().is_ok());
    assert_eq!(redis.call(&["GET", "name"]).text(), "value");
    drop((redis, host, lan));
    trace.assert_gone();
}

#[test]
fn a_leader_that_is_cut_off_is_replaced_without_its_knowledge() {
    let lan = Lan::new();
    let hosts = [lan.host(), lan.host(), lan.host()];
    let three = etcd::Cluster::start_on(&hosts);
    let old = three.leader();
    let host = hosts
        .iter()
        .find(|host| host.ip() == old.address().ip())
        .expect("it is on one of them");
    host.cut();
    let new = three.leader_after(old);
    wait_for("a write", || {
        new.try_etcdctl(&["put", "name", "value"]).is_ok()
    });
    host.heal();
    wait_for("the old one follows", || {
        old.try_etcdctl(&["get", "name"])
            .is_ok_and(|said| said.contains("value"))
    });
}

#[test]
fn two_sides_that_think_each_other_dead_both_take_writes() {
    let lan = Lan::new();
    let hosts = std::array::from_fn(|_| lan.host());
    let pair = Sentinel::start_on(&hosts);
    let [old, new] = pair.nodes();
    for other in &hosts[1..] {
        hosts[0].cut_from(other);
    }
    pair.wait_for_primary(new);
    assert_eq!(new.call(&["SET", "name", "new"]).text(), "OK");
    assert_eq!(
        old.call(&["SET", "name", "old"]).text(),
        "OK",
        "the old primary does not know"
    );
    for other in &hosts[1..] {
        hosts[0].heal_with(other);
    }
    wait_for("the old one follows", || {
        old.call(&["GET", "name"]).text() == "new"
    });
}

#[test]
fn servers_that_refuse_root_run_on_a_host_too() {
    let lan = Lan::new();
    let postgres = Postgres::with().on(&lan.host()).start();
    assert_eq!(postgres.sql("select 1 + 1"), "2");
    let mariadb = MariaDb::with().on(&lan.host()).start();
    assert_eq!(mariadb.sql("select 1 + 1"), "2");
    assert_ne!(postgres.address().ip(), mariadb.address().ip());
    assert!(TcpStream::connect(mariadb.address()).is_ok());
}
