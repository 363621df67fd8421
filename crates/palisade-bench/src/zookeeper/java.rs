//! Apache Curator, or ZooKeeper's own client, in a Java of its own, which is told what to do.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::compare::Result;

/// Until Java has compiled what is hot.
const WARM: Duration = Duration::from_secs(5);

pub(super) struct Java {
    child: Child,
    pipes: RefCell<(ChildStdin, BufReader<ChildStdout>)>,
}

impl Java {
    /// Starts Curator's mutex, and lets it do this for a while: the words but for how long.
    pub(super) fn curator(url: &str, warm: &str) -> Result<Java> {
        Java::start("curator-mutex", url, warm)
    }

    /// Starts what makes nodes and deletes them, without any lock.
    pub(super) fn bare(url: &str, warm: &str) -> Result<Java> {
        Java::start("bare", url, warm)
    }

    fn start(recipe: &str, url: &str, warm: &str) -> Result<Java> {
        let place = installed()?;
        let path = std::env::join_paths([place.join("lib/*"), place.join("classes")])?;
        let mut java = Command::new("java");
        java.arg("-cp")
            .arg(path)
            .args(["Driver", recipe, url])
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
    pub(super) fn run(&self, words: &str, length: Duration) -> Result<(f64, Duration)> {
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
fn installed() -> Result<PathBuf> {
    let install = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../interop/peers/install");
    let asked = Command::new(install)
        .args(["--where", "zookeeper-java"])
        .output()?;
    let place = PathBuf::from(String::from_utf8_lossy(&asked.stdout).trim());
    if place.is_dir() {
        Ok(place)
    } else {
        Err("Curator is not installed: run scripts/setup".into())
    }
}
