//! What `palisade run x -- true` costs beside `true`: the median of 50, in turns. The command is looked for beside this program.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use crate::figure;

const RUNS: usize = 50;

pub(crate) fn run() -> ExitCode {
    let program = std::env::current_exe().ok().map(|program| program.with_file_name("palisade"));
    let Some(palisade) = program.filter(|program| program.exists()) else {
        eprintln!("palisade is not built: run cargo build --release first");
        return ExitCode::from(69);
    };
    let folder = std::env::temp_dir().join(format!("palisade-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let url = format!("sqlite:{}", folder.join("locks.db").display());
    let plain = || time(Command::new("true"));
    let locked = || {
        let mut command = Command::new(&palisade);
        command.args(["--url", &url, "run", "bench", "--", "true"]);
        time(command)
    };
    locked();
    let (mut alone, mut under_lock): (Vec<Duration>, Vec<Duration>) = (0..RUNS).map(|_| (plain(), locked())).unzip();
    let (alone, under_lock) = (median(&mut alone), median(&mut under_lock));
    figure("true, median of 50", alone, "ms");
    figure("palisade run x -- true, median of 50", under_lock, "ms");
    figure("more (wanted: 15 or less)", under_lock - alone, "ms");
    remove(&folder);
    ExitCode::SUCCESS
}

fn time(mut command: Command) -> Duration {
    let begun = Instant::now();
    let status = command.stdin(Stdio::null()).status().expect("started");
    assert!(status.success(), "{status}");
    begun.elapsed()
}

fn median(times: &mut [Duration]) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e3
}

fn remove(folder: &Path) {
    std::fs::remove_dir_all(folder).expect("the folder can be removed");
}
