//! The format that other libraries share.

use palisade_testkit::shared;

use super::{assert_says, name, simple};

#[test]
fn the_format_simple_says_what_it_cannot_do() {
    let place = simple();
    for (line, what) in [
        ("run --shared a -- true", "no read/write locks"),
        ("run --exclusive a -- true", "no read/write locks"),
        ("run --limit 2 a -- true", "no semaphores"),
        ("run --min-hold 1s a -- true", "min_hold"),
        ("run --once-per 1s a -- true", "once_per"),
        ("acquire --shared a", "no read/write locks"),
        ("list", "cannot list its locks"),
    ] {
        let done = place.verb(line);
        assert_says(&done, 64, what);
        assert!(
            done.stderr.contains("redis in the format simple"),
            "{done:?}"
        );
    }
}

#[test]
fn a_peers_lock_is_seen_waited_for_and_forced_open() {
    let (place, name, server) = (simple(), name(), shared::redis());
    let taken = server.call(&["SET", &name, "secret-token", "NX", "PX", "60000"]);
    assert_eq!(taken.text(), "OK");
    let busy = place.run(&format!("run --try {name}"), "echo never");
    assert_says(
        &busy,
        75,
        &format!(
            "palisade: {name} is held by another program; look closer with: palisade show {name}"
        ),
    );
    let shown = place.show(&name);
    let holder = &shown["holders"][0];
    assert!(
        holder["owner"] == "another program"
            && holder["fence"].is_null()
            && holder["held_ms"].is_null(),
        "{shown}"
    );
    assert!(
        holder["lease_left_ms"]
            .as_u64()
            .is_some_and(|left| left > 0 && left <= 60_000),
        "{shown}"
    );
    assert!(
        shown["waiters_known"] == false && !shown.to_string().contains("secret-token"),
        "{shown}"
    );
    let text = place.verb(&format!("show {name}"));
    assert!(
        text.stdout.contains(&format!(
            "force it open: palisade release {name} --fence none"
        )),
        "{text:?}"
    );

    let other = place.verb(&format!("release {name} --fence 7 --yes"));
    assert_says(&other, 75, "without a fence (none); nothing was changed");
    let waiting = place.start(&format!("run {name}"), "echo mine");
    let released = place.verb(&format!("release {name} --fence none --yes"));
    assert_says(
        &released,
        0,
        "a peer's lock is released; its holder is not told",
    );
    let done = waiting.end();
    assert_eq!((done.code, done.stdout.as_str()), (0, "mine\n"), "{done:?}");

    // Ours, as a peer sees it: one key, taken.
    let _holder = place.holder(&format!("run --owner web-1 --reason why {name}"));
    assert_eq!(server.call(&["EXISTS", &name]).int(), Some(1));
    assert_says(
        &place.run(&format!("run --try {name}"), "true"),
        75,
        "is held by web-1 (why)",
    );
    let released = place.verb(&format!(
        "release {name} --fence {} --yes",
        place.fence(&name)
    ));
    assert_says(&released, 0, "its holder is told at its next renewal");
}
