//! What people read: holders by name, numbers that agree with their nouns, names as they were
//! given.

mod common;

use common::Place;
use common::terminal::OnTerminal;

#[test]
fn one_permit_is_not_plural() {
    let place = Place::new();
    assert_eq!(place.verb("acquire --limit 3 slots").code, 0);
    assert_eq!(place.verb("acquire --limit 3 --permits 2 slots").code, 0);
    for verb in ["list", "show slots"] {
        let done = place.verb(verb);
        assert!(
            done.stdout.contains("1 permit") && !done.stdout.contains("1 permits"),
            "{done:?}"
        );
        assert!(done.stdout.contains("2 permits"), "{done:?}");
    }
}

#[test]
fn a_full_semaphore_names_its_holders() {
    let place = Place::new();
    for owner in ["web-1", "web-2", "web-3"] {
        let done = place.verb(&format!("acquire --limit 4 --owner {owner} slots"));
        assert_eq!(done.code, 0);
    }
    let names = |line: &str| {
        let done = place.run(line, "true");
        assert_eq!(done.code, 75, "{done:?}");
        assert_eq!(done.stderr.lines().count(), 1, "{done:?}");
        for owner in ["web-1", "web-2", "web-3"] {
            assert!(done.stderr.contains(owner), "{owner}: {done:?}");
        }
    };
    names("run --limit 4 --permits 2 --try slots");
    names("run --limit 4 --permits 2 --wait 100ms slots");
    assert_eq!(place.verb("acquire --limit 4 --owner web-4 slots").code, 0);
    let done = place.run("run --limit 4 --try slots", "true");
    assert!(done.stderr.contains("4 holders, first web-1"), "{done:?}");
}

#[test]
fn a_name_in_use_as_another_kind_is_named() {
    let place = Place::new();
    assert_eq!(place.verb("acquire --limit 3 stock/pen").code, 0);
    let done = place.run("run --try stock/pen", "true");
    assert_eq!(done.code, 64, "{done:?}");
    assert!(
        done.stderr
            .contains("stock/pen is in use as a semaphore of 3"),
        "{done:?}"
    );
}

#[test]
fn a_holder_can_be_named_instead_of_its_fence() {
    let place = Place::new();
    assert_eq!(place.verb("acquire --owner web-1 n").code, 0);
    let other = place.verb("release n --holder web-2 --yes");
    assert_eq!(other.code, 75, "{other:?}");
    assert!(other.stderr.contains("web-1"), "{other:?}");
    let done = place.verb("release n --holder web-1");
    assert_eq!(done.code, 64, "there is no terminal to ask on: {done:?}");
    assert_eq!(place.holders("n"), 1);
    assert_eq!(place.verb("release n --holder web-1 --yes").code, 0);
    assert_eq!(place.holders("n"), 0);
    let gone = place.verb("release n --holder web-1 --yes");
    assert_eq!(gone.code, 79, "{gone:?}");
}

#[test]
fn a_holder_that_holds_twice_is_not_guessed() {
    let place = Place::new();
    for _ in 0..2 {
        assert_eq!(place.verb("acquire --shared --owner web-1 n").code, 0);
    }
    let done = place.verb("release n --holder web-1 --yes");
    assert_eq!(done.code, 64, "{done:?}");
    for fence in ["--fence 1", "--fence 2"] {
        assert!(done.stderr.contains(fence), "{done:?}");
    }
    assert_eq!(place.holders("n"), 2);
}

