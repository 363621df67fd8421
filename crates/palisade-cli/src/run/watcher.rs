//! The watcher: a process of its own that kills the command's group when palisade cannot.
//!
//! - Palisade itself is killed. The kernel can only tell a direct child of its parent's death, and a
//!   command may have children. The watcher reads from a pipe that palisade alone has open for
//!   writing: when palisade is gone, however it went, the pipe ends.
//! - Palisade itself is stopped (SIGSTOP), and can neither renew nor stop the command. The watcher
//!   knows the deadline, which palisade moves through the same pipe with every renewal.
//!
//! It has a name of its own, so that a kill of all processes of palisade's name does not reach it.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal, WaitOptions};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
};

/// Palisade's ends of the pipes.
pub(crate) struct Watcher {
    /// Orders to the watcher. Taken at the end.
    orders: Option<std::fs::File>,
    /// One byte for each time that it has killed the group.
    kills: std::fs::File,
    process: Option<Pid>,
    /// The last order; `None` when the command may have given one itself.
    told: Option<Order>,
}

impl Drop for Watcher {
    /// Lets the watcher go, and waits for it: where no process collects the orphans, it would stay
    /// as a zombie.
    fn drop(&mut self) {
        drop(self.orders.take());
        if let Some(process) = self.process {
            let _ = rustix::process::waitpid(Some(process), WaitOptions::empty());
        }
    }
}

/// When the group is to be killed: nanoseconds of CLOCK_BOOTTIME, on which the deadlines of locks
/// are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Deadline(u64);

impl Deadline {
    pub(super) const NEVER: Deadline = Deadline(u64::MAX);

    /// So long after now. The clock is read first: the deadline comes early rather than late.
    pub(super) fn after(span: impl FnOnce() -> Duration) -> Deadline {
        let now = clock_gettime(ClockId::Boottime);
        let now = Duration::new(
            now.tv_sec.try_into().unwrap_or(0),
            now.tv_nsec.try_into().unwrap_or(0),
        );
        let at = now.saturating_add(span()).as_nanos();
        Deadline(u64::try_from(at).unwrap_or(u64::MAX))
    }

    /// As a timer takes it. Zero would disarm the timer.
    fn timespec(self) -> Timespec {
        let at = Duration::from_nanos(self.0.max(1));
        Timespec {
            tv_sec: at.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: at.subsec_nanos().into(),
        }
    }
}

/// What the watcher is told: which group to kill, 0 for none, and when at the latest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Order {
    group: i32,
    deadline: Deadline,
}

impl Order {
    const NONE: Order = Order {
        group: 0,
        deadline: Deadline::NEVER,
    };
    const LENGTH: usize = 12;

    /// Small enough to be written to a pipe in one piece.
    fn bytes(self) -> [u8; Order::LENGTH] {
        let mut bytes = [0; Order::LENGTH];
        let (group, deadline) = bytes.split_at_mut(4);
        group.copy_from_slice(&self.group.to_ne_bytes());
        deadline.copy_from_slice(&self.deadline.0.to_ne_bytes());
        bytes
    }

    fn read(mut pipe: impl Read) -> io::Result<Order> {
        let (mut group, mut deadline) = ([0; 4], [0; 8]);
        pipe.read_exact(&mut group)?;
        pipe.read_exact(&mut deadline)?;
        Ok(Order {
            group: i32::from_ne_bytes(group),
            deadline: Deadline(u64::from_ne_bytes(deadline)),
        })
    }
}

/// What the command tells the watcher before it begins: from then on it is watched, even if
/// palisade is stopped before it knows the command's process id.
#[derive(Clone, Copy)]
pub(super) struct ForAStart {
    orders: RawFd,
    deadline: Deadline,
}

impl ForAStart {
    /// In the child, between fork and exec: no allocation, no lock.
    pub(super) fn tell(self) {
        let order = Order {
            group: rustix::process::getpid().as_raw_nonzero().get(),
            deadline: self.deadline,
        };
        let bytes = order.bytes();
        // SAFETY: the descriptor is open, and the bytes are there for the time of the call.
        #[allow(unsafe_code, reason = "a descriptor by number, between fork and exec")]
        unsafe {
            libc::write(self.orders, bytes.as_ptr().cast(), bytes.len());
        }
    }
}

/// Starts the watcher. Before any thread is started.
pub(crate) fn start() -> io::Result<Watcher> {
    let (orders, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    let (kills, reporter) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    rustix::fs::fcntl_setfl(&kills, OFlags::NONBLOCK)?;
    // SAFETY: this process has one thread, so the copy of it may do whatever the original could.
    #[allow(unsafe_code, reason = "there is no safe fork")]
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            drop((writer, kills));
            watch(orders, reporter);
            // SAFETY: ends this process without running what the original has registered for its
            // end.
            unsafe { libc::_exit(0) }
        }
        process => Ok(Watcher {
            orders: Some(writer.into()),
            kills: kills.into(),
            process: Pid::from_raw(process),
            told: None,
        }),
    }
}

