//! A driver of the interop tests in Java, which is told what to do. It answers how often it did so.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use super::Result;

/// Until Java has compiled what is hot.
const WARM: Duration = Duration::from_secs(5);

pub(crate) struct Java {
    child: Child,
    pipes: RefCell<(ChildStdin, BufReader<ChildStdout>)>,
}

impl Java {
    /// Starts the driver of this folder in `interop/peers` with these words, and lets it do this for a
    /// while: the words but for how long.
    pub(crate) fn start(peer: &str, words: [&str; 2], warm: &str) -> Result<Java> {
        let place = installed(peer)?;
        let path = std::env::join_paths([place.join("lib/*"), place.join("classes")])?;
        let mut java = Command::new("java");
        java.arg("-cp")
            .arg(path)
            .arg("Driver")
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = java
            .spawn()
            .map_err(|error| format!("java: {error}: run scripts/setup"))?;
        let (Some(requests), Some(said)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a Java without pipes".into());
        };
        let java = Java {
            child,
            pipes: RefCell::new((requests, BufReader::new(said))),
        };
        match java.line()?.as_str() {
            "ready" => {}
            said => return Err(format!("Java: {said}").into()),
        }
        java.run(warm, WARM)?;
        Ok(java)
    }

    /// How often it did this, and in how long.
    pub(crate) fn run(&self, words: &str, length: Duration) -> Result<(f64, Duration)> {
        writeln!(self.pipes.borrow_mut().0, "{words} {}", length.as_millis())?;
        let said = self.line()?;
        match said.split(' ').collect::<Vec<_>>()[..] {
            ["looped", count, micros] => {
                Ok((count.parse()?, Duration::from_micros(micros.parse()?)))
            }
            _ => Err(format!("Java: {said}").into()),
        }
    }

    fn line(&self) -> Result<String> {
        let mut line = String::new();
        match self.pipes.borrow_mut().1.read_line(&mut line)? {
            0 => Err("Java ended early".into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }
}

impl Drop for Java {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where the interop tests have it, too.
fn installed(peer: &str) -> Result<PathBuf> {
    let install = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../interop/peers/install");
    let asked = Command::new(install).args(["--where", peer]).output()?;
    let place = PathBuf::from(String::from_utf8_lossy(&asked.stdout).trim());
    if place.is_dir() {
        Ok(place)
    } else {
        Err(format!("{peer} is not installed: run scripts/setup").into())
    }
}
