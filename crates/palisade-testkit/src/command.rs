//! Programs of the machine: where they are, and running one to its end with a time limit.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;
use std::{env, fs};

use crate::error::{Failure, Result};
use crate::ready::within;
use crate::{dir, process_tree, spawner};

/// Environment variables passed on to programs. The rest stays out, because etcd, psql and others
/// read settings from theirs.
const PASSED_ON: [&str; 3] = ["JAVA_HOME", "TMPDIR", "TZ"];

/// The path with what is missing on many: servers live in sbin, and Debian keeps PostgreSQL's in a
/// folder per version.
pub(crate) fn search_path() -> OsString {
    let mut folders: Vec<PathBuf> =
        env::split_paths(&env::var_os("PATH").unwrap_or_default()).collect();
    folders
        .extend(["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from));
    let versions = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    let mut versions: Vec<PathBuf> = versions.map(|entry| entry.path().join("bin")).collect();
    versions.sort();
    folders.extend(versions.into_iter().rev());
    env::join_paths(folders).expect("folders of a path have no colon")
}

/// Names a folder with `etcd`, `etcdctl` and `etcdutl` of the version that is to be tested, in
/// place of the system's.
pub(crate) const ETCD: &str = "PALISADE_ETCD";

/// Where a program is.
pub(crate) fn find(program: &str) -> Result<PathBuf> {
    match env::var_os(ETCD).filter(|_| program.starts_with("etcd")) {
        Some(folder) => find_in(Path::new(&folder), program),
        None => find_on_path(program),
    }
}

/// Looks in no other folder, so that a test for one version never runs against another.
fn find_in(folder: &Path, program: &str) -> Result<PathBuf> {
    let path = folder.join(program);
    if path.is_file() {
        Ok(path)
    } else {
        Err(Failure::new(format!(
            "{ETCD}: there is no {}",
            path.display()
        )))
    }
}

fn find_on_path(program: &str) -> Result<PathBuf> {
    let found = env::split_paths(&search_path())
        .map(|folder| folder.join(program))
        .find(|path| path.is_file());
    found.ok_or_else(|| missing(program))
}

/// A file that must be installed, such as a jar.
pub(crate) fn installed(file: &str) -> Result<PathBuf> {
    let path = PathBuf::from(file);
    if path.is_file() {
        Ok(path)
    } else {
        Err(missing(file))
    }
}

fn missing(what: &str) -> Failure {
    Failure::new(format!("{what} is not installed: run scripts/setup"))
}

/// A command with a clean environment.
pub(crate) fn command(program: &str) -> Result<Command> {
    let mut command = Command::new(find(program)?);
    clean(&mut command);
    Ok(command)
}

pub(crate) fn clean(command: &mut Command) {
    command
        .env_clear()
        .env("PATH", search_path())
        .env("LANG", "C.UTF-8")
        .env("HOME", dir::base())
        .stdin(Stdio::null());
    for name in PASSED_ON {
        if let Some(value) = env::var_os(name) {
            command.env(name, value);
        }
    }
}

/// Runs a command to its end and returns what it wrote. Every tool gets a limit: some wait for ever
/// on a server that hangs.
pub(crate) fn run(mut command: Command, limit: Duration) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    // Files, because a full pipe without a reader would stop the program.
    let (mut out, mut err) = (tempfile::tempfile()?, tempfile::tempfile()?);
    command.stdout(out.try_clone()?).stderr(err.try_clone()?);
    let status = end(command, &name, limit);
    let (out, err) = (text(&mut out)?, text(&mut err)?);
    match status {
        Ok(status) if status.success() => Ok(out),
        Ok(status) => Err(Failure::new(format!("{name}: {status}\n{out}{err}"))),
        Err(failure) => Err(Failure::new(format!("{failure}\n{out}{err}"))),
    }
}

fn end(command: Command, name: &str, limit: Duration) -> Result<ExitStatus> {
    let mut child =
        spawner::spawn(command).map_err(|error| Failure::new(format!("{name}: {error}")))?;
    let ended = within(name, limit, || match child.try_wait() {
        Ok(Some(status)) => Ok(status),
        Ok(None) => Err("still running".to_owned()),
        Err(error) => Err(error.to_string()),
    });
    if ended.is_err() {
        process_tree::kill(child.id());
        child.wait()?;
    }
    ended
}

fn text(file: &mut File) -> Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Gives a directory and all in it to another user.
pub(crate) fn give(path: &Path, user: &str) -> Result<()> {
    let mut chown = command("chown")?;
    chown.arg("-R").arg(format!("{user}:")).arg(path);
    run(chown, Duration::from_secs(60)).map(drop)
}

/// Copies a directory.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    let mut cp = command("cp")?;
    cp.args(["-a", "--reflink=auto", "--no-target-directory"])
        .arg(from)
        .arg(to);
    run(cp, Duration::from_secs(60)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_names_the_script_that_installs_it() {
        let failure = find("no-such-server").unwrap_err();
        assert_eq!(
            failure.to_string(),
            "no-such-server is not installed: run scripts/setup"
        );
        let failure = installed("/no/such.jar").unwrap_err();
        assert_eq!(
            failure.to_string(),
            "/no/such.jar is not installed: run scripts/setup"
        );
    }

    #[test]
    fn a_folder_of_a_version_is_the_only_place() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("etcd"), "").expect("a file");
        assert_eq!(
            find_in(folder.path(), "etcd").expect("it is there"),
            folder.path().join("etcd")
        );
        let failure = find_in(folder.path(), "etcdctl").unwrap_err().to_string();
        assert!(
            failure.starts_with("PALISADE_ETCD: there is no ") && failure.ends_with("/etcdctl"),
            "{failure}"
        );
    }

    #[test]
    fn a_program_that_never_ends_is_ended() {
        let mut sleep = command("sh").expect("sh");
        sleep.args(["-c", "echo here; sleep 600"]);
        let failure = run(sleep, Duration::from_millis(300))
            .unwrap_err()
            .to_string();
        assert!(
            failure.contains("still running") && failure.contains("here"),
            "{failure}"
        );
    }
}
