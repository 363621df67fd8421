//! The signals that palisade passes on, or leaves by.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// Every signal that is meant for the command.
pub(super) struct Signals {
    streams: Vec<(Signal, Stream)>,
}

impl Signals {
    /// From now on these signals come here.
    pub(super) fn listen() -> io::Result<Signals> {
        let passed_on = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];
        let stream = |passed: Signal| Ok((passed, signal(SignalKind::from_raw(passed.as_raw()))?));
        Ok(Signals { streams: passed_on.into_iter().map(stream).collect::<io::Result<_>>()? })
    }

    /// The next signal.
    pub(super) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (passed, stream) in &mut self.streams {
                if let Poll::Ready(Some(())) = stream.poll_recv(context) {
                    return Poll::Ready(*passed);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The next signal that ends a wait. The others say nothing to somebody who only waits.
    pub(super) async fn leave(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if signal != Signal::USR1 && signal != Signal::USR2 {
                return signal;
            }
        }
    }
}
