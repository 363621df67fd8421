//! `list` and `show`, for people and for programs; help, man page and completions.

mod common;

use common::Place;
use serde_json::Value;

fn keys(value: &Value) -> Vec<&str> {
    value
        .as_object()
        .expect("an object")
        .keys()
        .map(String::as_str)
        .collect()
}

const LINE: [&str; 8] = [
    "holders",
    "kind",
    "limit",
    "mode",
    "name",
    "store",
    "waiters",
    "waiters_known",
];
const HOLDER: [&str; 6] = [
    "fence",
    "held_ms",
    "lease_left_ms",
    "owner",
    "permits",
    "reason",
];
const WAITER: [&str; 4] = ["mode", "owner", "reason", "waited_ms"];

#[test]
fn show_json_has_the_fields_of_the_contract_and_no_others() {
    let place = Place::new();
    let _held = place.holder("run --owner holder --reason why --lease 20s orders/1");
    let _first = place.waiter(
        "run --owner first --reason later orders/1",
        "orders/1",
        "true",
        1,
    );
    let _second = place.waiter(
        "run --owner second --shared orders/1",
        "orders/1",
        "true",
        2,
    );
    let line = place.show("orders/1");
    assert_eq!(keys(&line), LINE);
    assert_eq!(
        (&line["name"], &line["store"], &line["mode"]),
        (&"orders/1".into(), &"sqlite".into(), &"exclusive".into())
    );
    assert_eq!(
        (&line["limit"], &line["waiters_known"]),
        (&Value::Null, &true.into())
    );
    let holder = &line["holders"][0];
    assert_eq!(keys(holder), HOLDER);
    assert_eq!(
        (&holder["owner"], &holder["reason"], &holder["fence"]),
        (&"holder".into(), &"why".into(), &"1".into())
    );
    assert!(holder["held_ms"].is_u64(), "{holder}");
    assert!(
        holder["lease_left_ms"]
            .as_u64()
            .is_some_and(|left| left > 5_000 && left <= 20_000),
        "{holder}"
    );
    let waiters = line["waiters"].as_array().unwrap();
    let seen: Vec<_> = waiters
        .iter()
        .map(|waiter| (waiter["owner"].as_str(), waiter["mode"].as_str()))
        .collect();
    assert_eq!(
        seen,
        [
            (Some("first"), Some("exclusive")),
            (Some("second"), Some("shared"))
        ],
        "in order"
    );
    for waiter in waiters {
        assert_eq!(keys(waiter), WAITER);
        assert!(waiter["waited_ms"].is_u64());
    }
    assert_eq!(waiters[0]["reason"], "later");
    assert_eq!(waiters[1]["reason"], Value::Null);
}

#[test]
fn a_semaphore_shows_its_limit_and_permits() {
    let place = Place::new();
    assert_eq!(place.verb("acquire --limit 5 --permits 2 slots").code, 0);
    let line = place.show("slots");
    assert_eq!(
        (&line["kind"], &line["limit"]),
        (&"semaphore".into(), &5.into())
    );
    assert_eq!(line["holders"][0]["permits"], 2);
    assert_eq!(keys(&line), LINE);
}

#[test]
fn a_free_name_is_shown_as_free() {
    let place = Place::new();
    let line = place.show("nobody");
    assert_eq!(keys(&line), LINE);
    assert_eq!(
        (&line["holders"], &line["waiters"]),
        (&Value::Array(vec![]), &Value::Array(vec![]))
    );
    let shown = place.verb("show nobody");
    assert_eq!((shown.code, shown.stdout.as_str()), (0, "nobody is free\n"));
}

