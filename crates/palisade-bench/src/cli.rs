//! The cost of `palisade run x -- true` beside `true`: the median of 50, interleaved. The command
//! is looked for beside this program.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use crate::figure;

const RUNS: usize = 50;

/// How many milliseconds more it may take.
pub(crate) const WANTED: f64 = 15.0;

/// Medians, in milliseconds.
pub(crate) struct Cost {
    alone: f64,
    under_lock: f64,
}

impl Cost {
    pub(crate) fn more(&self) -> f64 {
        self.under_lock - self.alone
    }

    pub(crate) fn print(&self) {
        figure("true, median of 50", self.alone, "ms");
        figure(
            "palisade run x -- true, median of 50",
            self.under_lock,
            "ms",
        );
    }
}

/// With locks at this URL, or in a file of our own.
pub(crate) fn run(url: Option<&str>) -> ExitCode {
    let measured = match url {
        Some(url) => measure(url),
        None => in_a_file(),
    };
    match measured {
        Ok(cost) => {
            cost.print();
            figure(
                &format!("more (wanted: {WANTED} or less)"),
                cost.more(),
                "ms",
            );
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("palisade-bench: {message}");
            ExitCode::from(69)
        }
    }
}

fn in_a_file() -> Result<Cost, String> {
    let folder = std::env::temp_dir().join(format!("palisade-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let measured = measure(&format!("sqlite:{}", folder.join("locks.db").display()));
    remove(&folder);
    measured
}

/// Measures with locks at this URL.
pub(crate) fn measure(url: &str) -> Result<Cost, String> {
    let program = std::env::current_exe()
        .ok()
        .map(|program| program.with_file_name("palisade"));
    let palisade = program
        .filter(|program| program.exists())
        .ok_or("palisade is not built: run cargo build --release first")?;
    let plain = || time(Command::new("true"));
    let locked = || {
        let mut command = Command::new(&palisade);
        command.args(["--url", url, "run", "bench", "--", "true"]);
        time(command)
    };
    // The first one makes the store's files, and fills the kernel's caches.
    locked()?;
    let (mut alone, mut under_lock) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        alone.push(plain()?);
        under_lock.push(locked()?);
    }
    Ok(Cost {
        alone: median(&mut alone),
        under_lock: median(&mut under_lock),
    })
}

fn time(mut command: Command) -> Result<Duration, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let begun = Instant::now();
    let status = command
        .stdin(Stdio::null())
        .status()
        .map_err(|error| format!("{name}: {error}"))?;
    if status.success() {
        Ok(begun.elapsed())
    } else {
        Err(format!("{name}: {status}"))
    }
}

fn median(times: &mut [Duration]) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e3
}

fn remove(folder: &Path) {
    std::fs::remove_dir_all(folder).expect("the folder can be removed");
}
