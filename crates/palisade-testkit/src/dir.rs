//! One directory per process with one directory per server in it, and a janitor that clears up
//! after a process that could not.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::command;
use crate::ready::within;

/// Waits until this process has ended, in whichever way: its end of the pipe is closed then.
/// Statics are never dropped and a killed process drops nothing, so this separate process removes
/// what they leave. A server that is being killed may still write a file during the removal, hence
/// the loop.
const JANITOR: &str = r#"
cat >/dev/null
for name in "$1"/netns/*; do
  if [ -e "$name" ]; then ip netns del "${name##*/}" 2>/dev/null; fi
done
n=0
until rm -rf "$1" 2>/dev/null || [ "$n" -ge 100 ]; do n=$((n + 1)); sleep 0.1; done
"#;

struct Base {
    path: PathBuf,
    /// Holds the pipe that the janitor waits on.
    _janitor: Child,
}

/// The directory of this process.
pub(crate) fn base() -> &'static Path {
    static BASE: OnceLock<Base> = OnceLock::new();
    &BASE.get_or_init(make_base).path
}

fn make_base() -> Base {
    let path = tempfile::Builder::new()
        .prefix("palisade-")
        .tempdir()
        .expect("a temporary directory")
        .keep();
    fs::create_dir(path.join("netns")).expect("a temporary directory");
    open_to_all(&path);
    let janitor = Command::new("sh")
        .args(["-c", JANITOR, "palisade-janitor"])
        .arg(&path)
        .env("PATH", command::search_path())
        .stdin(Stdio::piped())
        // A reader of our output would otherwise wait for the janitor too.
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Ctrl-C must end this process and not the janitor.
        .process_group(0)
        .spawn()
        .expect("sh");
    Base {
        path,
        _janitor: janitor,
    }
}

/// Servers that refuse root reach their directory as another user.
fn open_to_all(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
        .expect("permissions of our own directory");
}

/// A server's own directory, removed with it.
#[derive(Debug)]
pub(crate) struct Dir(PathBuf);

impl Dir {
    pub(crate) fn new(label: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let path = base().join(format!("{label}-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
        fs::create_dir(&path).expect("a directory for the server");
        open_to_all(&path);
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Makes a directory in it, unless there is one.
    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(&path).expect("a directory for the server");
        path
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).expect("a file for the server");
        path
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        // If it cannot be removed now, the janitor tries again.
        within(
            "removal of a directory",
            Duration::from_secs(5),
            || match fs::remove_dir_all(&self.0) {
                Err(error) if self.0.exists() => Err(error.to_string()),
                _ => Ok(()),
            },
        )
        .ok();
    }
}
