//! Hints for the habits of other tools, and the groups of `--help`.

mod common;

use common::{Done, Place};

/// Bad usage, with this in the answer, and none of that.
#[track_caller]
fn hints(place: &Place, words: &[&str], with: &[&str], without: &[&str]) {
    // No store is asked: a line to copy is short.
    let mut command = place.bare();
    command.args(words);
    let done: Done = place.finish(command);
    assert_eq!(
        (done.code, done.stdout.as_str()),
        (64, ""),
        "{words:?}: {done:?}"
    );
    for text in with {
        assert!(
            done.stderr.contains(text),
            "{words:?} lacks {text:?}: {done:?}"
        );
    }
    for text in without {
        assert!(
            !done.stderr.contains(text),
            "{words:?} has {text:?}: {done:?}"
        );
    }
}

#[test]
fn a_command_without_the_two_dashes_is_shown_with_them() {
    let place = Place::new();
    let with = ["palisade run a -- echo hi"];
    hints(&place, &["run", "a", "echo", "hi"], &with, &[]);
    hints(
        &place,
        &["run", "--try", "--lease", "5s", "a", "echo", "hi there"],
        &["palisade run --try --lease 5s a -- echo 'hi there'"],
        &[],
    );
    hints(
        &place,
        &["elect", "a", "serve"],
        &["palisade elect a -- serve"],
        &[],
    );
    hints(&place, &["run", "a"], &["-- COMMAND"], &[]);
}

#[test]
fn a_second_name_is_given_by_a_flag() {
    let place = Place::new();
    hints(
        &place,
        &["run", "a", "b", "--", "echo", "both"],
        &["palisade run a --also b -- echo both"],
        &["a -- b"],
    );
    // As etcdctl has it.
    hints(
        &place,
        &["elect", "a", "value"],
        &["--value value", "palisade elect a -- value"],
        &[],
    );
    hints(
        &place,
        &["elect", "a", "value", "--", "serve"],
        &["--value value"],
        &["--also", "a -- value"],
    );
}

#[test]
fn an_unknown_flag_with_a_value_is_not_taken_for_a_name() {
    let place = Place::new();
    for words in [
        &["run", "--max-wait", "3", "a", "--", "true"][..],
        &["run", "--max-wait", "3", "a", "true"],
        &["run", "--zzz=3", "a", "--", "true"],
        &["run", "-E", "-1", "a", "--", "true"],
    ] {
        hints(
            &place,
            words,
            &["unexpected argument '-"],
            &["-- a", "'-- -"],
        );
    }
    hints(
        &place,
        &["run", "--zzz", "3", "a", "--", "true"],
        &["palisade run --help"],
        &[],
    );
}

#[test]
fn help_is_for_those_who_ask() {
    let place = Place::new();
    let flags = ["-shell=false", "-shell"];
    for flag in flags {
        hints(
            &place,
            &["run", flag, "a", "--", "true"],
            &[flag, "no shell is used"],
            &["Acquire a lock"],
        );
    }
    hints(
        &place,
        &["run", "-http-addr=h:8500", "a", "--", "true"],
        &["--url"],
        &["Acquire a lock"],
    );
    for ask in ["-h", "--help"] {
        let done = place.finish(place.command(["run", ask]));
        assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
    }
    let done = place.verb("help run");
    assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
}

#[test]
fn a_missing_verb_is_run() {
    let place = Place::new();
    for (words, with) in [
        (&["-n", "a", "cmd"][..], "palisade run -n a -- cmd"),
        (&["-n", "a", "--", "cmd"], "palisade run -n a -- cmd"),
        (&["-w", "3", "a", "cmd"], "palisade run -w 3 a -- cmd"),
        (&["a", "cmd"], "palisade run a -- cmd"),
        (&["a", "--", "cmd"], "palisade run a -- cmd"),
        (&["-n", "run", "a", "--", "cmd"], "palisade run -n a -- cmd"),
    ] {
        hints(&place, words, &[with], &["acquire"]);
    }
    hints(&place, &["acquir"], &["'acquire'"], &["palisade run"]);
}

#[test]
fn a_url_with_a_password_is_not_repeated() {
    let place = Place::new();
    let mut command = place.bare();
    command.args(["run", "--url", "redis://:SENTINEL@h", "a", "echo", "hi"]);
    let done = place.finish(command);
    assert_eq!(done.code, 64);
    assert!(!done.stderr.contains("SENTINEL"), "{done:?}");
    assert!(done.stderr.contains("a -- echo hi"), "{done:?}");
}

#[test]
fn a_timeout_is_either_of_two_things() {
    let place = Place::new();
    let (with, without) = (["--wait 3", "--max-hold 3"], ["-- --timeout"]);
    hints(
        &place,
        &["run", "--timeout", "3", "a", "--", "true"],
        &with,
        &without,
    );
    hints(
        &place,
        &["run", "--timeout=3", "a", "--", "true"],
        &with,
        &without,
    );
    hints(&place, &["run", "-timeout=3", "a", "true"], &with, &without);
    hints(
        &place,
        &["acquire", "--timeout", "3", "a"],
        &["--wait 3"],
        &without,
    );
}

