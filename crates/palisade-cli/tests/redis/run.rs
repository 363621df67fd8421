//! `run`: codes, the line, modes, periods, and a forced release.

use std::fs;
use std::time::{Duration, Instant};

use palisade_testkit::shared;

use super::{assert_says, name, place};

#[test]
fn a_run_passes_the_code_on_and_tells_the_command_what_it_holds() {
    let (place, name) = (place(), name());
    let before = std::time::UNIX_EPOCH.elapsed().unwrap().as_micros();
    let script = "echo $PALISADE_NAME $PALISADE_STORE $PALISADE_OWNER $PALISADE_LEASE_MS; echo $PALISADE_FENCE; env; exit 3";
    let done = place.run(&format!("run --owner me --lease 20s {name}"), script);
    assert_eq!((done.code, done.stderr.as_str()), (3, ""), "{done:?}");
    let mut lines = done.stdout.lines();
    assert_eq!(
        lines.next(),
        Some(format!("{name} redis me 20000").as_str())
    );
    let fence: u128 = lines.next().unwrap().parse().unwrap();
    assert!(
        fence >= before,
        "{fence} is the server's clock in microseconds, not before {before}"
    );
    let address = shared::redis().address().to_string();
    assert!(!done.stdout.contains(&address), "the URL is not passed on");
    let next = place.run(&format!("run {name}"), "echo $PALISADE_FENCE");
    assert!(
        next.stdout.trim().parse::<u128>().unwrap() > fence,
        "{next:?}"
    );
}

#[test]
fn busy_names_the_holder_and_waiters_are_served_in_order() {
    let (place, name) = (place(), name());
    let holder = place.holder(&format!("run --owner web-1 --reason monthly {name}"));
    let busy = place.run(&format!("run --try {name}"), "echo never");
    assert_says(
        &busy,
        75,
        &format!("palisade: {name} is held by web-1 (monthly) for "),
    );
    assert!(
        busy.stderr.contains(&format!("palisade show {name}")) && busy.stdout.is_empty(),
        "{busy:?}"
    );
    assert_says(
        &place.run(&format!("run --wait 300ms {name}"), "echo never"),
        75,
        "web-1",
    );
    assert_eq!(
        place
            .run(
                &format!("run --try --busy-exit-code 0 -q {name}"),
                "echo never"
            )
            .code,
        0
    );
    let order = place.path("order");
    let waiters: Vec<_> = (1..=3)
        .map(|number| {
            place.waiter(
                &format!("run {name}"),
                &name,
                &format!("echo {number} >> {}", order.display()),
                number,
            )
        })
        .collect();
    drop(holder);
    // Killed, it does not release: they are served when its lease has ended, or as soon as an
    // operator says so.
    let released = place.verb(&format!(
        "release {name} --fence {} --yes",
        place.fence(&name)
    ));
    assert_says(&released, 0, "is released; its holder is told");
    for waiter in waiters {
        assert_eq!(waiter.end().code, 0);
    }
    assert_eq!(fs::read_to_string(order).unwrap(), "1\n2\n3\n");
}

#[test]
fn readers_share_permits_are_counted_and_a_name_serves_one_kind() {
    let (place, name, permits) = (place(), name(), name());
    let _reader = place.holder(&format!("run --shared {name}"));
    assert_eq!(
        place
            .run(&format!("run --shared --try {name}"), "true")
            .code,
        0
    );
    assert_eq!(place.run(&format!("run --try {name}"), "true").code, 75);
    assert_eq!(
        place
            .run(&format!("run --exclusive --try {name}"), "true")
            .code,
        75,
        "they are one line"
    );
    let _two = place.holder(&format!("run --limit 3 --permits 2 {permits}"));
    assert_eq!(
        place
            .run(&format!("run --limit 3 --try {permits}"), "true")
            .code,
        0
    );
    assert_eq!(
        place
            .run(
                &format!("run --limit 3 --permits 2 --try {permits}"),
                "true"
            )
            .code,
        75
    );
    assert_eq!(
        place
            .run(&format!("run --limit 4 --try {permits}"), "true")
            .code,
        64,
        "all must give the same limit"
    );
    assert_eq!(
        place
            .run(&format!("run --limit 3 --try {name}"), "true")
            .code,
        64
    );
}

#[test]
fn an_operators_release_reaches_the_running_command_by_push() {
    let (place, name) = (place(), name());
    let running = place.start(
        &format!("run --lease 60s {name}"),
        "trap 'echo told; exit 0' TERM; echo $$ > pid; while :; do sleep 0.02; done",
    );
    place.written_pid("pid");
    let fence = place.fence(&name);
    let other = place.verb(&format!("release {name} --fence 7 --yes"));
    assert_says(
        &other,
        75,
        &format!("with fence {fence}; nothing was changed"),
    );
    assert_eq!(
        place.verb(&format!("release {name} --fence {fence}")).code,
        64,
        "there is no terminal to ask on"
    );
    let begun = Instant::now();
    assert_says(
        &place.verb(&format!("release {name} --fence {fence} --yes")),
        0,
        "its holder is told, and may still be writing",
    );
    let done = running.end();
    assert_eq!(
        (done.code, done.stdout.as_str()),
        (79, "told\n"),
        "{done:?}"
    );
    assert!(
        done.stderr.contains("an operator ended the grant"),
        "{done:?}"
    );
    // The next renewal would have been twenty seconds after the first.
    assert!(
        begun.elapsed() < Duration::from_secs(12),
        "{:?}",
        begun.elapsed()
    );
    assert_says(
        &place.verb(&format!("release {name} --fence {fence} --yes")),
        79,
        "it is not held",
    );
}

#[test]
fn periods_are_kept_by_the_store() {
    let (place, tick, short) = (place(), name(), name());
    assert_eq!(
        place.run(&format!("run --once-per 1h {tick}"), "true").code,
        0
    );
    assert_says(
        &place.run(&format!("run --once-per 1h {tick}"), "echo never"),
        75,
        "skipped, a run began ",
    );
    assert_eq!(
        place.run(&format!("run {tick}"), "true").code,
        0,
        "only such claims are refused"
    );
    let missing =
        place.finish(place.command(["run", "--once-per", "1h", &short, "--", "no-such-command"]));
    assert_eq!(missing.code, 127);
    assert_eq!(
        place
            .run(&format!("run --once-per 1h {short}"), "true")
            .code,
        0,
        "one that never ran does not count"
    );
    let closed = name();
    assert_eq!(
        place
            .run(&format!("run --min-hold 1h {closed}"), "true")
            .code,
        0
    );
    assert_eq!(
        place.run(&format!("run --try {closed}"), "echo never").code,
        75
    );
    let closed = name();
    assert_eq!(
        place
            .run(&format!("run --min-hold 2s {closed}"), "true")
            .code,
        0
    );
    assert_eq!(
        place.run(&format!("run --wait 30s {closed}"), "true").code,
        0,
        "and opens by itself"
    );
}
