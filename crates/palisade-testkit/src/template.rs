//! Data directories that take seconds to make: made once per version of the server, copied for
//! each.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::{env, fs, process};

use crate::command;
use crate::dir::{self, Dir};
use crate::error::Result;
use crate::process::TOOL_LIMIT;

/// Copies the data directory that `make` makes to `target`. It is kept from run to run, by name and
/// version.
pub(crate) fn copy(
    program: &str,
    target: &Path,
    make: impl FnOnce(&Dir) -> Result<PathBuf>,
) -> Result<()> {
    // One at a time: parallel tests would all make the same.
    static MAKING: Mutex<()> = Mutex::new(());
    let making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = cache().join(format!("{program}-{}", version(program)?));
    if !kept.is_dir() {
        keep(&make(&Dir::new("template"))?, &kept)?;
    }
    drop(making);
    command::copy(&kept, target)
}

/// A rename, so that no process sees a half-made copy. If another was quicker, its copy is equal.
fn keep(made: &Path, kept: &Path) -> Result<()> {
    fs::create_dir_all(cache())?;
    let half = kept.with_extension(format!("half-{}", process::id()));
    command::copy(made, &half)?;
    if let Err(error) = fs::rename(&half, kept) {
        fs::remove_dir_all(&half)?;
        if !kept.is_dir() {
            return Err(error.into());
        }
    }
    Ok(())
}

fn cache() -> PathBuf {
    let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(home);
    cache
        .unwrap_or_else(|| dir::base().to_owned())
        .join("palisade/testkit")
}

/// The server's version, as a file name.
fn version(program: &str) -> Result<String> {
    let mut ask = command::command(program)?;
    ask.arg("--version");
    let said = command::run(ask, TOOL_LIMIT)?;
    Ok(said
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || *c == '.')
        .collect())
}