#[test]
fn list_prints_a_line_for_each_name_with_the_prefix() {
    let place = Place::new();
    for name in [
        "orders/1", "orders/2", "orders", "Orders/3", "other", "orders%",
    ] {
        assert_eq!(place.verb(&format!("acquire --lease 1h {name}")).code, 0);
    }
    let names = |line: &str| -> Vec<String> {
        let done = place.verb(line);
        assert_eq!(done.code, 0, "{done:?}");
        let lines = done
            .stdout
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect("one object per line"));
        lines
            .inspect(|line| assert_eq!(keys(line), LINE))
            .map(|line| line["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names("list --json").len(), 6);
    assert_eq!(names("list --json orders/"), ["orders/1", "orders/2"]);
    assert_eq!(
        names("list --json orders%"),
        ["orders%"],
        "a prefix is not a pattern"
    );
    assert_eq!(names("list --json zzz").len(), 0);
    let table = place.verb("list orders/");
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
    assert!(!table.stdout.contains('\x1b'), "no colour off a terminal");
}

#[test]
fn more_names_than_fit_a_page_are_all_listed() {
    let place = Place::new();
    assert_eq!(place.verb("acquire --lease 1h pattern").code, 0);
    // Too many to start a process for each.
    place
        .connection()
        .execute_batch(
            "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 1500)
            INSERT INTO entries SELECT 'n' || n, place, randomblob(16), kind, permit_limit, mode, permits, owner, reason, lease_ns,
                since_ns, expiry_ns, n + 100, keep_until_ns, ghost, min_hold_ns, once_per_ns, mark_at_ns, mark_span_ns,
                mark_fence, client FROM entries, numbers WHERE name = 'pattern'",
        )
        .unwrap();
    assert_eq!(place.verb("list --json n").stdout.lines().count(), 1500);
}

/// Page by page: a store with very many names need not fit into memory, and a failure takes nothing
/// back.
#[test]
fn a_list_is_printed_as_it_is_read() {
    let place = Place::new();
    assert_eq!(place.verb("acquire --lease 1h pattern").code, 0);
    let insert = "WITH RECURSIVE numbers(n) AS (SELECT 1001 UNION ALL SELECT n + 1 FROM numbers WHERE n < 2500)
        INSERT INTO entries SELECT 'n' || n, place, randomblob(16), kind, permit_limit, mode, permits, owner, reason, lease_ns,
            since_ns, expiry_ns, n, keep_until_ns, ghost, min_hold_ns, once_per_ns, mark_at_ns, mark_span_ns,
            mark_fence, client FROM entries, numbers WHERE name = 'pattern'";
    // The last line of a later page cannot be read.
    place
        .connection()
        .execute_batch(&format!(
            "{insert}; UPDATE entries SET claim = 'x' WHERE name = 'n2400'"
        ))
        .unwrap();
    let done = place.verb("list --json n");
    assert_eq!(done.code, 70, "{done:?}");
    assert!(
        done.stdout.lines().count() >= 1000,
        "{} lines were printed",
        done.stdout.lines().count()
    );
    let table = place.verb("list n");
    assert!(table.code == 70 && table.stdout.lines().count() > 1000);
}

#[test]
fn what_others_have_written_cannot_move_the_cursor() {
    let place = Place::new();
    let mut command = place.command([
        "acquire",
        "--lease",
        "1h",
        "--owner",
        "evil\x1b[2J\r\nowner",
        "--reason",
        "\x07bell",
        "n",
    ]);
    command.arg("--json");
    assert_eq!(place.finish(command).code, 0);
    for done in [
        place.verb("list"),
        place.verb("show n"),
        place.run("run --try n", "true"),
    ] {
        let shown = format!("{}{}", done.stdout, done.stderr);
        assert!(
            shown.contains("evil")
                && !shown.contains('\x1b')
                && !shown.contains('\r')
                && !shown.contains('\x07'),
            "{shown:?}"
        );
    }
    assert_eq!(
        place.show("n")["holders"][0]["owner"],
        "evil\x1b[2J\r\nowner",
        "JSON has it as it is, escaped"
    );
}

/// Names come from others, and a command that is copied runs in a shell.
#[test]
fn names_in_commands_to_copy_are_quoted_for_the_shell() {
    let place = Place::new();
    let name = "it's $(id) \n two";
    assert_eq!(
        place
            .finish(place.command(["acquire", "--lease", "1h", name]))
            .code,
        0
    );
    let quoted = [place.finish(place.command(["show", name])).stdout, {
        let mut busy = place.command(["run", "--try", name]);
        busy.args(["--", "true"]);
        place.finish(busy).stderr
    }];
    for text in quoted {
        let copied = text
            .split("palisade ")
            .find(|rest| rest.starts_with("release") || rest.starts_with("show"));
        let copied = copied
            .unwrap_or_else(|| panic!("no command: {text}"))
            .lines()
            .next()
            .unwrap();
        // What a shell makes of it.
        let words = std::process::Command::new("bash")
            .args(["-c", &format!("printf '%s|' {copied}")])
            .output()
            .unwrap();
        let words = String::from_utf8(words.stdout).unwrap();
        assert_eq!(words.split('|').nth(1), Some(name), "{copied}");
    }
    // A name that needs no quotes has none.
    assert_eq!(place.verb("acquire --lease 1h orders/1").code, 0);
    let plain = place.verb("show orders/1").stdout;
    assert!(
        plain.contains("palisade release orders/1 --fence "),
        "{plain}"
    );
}

#[test]
fn help_explains_the_exit_codes() {
    let place = Place::new();
    for line in ["--help", "-h", "run --help", "help run"] {
        let done = place.verb(line);
        assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{line}");
        for code in [
            "64", "69", "70", "75", "77", "78", "79", "125", "126", "127",
        ] {
            assert!(
                done.stdout.contains(&format!(" {code}  ")),
                "{line}: {code}"
            );
        }
    }
    let version = place.verb("--version");
    assert_eq!(
        (version.code, version.stdout.starts_with("palisade ")),
        (0, true)
    );
}

#[test]
fn completions_and_man_page_are_printed() {
    let place = Place::new();
    for (shell, part) in [
        ("bash", "complete"),
        ("zsh", "#compdef palisade"),
        ("fish", "complete -c palisade"),
    ] {
        let done = place.verb(&format!("completions {shell}"));
        assert!(
            done.code == 0 && done.stdout.contains(part) && done.stdout.contains("once-per"),
            "{shell}"
        );
    }
    let man = place.verb("man");
    assert!(
        man.code == 0 && man.stdout.contains(".TH palisade") && man.stdout.contains(".SH"),
        "{man:?}"
    );
    assert!(!place.database().exists(), "for that no store is asked");
}

#[test]
fn stores_are_listed_without_asking_one() {
    let place = Place::new();
    let table = place.verb("stores");
    assert!(
        table.code == 0 && table.stdout.contains("sqlite"),
        "{table:?}"
    );
    let json = place.verb("stores --json");
    assert!(
        json.stdout
            .lines()
            .all(|line| serde_json::from_str::<Value>(line).is_ok_and(|store| store.is_object()))
    );
    assert!(!place.database().exists());
}
