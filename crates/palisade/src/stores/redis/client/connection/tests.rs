//! On a real server, and on one that is paused.

use std::future::Future;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use palisade_testkit::redis::Redis;
use tokio::sync::mpsc;

use super::super::address::Address;
use super::super::settings::Login;
use super::*;

const LONG: Duration = Duration::from_secs(30);

/// Passes on what is pushed.
struct Pushes(mpsc::UnboundedSender<Vec<u8>>);

impl PushHandler for Pushes {
    fn message(&self, _: &[u8], payload: &[u8]) {
        let _ = self.0.send(payload.to_vec());
    }
}

async fn connection_to(server: &Redis) -> (Connection, mpsc::UnboundedReceiver<Vec<u8>>) {
    let (pushes, pushed) = mpsc::unbounded_channel();
    let address = Address::new("127.0.0.1", server.address().port());
    (
        connect(
            &address,
            None,
            &Login::default(),
            Some(Arc::new(Pushes(pushes))),
        )
        .await
        .unwrap(),
        pushed,
    )
}

fn echo(text: &[u8]) -> Vec<u8> {
    redis::cmd("ECHO").arg(text).get_packed_command()
}

async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future)
        .await
        .expect("it takes too long")
}

/// More than fits into the socket, so the connection task writes the rest; and a reply that comes
/// in many parts.
#[tokio::test]
async fn a_request_that_does_not_fit_at_once_arrives_whole_and_in_turn() {
    let server = Redis::start();
    let (connection, _pushed) = connection_to(&server).await;
    let long: Vec<u8> = (0..16_000_000_u32)
        .map(|number| number.to_le_bytes()[0])
        .collect();
    let (request, behind) = (echo(&long), echo(b"behind it"));
    let (first, second) =
        in_time(async { tokio::join!(connection.request(&request), connection.request(&behind)) })
            .await;
    assert!(
        first.unwrap() == Value::BulkString(long),
        "not what was sent"
    );
    assert_eq!(second.unwrap(), Value::BulkString(b"behind it".into()));
}

/// A line, a text and a list that no script of ours answers: none of them may take all memory.
#[tokio::test]
async fn a_reply_that_is_too_long_ends_the_connection() {
    let server = Redis::start();
    let list = "local list = {} for place = 1, 2000000 do list[place] = 1 end return list";
    for script in [
        "return { ok = string.rep('x', 1000000) }",
        "return string.rep('x', 80000000)",
        list,
    ] {
        let (connection, _pushed) = connection_to(&server).await;
        let answer = in_time(
            connection.request(&redis::cmd("EVAL").arg(script).arg(0).get_packed_command()),
        )
        .await;
        assert!(answer.is_err() && connection.is_closed(), "{script}");
    }
}

#[tokio::test]
async fn many_at_once_have_each_its_own_reply() {
    let server = Redis::start();
    let (connection, _pushed) = connection_to(&server).await;
    let connection = Arc::new(connection);
    let ask = |number: u32| {
        let connection = Arc::clone(&connection);
        tokio::spawn(async move {
            let text = number.to_string().into_bytes();
            if number.is_multiple_of(3) {
                let answers = connection
                    .requests(&[echo(&text), echo(b"and")].concat(), 2)
                    .await
                    .unwrap();
                assert_eq!(
                    answers,
                    [Value::BulkString(text), Value::BulkString(b"and".into())]
                );
            } else {
                assert_eq!(
                    connection.request(&echo(&text)).await.unwrap(),
                    Value::BulkString(text)
                );
            }
        })
    };
    let tasks: Vec<_> = (0..500).map(ask).collect();
    for task in tasks {
        in_time(task).await.unwrap();
    }
}

/// The reply to a caller that has left goes to no other caller.
#[tokio::test]
async fn the_reply_to_a_caller_that_left_is_dropped() {
    let server = Redis::start();
    let (connection, _pushed) = connection_to(&server).await;
    server.pause();
    let left = echo(b"of a caller that left");
    assert!(
        tokio::time::timeout(Duration::from_millis(20), connection.request(&left))
            .await
            .is_err(),
        "the server stands still"
    );
    server.resume();
    assert_eq!(
        in_time(connection.request(&echo(b"mine"))).await.unwrap(),
        Value::BulkString(b"mine".into())
    );
}

