//! Which servers count as a majority, and which URLs are refused.

mod fences;

use super::*;
use crate::error::Error;

fn refused(url: &str) -> Error {
    let url: StoreUrl = url.parse().expect("a URL");
    open(url).map(drop).expect_err("it is refused")
}

#[test]
fn a_count_without_a_safe_majority_is_refused() {
    for url in [
        "redlock://a",
        "redlock://a,b",
        "redlock://a,b,c,d",
        "redlock://a,b,c,d?young=vote",
    ] {
        let told = refused(url).to_string();
        assert!(told.contains("unsafe-count=yes"), "{url}: {told}");
    }
    for url in [
        "redlock://a,b,c",
        "redlock://a,b,c,d,e/2?young=vote",
        "redlock://a,b,c,d?unsafe-count=yes",
        "redlock://a?unsafe-count=yes",
        "redlocks://user:pw@a,b,c?longest_lease=10m&format=simple",
    ] {
        open(url.parse().expect("a URL")).expect(url);
    }
}

#[test]
fn words_are_checked() {
    for (url, hint) in [
        ("redlock://a,a:6379,b", "listed twice"),
        ("redlock://a,b,c?young=yes", "young=vote"),
        ("redlock://a,b,c?unsafe-count=1", "unsafe-count=yes"),
        (
            "redlock://a,b,c?young=vote&longest_lease=1m",
            "has no meaning",
        ),
        ("redlock://a,b,c?longest_lease=1ms", "shortest lease"),
        ("redlock://a,b,c?format=palisade", "format="),
        ("redlock://a,b,c?ca=x.pem", "redlocks:"),
        ("redlock://a,b,c/x", "number of a database"),
        ("redlock://a,b,c?replicas=1", "unknown query word"),
    ] {
        let told = refused(url).to_string();
        assert!(told.contains(hint), "{url}: {told}");
    }
}

#[test]
fn the_longest_lease_is_the_limit() {
    let limit = |url: &str| {
        let store = open(url.parse().expect("a URL")).expect("a store");
        store.capability().max_lease
    };
    assert_eq!(limit("redlock://a,b,c"), Duration::from_secs(60));
    assert_eq!(
        limit("redlock://a,b,c?longest_lease=2h"),
        Duration::from_secs(7200)
    );
    assert_eq!(limit("redlock://a,b,c?young=vote"), CAPABILITY.max_lease);
}
