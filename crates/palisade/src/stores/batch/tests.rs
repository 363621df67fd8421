//! Batches by a server that the tests hold back.

use std::task::Poll;

use tokio::sync::{Semaphore, mpsc};

use super::*;

/// Tells of every batch, and answers when it may.
struct Server {
    groups: mpsc::UnboundedSender<Vec<u32>>,
    may_answer: Semaphore,
}

impl BatchExecutor for Server {
    type Request = u32;
    type Reply = u32;

    /// As if requests with the same tens were about one name.
    fn can_join(&self, batch: &[u32], request: &u32) -> bool {
        batch.iter().all(|other| other / 10 != request / 10)
    }

    async fn execute(&self, batch: Vec<u32>) -> Vec<u32> {
        self.groups.send(batch.clone()).unwrap();
        self.may_answer.acquire().await.unwrap().forget();
        batch.into_iter().map(|request| request + 1000).collect()
    }
}

fn limits(in_flight: usize, largest: usize) -> Limits {
    Limits {
        in_flight,
        largest,
        apart: in_flight,
        patience: None,
        reply_wakes: true,
    }
}

fn server(
    at_once: usize,
    most: usize,
) -> (Arc<Batcher<Server>>, mpsc::UnboundedReceiver<Vec<u32>>) {
    let (groups, seen) = mpsc::unbounded_channel();
    (
        Batcher::new(
            Server {
                groups,
                may_answer: Semaphore::new(0),
            },
            Handle::current(),
            limits(at_once, most),
        ),
        seen,
    )
}

/// Asks in tasks of their own, one after the other.
async fn asked(
    batcher: &Arc<Batcher<Server>>,
    requests: impl IntoIterator<Item = u32>,
) -> Vec<tokio::task::JoinHandle<Option<u32>>> {
    let mut tasks = Vec::new();
    for request in requests {
        let batcher = Arc::clone(batcher);
        tasks.push(tokio::spawn(async move { batcher.ask(request).await }));
        tokio::task::yield_now().await;
    }
    tasks
}

#[tokio::test]
async fn requests_that_find_others_in_flight_go_together() {
    let (batcher, mut seen) = server(2, 3);
    let tasks = asked(&batcher, [10, 20, 30, 40, 50, 60]).await;
    assert_eq!(
        [seen.recv().await.unwrap(), seen.recv().await.unwrap()],
        [[10], [20]]
    );
    assert!(seen.try_recv().is_err(), "only two are on their way");
    batcher.executor.may_answer.add_permits(1);
    assert_eq!(seen.recv().await.unwrap(), [30, 40, 50]);
    batcher.executor.may_answer.add_permits(3);
    for (task, request) in tasks.into_iter().zip([10, 20, 30, 40, 50, 60]) {
        assert_eq!(
            task.await.unwrap(),
            Some(request + 1000),
            "each has its own answer"
        );
    }
    assert_eq!(seen.recv().await.unwrap(), [60]);
    assert!(batcher.lock().in_flight.is_empty());
}

/// Two batches are answered at the same moment: the next requests of the first leave before the
/// callers of the second are answered.
#[tokio::test]
async fn the_next_requests_of_a_batch_leave_before_the_next_batch_is_answered() {
    let (batcher, mut seen) = server(2, 2);
    let busy = |request: u32| {
        let batcher = Arc::clone(&batcher);
        tokio::spawn(async move { (batcher.ask(request).await, batcher.ask(request + 500).await) })
    };
    let tasks: Vec<_> = (1..=6).map(|number| busy(10 * number)).collect();
    assert_eq!(
        [seen.recv().await.unwrap(), seen.recv().await.unwrap()],
        [[10], [20]]
    );
    batcher.executor.may_answer.add_permits(2);
    assert_eq!(
        [seen.recv().await.unwrap(), seen.recv().await.unwrap()],
        [[30, 40], [50, 60]]
    );
    batcher.executor.may_answer.add_permits(2);
    assert_eq!(
        [seen.recv().await.unwrap(), seen.recv().await.unwrap()],
        [[510, 520], [530, 540]]
    );
    batcher.executor.may_answer.add_permits(10);
    for (task, number) in tasks.into_iter().zip(1..) {
        assert_eq!(
            task.await.unwrap(),
            (Some(1000 + 10 * number), Some(1500 + 10 * number))
        );
    }
}

