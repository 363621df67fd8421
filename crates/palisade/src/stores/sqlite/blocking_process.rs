//! Which process blocks a file.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The message when a transaction has waited for long: which process has the file, and its state.
pub(super) fn message(database: &Path) -> String {
    let shown = database.display();
    match holder(database) {
        Some(pid) => {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            let state = state(pid)
                .map(|state| format!(", {state}"))
                .unwrap_or_default();
            format!(
                "{shown}: process {pid} ({}{state}) has been writing to it for over 2 s; see what it does, or end it",
                name.trim()
            )
        }
        None => format!(
            "{shown}: another process has been writing to it for over 2 s; find it with: fuser {shown}"
        ),
    }
}

/// The process that has SQLite's write lock. Read from the kernel's table: opening and closing the
/// file here would drop this process' own locks on it.
fn holder(database: &Path) -> Option<u32> {
    let mut shared_memory = database.as_os_str().to_owned();
    shared_memory.push("-shm");
    let inode = std::fs::metadata(shared_memory).ok()?.ino().to_string();
    let table = std::fs::read_to_string("/proc/locks").ok()?;
    table.lines().find_map(|line| {
        // 1: POSIX  ADVISORY  WRITE 1234 fe:00:5678 120 120
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, _, _, "WRITE", pid, file, ..] = words.as_slice() else {
            return None;
        };
        (file.rsplit(':').next() == Some(&inode))
            .then(|| pid.parse().ok())
            .flatten()
    })
}

fn state(pid: u32) -> Option<&'static str> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let state = status
        .lines()
        .find_map(|line| line.strip_prefix("State:"))?
        .trim();
    state.starts_with('T').then_some("stopped")
}