impl Watcher {
    /// For a command that is about to start: its group is watched, with this deadline.
    pub(super) fn for_a_start(&mut self, deadline: Deadline) -> Option<ForAStart> {
        self.told = None;
        let orders = self.orders.as_ref()?.as_raw_fd();
        Some(ForAStart { orders, deadline })
    }

    /// From now on, the end of palisade or this deadline is the end of this group.
    pub(super) fn extend(&mut self, group: Pid, deadline: Deadline) {
        let group = group.as_raw_nonzero().get();
        self.tell(Order { group, deadline });
    }

    /// The group has ended.
    pub(super) fn disarm(&mut self) {
        self.tell(Order::NONE);
        let _ = self.has_killed();
    }

    /// Whether the watcher has killed the group by itself since it was last asked.
    pub(super) fn has_killed(&mut self) -> bool {
        matches!(self.kills.read(&mut [0; 8]), Ok(1..))
    }

    fn tell(&mut self, order: Order) {
        if self.told.replace(order) == Some(order) {
            return;
        }
        // If the watcher is gone there is no other way; the command's own parent-death signal is
        // left.
        if let Some(orders) = &mut self.orders {
            let _ = orders.write_all(&order.bytes());
        }
    }
}

/// The other process: kills the group when the pipe ends, or at the deadline.
fn watch(orders: OwnedFd, reporter: OwnedFd) {
    // Before the command is started, so at no time can both be killed by one name while there is a
    // command.
    let _ = rustix::thread::set_name(c"pal-watch");
    // Only with the right to: it is small, and ends a command that would go on without a lock.
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
    // Away from the terminal and from palisade's group, whose signals are not for us.
    let _ = rustix::process::setsid();
    let _ = let_go_of_everything_but([&orders, &reporter]);
    // Closed with the others, if it had been made before. It counts while the machine sleeps, too.
    let timer = rustix::time::timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC).ok();
    let (mut orders, mut reporter) = (std::fs::File::from(orders), std::fs::File::from(reporter));
    let mut order = Order::NONE;
    loop {
        match wait(&orders, timer.as_ref()) {
            Event::Order => match Order::read(&mut orders) {
                Ok(next) => order = next,
                Err(_) => break,
            },
            Event::Deadline => {
                // Told before it is done: palisade must not take this kill for another's.
                let _ = reporter.write_all(&[1]);
                kill(order);
                order.deadline = Deadline::NEVER;
            }
        }
        if let Some(timer) = &timer {
            set(timer, order.deadline);
        }
    }
    kill(order);
}

enum Event {
    /// An order, or the end of the pipe.
    Order,
    Deadline,
}

fn wait(orders: &std::fs::File, timer: Option<&OwnedFd>) -> Event {
    let Some(timer) = timer else {
        return Event::Order;
    };
    loop {
        let mut ready = [
            PollFd::new(orders, PollFlags::IN),
            PollFd::new(timer, PollFlags::IN),
        ];
        match poll(&mut ready, None) {
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return Event::Order,
            // A new deadline goes before the old one.
            Ok(_) if !ready[0].revents().is_empty() => return Event::Order,
            Ok(_) => return Event::Deadline,
        }
    }
}

/// Sets the timer anew; what has fired before counts no more.
fn set(timer: &OwnedFd, deadline: Deadline) {
    let mut at = Itimerspec {
        it_interval: Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        },
        it_value: Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        },
    };
    if deadline != Deadline::NEVER {
        at.it_value = deadline.timespec();
    }
    let _ = rustix::time::timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &at);
}

fn kill(order: Order) {
    if let Some(group) = Pid::from_raw(order.group) {
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
    }
}

/// A process that waits for the end of a pipe that palisade was given must not wait for us.
fn let_go_of_everything_but(ours: [&OwnedFd; 2]) -> io::Result<()> {
    let null = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    let kept = [ours[0].as_raw_fd(), ours[1].as_raw_fd(), null.as_raw_fd()];
    let open: Vec<i32> = std::fs::read_dir("/proc/self/fd")?
        .flatten()
        .filter_map(|file| file.file_name().to_str()?.parse().ok())
        .filter(|descriptor| *descriptor > 2 && !kept.contains(descriptor))
        .collect();
    for descriptor in open {
        // SAFETY: nothing in this process uses any other descriptor again; one that is closed
        // already is no harm.
        #[allow(unsafe_code, reason = "closes what other code has opened")]
        unsafe {
            libc::close(descriptor)
        };
    }
    Ok(())
}