#[tokio::test]
async fn two_that_cannot_join_go_one_after_the_other() {
    let (batcher, mut seen) = server(1, 10);
    let tasks = asked(&batcher, [10, 21, 22, 30, 23]).await;
    batcher.executor.may_answer.add_permits(4);
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    let mut groups = Vec::new();
    while let Ok(group) = seen.try_recv() {
        groups.push(group);
    }
    assert_eq!(groups, [vec![10], vec![21, 30], vec![22], vec![23]]);
}

#[tokio::test]
async fn a_caller_that_leaves_frees_its_slot_and_sends_nothing() {
    let (batcher, mut seen) = server(1, 10);
    let tasks = asked(&batcher, [10, 20, 30]).await;
    assert_eq!(seen.recv().await.unwrap(), [10]);
    tasks[1].abort();
    tokio::task::yield_now().await;
    // The first is never answered: that its caller has left is enough.
    tasks[0].abort();
    assert_eq!(seen.recv().await.unwrap(), [30]);
    batcher.executor.may_answer.add_permits(1);
    assert_eq!(
        tasks.into_iter().next_back().unwrap().await.unwrap(),
        Some(1030)
    );
    assert!(batcher.lock().in_flight.is_empty());
}

#[tokio::test]
async fn a_caller_that_is_not_polled_holds_up_no_other() {
    let (batcher, mut seen) = server(1, 10);
    let mut looks_away = Box::pin(batcher.ask(10));
    let polled = poll_fn(|context| Poll::Ready(looks_away.as_mut().poll(context))).await;
    assert!(polled.is_pending());
    let tasks = asked(&batcher, [20, 30]).await;
    batcher.executor.may_answer.add_permits(2);
    assert_eq!(
        [seen.recv().await.unwrap(), seen.recv().await.unwrap()],
        [vec![10], vec![20, 30]]
    );
    for (task, answer) in tasks.into_iter().zip([1020, 1030]) {
        assert_eq!(task.await.unwrap(), Some(answer));
    }
    assert_eq!(looks_away.await, Some(1010));
    assert!(batcher.lock().in_flight.is_empty());
}

/// Requests that cannot join go beside each other, and one that hangs is not waited for.
const IMPATIENT: Limits = Limits {
    in_flight: 1,
    largest: 10,
    apart: 100,
    patience: Some(Duration::from_millis(5)),
    reply_wakes: true,
};

#[tokio::test]
async fn requests_that_cannot_join_need_not_wait_for_each_other() {
    let (groups, mut seen) = mpsc::unbounded_channel();
    let batcher = Batcher::new(
        Server {
            groups,
            may_answer: Semaphore::new(0),
        },
        Handle::current(),
        IMPATIENT,
    );
    let tasks: Vec<_> = [10, 21, 22, 30, 23]
        .into_iter()
        .map(|request| {
            let batcher = Arc::clone(&batcher);
            tokio::spawn(async move { batcher.ask(request).await })
        })
        .collect();
    assert_eq!(seen.recv().await.unwrap(), [10]);
    // None of these is answered when the last of them goes.
    for group in [vec![21, 30], vec![22], vec![23]] {
        assert_eq!(seen.recv().await.unwrap(), group);
    }
    batcher.executor.may_answer.add_permits(4);
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert!(batcher.lock().in_flight.is_empty());
}