#[test]
fn verbs_of_other_tools_lead_to_ours() {
    let place = Place::new();
    for (words, with) in [
        (vec!["lock", "a"], "palisade run a -- COMMAND"),
        (vec!["lock", "a", "echo", "hi"], "palisade run a -- echo hi"),
        (vec!["exec", "a", "--", "true"], "palisade run a -- true"),
        (vec!["unlock", "a"], "palisade release"),
        (vec!["status", "a"], "palisade show a"),
        (vec!["ls"], "palisade list"),
        (vec!["extend"], "palisade renew"),
        (vec!["campaign", "a"], "palisade elect"),
    ] {
        hints(&place, &words, &[with], &[]);
    }
}

#[test]
fn flags_of_flock_consul_and_etcdctl_lead_to_ours() {
    let place = Place::new();
    for (flags, with) in [
        // flock
        ("-c", "-- sh -c"),
        ("--nonblock", "--try"),
        ("--nb", "--try"),
        ("-u", "palisade release"),
        ("-e", "-x"),
        ("-o", "nothing to close"),
        ("-F", "no such mode"),
        // consul lock
        ("-child-exit-code", "always"),
        ("-pass-stdin", "always"),
        ("-monitor-retry=3", "--lease"),
        ("-name=web", "--owner web"),
        ("-try=5s", "--wait 5s"),
        ("-n=3", "--limit 3"),
        ("-token=secret", "--url"),
        // etcdctl lock
        ("--ttl=10", "--lease 10"),
        ("--endpoints=h:2379", "--url etcd://h:2379"),
        ("--user=me", "--url-file"),
    ] {
        hints(
            &place,
            &["run", flags, "a", "--", "true"],
            &[with],
            &["-- -"],
        );
    }
}

#[test]
fn what_stands_behind_the_two_dashes_is_never_a_hint() {
    let place = Place::new();
    let done = place.finish(place.command(["run", "a", "--", "echo", "--timeout", "-c", "lock"]));
    assert_eq!(
        (done.code, done.stdout.as_str()),
        (0, "--timeout -c lock\n")
    );
}

#[test]
fn the_code_for_busy_is_chosen_as_for_flock() {
    let place = Place::new();
    let _held = place.holder("run a");
    for line in ["run --try -E 3 a", "run --try --conflict-exit-code 3 a"] {
        assert_eq!(place.run(line, "true").code, 3, "{line}");
    }
    assert_eq!(place.run("run --try -E0 a", "true").code, 0);
    assert_eq!(place.verb("acquire --try -E 4 a").code, 4);
    assert_eq!(place.run("elect --try -E 5 a", "true").code, 5);
}

fn help(place: &Place, words: &[&str]) -> String {
    let done = place.finish(place.command(words.iter().chain(&["--help"])));
    assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
    done.stdout
}

#[test]
fn help_comes_in_groups() {
    let place = Place::new();
    let help = help(&place, &["run"]);
    let mut rest = help.as_str();
    for group in [
        "\nLock:\n",
        "\nWaiting:\n",
        "\nLoss:\n",
        "\nStore:\n",
        "\nOutput:\n",
    ] {
        let (_, behind) = rest
            .split_once(group)
            .unwrap_or_else(|| panic!("no {group:?} in {help}"));
        rest = behind;
    }
    for (flag, group) in [
        ("--shared", "Lock:"),
        ("--lease", "Lock:"),
        ("--try", "Waiting:"),
        ("--on-lost", "Loss:"),
        ("--url", "Store:"),
        ("--store-wait", "Store:"),
        ("--verbose", "Output:"),
        ("--owner", "Output:"),
    ] {
        let before = help.split(&format!("{flag} ")).next().unwrap();
        let before = before.split(&format!("{flag}\n")).next().unwrap();
        let last = before
            .lines()
            .rev()
            .find(|line| line.ends_with(':') && !line.starts_with(' '));
        assert_eq!(last, Some(group), "{flag}: {help}");
    }
}

#[test]
fn no_help_offers_what_the_verb_refuses() {
    let place = Place::new();
    let elect = help(&place, &["elect"]);
    assert!(
        elect.contains("--on-lost") && !elect.contains("ignore"),
        "{elect}"
    );
    for flag in [
        "--shared",
        "--limit",
        "--permits",
        "--once-per",
        "--exclusive",
        "--also",
    ] {
        assert!(!elect.contains(flag), "{flag}");
    }
    let acquire = help(&place, &["acquire"]);
    for flag in [
        "--on-lost",
        "--kill-after",
        "--lost-exit-code",
        "--also",
        "--max-hold",
    ] {
        assert!(!acquire.contains(flag), "{flag}");
    }
    // A grant has no command that could be stopped.
    hints(
        &place,
        &["acquire", "--max-hold", "5s", "a"],
        &["--max-hold", "palisade renew"],
        &[],
    );
    let owner = acquire.split("--owner").nth(1).expect("a flag");
    let owner = owner.split("--").next().expect("its text");
    let owner = owner.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        owner.contains("the process that asks") && !owner.contains("command"),
        "{owner}"
    );
    let done = place.verb("elect --on-lost ignore a -- true");
    assert_eq!(done.code, 64);
    assert!(done.stderr.contains("term, kill"), "{done:?}");
}

#[test]
fn help_says_when_a_wait_for_ever_ends() {
    let place = Place::new();
    let help = help(&place, &["run"])
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    let wait = help.split("--wait <DUR>").nth(1).unwrap();
    let wait = wait.split(" --").next().unwrap();
    assert!(wait.contains("for ever"), "{wait}");
    let store_wait = help.split("--store-wait <DUR>").nth(1).unwrap();
    for text in ["69", "forever", "10s"] {
        assert!(
            store_wait.split("--profile").next().unwrap().contains(text),
            "{store_wait}"
        );
    }
}
