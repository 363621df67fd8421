//! Requests to several servers at the same time, answered in any order.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The requests in flight, each with the place of its server.
pub(super) struct Calls<T>(Vec<(usize, Boxed<T>)>);

impl<T> Calls<T> {
    pub(super) fn new() -> Calls<T> {
        Calls(Vec::new())
    }

    pub(super) fn push(&mut self, place: usize, call: impl Future<Output = T> + Send + 'static) {
        self.0.push((place, Box::pin(call)));
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The requests that are not answered.
    pub(super) fn into_rest(self) -> Vec<(usize, Boxed<T>)> {
        self.0
    }

    /// The next answer; `None` when all have come. The first call sends all requests.
    pub(super) async fn next(&mut self) -> Option<(usize, T)> {
        poll_fn(|context| {
            if self.0.is_empty() {
                return Poll::Ready(None);
            }
            let mut answered = None;
            for (at, (place, call)) in self.0.iter_mut().enumerate() {
                if let Poll::Ready(answer) = call.as_mut().poll(context) {
                    answered = Some((at, *place, answer));
                    break;
                }
            }
            match answered {
                Some((at, place, answer)) => {
                    drop(self.0.swap_remove(at));
                    Poll::Ready(Some((place, answer)))
                }
                None => Poll::Pending,
            }
        })
        .await
    }

    /// Takes answers until `is_decided` says so, all have come, or the limit is over; `true` unless it
    /// is over.
    pub(super) async fn take(
        &mut self,
        limit: Duration,
        mut is_decided: impl FnMut(usize, T, usize) -> bool,
    ) -> bool {
        let answers = async {
            while let Some((place, answer)) = self.next().await {
                let left = self.len();
                if is_decided(place, answer, left) {
                    return;
                }
            }
        };
        // What was not answered in time is left in flight.
        tokio::time::timeout(limit, answers).await.is_ok()
    }
}
