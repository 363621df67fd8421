use palisade_testkit::zookeeper::{Ensemble, ZooKeeper};

use crate::{Trace, wait_for};

#[test]
fn a_zookeeper_starts_answers_and_goes() {
    let zookeeper = ZooKeeper::start();
    let trace = Trace::of(&zookeeper);
    assert_eq!(zookeeper.mode().as_deref(), Some("standalone"));
    zookeeper.cli(&["create", "/name", "value"]);
    zookeeper.kill();
    assert_eq!(zookeeper.mode(), None);
    zookeeper.restart();
    assert!(zookeeper.cli(&["get", "/name"]).contains("value"));
    zookeeper.pause();
    assert_eq!(zookeeper.mode(), None);
    zookeeper.resume();
    wait_for("an answer", || zookeeper.mode().is_some());
    drop(zookeeper);
    trace.assert_gone();
}

#[test]
fn three_zookeepers_choose_another_leader() {
    let three = Ensemble::start();
    let traces = Trace::all(three.nodes().iter().map(|node| &**node));
    let old = three.leader();
    old.kill();
    let new = three.leader_after(old);
    assert_ne!(new.address(), old.address());
    old.restart();
    wait_for("the old one follows", || {
        old.mode().as_deref() == Some("follower")
    });
    drop(three);
    traces.iter().for_each(Trace::assert_gone);
}