#[tokio::test]
async fn a_batch_that_hangs_does_not_hold_up_the_others() {
    let (groups, mut seen) = mpsc::unbounded_channel();
    let batcher = Batcher::new(
        Server {
            groups,
            may_answer: Semaphore::new(0),
        },
        Handle::current(),
        IMPATIENT,
    );
    let ask = |request: u32| {
        let batcher = Arc::clone(&batcher);
        tokio::spawn(async move { batcher.ask(request).await })
    };
    let first = ask(10);
    assert_eq!(seen.recv().await.unwrap(), [10]);
    let others = [ask(20), ask(30)];
    // None is answered, and all go.
    let mut gone = Vec::new();
    while gone.len() < 2 {
        gone.extend(seen.recv().await.unwrap());
    }
    assert_eq!(gone, [20, 30]);
    batcher.executor.may_answer.add_permits(3);
    assert_eq!(
        first.await.unwrap(),
        Some(1010),
        "its answer comes late, but it comes"
    );
    for (other, request) in others.into_iter().zip([20, 30]) {
        assert_eq!(other.await.unwrap(), Some(1000 + request));
    }
    assert!(batcher.lock().in_flight.is_empty());
}

#[test]
fn when_the_runtime_ends_no_caller_waits_on() {
    let other = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .build()
        .unwrap();
    let here = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let (groups, mut seen) = mpsc::unbounded_channel();
    let server = Server {
        groups,
        may_answer: Semaphore::new(0),
    };
    let batcher = Batcher::new(server, other.handle().clone(), limits(1, 10));
    here.block_on(async {
        let mut tasks = asked(&batcher, [10, 20]).await;
        tasks[0].abort();
        assert_eq!(
            [seen.recv().await.unwrap(), seen.recv().await.unwrap()],
            [[10], [20]]
        );
        other.shutdown_background();
        assert_eq!(tasks.pop().unwrap().await.unwrap(), None);
        // Nor do later callers.
        let later = asked(&batcher, [30, 40, 50]).await;
        assert_eq!(seen.recv().await.unwrap(), [30]);
        later[0].abort();
        for task in later.into_iter().skip(1) {
            assert_eq!(task.await.unwrap(), None);
        }
        // However many they are: each of these is a batch of its own.
        let many = asked(&batcher, std::iter::repeat_n(60, 3_000)).await;
        assert_eq!(seen.recv().await.unwrap(), [60]);
        many[0].abort();
        for task in many.into_iter().skip(1) {
            assert_eq!(task.await.unwrap(), None);
        }
    });
    assert!(batcher.lock().in_flight.is_empty());
}

#[tokio::test]
async fn urgent_requests_go_first() {
    struct Withdrawals(Server);

    impl BatchExecutor for Withdrawals {
        type Request = u32;
        type Reply = u32;

        fn can_join(&self, batch: &[u32], request: &u32) -> bool {
            self.0.can_join(batch, request)
        }

        /// The odd ones.
        fn is_urgent(&self, request: &u32) -> bool {
            !request.is_multiple_of(2)
        }

        async fn execute(&self, batch: Vec<u32>) -> Vec<u32> {
            self.0.execute(batch).await
        }
    }

    let (groups, mut seen) = mpsc::unbounded_channel();
    let server = Withdrawals(Server {
        groups,
        may_answer: Semaphore::new(0),
    });
    let batcher = Batcher::new(server, Handle::current(), limits(1, 2));
    let mut tasks = Vec::new();
    for request in [10, 20, 30, 41, 51] {
        let batcher = Arc::clone(&batcher);
        tasks.push(tokio::spawn(async move { batcher.ask(request).await }));
        tokio::task::yield_now().await;
    }
    batcher.executor.0.may_answer.add_permits(3);
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    let mut batches = Vec::new();
    while let Ok(batch) = seen.try_recv() {
        batches.push(batch);
    }
    assert_eq!(batches, [vec![10], vec![41, 51], vec![20, 30]]);
}