#[tokio::test]
async fn a_push_is_no_reply_and_a_subscription_has_one() {
    let server = Redis::start();
    let (connection, mut pushed) = connection_to(&server).await;
    for [subscribe, publish, unsubscribe] in [
        ["SUBSCRIBE", "PUBLISH", "UNSUBSCRIBE"],
        ["SSUBSCRIBE", "SPUBLISH", "SUNSUBSCRIBE"],
    ] {
        let request = |verb: &str| redis::cmd(verb).arg("c").get_packed_command();
        let subscribed = in_time(connection.request(&request(subscribe))).await;
        assert_eq!(subscribed.unwrap(), Value::Okay);
        server.call(&[publish, "c", "hello"]);
        assert_eq!(in_time(pushed.recv()).await.unwrap(), b"hello");
        let unsubscribed = if unsubscribe == "SUNSUBSCRIBE" {
            in_time(connection.leave_shard(&request(unsubscribe))).await
        } else {
            in_time(connection.request(&request(unsubscribe))).await
        };
        assert_eq!(unsubscribed.unwrap(), Value::Okay);
    }
    assert_eq!(
        in_time(connection.request(&echo(b"after"))).await.unwrap(),
        Value::BulkString(b"after".into())
    );
}

#[tokio::test]
async fn a_request_in_flight_fails_when_the_connection_ends() {
    let server = Redis::start();
    let (connection, _pushed) = connection_to(&server).await;
    let (other, _pushed) = connection_to(&server).await;
    server.pause();
    let request = echo(b"never answered");
    let (answer, ()) =
        in_time(async { tokio::join!(connection.request(&request), async { connection.close() }) })
            .await;
    assert!(answer.is_err() && connection.is_closed(), "closed here");
    assert!(
        connection.request(&request).await.is_err(),
        "nothing is sent any more"
    );
    assert!(!in_time(connection.ended()).await, "not by the server");
    let (answer, ()) =
        in_time(async { tokio::join!(other.request(&request), async { server.kill() }) }).await;
    assert!(answer.is_err() && other.is_closed());
    assert!(in_time(other.ended()).await, "by the server");
}

/// The connection's runtime is blocked: a request from another thread is sent all the same.
#[test]
fn a_request_is_sent_while_the_connection_task_is_blocked() {
    let server = Redis::start();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let (connection, _pushed) = runtime.block_on(connection_to(&server));
    // That runtime is not driven now.
    let waker = Waker::noop();
    let set = redis::cmd("SET")
        .arg("sent")
        .arg("yes")
        .get_packed_command();
    let mut answer = std::pin::pin!(connection.request(&set));
    assert!(
        answer
            .as_mut()
            .poll(&mut Context::from_waker(waker))
            .is_pending()
    );
    let begun = std::time::Instant::now();
    while server.call(&["GET", "sent"]).text().trim() != "yes" {
        assert!(begun.elapsed() < LONG, "it was not sent");
    }
    assert_eq!(runtime.block_on(in_time(answer)).unwrap(), Value::Okay);
}

/// A caller that is woken and not polled keeps no other caller from its reply, nor a push from its
/// handler.
#[tokio::test]
async fn no_request_depends_on_another_caller_being_polled() {
    let server = Redis::start();
    let (connection, mut pushed) = connection_to(&server).await;
    let subscribe = redis::cmd("SUBSCRIBE").arg("c").get_packed_command();
    assert_eq!(
        in_time(connection.request(&subscribe)).await.unwrap(),
        Value::Okay
    );
    let (woken, wakes) = std::sync::mpsc::channel();
    let waker = Waker::from(Arc::new(Tells(woken)));
    let first = echo(b"first");
    let mut idle = std::pin::pin!(connection.request(&first));
    assert!(
        idle.as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
    );
    eventually("the caller is woken", async || wakes.try_recv().is_ok()).await;
    server.call(&["PUBLISH", "c", "hello"]);
    assert_eq!(in_time(pushed.recv()).await.unwrap(), b"hello");
    assert_eq!(
        in_time(connection.request(&echo(b"second"))).await.unwrap(),
        Value::BulkString(b"second".into())
    );
    assert_eq!(
        in_time(idle).await.unwrap(),
        Value::BulkString(b"first".into())
    );
}

