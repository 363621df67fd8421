//! Sentinels, clusters and TLS.

use palisade_testkit::redis::{Redis, documented_rights};
use palisade_testkit::shared;
use serde_json::Value;

use super::{assert_says, name};
use crate::common::Place;

#[test]
fn sentinels_and_clusters_serve_the_same_verbs() {
    for (url, scheme) in [
        (shared::redis_sentinel().url(), "redis+sentinel"),
        (shared::redis_cluster().url(), "redis+cluster"),
    ] {
        let (place, prefix) = (Place::of(url), name());
        // Enough for every primary of the cluster to have some.
        let names: Vec<String> = (0..6).map(|number| format!("{prefix}/{number}")).collect();
        let _holders: Vec<_> = names
            .iter()
            .map(|name| place.holder(&format!("run --owner me {name}")))
            .collect();
        let listed = place.verb(&format!("list --json {prefix}"));
        let mut found: Vec<String> = listed
            .stdout
            .lines()
            .map(|line| {
                serde_json::from_str::<Value>(line).unwrap()["name"]
                    .as_str()
                    .unwrap()
                    .to_owned()
            })
            .collect();
        found.sort();
        assert_eq!(found, names, "{scheme}");
        let shown = place.show(&names[0]);
        assert!(
            shown["store"] == scheme && shown["holders"][0]["owner"] == "me",
            "{shown}"
        );
        assert_eq!(
            place.run(&format!("run --try {}", names[0]), "true").code,
            75
        );
        let waiter = place.waiter(
            &format!("run {}", names[0]),
            &names[0],
            "echo $PALISADE_STORE",
            1,
        );
        let fence = place.fence(&names[0]);
        assert_eq!(
            place
                .verb(&format!("release {} --fence {fence} --yes", names[0]))
                .code,
            0
        );
        let done = waiter.end();
        assert_eq!((done.code, done.stdout.trim()), (0, scheme), "{done:?}");
    }
}

/// What a cluster and sentinels need beyond the rights of one server: the page says the same.
#[test]
fn the_documented_rights_suffice_on_a_cluster_and_with_sentinels() {
    let set_user = |server: &Redis, rights: &str| {
        let words: Vec<&str> = ["ACL", "SETUSER"]
            .into_iter()
            .chain(rights.split(' '))
            .collect();
        assert_eq!(server.call(&words).text(), "OK", "{rights}");
    };
    let rights = documented_rights("palisade");
    let (cluster, pair) = (shared::redis_cluster(), shared::redis_sentinel());
    for node in cluster.nodes() {
        set_user(node, &format!("{rights} +cluster|slots +asking"));
    }
    for node in pair.nodes() {
        set_user(node, &rights);
    }
    for sentinel in pair.sentinels() {
        set_user(
            sentinel,
            "watch on >watchpw -@all +sentinel|get-master-addr-by-name",
        );
    }
    let sentinels = pair.url().replace("://", "://locks:lockpw@");
    for url in [
        cluster.url().replace("://", "://locks:lockpw@"),
        format!("{sentinels}?sentinel_user=watch&sentinel_password=watchpw&replicas=1"),
    ] {
        let (place, name) = (Place::of(url), name());
        let _holder = place.holder(&format!("run {name}"));
        let waiter = place.waiter(&format!("run {name}"), &name, "true", 1);
        assert_eq!(
            place
                .verb(&format!(
                    "release {name} --fence {} --yes",
                    place.fence(&name)
                ))
                .code,
            0
        );
        assert_eq!(waiter.end().code, 0);
        assert_eq!(place.verb("list").code, 0);
    }
    let wrong = Place::of(format!(
        "{sentinels}?sentinel_user=watch&sentinel_password=hunter2"
    ));
    let denied = wrong.verb("run --try a -- true");
    assert_says(&denied, 77, "refused the user or the password");
    assert!(!denied.stderr.contains("hunter2"), "{denied:?}");
}

#[test]
fn tls_takes_the_authority_of_the_url() {
    let server = Redis::with().tls().start();
    let port = server.address().port();
    let trusted = Place::of(format!(
        "rediss://localhost:{port}?ca={}",
        palisade_testkit::certs().ca.display()
    ));
    assert_eq!(
        trusted.run("run a", "echo $PALISADE_STORE").stdout,
        "rediss\n"
    );
    let untrusted = Place::of(format!("rediss://localhost:{port}"));
    assert_says(&untrusted.verb("run --try a -- true"), 69, "certificate");
}
