use std::task::Poll;

use tokio::sync::{Semaphore, mpsc};

use super::*;

/// Tells of every group, and answers when it may.
struct Server {
    groups: mpsc::UnboundedSender<Vec<u32>>,
    may_answer: Semaphore,
}

impl Carries for Server {
    type Request = u32;
    type Answer = u32;

    const ANSWER_WAKES: bool = true;

    /// As if those with the same tens were about one name.
    fn fits(&self, group: &[u32], request: &u32) -> bool {
        group.iter().all(|other| other / 10 != request / 10)
    }

    async fn carry(&self, group: Vec<u32>) -> Vec<u32> {
        self.groups.send(group.clone()).unwrap();
        self.may_answer.acquire().await.unwrap().forget();
        group.into_iter().map(|request| request + 1000).collect()
    }
}

fn server(at_once: usize, most: usize) -> (Arc<Gather<Server>>, mpsc::UnboundedReceiver<Vec<u32>>) {
    let (groups, seen) = mpsc::unbounded_channel();
    (Gather::new(Server { groups, may_answer: Semaphore::new(0) }, Handle::current(), at_once, most), seen)
}

/// Asks in tasks of their own, one after the other.
async fn asked(
    gather: &Arc<Gather<Server>>,
    requests: impl IntoIterator<Item = u32>,
) -> Vec<tokio::task::JoinHandle<Option<u32>>> {
    let mut tasks = Vec::new();
    for request in requests {
        let gather = Arc::clone(gather);
        tasks.push(tokio::spawn(async move { gather.ask(request).await }));
        tokio::task::yield_now().await;
    }
    tasks
}

#[tokio::test]
async fn who_finds_others_on_their_way_goes_with_the_next() {
    let (gather, mut seen) = server(2, 3);
    let tasks = asked(&gather, [10, 20, 30, 40, 50, 60]).await;
    assert_eq!([seen.recv().await.unwrap(), seen.recv().await.unwrap()], [[10], [20]]);
    assert!(seen.try_recv().is_err(), "only two are on their way");
    gather.carrier.may_answer.add_permits(1);
    assert_eq!(seen.recv().await.unwrap(), [30, 40, 50]);
    gather.carrier.may_answer.add_permits(3);
    for (task, request) in tasks.into_iter().zip([10, 20, 30, 40, 50, 60]) {
        assert_eq!(task.await.unwrap(), Some(request + 1000), "each has its own answer");
    }
    assert_eq!(seen.recv().await.unwrap(), [60]);
    assert!(gather.lock().turns.is_empty());
}

/// Two groups are answered at the same moment: what those of the first ask next has left before the others have their answers.
#[tokio::test]
async fn what_the_answered_ask_next_leaves_before_others_are_answered() {
    let (gather, mut seen) = server(2, 2);
    let busy = |request: u32| {
        let gather = Arc::clone(&gather);
        tokio::spawn(async move { (gather.ask(request).await, gather.ask(request + 500).await) })
    };
    let tasks: Vec<_> = (1..=6).map(|number| busy(10 * number)).collect();
    assert_eq!([seen.recv().await.unwrap(), seen.recv().await.unwrap()], [[10], [20]]);
    gather.carrier.may_answer.add_permits(2);
    assert_eq!([seen.recv().await.unwrap(), seen.recv().await.unwrap()], [[30, 40], [50, 60]]);
    gather.carrier.may_answer.add_permits(2);
    assert_eq!([seen.recv().await.unwrap(), seen.recv().await.unwrap()], [[510, 520], [530, 540]]);
    gather.carrier.may_answer.add_permits(10);
    for (task, number) in tasks.into_iter().zip(1..) {
        assert_eq!(task.await.unwrap(), (Some(1000 + 10 * number), Some(1500 + 10 * number)));
    }
}