#[tokio::test]
async fn the_watchdog_sees_progress() {
    let server = Redis::start();
    let (connection, _pushed) = connection_to(&server).await;
    let before = connection.progress();
    assert!(!before.in_flight);
    let progress = |in_flight| Progress {
        answered: before.answered + 1,
        in_flight,
    };
    assert!(connection.request(&echo(b"x")).await.is_ok());
    assert_eq!(connection.progress(), progress(false));
    server.pause();
    let request = echo(b"y");
    assert!(
        tokio::time::timeout(Duration::from_millis(20), connection.request(&request))
            .await
            .is_err()
    );
    assert_eq!(
        connection.progress(),
        progress(true),
        "also of a request whose caller has left"
    );
    server.resume();
}

/// Three tasks in a runtime with two threads: no wake-up is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_of_several_tasks_is_answered() {
    let server = tokio::task::spawn_blocking(Redis::start).await.unwrap();
    let (connection, _pushed) = connection_to(&server).await;
    let connection = Arc::new(connection);
    let ask = |task: u32| {
        let connection = Arc::clone(&connection);
        tokio::spawn(async move {
            for number in 0..5000 {
                let text = format!("{task} {number}").into_bytes();
                assert_eq!(
                    in_time(connection.request(&echo(&text))).await.unwrap(),
                    Value::BulkString(text)
                );
            }
        })
    };
    let tasks: Vec<_> = (0..3).map(ask).collect();
    for task in tasks {
        task.await.unwrap();
    }
}

/// From a thread outside of the connection's runtime.
#[test]
fn every_request_from_another_thread_is_answered() {
    let server = Redis::start();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let (connection, _pushed) = runtime.block_on(connection_to(&server));
    for number in 0..20_000 {
        let text = number.to_string().into_bytes();
        assert_eq!(
            runtime
                .block_on(in_time(connection.request(&echo(&text))))
                .unwrap(),
            Value::BulkString(text)
        );
    }
}

/// The half of a socket that takes every byte and flushes only once it may, as TLS does while the
/// send buffer is full. It remembers one waker: that of the last poll.
#[derive(Default)]
struct SlowFlush {
    may_flush: bool,
    flushed: bool,
    polls: u32,
    waker: Option<Waker>,
}

#[derive(Clone, Default)]
struct SlowSocket(Arc<Mutex<SlowFlush>>);

impl AsyncWrite for SlowSocket {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut socket = self.0.lock().unwrap();
        socket.polls += 1;
        if socket.may_flush {
            socket.flushed = true;
            return Poll::Ready(Ok(()));
        }
        socket.waker = Some(context.waker().clone());
        Poll::Pending
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A request behind one that is not flushed yet leaves the waker of the connection task in place.
#[tokio::test]
async fn a_flush_that_takes_long_is_finished_by_the_connection_task() {
    let socket = SlowSocket::default();
    let (reader, _server) = tokio::io::duplex(64);
    let connection = Connection::start(Box::new(reader), Box::new(socket.clone()), None);
    let (echo, mut context) = (echo(b"a"), Context::from_waker(Waker::noop()));
    let mut first = Box::pin(connection.request(&echo));
    assert!(first.as_mut().poll(&mut context).is_pending());
    // The caller has polled it once; the connection task takes over.
    eventually("the task flushes", async || {
        socket.0.lock().unwrap().polls == 2
    })
    .await;
    let mut second = Box::pin(connection.request(&echo));
    assert!(second.as_mut().poll(&mut context).is_pending());
    let waker = {
        let mut socket = socket.0.lock().unwrap();
        socket.may_flush = true;
        socket.waker.take()
    };
    waker.unwrap().wake();
    eventually("it is flushed", async || socket.0.lock().unwrap().flushed).await;
}

/// A waker that tells when it is called.
struct Tells(std::sync::mpsc::Sender<()>);

impl Wake for Tells {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
    }
}

async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !is_so().await {
        assert!(begun.elapsed() < LONG, "{what}");
        tokio::task::yield_now().await;
    }
}
