//! Listens, and carries each connection on.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::select;

use super::Way;
use super::plan::Shared;
use super::pump::{End, Pump};

/// Starts the proxy's thread, and returns when it listens.
pub(super) fn start(address: SocketAddr, shared: Arc<Shared>) -> io::Result<JoinHandle<()>> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let listener = runtime.block_on(TcpListener::bind(address))?;
    shared.listening.store(true, Ordering::SeqCst);
    thread::Builder::new()
        .name("testkit-proxy".into())
        .spawn(move || runtime.block_on(listen(listener, shared)))
}

async fn listen(listener: TcpListener, shared: Arc<Shared>) {
    let address = listener.local_addr().expect("it is bound");
    let mut listener = Some(listener);
    let mut plan = shared.plan.subscribe();
    let mut epoch = 0;
    loop {
        let (refuse, over, now) = {
            let plan = plan.borrow_and_update();
            (plan.refuse, plan.over, plan.epoch)
        };
        if over {
            return;
        }
        if refuse || now > epoch {
            listener = listener
                .map(|listener| settle(listener, epoch, &shared))
                .filter(|_| !refuse);
            epoch = now;
        }
        if listener.is_none() && !refuse {
            listener = Some(bind(address).await);
        }
        shared.settled.store(epoch, Ordering::SeqCst);
        shared.listening.store(listener.is_some(), Ordering::SeqCst);
        select! {
            biased;
            changed = plan.changed() => if changed.is_err() { return },
            Ok((client, _)) = accept(listener.as_ref()) => carry(client, epoch, &shared),
        }
    }
}

async fn accept(listener: Option<&TcpListener>) -> io::Result<(TcpStream, SocketAddr)> {
    match listener {
        Some(listener) => listener.accept().await,
        None => std::future::pending().await,
    }
}

/// Takes the connections that the kernel has accepted and we have not yet seen. To their clients
/// they are open, so a reset applies to them too, and a refusal does not.
fn settle(listener: TcpListener, epoch: u64, shared: &Arc<Shared>) -> TcpListener {
    let listener = listener.into_std().expect("it is registered");
    while let Ok((client, _)) = listener.accept() {
        client.set_nonblocking(true).expect("a socket");
        carry(
            TcpStream::from_std(client).expect("a runtime"),
            epoch,
            shared,
        );
    }
    TcpListener::from_std(listener).expect("a runtime")
}

fn carry(client: TcpStream, epoch: u64, shared: &Arc<Shared>) {
    let opened = Opened::new(epoch, shared);
    tokio::spawn(async move { opened.carry(client).await });
}

/// The port is ours, but the kernel may need a moment to see it that way.
async fn bind(address: SocketAddr) -> TcpListener {
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

/// A connection, counted as long as it is open.
struct Opened {
    epoch: u64,
    freezes: u64,
    shared: Arc<Shared>,
}

impl Opened {
    fn new(epoch: u64, shared: &Arc<Shared>) -> Self {
        shared.open().push(epoch);
        let freezes = shared.plan.borrow().freezes;
        Self {
            epoch,
            freezes,
            shared: Arc::clone(shared),
        }
    }

    async fn carry(self, mut client: TcpStream) {
        let target = *self.shared.target();
        let connected = select! {
            connected = TcpStream::connect(target) => connected.ok(),
            () = self.reset() => None,
        };
        let Some(mut server) = connected else {
            client.set_zero_linger().ok();
            return;
        };
        client.set_nodelay(true).ok();
        server.set_nodelay(true).ok();
        let end = select! {
            end = self.exchange(&mut client, &mut server) => end,
            () = self.reset() => End::Reset,
        };
        match end {
            End::Closed => {}
            End::Reset => {
                client.set_zero_linger().ok();
                server.set_zero_linger().ok();
            }
            // The server is told in order: a reset could make it drop a request that it has not
            // read yet.
            End::ReplyLost => {
                client.set_zero_linger().ok();
                server.shutdown().await.ok();
            }
        }
        // The sockets first, then the count, so that a caller that awaits the count finds them
        // closed.
        drop((client, server));
    }

    async fn exchange(&self, client: &mut TcpStream, server: &mut TcpStream) -> End {
        let ((from_client, to_client), (from_server, to_server)) = (client.split(), server.split());
        let losing = AtomicBool::new(false);
        let pump = |way| Pump {
            way,
            shared: &self.shared,
            losing: &losing,
            born: self.freezes,
        };
        let there = pump(Way::ToServer).run(from_client, to_server);
        let back = pump(Way::ToClient).run(from_server, to_client);
        match tokio::try_join!(there, back) {
            Ok(_) => End::Closed,
            Err(end) => end,
        }
    }

    async fn reset(&self) {
        let mut plan = self.shared.plan.subscribe();
        plan.wait_for(|plan| plan.epoch > self.epoch).await.ok();
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let mut open = self.shared.open();
        let at = open
            .iter()
            .position(|epoch| *epoch == self.epoch)
            .expect("it was counted");
        open.swap_remove(at);
    }
}
