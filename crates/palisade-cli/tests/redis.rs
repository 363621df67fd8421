//! The command on Redis, from outside, on real servers.

#![cfg(feature = "redis")]

mod common;

use std::fs;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use common::{Done, Place, is_alive, until};
use palisade_testkit::redis::{Redis, documented_rights};
use palisade_testkit::shared;
use serde_json::Value;

/// A place on a plain server, which all tests here share: each has names of its own.
fn place() -> Place {
    Place::of(shared::redis().url())
}

/// The same in the format that other libraries use.
fn simple() -> Place {
    Place::of(format!("{}?format=simple", shared::redis().url()))
}

fn name() -> String {
    shared::name("cli")
}

fn acquire(place: &Place, line: &str) -> Value {
    let done = place.verb(&format!("acquire {line}"));
    assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
    fs::write(place.path("grant"), &done.stdout).unwrap();
    serde_json::from_str(&done.stdout).expect("a grant is JSON")
}

/// The fields of an object, in the order of the alphabet.
fn fields(object: &Value) -> Vec<&str> {
    object
        .as_object()
        .expect("an object")
        .keys()
        .map(String::as_str)
        .collect()
}

#[track_caller]
fn assert_says(done: &Done, code: i32, what: &str) {
    assert!(
        done.code == code && done.stderr.contains(what),
        "expected {code} and {what:?}: {done:?}"
    );
}

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
fn busy_names_the_holder_and_those_who_wait_are_served_in_order() {
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
    // Killed, it does not release: they are served when its lease has ended, or as soon as an operator says so.
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
fn list_and_show_print_what_the_contract_says() {
    let (place, prefix) = (place(), name());
    let (mutex, permits) = (format!("{prefix}/a"), format!("{prefix}/b"));
    let _holder = place.holder(&format!(
        "run --owner web-1 --reason why --lease 40s {mutex}"
    ));
    let _waiter = place.waiter(
        &format!("run --owner web-2 --shared {mutex}"),
        &mutex,
        "true",
        1,
    );
    let _permits = place.holder(&format!(
        "run --owner web-3 --limit 3 --permits 2 {permits}"
    ));
    let shown = place.show(&mutex);
    let all = [
        "holders",
        "kind",
        "limit",
        "mode",
        "name",
        "store",
        "waiters",
        "waiters_known",
    ];
    assert_eq!(fields(&shown), all);
    let holder = &shown["holders"][0];
    assert_eq!(
        fields(holder),
        [
            "fence",
            "held_ms",
            "lease_left_ms",
            "owner",
            "permits",
            "reason"
        ]
    );
    assert_eq!(
        fields(&shown["waiters"][0]),
        ["mode", "owner", "reason", "waited_ms"]
    );
    for (value, said) in [
        ("name", mutex.as_str()),
        ("store", "redis"),
        ("kind", "rwlock"),
        ("mode", "exclusive"),
    ] {
        assert_eq!(shown[value], said, "{shown}");
    }
    assert!(
        shown["limit"].is_null() && shown["waiters_known"] == true,
        "{shown}"
    );
    assert!(
        holder["owner"] == "web-1" && holder["reason"] == "why" && holder["permits"].is_null(),
        "{holder}"
    );
    assert!(
        holder["fence"]
            .as_str()
            .is_some_and(|fence| fence.parse::<u64>().is_ok()),
        "a decimal string: {holder}"
    );
    assert!(
        holder["held_ms"].is_u64()
            && holder["lease_left_ms"]
                .as_u64()
                .is_some_and(|left| left <= 40_000),
        "{holder}"
    );
    assert!(
        shown["waiters"][0]["owner"] == "web-2" && shown["waiters"][0]["mode"] == "shared",
        "{shown}"
    );

    let listed = place.verb(&format!("list --json {prefix}"));
    let mut lines: Vec<Value> = listed
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    lines.sort_by_key(|line| line["name"].as_str().map(str::to_owned));
    assert_eq!(
        lines
            .iter()
            .map(|line| line["name"].as_str().unwrap())
            .collect::<Vec<_>>(),
        [&mutex, &permits]
    );
    assert!(lines.iter().all(|line| fields(line) == all), "{lines:?}");
    let semaphore = &lines[1];
    assert!(
        semaphore["kind"] == "semaphore"
            && semaphore["limit"] == 3
            && semaphore["mode"] == "permits",
        "{semaphore}"
    );
    assert_eq!(semaphore["holders"][0]["permits"], 2);

    let table = place.verb(&format!("list {prefix}"));
    let head: Vec<&str> = table
        .stdout
        .lines()
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    assert_eq!(
        head,
        [
            "NAME",
            "KIND",
            "MODE",
            "HOLDER",
            "FENCE",
            "HELD",
            "LEASE-LEFT",
            "WAITERS",
            "REASON"
        ]
    );
    assert_eq!(table.stdout.lines().count(), 3, "{table:?}");
    let free = place.verb(&format!("show {prefix}/free"));
    assert_eq!(
        (free.code, free.stdout),
        (0, format!("{prefix}/free is free\n"))
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
        "nobody was asked"
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
        "nobody holds it",
    );
}

#[test]
fn a_grant_goes_from_process_to_process_in_both_formats() {
    for place in [place(), simple()] {
        let name = name();
        let grant = acquire(&place, &format!("--lease 20s --reason script {name}"));
        assert!(
            grant["name"] == name.as_str()
                && grant["store"] == "redis"
                && grant["lease_ms"] == 20_000,
            "{grant}"
        );
        assert!(
            !grant
                .to_string()
                .contains(&shared::redis().address().port().to_string()),
            "it carries no URL: {grant}"
        );
        assert_eq!(place.fence(&name), grant["fence"].as_str().unwrap());
        assert_eq!(place.run(&format!("run --try {name}"), "true").code, 75);
        let left = || {
            place.show(&name)["holders"][0]["lease_left_ms"]
                .as_u64()
                .unwrap()
        };
        until("some of the lease is over", || left() < 19_000);
        let renewed = place.verb("renew --grant grant");
        assert_eq!(
            (
                renewed.code,
                serde_json::from_str::<Value>(&renewed.stdout).unwrap()
            ),
            (0, grant),
            "{renewed:?}"
        );
        assert!(left() > 15_000, "by the same lease");
        assert_eq!(place.verb("release --grant grant").code, 0);
        assert_eq!(place.run(&format!("run --try {name}"), "true").code, 0);
        for line in ["release --grant grant", "renew --grant grant"] {
            let gone = place.verb(line);
            assert_eq!(
                (gone.code, gone.stdout.as_str()),
                (79, ""),
                "{line}: {gone:?}"
            );
        }
    }
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
        "skipped, a run began within the period",
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

#[test]
fn a_killed_palisade_leaves_the_lock_to_its_lease() {
    let (place, name) = (place(), name());
    let running = place.start(
        &format!("run --lease 8s {name}"),
        "echo $$ > pid; exec sleep 300",
    );
    let command = place.written_pid("pid");
    running.kill();
    until("the command has gone with it", || !is_alive(command));
    assert_says(
        &place.run(&format!("run --try {name}"), "true"),
        75,
        "is held by",
    );
    assert_eq!(place.run(&format!("run --wait 40s {name}"), "true").code, 0);
}

#[test]
fn a_server_that_comes_back_without_its_data_ends_the_run_at_once() {
    let server = Redis::start();
    let place = Place::of(server.url());
    let running = place.start("run --lease 60s forgotten", "echo $$ > pid; exec sleep 300");
    place.written_pid("pid");
    let begun = Instant::now();
    server.restart();
    let done = running.end();
    assert_says(&done, 79, "forgotten is lost");
    assert!(
        begun.elapsed() < Duration::from_secs(15),
        "before the next renewal: {:?}",
        begun.elapsed()
    );
}

#[test]
fn a_server_that_cannot_be_reached_is_69_in_time_and_is_waited_for() {
    let server = Redis::start();
    let place = Place::of(server.url());
    server.kill();
    let refused = "cannot be reached: Connection refused";
    for (line, at_most) in [
        ("run --try a", 8),
        ("run --store-wait 1s a", 10),
        ("run --wait 1s --store-wait 1h a", 10),
    ] {
        let begun = Instant::now();
        assert_says(&place.run(line, "echo never"), 69, refused);
        assert!(
            begun.elapsed() < Duration::from_secs(at_most),
            "{line}: {:?}",
            begun.elapsed()
        );
    }
    for line in [
        "list",
        "show a",
        "release a --fence 1 --yes",
        "acquire --store-wait 1s a",
    ] {
        assert_says(&place.verb(line), 69, refused);
    }
    // Somebody else at its door counts who knocks, and sends them away.
    let door = TcpListener::bind(server.address()).unwrap();
    door.set_nonblocking(true).unwrap();
    let mut running = place.start("run --store-wait 40s a", "echo here");
    for _ in 0..3 {
        until("it tries once more", || {
            door.accept().is_ok() || running.has_ended()
        });
        assert!(!running.has_ended(), "it goes on trying");
    }
    drop(door);
    server.start_again();
    let done = running.end();
    assert_eq!((done.code, done.stdout.as_str()), (0, "here\n"), "{done:?}");

    server.pause();
    let begun = Instant::now();
    let silent = place.run("run --store-wait 1s a", "echo never");
    server.resume();
    assert_says(&silent, 69, "has not answered within 1s");
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
}

#[test]
fn a_grant_that_no_replica_confirms_is_refused_and_given_back() {
    let alone = Place::of(format!("{}?replicas=1", shared::redis().url()));
    let name = name();
    assert_says(
        &alone.run(&format!("run --try {name}"), "echo never"),
        69,
        "too few replicas have it",
    );
    assert_eq!(alone.holders(&name), 0);
    let pair = Place::of(format!("{}?replicas=1", shared::redis_sentinel().url()));
    assert_eq!(pair.run(&format!("run --try {name}"), "true").code, 0);
}

#[test]
fn who_may_not_is_told_so_and_no_secret_is_shown() {
    let rights = documented_rights("palisade");
    let server = Redis::with().acl(&rights).start();
    let address = server.address();
    let at = |login: &str| Place::of(format!("redis://{login}{address}"));
    let lines = [
        "run a -- true",
        "-v run --try a -- true",
        "list",
        "show a",
        "acquire a",
        "release a --fence 1 --yes",
    ];
    let mut outputs = Vec::new();
    for line in lines {
        let nobody = at("").verb(line);
        assert_says(&nobody, 77, "wants a user or a password");
        for login in ["locks:hunter2@", "nobody:hunter2@", ":hunter2@"] {
            let wrong = at(login).verb(line);
            assert_says(&wrong, 77, "refused the user or the password");
            outputs.push(wrong);
        }
    }
    let place = at("locks:lockpw@");
    for line in [
        "-v run a -- env",
        "list --json",
        "acquire --lease 1s b",
        "show --json b",
        "run --url-file url a -- env",
    ] {
        fs::write(place.path("url"), place.url()).unwrap();
        let mut command = place.bare();
        // Not passed on, unless the user has put it there.
        if line.contains("--url-file") {
            command.args(line.split(' '))
        } else {
            command.arg("--url").arg(place.url()).args(line.split(' '))
        };
        let done = place.finish(command);
        assert_eq!(done.code, 0, "{line}: {done:?}");
        outputs.push(done);
    }
    // Without one right. The server names the command, but not to a script.
    for (right, what) in [
        (
            "hset",
            "denies a right: The user executing the script can't run this command",
        ),
        ("role", "'role'"),
    ] {
        server.call(&["ACL", "SETUSER", "locks", &format!("-{right}")]);
        let denied = place.verb("run c -- true");
        assert_says(&denied, 77, what);
        outputs.push(denied);
    }
    for done in outputs {
        let said = format!("{}{}", done.stdout, done.stderr);
        assert!(
            !said.contains("hunter2") && !said.contains("lockpw"),
            "{done:?}"
        );
    }
}

#[test]
fn a_url_that_cannot_work_is_78_also_where_only_the_server_knows() {
    let address = shared::redis().address();
    let sentinel = shared::redis_sentinel().sentinels()[0].address();
    for (url, what) in [
        (
            format!("redis://:hunter2@{address}/x"),
            "the number of a database",
        ),
        (
            format!("redis://:hunter2@{address}?format=redisson"),
            "palisade or simple",
        ),
        (format!("redis://:hunter2@{address}?formt=simple"), "formt"),
        (
            format!("redis://:hunter2@{address}?replicas=many"),
            "a number of replicas",
        ),
        (
            format!("redis://:hunter2@{address}?prefix=%7Bx%7D"),
            "braces",
        ),
        (format!("redis://:hunter2@{address}?ca=x.pem"), "rediss:"),
        (
            format!("rediss://:hunter2@{address}?ca=no-such.pem"),
            "cannot be read",
        ),
        (format!("redis://{address},127.0.0.2"), "is one server"),
        (
            format!("redis+cluster://{address}/3"),
            "only the database 0",
        ),
        (
            format!("redis+sentinel://{address}"),
            "name of the primary is missing",
        ),
        (format!("redish://{address}"), "no store has the scheme"),
        (
            format!("redis+sentinel://{address}/m1"),
            "is not a sentinel",
        ),
        (
            format!("redis+cluster://{address}"),
            "is not part of a cluster",
        ),
        (
            format!("redis+sentinel://{sentinel}/m7"),
            "knows no primary by the name",
        ),
        (format!("redis://{sentinel}"), "is a sentinel"),
        (
            format!("redis://{address}/77"),
            "has no database of this number",
        ),
    ] {
        let place = Place::of(url.as_str());
        for line in ["run --try a -- true", "show a"] {
            let done = place.verb(line);
            assert_says(&done, 78, what);
            assert!(!done.stderr.contains("hunter2"), "{url}: {done:?}");
        }
    }
}

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

#[test]
fn both_formats_are_among_the_stores() {
    let stores = place().verb("stores --json");
    let lines: Vec<Value> = stores
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let redis: Vec<&Value> = lines
        .iter()
        .filter(|line| line["store"] == "redis")
        .collect();
    assert_eq!(
        redis
            .iter()
            .map(|line| line["format"].as_str().unwrap())
            .collect::<Vec<_>>(),
        ["palisade", "simple"]
    );
    assert!(
        redis[0]["order"] == "first come, first served"
            && redis[0]["wakes"] == "push"
            && redis[0]["list"] == true
    );
    assert!(
        redis[1]["order"] == "none" && redis[1]["wakes"] == "polling" && redis[1]["list"] == false
    );
    assert!(
        redis
            .iter()
            .all(|line| line["fence"] == "counter and clock" && line["detach"] == true),
        "{redis:?}"
    );
    let table = place().verb("stores").stdout;
    assert!(
        table
            .lines()
            .any(|line| line.starts_with("redis") && line.contains("simple")),
        "{table}"
    );
}

#[test]
fn a_strange_key_does_not_hide_the_other_lines() {
    let prefix = name();
    let place = Place::of(format!("{}?prefix={prefix}", shared::redis().url()));
    let _held = place.holder("run sound");
    let key = format!("{prefix}:1:{{strange}}");
    for (content, error) in [
        (&["SET", &key, "theirs"][..], "no lock of ours"),
        (&["HSET", &key, "field", "theirs"], "no lock of ours"),
        (&["HSET", &key, "s", "2x"], "newer version"),
        (&["HSET", &key, "s", "nonsense"], "cannot be read"),
    ] {
        shared::redis().call(&["DEL", &key]);
        shared::redis().call(content);
        place.lists_beside_a_strange_line("sound", "strange", error);
    }
}
