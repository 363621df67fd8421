//! The table of exit codes, row by row. What is lost (79) has a file of its own.

mod common;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{Done, Place};

#[track_caller]
fn refused(done: &Done, code: i32) {
    assert_eq!(done.code, code, "{done:?}");
    assert!(
        done.stdout.is_empty(),
        "nothing of ours on stdout: {done:?}"
    );
    assert!(!done.stderr.is_empty(), "it says why");
}

#[test]
fn the_commands_own_code_is_passed_through() {
    let place = Place::new();
    for code in [0, 1, 7, 64, 75, 255] {
        let done = place.run("run own", &format!("exit {code}"));
        assert_eq!(done.code, code, "{done:?}");
        assert_eq!(done.stderr, "", "nothing to say");
    }
}

#[test]
fn a_command_that_a_signal_killed_is_128_and_the_signal() {
    let place = Place::new();
    for (signal, code) in [("KILL", 137), ("TERM", 143), ("SEGV", 139), ("USR1", 138)] {
        let done = place.run(
            "run killed",
            &format!("ulimit -c 0; kill -{signal} $$; sleep 60"),
        );
        assert_eq!(done.code, code, "{done:?}");
    }
}

#[test]
fn bad_usage_is_64_and_runs_nothing() {
    let place = Place::new();
    let lines = [
        "run --no-such-flag n",
        "frobnicate n",
        "run --try --wait 1s n",
        "run --shared --exclusive n",
        "run --shared --limit 2 n",
        "run --exclusive --limit 2 n",
        "run --permits 2 n",
        "run --limit 2 --permits 3 n",
        "run --limit 2 --permits 0 n",
        "run --limit 0 n",
        "run --limit -1 n",
        "run --once-per 1m --shared n",
        "run --once-per 1m --limit 2 n",
        "run --kill-after 8s n",
        "run --lease 4s --kill-after 1001ms n",
        "run --lease 999ms n",
        "run --lease 0 n",
        "run --lease 25h n",
        "run --lease soon n",
        "run --max-hold 0 n",
        "run --max-hold 1s --min-hold 2s n",
        "run --once-per 0 n",
        "run --wait -1s n",
        "run --wait 5parsecs n",
        "run --busy-exit-code 256 n",
        "run --lost-exit-code x n",
        "run --on-lost pray n",
        "run -q -v n",
        "run n second-name",
    ];
    for line in lines {
        let done = place.run(line, "echo ran; touch ran");
        assert_eq!(done.code, 64, "{line}: {done:?}");
        assert!(
            done.stdout.is_empty() && !done.stderr.is_empty(),
            "{line}: {done:?}"
        );
    }
    for line in [
        "run n",
        "run",
        "show",
        "release n",
        "release",
        "renew",
        "acquire",
        "completions tcsh-no",
        "list a b",
    ] {
        let done = place.verb(line);
        assert_eq!(done.code, 64, "{line}: {done:?}");
        assert!(
            done.stdout.is_empty() && !done.stderr.is_empty(),
            "{line}: {done:?}"
        );
    }
    refused(&place.finish(place.bare()), 64);
    assert!(!place.path("ran").exists());
}

#[test]
fn a_name_is_1_to_512_bytes() {
    let place = Place::new();
    let longest = "n".repeat(512);
    let too_long = "n".repeat(513);
    let in_bytes = "ü".repeat(257);
    for (name, code) in [
        ("", 64),
        (longest.as_str(), 0),
        (too_long.as_str(), 64),
        (in_bytes.as_str(), 64),
    ] {
        for verb in ["run", "acquire"] {
            let command = match verb {
                "run" => place.command(["run", "--try", name, "--", "true"]),
                verb => place.command([verb, "--try", name, "--lease", "1s"]),
            };
            assert_eq!(
                place.finish(command).code,
                code,
                "{verb} with {} bytes",
                name.len()
            );
        }
    }
    refused(&place.finish(place.command(["show", ""])), 64);
}

#[test]
fn a_name_in_use_as_another_kind_is_64() {
    let place = Place::new();
    let mutex = place.holder("run kinds");
    refused(&place.run("run --try --limit 2 kinds", "true"), 64);
    drop(mutex);
    let semaphore = place.holder("run --limit 2 --wait 20s kinds");
    for line in [
        "run --try kinds",
        "run --try --shared kinds",
        "run --try --limit 3 kinds",
        "acquire --try kinds",
    ] {
        let done = if line.starts_with("run") {
            place.run(line, "true")
        } else {
            place.verb(line)
        };
        assert_eq!(done.code, 64, "{line}: {done:?}");
    }
    drop(semaphore);
}

