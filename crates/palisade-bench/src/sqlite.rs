//! The embedded store beside raw SQLite with the same settings: uncontended cycles, hand-off
//! between processes, fair shares, and how soon a killed holder is replaced. Workers are this
//! program, started again.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use palisade::blocking::Wait;
use palisade::lease::{BootClock, Clock};
use palisade::{Client, Released};
use rusqlite::Connection;

use crate::figure;

const SECONDS: u64 = 3;

pub(crate) fn run() -> ExitCode {
    let folder = std::env::temp_dir().join(format!("palisade-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut rounds: Vec<(f64, f64)> = (0..3)
        .map(|round| (raw_cycles(&folder, round), our_cycles(&folder, round)))
        .collect();
    rounds.sort_by(|one, other| (one.1 / one.0).total_cmp(&(other.1 / other.0)));
    let (raw, ours) = rounds[1];
    figure("raw SQLite, two transactions", raw, "cycles/s");
    figure("sqlite:, acquire + release", ours, "cycles/s");
    figure("ratio to raw (wanted: 0.5 or more)", ours / raw, "");
    let raw = hand_off(&folder, "raw");
    let ours = hand_off(&folder, "ours");
    figure("raw commit + datagram, hand-off p50", raw * 1e6, "µs");
    figure(
        "sqlite:, hand-off between two processes, p50",
        ours * 1e6,
        "µs",
    );
    figure("ratio to raw (wanted: 3 or less)", ours / raw, "");
    let (shares, violations) = fair_shares(&folder);
    let fair = shares.iter().sum::<u64>() as f64 / shares.len() as f64;
    let least = shares.iter().min().copied().unwrap_or_default() as f64;
    figure(
        "8 processes on one name, all together",
        shares.iter().sum::<u64>() as f64 / SECONDS as f64,
        "cycles/s",
    );
    figure(
        "least share, of the fair one (wanted: 0.5 or more)",
        least / fair,
        "",
    );
    figure("violations", violations as f64, "");
    let mut killed: Vec<f64> = (0..9).map(|round| killed_holder(&folder, round)).collect();
    killed.sort_by(f64::total_cmp);
    figure(
        "after kill -9 of the holder, the waiter runs: median",
        killed[4] * 1e3,
        "ms",
    );
    figure(
        "after kill -9 of the holder, the waiter runs: worst",
        killed[8] * 1e3,
        "ms",
    );
    std::fs::remove_dir_all(&folder).expect("the folder can be removed");
    if violations == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// The least cost of a lock: one row inserted, one row deleted, each in a transaction of its own.
fn raw_cycles(folder: &Path, round: usize) -> f64 {
    let connection = raw(&folder.join(format!("raw-{round}.db")));
    let mut take = connection
        .prepare("INSERT INTO locks VALUES ('bench', 1, 0, 1) ON CONFLICT DO UPDATE SET owner = 1, fence = fence + 1 WHERE owner = 0 RETURNING fence")
        .expect("prepared");
    let mut give = connection
        .prepare("UPDATE locks SET owner = 0 WHERE name = 'bench' AND owner = 1 AND fence = ?1")
        .expect("prepared");
    per_second(|| {
        let fence: i64 = take.query_row([], |row| row.get(0)).expect("taken");
        assert_eq!(give.execute([fence]).expect("given back"), 1);
    })
}

fn raw(path: &Path) -> Connection {
    let connection = Connection::open(path).expect("opened");
    connection
        .pragma_update(None, "journal_mode", "WAL")
        .expect("WAL");
    connection
        .pragma_update(None, "synchronous", "NORMAL")
        .expect("NORMAL");
    connection
        .busy_timeout(Duration::from_secs(10))
        .expect("set");
    let schema = "CREATE TABLE IF NOT EXISTS locks (name TEXT PRIMARY KEY, owner INTEGER, exp INTEGER, fence INTEGER) WITHOUT ROWID";
    connection.execute_batch(schema).expect("made");
    connection
}

fn our_cycles(folder: &Path, round: usize) -> f64 {
    let lock = client(&folder.join(format!("ours-{round}.db"))).mutex("bench");
    per_second(|| {
        let guard = lock.acquire().wait().expect("acquired");
        assert_eq!(guard.release().wait().expect("released"), Released::Done);
    })
}

fn client(path: &Path) -> Client {
    Client::connect(format!("sqlite:{}", path.display())).expect("a client")
}

fn per_second(mut cycle: impl FnMut()) -> f64 {
    for _ in 0..100 {
        cycle();
    }
    let begun = Instant::now();
    let mut cycles = 0_u32;
    while begun.elapsed() < Duration::from_secs(SECONDS) {
        cycle();
        cycles += 1;
    }
    f64::from(cycles) / begun.elapsed().as_secs_f64()
}

/// A worker: this program again, driven over its pipes.
struct Worker {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Worker {
    fn start(words: &[&str]) -> Worker {
        let program = std::env::current_exe().expect("this program");
        let mut child = Command::new(program)
            .arg("worker")
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        Worker { child, lines }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line");
        line.trim().to_owned()
    }

    fn tell(&mut self) {
        self.child
            .stdin
            .as_mut()
            .expect("piped")
            .write_all(b"go\n")
            .expect("told");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The median time from the call of release in one process to the lock in the other, both on one
/// clock.
fn hand_off(folder: &Path, what: &str) -> f64 {
    let path = folder.join(format!("hand-off-{what}.db"));
    if what == "raw" {
        drop(raw(&path));
    } else {
        drop(client(&path).mutex("warm").acquire().wait());
    }
    let path = path.display().to_string();
    let workers = ["a", "b"].map(|side| Worker::start(&["hand-off", what, &path, side]));
    let mut times: Vec<f64> = workers
        .into_iter()
        .flat_map(|mut worker| {
            let line = worker.line();
            line.split_whitespace()
                .map(|time| time.parse().expect("a number"))
                .collect::<Vec<f64>>()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn fair_shares(folder: &Path) -> (Vec<u64>, u64) {
    let path = folder.join("shares.db");
    let counter = folder.join("counter");
    std::fs::write(&counter, "0").expect("written");
    let (path, counter_path) = (path.display().to_string(), counter.display().to_string());
    let mut workers: Vec<Worker> = (0..8)
        .map(|_| Worker::start(&["share", &path, &counter_path]))
        .collect();
    for worker in &mut workers {
        assert_eq!(worker.line(), "ready");
    }
    workers.iter_mut().for_each(Worker::tell);
    let shares: Vec<u64> = workers
        .iter_mut()
        .map(|worker| worker.line().parse().expect("a number"))
        .collect();
    let counted: u64 = std::fs::read_to_string(counter)
        .expect("read")
        .parse()
        .expect("a number");
    (shares.clone(), shares.iter().sum::<u64>().abs_diff(counted))
}

fn killed_holder(folder: &Path, round: usize) -> f64 {
    let path = folder.join(format!("killed-{round}.db"));
    let text = path.display().to_string();
    let mut holder = Worker::start(&["hold", &text]);
    assert_eq!(holder.line(), "held");
    let locks = client(&path);
    let lock = locks.mutex("killed");
    let waiting = std::thread::spawn(move || {
        let guard = lock.acquire().wait().expect("acquired");
        let at = Instant::now();
        drop(guard);
        at
    });
    while locks
        .show("killed")
        .wait()
        .expect("an answer")
        .is_none_or(|line| line.waiters.is_empty())
    {
        std::thread::sleep(Duration::from_millis(1));
    }
    // Time for the waiter to read who is before it.
    std::thread::sleep(Duration::from_millis(50));
    let killed = Instant::now();
    holder.child.kill().expect("killed");
    waiting
        .join()
        .expect("no panic")
        .duration_since(killed)
        .as_secs_f64()
}

/// The other side of the workers above.
pub(crate) fn worker(words: &[&str]) -> ExitCode {
    match words {
        ["hold", path] => {
            let _guard = client(Path::new(path))
                .mutex("killed")
                .acquire()
                .wait()
                .expect("acquired");
            println!("held");
            let _ = std::io::stdin().read_line(&mut String::new());
        }
        ["cycles", folder] => println!("{}", our_cycles(Path::new(folder), 0)),
        ["share", path, counter] => share(Path::new(path), Path::new(counter)),
        ["hand-off", "raw", path, side] => print_times(&raw_side(Path::new(path), side)),
        ["hand-off", "ours", path, _] => print_times(&our_side(Path::new(path))),
        _ => return ExitCode::from(64),
    }
    ExitCode::SUCCESS
}

fn print_times(times: &[f64]) {
    let times: Vec<String> = times.iter().map(f64::to_string).collect();
    println!("{}", times.join(" "));
}

/// Counts in a file, without any lock but ours: two at once lose an update.
fn share(path: &Path, counter: &Path) {
    let lock = client(path).mutex("share");
    drop(lock.acquire().wait().expect("acquired"));
    println!("ready");
    let _ = std::io::stdin().read_line(&mut String::new());
    let begun = Instant::now();
    let mut cycles = 0_u64;
    while begun.elapsed() < Duration::from_secs(SECONDS) {
        let guard = lock.acquire().wait().expect("acquired");
        let count: u64 = std::fs::read_to_string(counter)
            .expect("read")
            .parse()
            .expect("a number");
        std::fs::write(counter, (count + 1).to_string()).expect("written");
        let _ = guard.release().wait().expect("released");
        cycles += 1;
    }
    println!("{cycles}");
}

const TURNS: usize = 1000;

/// Two processes in turns: the time of the release is left in a file beside the database, which
/// costs next to nothing.
fn our_side(path: &Path) -> Vec<f64> {
    let lock = client(path).mutex("hand-off");
    let stamp = path.with_extension("stamp");
    let stamp = std::fs::File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(stamp)
        .expect("opened");
    let mut times = Vec::new();
    for turn in 0..TURNS {
        let guard = lock.acquire().wait().expect("acquired");
        let now = BootClock.now().since_zero().as_nanos();
        let mut then = [0; 16];
        // The first turns may be without the other.
        if stamp.read_exact_at(&mut then, 0).is_ok() && turn > 10 {
            times.push(now.saturating_sub(u128::from_be_bytes(then)) as f64 / 1e9);
        }
        std::thread::sleep(Duration::from_millis(1));
        stamp
            .write_all_at(&BootClock.now().since_zero().as_nanos().to_be_bytes(), 0)
            .expect("written");
        let _ = guard.release().wait().expect("released");
    }
    times
}

/// The least cost of a hand-off: the owner is changed in one transaction, the other is told by a
/// datagram and takes it in another.
fn raw_side(path: &Path, side: &str) -> Vec<f64> {
    let connection = raw(path);
    let address = |side: &str| -> PathBuf { path.with_extension(format!("{side}.sock")) };
    let (mine, theirs) = if side == "a" { ("a", "b") } else { ("b", "a") };
    let socket = UnixDatagram::bind(address(mine)).expect("bound");
    let begun = Instant::now();
    while !address(theirs).exists() {
        assert!(
            begun.elapsed() < Duration::from_secs(10),
            "the other side is there"
        );
        std::thread::yield_now();
    }
    let mut times = Vec::new();
    let mut letter = [0; 16];
    for turn in 0..TURNS {
        if turn > 0 || side == "b" {
            socket.recv(&mut letter).expect("told");
            connection
                .execute(
                    "INSERT OR REPLACE INTO locks VALUES ('bench', 1, 0, ?1)",
                    [turn as i64],
                )
                .expect("taken");
            times.push(
                (BootClock.now().since_zero().as_nanos() - u128::from_be_bytes(letter)) as f64
                    / 1e9,
            );
        }
        std::thread::sleep(Duration::from_millis(1));
        let begun = BootClock.now().since_zero().as_nanos();
        connection
            .execute("UPDATE locks SET owner = 0 WHERE name = 'bench'", [])
            .expect("given back");
        let _ = socket.send_to(&begun.to_be_bytes(), address(theirs));
    }
    times
}
