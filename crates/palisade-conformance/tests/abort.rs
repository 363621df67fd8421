//! A program built with `panic = "abort"`: the library does not panic, not even where it would
//! catch that.

use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

use palisade_testkit::etcd::Etcd;
use palisade_testkit::mariadb::MariaDb;
use palisade_testkit::postgres::Postgres;
use palisade_testkit::redis::{Five, Redis};
use palisade_testkit::zookeeper::ZooKeeper;

/// Built here: what cargo builds for tests unwinds. The strategy is that of the program alone, so
/// its dependencies are not built for it.
static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| {
    let test = std::env::current_exe().expect("this program");
    let folder = test
        .parent()
        .and_then(std::path::Path::parent)
        .expect("a folder of tests");
    let profile = match folder
        .file_name()
        .and_then(std::ffi::OsStr::to_str)
        .expect("a profile")
    {
        "debug" => "dev",
        profile => profile,
    };
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args([
        "rustc",
        "--quiet",
        "--offline",
        "--locked",
        "-p",
        "palisade-conformance",
        "--bin",
        "bare_caller",
    ]);
    cargo
        .args(["--profile", profile, "--target-dir"])
        .arg(folder.parent().expect("a folder of profiles"));
    cargo
        .args(["--", "-C", "panic=abort"])
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    // The variables that cargo sets for a test would make it build everything again.
    for (name, _) in std::env::vars_os() {
        if ["CARGO_PKG_", "CARGO_MANIFEST_"]
            .iter()
            .any(|told| name.to_string_lossy().starts_with(told))
        {
            cargo.env_remove(name);
        }
    }
    assert!(cargo.status().expect("cargo").success(), "{cargo:?}");
    folder.join("bare_caller")
});

fn runs_in_silence(url: &str) {
    let ran = Command::new(&*PROGRAM).arg(url).output().expect("started");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(
        ran.status.success() && said.is_empty(),
        "{}: {said}",
        ran.status
    );
}

#[test]
fn redis() {
    let server = Redis::start();
    for format in ["palisade", "simple"] {
        runs_in_silence(&format!("{}?format={format}", server.url()));
    }
}

#[test]
fn etcd() {
    let server = Etcd::start();
    runs_in_silence(&format!("etcd://{}/lock", server.address()));
}

#[test]
fn zookeeper() {
    let server = ZooKeeper::with().long_sessions().start();
    runs_in_silence(&format!("zk://{}/locks", server.address()));
}

#[test]
fn postgres() {
    let server = Postgres::start();
    runs_in_silence(&server.url());
}

#[test]
fn mysql() {
    let server = MariaDb::start();
    runs_in_silence(&server.url());
}

#[test]
fn redlock() {
    let five = Five::start();
    runs_in_silence(&format!("{}?young=vote", five.url()));
}

#[test]
fn sqlite() {
    let folder = tempfile::tempdir().expect("a folder");
    runs_in_silence(&format!(
        "sqlite:{}",
        folder.path().join("locks.db").display()
    ));
}