#[tokio::test]
async fn two_that_do_not_fit_go_one_after_the_other() {
    let (gather, mut seen) = server(1, 10);
    let tasks = asked(&gather, [10, 21, 22, 30, 23]).await;
    gather.carrier.may_answer.add_permits(4);
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
async fn who_leaves_gives_the_turn_away_and_does_not_go_later() {
    let (gather, mut seen) = server(1, 10);
    let tasks = asked(&gather, [10, 20, 30]).await;
    assert_eq!(seen.recv().await.unwrap(), [10]);
    tasks[1].abort();
    tokio::task::yield_now().await;
    // Nobody ever answers the first: that it is given up is enough.
    tasks[0].abort();
    assert_eq!(seen.recv().await.unwrap(), [30]);
    gather.carrier.may_answer.add_permits(1);
    assert_eq!(tasks.into_iter().next_back().unwrap().await.unwrap(), Some(1030));
    assert!(gather.lock().turns.is_empty());
}

#[tokio::test]
async fn who_does_not_look_for_his_answer_holds_nobody_up() {
    let (gather, mut seen) = server(1, 10);
    let mut looks_away = Box::pin(gather.ask(10));
    let polled = poll_fn(|context| Poll::Ready(looks_away.as_mut().poll(context))).await;
    assert!(polled.is_pending());
    let tasks = asked(&gather, [20, 30]).await;
    gather.carrier.may_answer.add_permits(2);
    assert_eq!([seen.recv().await.unwrap(), seen.recv().await.unwrap()], [vec![10], vec![20, 30]]);
    for (task, answer) in tasks.into_iter().zip([1020, 1030]) {
        assert_eq!(task.await.unwrap(), Some(answer));
    }
    assert_eq!(looks_away.await, Some(1010));
    assert!(gather.lock().turns.is_empty());
}

/// Gives up waiting for its groups after a moment.
struct Impatient(Server);

impl Carries for Impatient {
    type Request = u32;
    type Answer = u32;

    fn fits(&self, group: &[u32], request: &u32) -> bool {
        self.0.fits(group, request)
    }

    async fn carry(&self, group: Vec<u32>) -> Vec<u32> {
        self.0.carry(group).await
    }

    fn patience(&self) -> Option<Duration> {
        Some(Duration::from_millis(5))
    }

    fn misfits_wait(&self) -> bool {
        false
    }
}

#[tokio::test]
async fn those_that_do_not_fit_need_not_wait_for_each_other() {
    let (groups, mut seen) = mpsc::unbounded_channel();
    let server = Impatient(Server { groups, may_answer: Semaphore::new(0) });
    let gather = Gather::new(server, Handle::current(), 1, 10);
    let tasks: Vec<_> = [10, 21, 22, 30, 23]
        .into_iter()
        .map(|request| {
            let gather = Arc::clone(&gather);
            tokio::spawn(async move { gather.ask(request).await })
        })
        .collect();
    assert_eq!(seen.recv().await.unwrap(), [10]);
    // Nobody has answered any of these when the last of them goes.
    for group in [vec![21, 30], vec![22], vec![23]] {
        assert_eq!(seen.recv().await.unwrap(), group);
    }
    gather.carrier.0.may_answer.add_permits(4);
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert!(gather.lock().turns.is_empty());
}

#[tokio::test]
async fn a_group_that_hangs_does_not_hold_up_the_others() {
    let (groups, mut seen) = mpsc::unbounded_channel();
    let server = Impatient(Server { groups, may_answer: Semaphore::new(0) });
    let gather = Gather::new(server, Handle::current(), 1, 10);
    let ask = |request: u32| {
        let gather = Arc::clone(&gather);
        tokio::spawn(async move { gather.ask(request).await })
    };
    let first = ask(10);
    assert_eq!(seen.recv().await.unwrap(), [10]);
    let others = [ask(20), ask(30)];
    // Nobody answers, and all go.
    let mut gone = Vec::new();
    while gone.len() < 2 {
        gone.extend(seen.recv().await.unwrap());
    }
    assert_eq!(gone, [20, 30]);
    gather.carrier.0.may_answer.add_permits(3);
    assert_eq!(first.await.unwrap(), Some(1010), "its answer comes late, but it comes");
    for (other, request) in others.into_iter().zip([20, 30]) {
        assert_eq!(other.await.unwrap(), Some(1000 + request));
    }
    assert!(gather.lock().turns.is_empty());
}

#[test]
fn when_the_runtime_ends_nobody_waits_on() {
    let other = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let here = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (groups, mut seen) = mpsc::unbounded_channel();
    let server = Server { groups, may_answer: Semaphore::new(0) };
    let gather = Gather::new(server, other.handle().clone(), 1, 10);
    here.block_on(async {
        let mut tasks = asked(&gather, [10, 20]).await;
        tasks[0].abort();
        assert_eq!([seen.recv().await.unwrap(), seen.recv().await.unwrap()], [[10], [20]]);
        other.shutdown_background();
        assert_eq!(tasks.pop().unwrap().await.unwrap(), None);
        // Nor does who comes later, or with others, when nobody can carry them any more.
        let later = asked(&gather, [30, 40, 50]).await;
        assert_eq!(seen.recv().await.unwrap(), [30]);
        later[0].abort();
        for task in later.into_iter().skip(1) {
            assert_eq!(task.await.unwrap(), None);
        }
        // However many they are: each of these is a group of its own.
        let many = asked(&gather, std::iter::repeat_n(60, 3_000)).await;
        assert_eq!(seen.recv().await.unwrap(), [60]);
        many[0].abort();
        for task in many.into_iter().skip(1) {
            assert_eq!(task.await.unwrap(), None);
        }
    });
    assert!(gather.lock().turns.is_empty());
}
