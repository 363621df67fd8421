//! The one thread that starts every server.
//!
//! A server asks the kernel to be killed when its parent dies, so that nothing survives a test
//! binary, however that ends. The kernel's "parent" is the *thread* that forked, though: started
//! from a test's own thread, a shared server would end with the first test. This thread lives as
//! long as the process.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

struct Order {
    command: Command,
    reply: Sender<io::Result<Child>>,
}

/// Starts `command` in a process group of its own, to be killed with this process.
pub(crate) fn spawn(command: Command) -> io::Result<Child> {
    static ORDERS: OnceLock<Sender<Order>> = OnceLock::new();
    let orders = ORDERS.get_or_init(|| {
        let (orders, received) = channel();
        thread::Builder::new()
            .name("testkit-spawner".into())
            .spawn(move || serve(&received))
            .expect("a thread");
        orders
    });
    let (reply, answer) = channel();
    orders
        .send(Order { command, reply })
        .expect("the spawner lives as long as the process");
    answer.recv().expect("the spawner answers")
}

fn serve(orders: &Receiver<Order>) {
    for mut order in orders {
        die_with_parent(&mut order.command);
        // The caller waits for the reply, so the receiver exists.
        order
            .reply
            .send(order.command.process_group(0).spawn())
            .ok();
    }
}

#[allow(
    unsafe_code,
    reason = "std has no safe way to run something between fork and exec"
)]
fn die_with_parent(command: &mut Command) {
    let parent = getpid();
    let ask = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have died before the request: the kernel would never signal us then.
        if getppid() == Some(parent) {
            Ok(())
        } else {
            Err(io::ErrorKind::Interrupted.into())
        }
    };
    // SAFETY: the closure runs in the forked child, where only async-signal-safe calls are allowed.
    // It makes two system calls, allocates nothing and takes no lock.
    unsafe { command.pre_exec(ask) };
}
