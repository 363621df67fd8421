use std::process::Command;

use palisade_testkit::certs;
use palisade_testkit::etcd::{Cluster, Etcd};

use crate::{Trace, wait_for};

#[test]
fn an_etcd_starts_answers_and_goes() {
    let etcd = Etcd::start();
    let trace = Trace::of(&etcd);
    etcd.etcdctl(&["put", "name", "value"]);
    etcd.kill();
    assert!(
        etcd.try_etcdctl(&[
            "--dial-timeout=200ms",
            "--command-timeout=300ms",
            "get",
            "name"
        ])
        .is_err()
    );
    etcd.restart();
    assert_eq!(
        etcd.etcdctl(&["get", "name", "--print-value-only"]).trim(),
        "value"
    );
    etcd.pause();
    assert!(
        etcd.try_etcdctl(&[
            "--dial-timeout=200ms",
            "--command-timeout=300ms",
            "get",
            "name"
        ])
        .is_err()
    );
    etcd.resume();
    wait_for("an answer", || etcd.try_etcdctl(&["get", "name"]).is_ok());
    etcd.stop();
    drop(etcd);
    trace.assert_gone();
}

#[test]
fn tls_and_users() {
    let etcd = Etcd::with().tls().auth().start();
    assert!(etcd.url().starts_with("https://"));
    etcd.etcdctl(&["put", "lock/a", "1"]);
    etcd.etcdctl(&["put", "other", "1"]);
    // With the users in its data, it must still be found ready.
    etcd.restart();
    assert!(etcd.etcdctl(&["user", "get", "locker"]).contains("lock"));
    let denied = etcd
        .try_etcdctl(&["--user", "locker:lockpw", "get", "other"])
        .expect_err("it is not below lock/");
    assert!(denied.contains("permission denied"), "{denied}");
    assert!(
        etcd.try_etcdctl(&["--user", "locker:lockpw", "get", "lock/a"])
            .is_ok()
    );
}

#[test]
fn client_certificates() {
    let etcd = Etcd::with().mutual_tls().start();
    etcd.etcdctl(&["put", "name", "value"]);
    let without = Command::new("timeout")
        .args([
            "20",
            "etcdctl",
            "--command-timeout=2s",
            "--endpoints",
            &etcd.url(),
            "--cacert",
        ])
        .arg(&certs().ca)
        .args(["get", "name"])
        .env("ETCDCTL_API", "3")
        .output()
        .expect("etcdctl");
    assert!(
        !without.status.success(),
        "a client without a certificate was served"
    );
    wait_for("the refusal in the log", || {
        etcd.log().contains("client didn't provide a certificate")
    });
}

#[test]
fn three_etcd_choose_another_leader() {
    let three = Cluster::start();
    let traces = Trace::all(three.nodes().iter().map(|node| &**node));
    let old = three.leader();
    old.etcdctl(&["put", "name", "value"]);
    old.kill();
    let new = three.leader_after(old);
    wait_for("a write", || {
        new.try_etcdctl(&["put", "name", "again"]).is_ok()
    });
    old.restart();
    assert_eq!(
        old.etcdctl(&["get", "name", "--print-value-only"]).trim(),
        "again"
    );
    let restarted = Trace::of(old);
    drop(three);
    traces
        .iter()
        .chain([&restarted])
        .for_each(Trace::assert_gone);
}
