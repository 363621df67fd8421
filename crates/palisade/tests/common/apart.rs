//! A client in a process of its own, which can be stopped in the middle of what it does. A test binary
//! that uses it has an ignored test `a_client_apart`, which calls [`do_as_told`].

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use palisade::Guard;
use palisade::blocking::Wait;
use palisade::fence::file::{FencedFile, WriteError};

use super::actors::{SOON, connect};
use super::ms;

/// A client in a process of its own, which does what it is told.
pub struct Apart {
    process: Child,
    told: ChildStdin,
    said: Lines<BufReader<ChildStdout>>,
}

impl Apart {
    pub fn start(url: &str, file: &FencedFile) -> Apart {
        let mut process = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "a_client_apart", "--ignored", "--nocapture"])
            .env("PALISADE_APART", format!("{url} {}", file.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let told = process.stdin.take().expect("a pipe");
        let said = BufReader::new(process.stdout.take().expect("a pipe")).lines();
        Apart {
            process,
            told,
            said,
        }
    }

    pub fn tell(&mut self, what: &str) {
        writeln!(self.told, "{what}").expect("it listens");
    }

    pub fn answer(&mut self) -> String {
        let mut said = self.said.by_ref().map_while(Result::ok);
        let said = said.find_map(|said| Some(said.strip_prefix("apart: ")?.to_owned()));
        said.expect("it answers")
    }

    pub fn ask(&mut self, what: &str) -> String {
        self.tell(what);
        self.answer()
    }

    /// Claims until the answer is this. Its connections may just be given up.
    pub fn claims(&mut self, wanted: &str) {
        for _ in 0..200 {
            let said = self.ask("claim");
            if said.starts_with(wanted) {
                return;
            }
            assert!(said.starts_with("refused: "), "{said}");
            std::thread::sleep(ms(50));
        }
        panic!("not {wanted}");
    }

    /// Stops it. On a busy machine, some of its threads go on for a while after the signal.
    pub fn stop(&self) {
        self.signal("-STOP");
        let tasks = format!("/proc/{}/task", self.process.id());
        let is_stopped = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(task?.path().join("stat"))?;
            // Behind the name, which may have any letters.
            let state = stat.rsplit(") ").next();
            std::io::Result::Ok(state.is_some_and(|state| state.starts_with('T')))
        };
        let begun = Instant::now();
        while !std::fs::read_dir(&tasks)
            .expect("its threads")
            .all(|task| is_stopped(task).is_ok_and(|stopped| stopped))
        {
            assert!(begun.elapsed() < SOON, "it does not stop");
        }
    }

    /// Lets it go on.
    pub fn go_on(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill")
            .args([signal, &self.process.id().to_string()])
            .status();
        assert!(status.expect("kill").success());
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        // Killed also while it is stopped.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Does what it is told by its standard input, at a lock named `stopped`.
pub fn do_as_told(lease: Duration) {
    let task = std::env::var("PALISADE_APART").expect("told what to do");
    let (url, path) = task.split_once(' ').expect("two words");
    let file = FencedFile::new(path).expect("a file");
    let client = connect(url);
    let mutex = client.mutex("stopped").lease(lease);
    let mut held: Option<Guard> = None;
    for told in std::io::stdin().lines().map_while(Result::ok) {
        let said = match (told.as_str(), &held) {
            ("claim", _) => match mutex.try_acquire().wait() {
                Ok(guard) => {
                    held = guard;
                    held.as_ref().map_or("busy".to_owned(), |held| {
                        format!("granted {}", held.fence())
                    })
                }
                Err(error) => format!("refused: {error}"),
            },
            ("look", Some(held)) if held.is_held() => "held".to_owned(),
            ("look", _) => "lost".to_owned(),
            // Without another look, as a program does that was stopped after its last one.
            ("write", Some(held)) => match file.write(held.fence(), b"by the client apart") {
                Ok(()) => "written".to_owned(),
                Err(WriteError::Stale { .. }) => "stale".to_owned(),
                Err(error) => format!("not written: {error}"),
            },
            ("release", _) => match held.take().map(|held| held.release().wait()) {
                Some(Ok(released)) => format!("{released:?}"),
                other => format!("not released: {other:?}"),
            },
            other => format!("unknown: {other:?}"),
        };
        println!("\napart: {said}");
    }
}
