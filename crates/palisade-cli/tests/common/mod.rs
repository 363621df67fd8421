//! What the tests of the command share: a folder of its own for each test, the command started in
//! it, and conditions that are asked until they hold.

#![allow(
    dead_code,
    reason = "every test file is a program of its own and uses a part of this"
)]
#![allow(unreachable_pub, reason = "the same")]

pub mod terminal;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::Value;

/// Longer than anything takes on a machine with too much to do.
pub const LONG: Duration = Duration::from_secs(40);

/// A folder with a database of its own, or another store, and the command in it.
pub struct Place {
    folder: tempfile::TempDir,
    url: Option<String>,
    outputs: AtomicU32,
}

impl Place {
    pub fn new() -> Place {
        Place {
            folder: tempfile::tempdir().expect("a temporary folder"),
            url: None,
            outputs: AtomicU32::new(0),
        }
    }

    /// A folder whose command uses the store at this URL.
    pub fn of(url: impl Into<String>) -> Place {
        Place {
            url: Some(url.into()),
            ..Place::new()
        }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    pub fn database(&self) -> PathBuf {
        self.path("locks.db")
    }

    pub fn url(&self) -> String {
        self.url
            .clone()
            .unwrap_or_else(|| format!("sqlite:{}", self.database().display()))
    }

    /// The command with an environment of its own: nothing of the tester's home is read or written.
    pub fn bare(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_palisade"));
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.folder());
        command.current_dir(self.folder()).stdin(Stdio::null());
        command
    }

    /// The command on this place's store.
    pub fn command<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Command {
        let mut command = self.bare();
        command.arg("--url").arg(self.url()).args(arguments);
        command
    }

    /// Starts a command line; its words are divided by single spaces. A command for the shell goes
    /// behind it.
    pub fn start(&self, line: &str, script: &str) -> Running {
        self.launch(self.run_of(line, script))
    }

    pub fn run_of(&self, line: &str, script: &str) -> Command {
        let mut command = self.command(line.split(' '));
        command.args(["--", "sh", "-c", script]);
        command
    }

    pub fn launch(&self, mut command: Command) -> Running {
        let number = self.outputs.fetch_add(1, Ordering::Relaxed);
        let (stdout, stderr) = (
            self.path(&format!("{number}.out")),
            self.path(&format!("{number}.err")),
        );
        let file = |path: &Path| File::create(path).expect("a file for output");
        let child = command
            .stdout(file(&stdout))
            .stderr(file(&stderr))
            .spawn()
            .expect("palisade starts");
        Running {
            child,
            stdout,
            stderr,
        }
    }

    /// Runs a command line to its end.
    pub fn run(&self, line: &str, script: &str) -> Done {
        self.start(line, script).end()
    }

    /// Runs a verb to its end.
    pub fn verb(&self, line: &str) -> Done {
        self.finish(self.command(line.split(' ')))
    }

    pub fn finish(&self, command: Command) -> Done {
        self.launch(command).end()
    }

