//! The environment: which store it names, what the command sees, and how little of it is needed.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use common::Place;

const SECRET: &str = "hunter2-sentinel";

/// What a command sees of palisade's variables, sorted.
const SEEN: &str = "env | grep ^PALISADE_ | sort";

#[test]
fn the_command_sees_what_it_holds() {
    let place = Place::new();
    let done = place.run("run --lease 12s --owner me orders/42", SEEN);
    let expected = "PALISADE_FENCE=1\nPALISADE_LEASE_MS=12000\nPALISADE_NAME=orders/42\nPALISADE_OWNER=me\nPALISADE_STORE=sqlite\n";
    assert_eq!(done.stdout, expected, "and no URL");
}

#[test]
fn the_default_owner_names_host_process_and_command() {
    let place = Place::new();
    let done = place.run("run who", "echo $PALISADE_OWNER $PPID");
    let (owner, parent) = done.stdout.trim().split_once(' ').expect("two words");
    let parts: Vec<&str> = owner.split(':').collect();
    let [host, process, command] = parts.as_slice() else {
        panic!("{owner}")
    };
    assert_eq!(
        *host,
        fs::read_to_string("/proc/sys/kernel/hostname")
            .unwrap()
            .trim()
    );
    assert_eq!((*process, *command), (parent, "sh"));
}

#[test]
fn in_nested_runs_the_innermost_wins() {
    let place = Place::new();
    let palisade = env!("CARGO_BIN_EXE_palisade");
    let inner = format!(
        "{palisade} --url {} run --lease 7s --owner in inner -- sh -c '{SEEN}'; echo $PALISADE_NAME",
        place.url()
    );
    let done = place.run("run --owner out outer", &inner);
    let expected = "PALISADE_FENCE=2\nPALISADE_LEASE_MS=7000\nPALISADE_NAME=inner\nPALISADE_OWNER=in\nPALISADE_STORE=sqlite\nouter\n";
    assert_eq!(done.stdout, expected);
}

#[test]
fn the_url_is_passed_on_only_if_the_user_has_set_it() {
    let place = Place::new();
    fs::write(place.path("url"), format!("{}\n", place.url())).unwrap();
    let mut by_file = place.bare();
    by_file.args(["--url-file", "url", "run", "n", "--", "sh", "-c", SEEN]);
    let done = place.finish(by_file);
    assert!(
        done.code == 0 && !done.stdout.contains("URL") && !done.stdout.contains("locks.db"),
        "{done:?}"
    );
    let mut by_variable = place.bare();
    by_variable
        .env("PALISADE_URL", place.url())
        .args(["run", "n", "--", "sh", "-c", SEEN]);
    let done = place.finish(by_variable);
    assert!(
        done.stdout
            .contains(&format!("PALISADE_URL={}\n", place.url())),
        "{done:?}"
    );
}

#[test]
fn the_flag_wins_over_the_environment() {
    let place = Place::new();
    let mut command = place.command(["run", "n", "--", "echo", "ran"]);
    command
        .env("PALISADE_URL", "gopher://nowhere")
        .env("PALISADE_URL_FILE", "/no/such/file");
    assert_eq!(place.finish(command).stdout, "ran\n");
    assert!(place.database().exists());
}

#[test]
fn a_url_can_come_from_a_variable_or_a_file() {
    let place = Place::new();
    fs::write(place.path("url"), format!("  {}\n\n", place.url())).unwrap();
    assert_eq!(place.verb("acquire mark --lease 1h").code, 0);
    for (variable, value) in [
        ("PALISADE_URL", place.url()),
        ("PALISADE_URL_FILE", place.path("url").display().to_string()),
    ] {
        let mut command = place.bare();
        command.env(variable, value).args(["list", "--json"]);
        assert!(
            place.finish(command).stdout.contains("\"mark\""),
            "{variable}"
        );
    }
    let mut missing = place.bare();
    missing.args(["--url-file", "no-such-file", "list"]);
    assert_eq!(place.finish(missing).code, 78);
}

