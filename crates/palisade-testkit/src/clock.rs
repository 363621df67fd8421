//! The wall clock of one server, moved while it runs.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::command;
use crate::dir::{self, Dir};
use crate::error::{OrPanic, Result};
use crate::process::Recipe;

const SOURCE: &str = include_str!("../shim/clockshim.c");

/// Moves the wall clock of one server and of no other process.
///
/// For Redis, PostgreSQL and MariaDB. etcd and ZooKeeper measure their leases and sessions with the
/// monotonic clock, and etcd does not even ask the C library: pause them instead.
#[derive(Debug)]
pub struct Clock {
    offset: File,
}

impl Clock {
    /// Gives the recipe's server a clock of its own, which starts correct.
    pub(crate) fn give(recipe: &mut Recipe, dir: &Dir) -> Result<Self> {
        let path = dir.path().join("clock");
        fs::write(&path, 0i64.to_ne_bytes())?;
        recipe.env.push(("LD_PRELOAD", shim()?.into()));
        recipe.env.push(("PALISADE_CLOCK", OsString::from(&path)));
        // In place, never truncated: the server has it mapped.
        Ok(Self {
            offset: File::options().write(true).open(path)?,
        })
    }

    /// Sets it this much ahead of the machine's clock.
    pub fn set_ahead(&self, by: Duration) {
        self.set(i64::try_from(by.as_micros()).expect("less than 292000 years"));
    }

    /// Sets it this much behind the machine's clock.
    pub fn set_back(&self, by: Duration) {
        self.set(-i64::try_from(by.as_micros()).expect("less than 292000 years"));
    }

    /// Sets it right.
    pub fn set_right(&self) {
        self.set(0);
    }

    fn set(&self, micros: i64) {
        self.offset
            .write_all_at(&micros.to_ne_bytes(), 0)
            .map_err(|error| format!("the clock's file: {error}"))
            .or_panic();
    }
}

/// Compiles the shim, once per process.
fn shim() -> Result<PathBuf> {
    static BUILT: Mutex<Option<PathBuf>> = Mutex::new(None);
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(path) = &*built {
        return Ok(path.clone());
    }
    let path = compile(dir::base())?;
    Ok(built.insert(path).clone())
}

fn compile(folder: &Path) -> Result<PathBuf> {
    let (source, library) = (folder.join("clockshim.c"), folder.join("clockshim.so"));
    fs::write(&source, SOURCE)?;
    let mut cc = command::command("cc")?;
    cc.args([
        "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o",
    ])
    .arg(&library)
    .arg(&source);
    command::run(cc, Duration::from_secs(60))?;
    Ok(library)
}
