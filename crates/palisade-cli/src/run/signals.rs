//! The signals that palisade passes on, or leaves by.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

use crate::exit::Failure;

/// Every signal that is meant for the command.
pub(crate) struct Signals {
    streams: Vec<(Signal, Stream)>,
}

impl Signals {
    /// From now on these signals come here. One that was ignored when we were started stays
    /// ignored, here and in the command: so `nohup` asks for it, and a shell for what it starts in
    /// the background.
    pub(crate) fn listen() -> Result<Signals, Failure> {
        Signals::heard()
            .map_err(|error| Failure::internal(format!("cannot listen to signals: {error}")))
    }

    fn heard() -> io::Result<Signals> {
        let passed_on = [
            Signal::INT,
            Signal::TERM,
            Signal::HUP,
            Signal::QUIT,
            Signal::USR1,
            Signal::USR2,
        ];
        let stream = |passed: Signal| Ok((passed, signal(SignalKind::from_raw(passed.as_raw()))?));
        let ignored = ignored();
        let heard = passed_on
            .into_iter()
            .filter(|passed| ignored >> (passed.as_raw() - 1) & 1 == 0);
        Ok(Signals {
            streams: heard.map(stream).collect::<io::Result<_>>()?,
        })
    }

    /// The next signal.
    pub(crate) async fn next(&mut self) -> Signal {
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

    /// The next signal that ends a wait. The others are for the command.
    pub(crate) async fn leave(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if signal != Signal::USR1 && signal != Signal::USR2 {
                return signal;
            }
        }
    }
}

/// The signals that this process ignores, a bit for each. Where the kernel does not tell, none.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