#[test]
fn a_database_that_another_process_writes_to_is_69_and_says_which() {
    let place = Place::new();
    assert_eq!(place.run("run sat-upon", "true").code, 0);
    let connection = place.connection();
    connection.execute_batch("BEGIN IMMEDIATE").unwrap();
    let begun = Instant::now();
    let done = place.run("run --store-wait 3s sat-upon", "echo ran");
    let took = begun.elapsed();
    refused(&done, 69);
    assert!(
        done.stderr
            .contains(&format!("process {} ", std::process::id())),
        "{done:?}"
    );
    assert!(
        took >= Duration::from_secs(2) && took < Duration::from_secs(20),
        "{took:?}"
    );
    refused(&place.run("run --try sat-upon", "echo ran"), 69);
    refused(&place.verb("list"), 69);
    connection.execute_batch("ROLLBACK").unwrap();
    assert_eq!(place.run("run sat-upon", "true").code, 0);
}

#[test]
fn a_store_that_cannot_be_reached_is_not_tried_for_longer_than_the_wait() {
    let place = Place::new();
    assert_eq!(place.run("run brief", "true").code, 0);
    let connection = place.connection();
    connection.execute_batch("BEGIN IMMEDIATE").unwrap();
    let begun = Instant::now();
    refused(&place.run("run --wait 500ms brief", "echo ran"), 69);
    assert!(
        begun.elapsed() < Duration::from_secs(7),
        "{:?}",
        begun.elapsed()
    );
}

#[test]
fn a_full_disk_is_69() {
    let place = Place::new();
    let disk = place.path("disk");
    fs::create_dir(&disk).unwrap();
    let script = format!(
        "mount -t tmpfs -o size=128k none {disk} || exit 200
        head -c 1000000 /dev/zero > {disk}/filler 2>/dev/null
        {palisade} --url sqlite:{disk}/locks.db run --wait 1s full -- echo ran",
        disk = disk.display(),
        palisade = env!("CARGO_BIN_EXE_palisade"),
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]);
    let done = place.finish(command);
    if done.code == 200 || done.stderr.contains("unshare failed") {
        eprintln!("not tested, no right to mount: {}", done.stderr);
        return;
    }
    refused(&done, 69);
    assert!(done.stderr.contains("full"), "{done:?}");
}

#[test]
fn a_file_that_is_no_database_of_ours_is_70() {
    let place = Place::new();
    let all = |text: &str| {
        for done in [
            place.run("run --wait 1s n", "echo ran"),
            place.verb("list"),
            place.verb("acquire --wait 1s n"),
        ] {
            refused(&done, 70);
            assert!(
                done.stderr.contains("locks.db"),
                "it says which file: {done:?}"
            );
            assert!(done.stderr.contains(text), "{done:?}");
        }
    };
    fs::write(place.database(), "this was never a database\n".repeat(1000)).unwrap();
    all("damaged");
    assert!(
        fs::read_to_string(place.database())
            .unwrap()
            .starts_with("this was never"),
        "left as it was"
    );
    fs::remove_file(place.database()).unwrap();
    place
        .connection()
        .execute_batch("CREATE TABLE customers (id)")
        .unwrap();
    all("another program");
}

#[test]
fn a_database_of_a_newer_palisade_is_70() {
    let place = Place::new();
    assert_eq!(place.run("run n", "true").code, 0);
    place
        .connection()
        .pragma_update(None, "user_version", 99)
        .unwrap();
    let done = place.run("run n", "echo ran");
    refused(&done, 70);
    assert!(done.stderr.contains("newer"), "{done:?}");
}

#[test]
fn busy_is_75_with_one_line_that_names_the_holder() {
    let place = Place::new();
    let mut held = place.holder("run --owner somebody --reason nightly taken");
    for line in [
        "run --try taken",
        "run -n taken",
        "run --wait 0 taken",
        "run -w 200ms taken",
        "run --wait 0.2 taken",
    ] {
        let done = place.run(line, "echo ran");
        refused(&done, 75);
        assert_eq!(done.stderr.lines().count(), 1, "{done:?}");
        for part in ["somebody", "nightly", "palisade show taken"] {
            assert!(done.stderr.contains(part), "{part}: {done:?}");
        }
    }
    refused(&place.verb("acquire --try taken"), 75);
    let done = place.run("run --busy-exit-code 0 --try taken", "echo ran");
    assert_eq!((done.code, done.stdout.as_str()), (0, ""), "{done:?}");
    assert_eq!(
        place
            .run("run --busy-exit-code 9 --wait 100ms taken", "true")
            .code,
        9
    );
    assert_eq!(place.verb("acquire --busy-exit-code 9 --try taken").code, 9);
    let quiet = place.run("run -q --try taken", "echo ran");
    assert_eq!(
        (quiet.code, quiet.stdout.as_str(), quiet.stderr.as_str()),
        (75, "", "")
    );
    assert!(!held.has_ended());
}

#[test]
fn the_wait_is_as_long_as_asked() {
    let place = Place::new();
    let _held = place.holder("run long");
    let begun = Instant::now();
    assert_eq!(place.run("run --wait 700ms long", "true").code, 75);
    let took = begun.elapsed();
    assert!(
        took >= Duration::from_millis(700) && took < Duration::from_secs(6),
        "{took:?}"
    );
    assert_eq!(place.waiters("long"), 0);
}

