//! `acquire`, `renew` and `release`: locks for scripts that cannot wrap a command, and an
//! operator's way out.

mod common;

use std::fs;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use common::{Done, Place, until};
use serde_json::Value;

fn acquire(place: &Place, line: &str) -> Value {
    let done = place.verb(&format!("acquire {line}"));
    assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
    assert_eq!(done.stdout.lines().count(), 1, "one object per line");
    fs::write(place.path("grant"), &done.stdout).unwrap();
    serde_json::from_str(&done.stdout).expect("a grant is JSON")
}

#[test]
fn a_grant_outlives_the_process_and_can_be_renewed_and_released() {
    let place = Place::new();
    let grant = acquire(&place, "--lease 20s --reason script scripted");
    for (field, value) in [("name", "scripted"), ("store", "sqlite"), ("fence", "1")] {
        assert_eq!(grant[field], value, "{field}");
    }
    assert!(
        grant["lease_ms"] == 20_000
            && grant["claim"]
                .as_str()
                .is_some_and(|claim| claim.len() >= 32),
        "{grant}"
    );
    assert!(!grant.to_string().contains("locks.db"), "it carries no URL");
    assert_eq!(place.run("run --try scripted", "true").code, 75);
    let left = |place: &Place| {
        place.show("scripted")["holders"][0]["lease_left_ms"]
            .as_u64()
            .unwrap()
    };
    until("some of the lease is over", || left(&place) < 19_000);
    let renewed = place.verb("renew --grant grant");
    assert_eq!(
        (
            renewed.code,
            renewed.stdout.as_str(),
            renewed.stderr.as_str()
        ),
        (0, "", ""),
        "the file stays valid: {renewed:?}"
    );
    assert!(left(&place) > 19_000, "by the same lease");
    let released = place.verb("release --grant grant");
    assert_eq!(
        (released.code, released.stdout.as_str()),
        (0, ""),
        "{released:?}"
    );
    assert_eq!(place.holders("scripted"), 0);
    for line in ["release --grant grant", "renew --grant grant"] {
        let gone = place.verb(line);
        assert_eq!(
            (gone.code, gone.stdout.as_str()),
            (79, ""),
            "{line}: {gone:?}"
        );
    }
}

#[test]
fn a_renewal_as_json_is_the_grant_with_its_expiry() {
    let place = Place::new();
    let mut grant = acquire(&place, "--lease 1h n");
    let since_1970 = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_secs_f64()
    };
    let before = since_1970();
    let renewed = place.verb("renew --json --grant grant");
    let after = since_1970();
    let mut json: Value = serde_json::from_str(&renewed.stdout).expect("JSON");
    let take_expiry = |grant: &mut Value| {
        let fields = grant.as_object_mut().expect("a grant");
        fields.remove("expires_at").expect("an expiry")
    };
    let (expiry, first) = (take_expiry(&mut json), take_expiry(&mut grant));
    assert!(expiry.as_str() > first.as_str(), "{first} {renewed:?}");
    assert_eq!(json, grant, "{renewed:?}");
    let date = Command::new("date")
        .args(["-u", "+%s.%N", "-d", expiry.as_str().expect("RFC 3339")])
        .output()
        .unwrap();
    let expiry: f64 = String::from_utf8(date.stdout)
        .unwrap()
        .trim()
        .parse()
        .expect("a time");
    // Our clock may drift by 1 % from the store's, and the grant is dated that much earlier.
    assert!(
        expiry > before + 3500.0 && expiry < after + 3600.0,
        "{expiry} {before}"
    );
    // What was printed is a grant as well.
    fs::write(place.path("grant"), &renewed.stdout).unwrap();
    assert_eq!(place.verb("release --grant grant").code, 0);
}

/// The store does not keep what became of a grant. The grant itself says until when its lease runs.
#[test]
fn a_grant_that_was_released_is_told_from_one_that_may_have_run_out() {
    let place = Place::new();
    let grant = acquire(&place, "--lease 1h n");
    let end = grant["expires_at"].as_str().expect("RFC 3339").to_owned();
    assert_eq!(place.verb("release --grant grant").code, 0);
    let gone = place.verb("renew --grant grant");
    let said = format!(
        "palisade: the lock was lost: the grant was released, its lease is not over until {end}\n"
    );
    assert_eq!((gone.code, gone.stderr), (79, said));
    // Once the time has come, or without it, both are possible.
    for (then, what) in [("2020-01-01T00:00:00.000Z", "over"), ("", "not known")] {
        let mut grant = grant.clone();
        if then.is_empty() {
            grant.as_object_mut().expect("a grant").remove("expires_at");
        } else {
            grant["expires_at"] = then.into();
        }
        fs::write(place.path("grant"), grant.to_string()).unwrap();
        let gone = place.verb("renew --grant grant");
        let both = "palisade: the lock was lost: the grant was released, or its lease ran out\n";
        assert_eq!((gone.code, gone.stderr.as_str()), (79, both), "{what}");
    }
}

#[test]
fn the_owner_of_a_grant_is_the_process_that_asked_for_it() {
    let place = Place::new();
    acquire(&place, "n");
    let owner = place.show("n")["holders"][0]["owner"]
        .as_str()
        .unwrap()
        .to_owned();
    let comm = fs::read_to_string("/proc/self/comm").unwrap();
    let parts: Vec<&str> = owner.splitn(3, ':').collect();
    assert_eq!(
        parts[1..],
        [&std::process::id().to_string(), comm.trim()],
        "{owner}"
    );
}

