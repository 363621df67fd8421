//! The watcher: a process of its own that kills the command's group if palisade itself is killed.
//!
//! The kernel can only tell a direct child of its parent's death, and a command may have children. The watcher reads from a pipe
//! that palisade alone has open for writing: when palisade is gone, however it went, the pipe ends. It has a name of its own, so that
//! who kills all processes of palisade's name does not kill it too.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal, WaitOptions};

/// Palisade's end of the pipe.
pub(crate) struct Watcher {
    /// Taken when it ends.
    pipe: Option<std::fs::File>,
    process: Option<Pid>,
}

impl Drop for Watcher {
    /// Lets the watcher go, and waits for it: where nobody collects the orphans, it would stay as a zombie.
    fn drop(&mut self) {
        drop(self.pipe.take());
        if let Some(process) = self.process {
            let _ = rustix::process::waitpid(Some(process), WaitOptions::empty());
        }
    }
}

/// Starts the watcher. Before any thread is started.
pub(crate) fn start() -> io::Result<Watcher> {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    // SAFETY: this process has one thread, so the copy of it may do whatever the original could.
    #[allow(unsafe_code, reason = "there is no safe fork")]
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            drop(writer);
            watch(reader);
            // SAFETY: ends this process without running what the original has registered for its end.
            unsafe { libc::_exit(0) }
        }
        process => Ok(Watcher {
            pipe: Some(writer.into()),
            process: Pid::from_raw(process),
        }),
    }
}

impl Watcher {
    /// From now on, the end of palisade is the end of this group.
    pub(super) fn arm(&mut self, group: Pid) {
        self.tell(group.as_raw_nonzero().get());
    }

    /// The group has ended.
    pub(super) fn disarm(&mut self) {
        self.tell(0);
    }

    fn tell(&mut self, group: i32) {
        // If the watcher is gone there is nobody to tell; the command's own parent-death signal is left.
        if let Some(pipe) = &mut self.pipe {
            let _ = pipe.write_all(&group.to_ne_bytes());
        }
    }
}

/// The other process: remembers the group, and kills it when the pipe ends.
fn watch(reader: OwnedFd) {
    // Before the command is started, so at no time can both be killed by one name while there is a command.
    let _ = rustix::thread::set_name(c"pal-watch");
    // Only with the right to: it is small, and ends a command that would go on without a lock.
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
    // Away from the terminal and from palisade's group, whose signals are not for us.
    let _ = rustix::process::setsid();
    let _ = let_go_of_everything_but(&reader);
    let mut pipe = std::fs::File::from(reader);
    let mut group = [0; 4];
    let mut next = [0; 4];
    while pipe.read_exact(&mut next).is_ok() {
        group = next;
    }
    if let Some(group) = Pid::from_raw(i32::from_ne_bytes(group)) {
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
    }
}

/// Whoever waits for the end of a pipe that we were given must not wait for us.
fn let_go_of_everything_but(reader: &OwnedFd) -> io::Result<()> {
    let null = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    let ours = [
        std::os::fd::AsRawFd::as_raw_fd(reader),
        std::os::fd::AsRawFd::as_raw_fd(&null),
    ];
    let open: Vec<i32> = std::fs::read_dir("/proc/self/fd")?
        .flatten()
        .filter_map(|file| file.file_name().to_str()?.parse().ok())
        .filter(|descriptor| *descriptor > 2 && !ours.contains(descriptor))
        .collect();
    for descriptor in open {
        // SAFETY: nothing in this process uses any other descriptor again; one that is closed already is no harm.
        #[allow(unsafe_code, reason = "closes what other code has opened")]
        unsafe {
            libc::close(descriptor)
        };
    }
    Ok(())
}