#[test]
fn a_place_without_rights_is_77() {
    let place = Place::new();
    if !rustix::process::geteuid().is_root() {
        eprintln!("not tested: only root can be another user");
        return;
    }
    assert_eq!(place.run("run n", "true").code, 0);
    let copy = place.copy_for_every_user();
    let nobody = |url: &str, verb: &[&str]| {
        let mut command = Command::new(&copy);
        command
            .env_clear()
            .env("HOME", "/")
            .current_dir("/")
            .args(["--url", url])
            .args(verb);
        command.uid(65534).gid(65534);
        place.finish(command)
    };
    let run = ["run", "--wait", "1s", "n", "--", "echo", "ran"];
    // The file and its folder are root's.
    refused(&nobody(&place.url(), &run), 77);
    assert_eq!(place.verb("acquire --lease 1h held").code, 0);
    refused(&nobody(&place.url(), &["list"]), 77);
    refused(
        &nobody(&place.url(), &["release", "held", "--fence", "2", "--yes"]),
        77,
    );
    // No file yet, and no right to make one.
    refused(
        &nobody(
            &format!("sqlite:{}", place.path("other.db").display()),
            &run,
        ),
        77,
    );
    // A folder that may not be entered.
    let closed = place.path("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, Permissions::from_mode(0o700)).unwrap();
    refused(
        &nobody(
            &format!("sqlite:{}", closed.join("locks.db").display()),
            &run,
        ),
        77,
    );
}

#[test]
fn a_bad_url_is_78() {
    let place = Place::new();
    let missing = format!("sqlite:{}", place.path("no/such/folder/locks.db").display());
    let unknown_word = format!("{}?colour=red", place.url());
    let urls = [
        "",
        "nonsense",
        "://",
        "gopher://host/1",
        "sqlite:",
        missing.as_str(),
        unknown_word.as_str(),
    ];
    for url in urls {
        for verb in [
            &["run", "n", "--", "echo", "ran"][..],
            &["list"],
            &["acquire", "n"],
            &["show", "n"],
        ] {
            let mut command = place.bare();
            command.args(["--url", url]).args(verb);
            let done = place.finish(command);
            assert_eq!(done.code, 78, "{url} {verb:?}: {done:?}");
            assert!(
                done.stdout.is_empty() && !done.stderr.is_empty(),
                "{url}: {done:?}"
            );
        }
    }
    let done = place.finish({
        let mut command = place.bare();
        command.args(["--url", &missing, "list"]);
        command
    });
    assert!(done.stderr.contains("no/such/folder"), "{done:?}");
}

#[test]
fn a_command_that_is_not_there_is_127_and_one_that_cannot_be_executed_126() {
    let place = Place::new();
    fs::write(place.path("plain"), "not a program").unwrap();
    fs::write(place.path("script"), "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(place.path("script"), Permissions::from_mode(0o755)).unwrap();
    for (program, code) in [
        ("no-such-command", 127),
        ("./no/such/path", 127),
        ("./plain", 126),
        ("/", 126),
        ("./plain/below", 126),
        ("", 127),
    ] {
        let done = place.finish(place.command(["run", "n", "--", program]));
        assert_eq!(done.code, code, "{program}: {done:?}");
        assert!(done.stdout.is_empty(), "{done:?}");
        assert_eq!(place.holders("n"), 0, "nothing is left held");
    }
}

#[test]
fn once_per_counts_a_run_that_failed_but_not_one_that_never_began() {
    let place = Place::new();
    fs::write(place.path("plain"), "not a program").unwrap();
    for (program, code) in [("no-such-command", 127), ("./plain", 126)] {
        assert_eq!(
            place
                .finish(place.command(["run", "--once-per", "1h", "daily", "--", program]))
                .code,
            code
        );
    }
    let ran = place.run("run --once-per 1h daily", "echo ran; exit 3");
    assert_eq!((ran.code, ran.stdout.as_str()), (3, "ran\n"));
    for line in [
        "run --once-per 1h daily",
        "run --once-per 1h --try daily",
        "run --once-per 1h --wait 5s daily",
    ] {
        let begun = Instant::now();
        let skipped = place.run(line, "echo ran");
        refused(&skipped, 75);
        assert!(skipped.stderr.contains("skipped"), "{skipped:?}");
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "{line}: skipping does not wait"
        );
    }
    assert_eq!(
        place
            .run("run --once-per 1h --busy-exit-code 0 daily", "echo ran")
            .code,
        0
    );
    // Another attempt to start something that is not there does not take away the mark of a run.
    assert_eq!(
        place
            .finish(place.command(["run", "--once-per", "1h", "daily", "--", "no-such-command"]))
            .code,
        75
    );
}
