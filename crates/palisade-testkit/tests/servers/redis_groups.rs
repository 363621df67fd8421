use palisade_testkit::Server;
use palisade_testkit::redis::{Cluster, Five, Redis, Sentinel};

use crate::{Trace, wait_for};

fn servers(nodes: &[Redis]) -> impl Iterator<Item = &Server> {
    nodes.iter().map(|node| &**node)
}

#[test]
fn five_redis_keep_what_they_confirm_each_by_itself() {
    let five = Five::start();
    let traces = Trace::all(servers(five.nodes()));
    assert_eq!(traces.len(), 5);
    for (number, node) in five.nodes().iter().enumerate() {
        assert_eq!(
            node.call(&["SET", "node", &number.to_string()]).text(),
            "OK"
        );
    }
    five.nodes()[3].restart();
    for (number, node) in five.nodes().iter().enumerate() {
        assert_eq!(node.call(&["GET", "node"]).text(), number.to_string());
    }
    assert!(five.url().starts_with("redlock://127.0.0.1:") && five.url().matches(',').count() == 4);
    drop(five);
    for trace in traces {
        assert!(!trace.dir.exists() && !palisade_testkit::is_alive(trace.pid));
    }
}

#[test]
fn sentinels_name_the_replica_and_what_did_not_reach_it_is_lost() {
    let pair = Sentinel::start();
    let traces = Trace::all(servers(pair.nodes()).chain(servers(pair.sentinels())));
    let (primary, replica) = (pair.primary(), pair.replica());
    primary.call(&["SET", "early", "1"]);
    wait_for("replication", || {
        replica.call(&["GET", "early"]).text() == "1"
    });
    pair.strand_replica();
    assert_eq!(primary.call(&["SET", "late", "1"]).text(), "OK");
    primary.kill();
    replica.resume();
    pair.wait_for_primary(replica);
    assert_eq!(replica.call(&["GET", "early"]).text(), "1");
    assert_eq!(
        replica.call(&["GET", "late"]).text(),
        "",
        "the replica was not cut off"
    );
    drop(pair);
    traces.iter().for_each(Trace::assert_gone);
}

#[test]
fn a_cluster_replaces_a_primary_that_was_killed() {
    let cluster = Cluster::start();
    let traces = Trace::all(servers(cluster.nodes()));
    assert_eq!(traces.len(), 6);
    let old = cluster.primary_of("name");
    assert_eq!(old.call(&["SET", "name", "value"]).text(), "OK");
    old.kill();
    let others = || cluster.nodes().iter().filter(|node| node.is_running());
    // Another node takes over the slot of the key.
    wait_for("another primary", || {
        others().any(|node| {
            node.try_call(&["SET", "name", "again"])
                .is_ok_and(|reply| reply.text() == "OK")
        })
    });
    cluster.wait_served();
    assert_ne!(cluster.primary_of("name").address(), old.address());
    drop(cluster);
    traces.iter().for_each(Trace::assert_gone);
}