#[test]
fn without_a_url_it_is_a_file_of_the_users_own_and_v_says_which() {
    let place = Place::new();
    let state = place.path("state");
    for (variable, value, file) in [
        (
            "XDG_STATE_HOME",
            state.clone(),
            state.join("palisade/locks.db"),
        ),
        (
            "HOME",
            place.path("home"),
            place.path("home/.local/state/palisade/locks.db"),
        ),
    ] {
        let mut command = place.bare();
        command
            .env(variable, value)
            .args(["-v", "run", "n", "--", "echo", "ran"]);
        let done = place.finish(command);
        assert_eq!((done.code, done.stdout.as_str()), (0, "ran\n"), "{done:?}");
        assert!(
            file.exists() && done.stderr.contains(&file.display().to_string()),
            "{done:?}"
        );
        let rights = fs::metadata(file.parent().unwrap())
            .unwrap()
            .permissions()
            .mode()
            & 0o777;
        assert_eq!(rights, 0o700, "it is per user");
    }
    // A relative path is to be ignored, says the specification.
    let mut command = place.bare();
    command
        .env("XDG_STATE_HOME", "relative")
        .args(["run", "n", "--", "true"]);
    assert_eq!(place.finish(command).code, 0);
    assert!(!place.path("relative").exists());
}

#[test]
fn an_odd_state_folder_works() {
    let place = Place::new();
    let state = place.path("a b%20c?d#e@f:g");
    let mut command = place.bare();
    command
        .env("XDG_STATE_HOME", &state)
        .args(["run", "n", "--", "echo", "ran"]);
    let done = place.finish(command);
    assert_eq!((done.code, done.stdout.as_str()), (0, "ran\n"), "{done:?}");
    assert!(state.join("palisade/locks.db").exists());
}

#[test]
fn an_empty_environment_is_enough() {
    let place = Place::new();
    // As under cron, or less: no HOME, no terminal, no stdin.
    let mut command = place.command(["run", "cron", "--", "/bin/echo", "ran"]);
    command.env_clear();
    let done = place.finish(command);
    assert_eq!(
        (done.code, done.stdout.as_str(), done.stderr.as_str()),
        (0, "ran\n", "")
    );
}

#[test]
fn without_home_it_is_the_home_of_the_user_database() {
    let place = Place::new();
    let copy = place.copy_for_every_user();
    // A home of its own for this test: nothing is written to the tester's.
    let script = format!(
        "home=$(getent passwd $(id -u) | cut -d: -f6); mount -t tmpfs none $home || exit 200; echo $home; cd /; exec env -i {} -v list",
        copy.display()
    );
    // The copy must not lie below the home that is covered.
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]);
    let done = place.finish(command);
    if done.code == 200 || done.stderr.contains("unshare") {
        eprintln!("not tested, no right to mount: {}", done.stderr);
        return;
    }
    assert_eq!(done.code, 0, "{done:?}");
    let home = done.stdout.lines().next().unwrap();
    assert!(
        done.stderr
            .contains(&format!("{home}/.local/state/palisade/locks.db")),
        "{done:?}"
    );
}

#[test]
fn a_user_without_a_home_is_told_to_name_a_store() {
    let place = Place::new();
    if !rustix::process::geteuid().is_root() {
        eprintln!("not tested: only root can be another user");
        return;
    }
    let copy = place.copy_for_every_user();
    // One that the user database does not know, and one whose home is not there.
    for user in [64_321, 65_534] {
        let mut command = Command::new(&copy);
        command
            .env_clear()
            .current_dir("/")
            .arg("list")
            .uid(user)
            .gid(user);
        let done = place.finish(command);
        assert_eq!((done.code, done.stdout.as_str()), (78, ""), "{done:?}");
        assert!(done.stderr.contains("--url"), "{done:?}");
    }
}

/// A command with this configuration file.
fn with_config(place: &Place, text: &str, arguments: &[&str]) -> Command {
    fs::create_dir_all(place.path("config/palisade")).unwrap();
    fs::write(place.path("config/palisade/config.toml"), text).unwrap();
    let mut command = place.bare();
    command
        .env("XDG_CONFIG_HOME", place.path("config"))
        .args(arguments);
    command
}