#[test]
fn a_grant_can_come_through_a_pipe() {
    let place = Place::new();
    acquire(&place, "piped");
    for (verb, code) in [("renew", 0), ("release", 0), ("release", 79)] {
        let mut command = place.command([verb, "--grant", "-"]);
        command.stdin(Stdio::from(fs::File::open(place.path("grant")).unwrap()));
        assert_eq!(place.finish(command).code, code, "{verb}");
    }
}

#[test]
fn a_grant_ends_with_its_lease() {
    let place = Place::new();
    acquire(&place, "--lease 1s brief");
    assert_eq!(place.run("run --wait 20s brief", "true").code, 0);
    assert_eq!(place.verb("renew --grant grant").code, 79);
    assert_eq!(place.verb("release --grant grant").code, 79);
}

#[test]
fn an_old_grant_does_not_release_the_next_holder() {
    let place = Place::new();
    acquire(&place, "--lease 1s passed-on");
    let mut next = place.holder("run passed-on");
    assert_eq!(place.verb("release --grant grant").code, 79);
    assert_eq!(place.holders("passed-on"), 1);
    assert!(!next.has_ended());
}

#[test]
fn acquire_takes_the_options_of_run() {
    let place = Place::new();
    acquire(&place, "--shared --owner me book");
    acquire(&place, "--shared book");
    assert_eq!(place.holders("book"), 2);
    assert_eq!(place.verb("acquire --try book").code, 75);
    assert_eq!(
        place
            .verb("acquire --wait 100ms --busy-exit-code 3 book")
            .code,
        3
    );
    acquire(&place, "--limit 3 --permits 2 slots");
    assert_eq!(place.show("slots")["holders"][0]["permits"], 2);
    assert_eq!(place.verb("release --grant grant").code, 0);
    assert_eq!(place.holders("slots"), 0);
}

#[test]
fn what_is_no_grant_is_64_and_is_not_repeated() {
    let place = Place::new();
    let grant = acquire(&place, "n").to_string();
    let claim = serde_json::from_str::<Value>(&grant).unwrap()["claim"]
        .as_str()
        .unwrap()
        .to_owned();
    let broken = [
        String::new(),
        "SENTINEL".to_owned(),
        grant[..grant.len() - 2].to_owned(),
        grant.replace("\"fence\":\"1\"", "\"fence\":\"SENTINEL\""),
        grant.replace(&claim, &format!("{claim}SENTINEL")),
        grant.replace("\"name\":\"n\"", "\"name\":\"\""),
        grant.replace("20000", "-5").replace("30000", "-5"),
        "[]".to_owned(),
        "{}".to_owned(),
    ];
    for text in broken {
        assert_ne!(text, grant);
        fs::write(place.path("grant"), &text).unwrap();
        for verb in ["renew", "release"] {
            let done = place.verb(&format!("{verb} --grant grant"));
            assert_eq!(
                (done.code, done.stdout.as_str()),
                (64, ""),
                "{text}: {done:?}"
            );
            assert!(
                !done.stderr.contains("SENTINEL") && !done.stderr.contains(&claim),
                "{text}: {done:?}"
            );
        }
    }
    fs::write(place.path("grant"), b"\xff\xfe").unwrap();
    assert_eq!(place.verb("renew --grant grant").code, 64);
    assert_eq!(place.verb("renew --grant no-such-file").code, 64);
    assert_eq!(place.holders("n"), 1);
}

#[test]
fn memory_keeps_nothing_for_another_process() {
    let place = Place::new();
    for url in ["memory:", "memory:shared"] {
        let mut command = place.bare();
        command.args(["--url", url, "acquire", "n"]);
        let done = place.finish(command);
        assert_eq!((done.code, done.stdout.as_str()), (64, ""), "{done:?}");
    }
}

#[track_caller]
fn answers(done: &Done, code: i32) {
    assert_eq!((done.code, done.stdout.as_str()), (code, ""), "{done:?}");
    assert!(!done.stderr.is_empty());
}

#[test]
fn a_forced_release_breaks_just_the_grant_with_that_fence() {
    let place = Place::new();
    acquire(&place, "n");
    assert_eq!(place.verb("release --grant grant").code, 0);
    acquire(&place, "n");
    assert_eq!(place.fence("n"), "2");
    answers(&place.verb("release n --fence 1 --yes"), 75);
    answers(&place.verb("release n --fence 3 --yes"), 75);
    assert_eq!(place.holders("n"), 1);
    answers(&place.verb("release n --fence 2"), 64);
    assert_eq!(place.holders("n"), 1, "no user could be asked");
    answers(&place.verb("release n --fence 2 --yes"), 0);
    assert_eq!(place.holders("n"), 0);
    answers(&place.verb("release n --fence 2 --yes"), 79);
    assert_eq!(place.verb("renew --grant grant").code, 79);
}

#[test]
fn a_forced_release_with_a_bad_fence_is_64() {
    let place = Place::new();
    acquire(&place, "n");
    for line in [
        "release n --fence x --yes",
        "release n --yes",
        "release n --fence -1 --yes",
        "release --fence 1 --yes",
    ] {
        answers(&place.verb(line), 64);
    }
    answers(&place.verb("release n --fence 1 --grant grant --yes"), 64);
    assert_eq!(place.holders("n"), 1);
}
