//! A command on a terminal: a pty of the test's own. `setsid --ctty` of util-linux makes it the
//! controlling one.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

use rustix::fs::{Mode, OFlags};
use rustix::pty::OpenptFlags;

use super::{LONG, Place, ended, within};

/// A command on a terminal.
pub struct OnTerminal {
    pub child: Child,
    keyboard: File,
    screen: Arc<Mutex<String>>,
}

impl OnTerminal {
    pub fn start(place: &Place, command: &Command) -> OnTerminal {
        // As a terminal that does not say how wide it is.
        OnTerminal::with_columns(place, command, 0)
    }

    pub fn with_columns(place: &Place, command: &Command, columns: u16) -> OnTerminal {
        let keyboard = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        rustix::pty::grantpt(&keyboard).unwrap();
        rustix::pty::unlockpt(&keyboard).unwrap();
        let name = rustix::pty::ptsname(&keyboard, Vec::new()).unwrap();
        let terminal: OwnedFd = rustix::fs::open(
            name.as_c_str(),
            OFlags::RDWR | OFlags::NOCTTY,
            Mode::empty(),
        )
        .unwrap();
        let mut size = rustix::termios::tcgetwinsize(&terminal).unwrap();
        size.ws_col = columns;
        rustix::termios::tcsetwinsize(&terminal, size).unwrap();
        let mut child = Command::new("setsid");
        child
            .arg("--ctty")
            .arg(command.get_program())
            .args(command.get_args())
            .current_dir(place.folder());
        child
            .env_clear()
            .envs(
                command
                    .get_envs()
                    .filter_map(|(key, value)| Some((key, value?))),
            )
            .env("TERM", "xterm");
        child
            .stdin(terminal.try_clone().unwrap())
            .stdout(terminal.try_clone().unwrap())
            .stderr(terminal);
        let running = child.spawn().expect("setsid starts");
        // The copies in it would keep the terminal open.
        drop(child);
        let keyboard = File::from(keyboard);
        let screen = Arc::new(Mutex::new(String::new()));
        let (mut reader, shown) = (keyboard.try_clone().unwrap(), Arc::clone(&screen));
        std::thread::spawn(move || {
            let mut part = [0; 4096];
            // Ends with an error when no process has the terminal any more.
            while let Ok(length @ 1..) = reader.read(&mut part) {
                shown
                    .lock()
                    .unwrap()
                    .push_str(&String::from_utf8_lossy(&part[..length]));
            }
        });
        OnTerminal {
            child: running,
            keyboard,
            screen,
        }
    }

    pub fn types(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
    }

    pub fn screen(&self) -> String {
        self.screen.lock().unwrap().clone()
    }

    #[track_caller]
    pub fn shows(&self, text: &str) {
        assert!(
            within(LONG, || self.screen().contains(text)),
            "not shown: {text:?} in {:?}",
            self.screen()
        );
    }

    pub fn ends(&mut self) -> Option<i32> {
        ended(&mut self.child).code()
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
