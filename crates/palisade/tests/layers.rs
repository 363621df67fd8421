//! Which part of the library may use which other. The compiler allows all of it within one crate.

use std::fs;
use std::path::{Path, PathBuf};

/// A part of the sources, and what it does not use.
struct Rule {
    /// What it is about, as a beginning of paths below `src`; `*` is any one folder.
    part: &'static str,
    /// Modules of the crate, as in `crate::MODULE`.
    unknown: &'static [&'static str],
    /// What is used in spite of that.
    but: &'static [&'static str],
}

const RULES: [Rule; 9] = [
    // How bytes get to a server, for locks and for fenced resources.
    Rule {
        part: "stores/*/client/",
        unknown: &[
            "client",
            "engine",
            "fence",
            "guard",
            "lease",
            "line",
            "lock",
            "store",
            "versioned",
        ],
        but: &[
            "lease::BootClock",
            "lease::Clock",
            "lease::Moment",
            "store::ServerInfo",
        ],
    },
    // A store answers claims. It knows nothing of those who hold them.
    Rule {
        part: "stores/",
        unknown: &["client", "engine", "fence", "guard", "lock", "versioned"],
        but: &["fence::Fence"],
    },
    // Resources that check a fence reach their server as the store does, and need no lock in it.
    // A key of `fence::redis` that is written only while a lock is held lies beside the lock's.
    Rule {
        part: "fence/",
        unknown: &["engine", "stores"],
        but: &[
            "stores::*::client",
            "stores::sql",
            "stores::redis::line_key",
        ],
    },
    Rule {
        part: "versioned/",
        unknown: &["engine", "guard", "lock", "stores"],
        but: &["stores::*::client"],
    },
    // One line is a pure function.
    Rule {
        part: "line/",
        unknown: &["client", "engine", "guard", "lease", "lock", "stores"],
        but: &[],
    },
    // What is the same for all stores knows none of them.
    Rule {
        part: "lock/",
        unknown: &["stores"],
        but: &[],
    },
    Rule {
        part: "guard/",
        unknown: &["stores"],
        but: &[],
    },
    Rule {
        part: "engine/",
        unknown: &["lock", "stores"],
        but: &[],
    },
    Rule {
        part: "lease/",
        unknown: &["engine", "guard", "lock", "stores"],
        but: &[],
    },
];

/// Whether a path of folders or modules begins with another, in which `*` is any one of them.
fn begins(path: &str, with: &str, between: &str) -> bool {
    let mut path = path.split(between);
    with.split(between)
        .filter(|part| !part.is_empty())
        .all(|part| {
            path.next()
                .is_some_and(|next| part == "*" || next.trim_end_matches(".rs") == part)
        })
}

impl Rule {
    /// The modules that this code uses against the rule.
    fn breaches(&self, code: &str) -> Vec<String> {
        let used = code.split("crate::").skip(1).map(|rest| {
            let end = rest
                .find(|letter: char| !(letter.is_alphanumeric() || letter == '_' || letter == ':'));
            &rest[..end.unwrap_or(rest.len())]
        });
        let is_wrong = |module: &&str| {
            let is_one = |wanted: &&&str| begins(module, wanted, "::");
            self.unknown.iter().any(|unknown| is_one(&unknown))
                && !self.but.iter().any(|but| is_one(&but))
        };
        // The names of a group stand behind its module.
        let each = used.flat_map(|module| match module.strip_suffix("::") {
            Some(_) => grouped(code, module),
            None => vec![module.to_owned()],
        });
        each.filter(|module| is_wrong(&module.as_str())).collect()
    }
}

/// All names of `crate::MODULE::{…}`, each with its module.
fn grouped(code: &str, module: &str) -> Vec<String> {
    let beginning = format!("crate::{module}{{");
    let groups = code.split(&beginning).skip(1);
    let names = groups.flat_map(|rest| rest.split('}').next().unwrap_or_default().split(','));
    names
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .map(|name| format!("{module}{name}"))
        .collect()
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            found.push(path);
        }
    }
}

/// The code of a file: comments may name whatever explains it.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).expect("a source");
    let lines = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn each_part_uses_only_what_is_below_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    for rule in RULES {
        let mut looked_at = 0;
        for file in &files {
            let path = file.strip_prefix(&root).expect("below").to_string_lossy();
            // Tests put parts together.
            let is_test = path.contains("tests");
            if is_test || !begins(&path, rule.part, "/") {
                continue;
            }
            looked_at += 1;
            let code = code(file);
            let shipped = code.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
            let breaches = rule.breaches(shipped);
            assert!(
                breaches.is_empty(),
                "{path} uses {breaches:?}, and {} does not know {:?}",
                rule.part,
                rule.unknown
            );
        }
        assert!(looked_at > 3, "{} has only {looked_at} files", rule.part);
    }
}

#[test]
fn what_is_against_a_rule_is_found() {
    let [client, store, fence, ..] = RULES;
    assert_eq!(
        client.breaches("use crate::lease::{BootClock, Registry};\nuse crate::engine::Core;"),
        ["lease::Registry", "engine::Core"]
    );
    assert_eq!(
        store.breaches("fn f(guard: &crate::guard::Guard, fence: crate::fence::Fence) {}"),
        ["guard::Guard"]
    );
    assert_eq!(
        fence.breaches("use crate::stores::etcd::client::names;\nuse crate::stores::etcd::claim;"),
        ["stores::etcd::claim"]
    );
    assert!(begins("stores/etcd/client/txn.rs", "stores/*/client/", "/"));
    assert!(!begins("stores/etcd/claim.rs", "stores/*/client/", "/"));
}