    /// A copy of palisade, for a user that may not enter the folder where it was built.
    pub fn copy_for_every_user(&self) -> PathBuf {
        let copy = self.path("palisade");
        // By another process: a fork of a test beside this one would keep our file open for
        // writing, and a busy file does not run.
        let copied = Command::new("cp")
            .arg(env!("CARGO_BIN_EXE_palisade"))
            .arg(&copy)
            .status();
        assert!(copied.expect("cp starts").success());
        for path in [copy.as_path(), self.folder()] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("rights");
        }
        copy
    }

    /// What `show --json` says of a name.
    pub fn show(&self, name: &str) -> Value {
        let done = self.finish(self.command(["show", "--json", name]));
        assert_eq!(done.code, 0, "{done:?}");
        serde_json::from_str(&done.stdout).expect("show --json prints JSON")
    }

    /// The lines that `list --json` prints.
    pub fn list(&self) -> Vec<Value> {
        let done = self.verb("list --json");
        assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
        done.stdout
            .lines()
            .map(|line| serde_json::from_str(line).expect("list --json prints JSON"))
            .collect()
    }

    /// Lists a store in which the line `strange` cannot be read: it is shown with its error, and so
    /// are the others without one.
    pub fn lists_beside_a_strange_line(&self, sound: &str, strange: &str, error: &str) {
        let lines = self.list();
        let line = |name: &str| {
            lines
                .iter()
                .find(|line| line["name"] == name)
                .unwrap_or_else(|| panic!("no {name}: {lines:?}"))
        };
        assert!(
            line(sound).get("error").is_none() && line(sound)["holders"][0]["fence"].is_string(),
            "{lines:?}"
        );
        let broken = line(strange);
        assert!(
            broken["error"]
                .as_str()
                .is_some_and(|text| text.contains(error)),
            "{broken}"
        );
        assert_eq!(
            (&broken["kind"], &broken["waiters_known"]),
            (&Value::Null, &false.into())
        );
        let table = self.verb("list");
        assert_eq!((table.code, table.stderr.as_str()), (0, ""), "{table:?}");
        let row = |name: &str| {
            table
                .stdout
                .lines()
                .find(|row| row.starts_with(&format!("{name} ")))
                .expect("a row")
                .to_owned()
        };
        assert!(
            row(strange).contains(error) && !row(sound).contains(error),
            "{table:?}"
        );
        // The line by itself is still an error.
        assert_eq!(self.finish(self.command(["show", strange])).code, 70);
    }

    pub fn holders(&self, name: &str) -> usize {
        self.show(name)["holders"]
            .as_array()
            .expect("holders")
            .len()
    }

    pub fn waiters(&self, name: &str) -> usize {
        self.show(name)["waiters"]
            .as_array()
            .expect("waiters")
            .len()
    }

    pub fn fence(&self, name: &str) -> String {
        self.show(name)["holders"][0]["fence"]
            .as_str()
            .expect("a fence")
            .to_owned()
    }

    /// A run that holds a name until it is ended. When this returns, it holds.
    pub fn holder(&self, line: &str) -> Running {
        let number = self.outputs.fetch_add(1, Ordering::Relaxed);
        let started = self.path(&format!("{number}.started"));
        let running = self.start(
            line,
            &format!("touch {}; exec sleep 300", started.display()),
        );
        until("the holder runs", || started.exists());
        running
    }

    /// Starts one that has to wait. When this returns, it is the last of `place` waiters.
    pub fn waiter(&self, line: &str, name: &str, script: &str, place: usize) -> Running {
        let running = self.start(line, script);
        until("it stands in line", || self.waiters(name) == place);
        running
    }

    /// Waits for a file that a command writes, and reads it.
    pub fn written(&self, name: &str) -> String {
        let path = self.path(name);
        until(&format!("{name} is written"), || {
            fs::read_to_string(&path).is_ok_and(|text| text.ends_with('\n'))
        });
        fs::read_to_string(&path)
            .expect("it was there")
            .trim()
            .to_owned()
    }

    /// Waits for a process id that a command writes.
    pub fn written_pid(&self, name: &str) -> u32 {
        self.written(name).parse().expect("a process id")
    }

    /// A connection to the database, as another program would have it.
    pub fn connection(&self) -> rusqlite::Connection {
        let connection = rusqlite::Connection::open(self.database()).expect("the database opens");
        connection
            .busy_timeout(Duration::from_secs(10))
            .expect("a timeout");
        connection
    }
}

/// A command that has been started. Dropping it kills it.
pub struct Running {
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
}

/// A command that has ended.
#[derive(Debug)]
pub struct Done {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Running {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        rustix::process::kill_process(pid(self.pid()), signal).expect("palisade is there");
    }

    pub fn stdout(&self) -> String {
        read(&self.stdout)
    }

    pub fn stderr(&self) -> String {
        read(&self.stderr)
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child of ours").is_some()
    }

    /// Kills palisade itself, and waits until it is gone.
    pub fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for its end.
    pub fn end(mut self) -> Done {
        let status = ended(&mut self.child);
        let code = status
            .code()
            .unwrap_or_else(|| panic!("palisade itself was killed: {status}; {}", self.stderr()));
        Done {
            code,
            stdout: self.stdout(),
            stderr: self.stderr(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for the end of a process, for long but not for ever.
pub fn ended(child: &mut Child) -> ExitStatus {
    let mut status = None;
    until("the command ends", || {
        status = child.try_wait().expect("a child of ours");
        status.is_some()
    });
    status.expect("it has ended")
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

/// Asks again and again until it is so.
#[track_caller]
pub fn until(what: &str, condition: impl FnMut() -> bool) {
    assert!(within(LONG, condition), "not within {LONG:?}: {what}");
}

/// Whether it is so before the time is over.
pub fn within(time: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + time;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn pid(number: u32) -> Pid {
    i32::try_from(number)
        .ok()
        .and_then(Pid::from_raw)
        .expect("a process id")
}

/// Whether a process runs. One that has ended and was not waited for runs no more.
pub fn is_alive(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    status
        .lines()
        .any(|line| line.starts_with("State:") && !line.contains('Z') && !line.contains('X'))
}