#[test]
fn a_profile_names_a_store() {
    let place = Place::new();
    fs::write(place.path("url"), place.url()).unwrap();
    let config = format!(
        "[profiles.direct]\nurl = \"{}\"\n[profiles.\"by file\"]\nurl_file = \"{}\"\n[profiles.none]\n",
        place.url(),
        place.path("url").display()
    );
    assert_eq!(place.verb("acquire mark --lease 1h").code, 0);
    for profile in ["direct", "by file"] {
        let done = place.finish(with_config(
            &place,
            &config,
            &["--profile", profile, "list", "--json"],
        ));
        assert!(
            done.code == 0 && done.stdout.contains("\"mark\""),
            "{done:?}"
        );
    }
    for profile in ["unknown", "none", ""] {
        let done = place.finish(with_config(
            &place,
            &config,
            &["--profile", profile, "run", "n", "--", "echo", "ran"],
        ));
        assert_eq!((done.code, done.stdout.as_str()), (78, ""), "{done:?}");
    }
    let mut no_config = place.bare();
    no_config.args(["--profile", "direct", "list"]);
    assert_eq!(place.finish(no_config).code, 78);
}

#[test]
fn a_password_never_appears() {
    let place = Place::new();
    let urls = [
        format!("redis://user:{SECRET}@127.0.0.1:1/0"),
        format!("redis://user:{SECRET}@host:port-is-no-number"),
        format!("gopher://user:{SECRET}@host"),
        format!("postgres://user:{SECRET}@127.0.0.1:1/db?unknown={SECRET}"),
        format!("mysql://:{SECRET}@"),
        format!("//user:{SECRET}@host"),
        format!("user:{SECRET}@host"),
        SECRET.to_owned(),
        format!("sqlite:/no/such/folder/locks.db?password={SECRET}"),
        format!("memory:x?key={SECRET}"),
        format!("etcd://user:{SECRET}@[::1"),
        format!("redis://user:p%zz{SECRET}@host"),
        format!("redis://user:a/b?c#d@{SECRET}@host"),
        format!("\"redis://user:{SECRET}@host"),
    ];
    let verbs: [&[&str]; 8] = [
        &["run", "--wait", "0", "--store-wait", "0", "n", "--", "true"],
        &["-v", "list"],
        &["show", "n"],
        &["-v", "acquire", "--try", "n"],
        &["release", "n", "--fence", "1", "--yes"],
        &["renew", "--grant", "-"],
        &["run", "--bad-flag"],
        &["stores"],
    ];
    for url in &urls {
        let file = place.path("url");
        fs::write(&file, url).unwrap();
        let file = file.display().to_string();
        let config = format!("[profiles.p]\nurl = \"{url}\"\n");
        let broken = format!("[profiles.p\nurl = \"{url}\"\n");
        let unknown = format!("[profiles.p]\nuri = \"{url}\"\n");
        for (number, verb) in verbs.iter().enumerate() {
            let mut ways = Vec::new();
            let mut by_flag = place.bare();
            by_flag.args(["--url", url]).args(*verb);
            ways.push(by_flag);
            // The rest differs in where the URL comes from, not in what the verb does with it.
            if number < 2 {
                let mut by_variable = place.bare();
                by_variable.env("PALISADE_URL", url).args(*verb);
                ways.push(by_variable);
                let mut by_file = place.bare();
                by_file.args(["--url-file", &file]).args(*verb);
                ways.push(by_file);
            }
            for command in ways {
                check(&place, command);
            }
            if number == 0 {
                for text in [&config, &broken, &unknown] {
                    check(
                        &place,
                        with_config(&place, text, &["--profile", "p", "list"]),
                    );
                }
            }
        }
    }
}

#[track_caller]
fn check(place: &Place, command: Command) {
    let shown = format!("{command:?}");
    let done = place.finish(command);
    assert!(
        !done.stdout.contains(SECRET) && !done.stderr.contains(SECRET),
        "{shown}: {done:?}"
    );
    assert!(!done.stderr.contains("panicked"), "{shown}: {done:?}");
}

#[test]
fn a_broken_configuration_is_78_and_is_not_quoted() {
    let place = Place::new();
    for text in [
        format!("[profiles.p]\nurl = \"redis://:{SECRET}@host\n"),
        format!("[profiles.p]\npassword = \"{SECRET}\"\nurl = \"memory:\"\n"),
        SECRET.to_owned(),
        format!("[profiles.p]\nurl = [\"{SECRET}\"]\n"),
        format!("[profiles.p]\nurl = \"memory:\"\nurl_file = \"{SECRET}\"\n"),
    ] {
        let done = place.finish(with_config(&place, &text, &["--profile", "p", "list"]));
        assert_eq!(done.code, 78, "{text}: {done:?}");
        assert!(
            !done.stderr.contains(SECRET) && done.stderr.contains("config.toml"),
            "{done:?}"
        );
    }
}