#[test]
fn without_a_fence_a_terminal_offers_a_choice() {
    let place = Place::new();
    for owner in ["web-1", "web-2"] {
        let done = place.verb(&format!("acquire --shared --owner {owner} --reason why n"));
        assert_eq!(done.code, 0);
    }
    let release = || OnTerminal::start(&place, &place.command(["release", "n"]));
    for answer in ["\n", "3\n", "x\n", "0\n", "\x04"] {
        let mut terminal = release();
        terminal.shows("1. held by web-1 (why) for ");
        terminal.shows("2. held by web-2 (why) for ");
        terminal.types(answer);
        assert_eq!(
            terminal.ends(),
            Some(64),
            "{answer:?}: {}",
            terminal.screen()
        );
        assert_eq!(place.holders("n"), 2);
    }
    let mut terminal = release();
    terminal.shows("2. held by web-2");
    terminal.types("2\n");
    assert_eq!(terminal.ends(), Some(0), "{}", terminal.screen());
    assert_eq!(place.show("n")["holders"][0]["owner"], "web-1");
    assert_eq!(place.holders("n"), 1);
    // One holder: there is nothing to choose, only to agree to.
    let mut terminal = release();
    terminal.shows("held by web-1");
    terminal.shows("[y/N]");
    terminal.types("y\n");
    assert_eq!(terminal.ends(), Some(0), "{}", terminal.screen());
    let mut terminal = release();
    terminal.shows("not held");
    assert_eq!(terminal.ends(), Some(79), "{}", terminal.screen());
    let done = place.verb("release n");
    assert_eq!(done.code, 64);
    assert!(done.stderr.contains("--fence"), "{done:?}");
}

#[test]
fn a_forced_release_asks_first() {
    let place = Place::new();
    assert_eq!(place.verb("acquire --lease 1h --owner web-1 n").code, 0);
    for (answer, code, left) in [
        ("n\n", 64, 1),
        ("\n", 64, 1),
        ("\x04", 64, 1),
        ("y\n", 0, 0),
    ] {
        let mut terminal =
            OnTerminal::start(&place, &place.command(["release", "n", "--fence", "1"]));
        terminal.shows("held by web-1");
        terminal.shows("[y/N]");
        terminal.types(answer);
        assert_eq!(
            terminal.ends(),
            Some(code),
            "{answer:?}: {}",
            terminal.screen()
        );
        assert_eq!(place.holders("n"), left);
    }
}

/// Without the flags that chose the store it would ask the user's own file, where the name is free.
#[test]
fn a_command_to_copy_asks_the_same_store() {
    let place = Place::new();
    let _held = place.holder("run --owner web-1 report");
    std::fs::write(place.path("url file"), place.url()).unwrap();
    let profile = format!("[profiles.nightly]\nurl = \"{}\"\n", place.url());
    std::fs::create_dir_all(place.path(".config/palisade")).unwrap();
    std::fs::write(place.path(".config/palisade/config.toml"), profile).unwrap();
    let url = place.url();
    for flags in [
        ["--url", &url],
        ["--url-file", "url file"],
        ["--profile", "nightly"],
    ] {
        let mut command = place.bare();
        command
            .args(flags)
            .args(["run", "--try", "report", "--", "true"]);
        let busy = place.finish(command);
        assert_eq!(busy.code, 75, "{busy:?}");
        let copied = busy.stderr.split("look closer with: palisade ").nth(1);
        let script = format!(
            "{} {}",
            env!("CARGO_BIN_EXE_palisade"),
            copied.expect("a command")
        );
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &script]).current_dir(place.folder());
        shell.env("HOME", place.folder());
        let shown = place.finish(shell);
        assert!(shown.stdout.contains("held by web-1"), "{busy:?} {shown:?}");
    }
}

#[cfg(feature = "redis")]
#[test]
fn a_password_is_not_in_a_command_to_copy() {
    use palisade_testkit::redis::Redis;

    let redis = Redis::with().acl("locker on >s3cr3t ~* &* +@all").start();
    let url = format!("redis://locker:s3cr3t@{}", redis.address());
    let place = Place::of(url);
    let _held = place.holder("run report");
    let busy = place.run("run --try report", "true");
    assert_eq!(busy.code, 75, "{busy:?}");
    assert!(
        busy.stderr.ends_with("palisade show report --url URL\n"),
        "{busy:?}"
    );
}
