//! On a real server, and on one that stands still.

use std::future::Future;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use palisade_testkit::redis::Redis;
use tokio::sync::mpsc;

use super::super::super::settings::Settings;
use super::super::address::Address;
use super::super::connect::connect;
use super::*;
use crate::url::StoreUrl;

const LONG: Duration = Duration::from_secs(30);

/// Passes on what it hears; `None` at the end by the server, and nothing at any other.
struct Ears(mpsc::UnboundedSender<Option<Vec<u8>>>);

impl Listens for Ears {
    fn message(&self, _: &[u8], payload: &[u8]) {
        let _ = self.0.send(Some(payload.to_vec()));
    }

    fn ended(&self, by_server: bool) {
        if by_server {
            let _ = self.0.send(None);
        }
    }

    fn over(&self) {}
}

async fn pipe_to(server: &Redis) -> (Connection, mpsc::UnboundedReceiver<Option<Vec<u8>>>) {
    let settings = Settings::read(StoreUrl::parse(&server.url()).unwrap()).unwrap();
    let (ears, heard) = mpsc::unbounded_channel();
    let address = Address::new("127.0.0.1", server.address().port());
    (connect(&settings, &address, Ears(ears)).await.unwrap(), heard)
}

fn echo(text: &[u8]) -> Vec<u8> {
    redis::cmd("ECHO").arg(text).get_packed_command()
}

async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future).await.expect("it takes too long")
}

/// More than fits into the socket, so the porter writes the rest; and an answer that comes in many parts.
#[tokio::test]
async fn a_request_that_does_not_fit_at_once_arrives_whole_and_in_turn() {
    let server = Redis::start();
    let (connection, _heard) = pipe_to(&server).await;
    let long: Vec<u8> = (0..16_000_000_u32).map(|number| number.to_le_bytes()[0]).collect();
    let (request, behind) = (echo(&long), echo(b"behind it"));
    let (first, second) = in_time(async { tokio::join!(connection.answer(&request), connection.answer(&behind)) }).await;
    assert!(first.unwrap() == Value::BulkString(long), "not what was sent");
    assert_eq!(second.unwrap(), Value::BulkString(b"behind it".into()));
}

#[tokio::test]
async fn many_at_once_have_each_its_own_answer() {
    let server = Redis::start();
    let (connection, _heard) = pipe_to(&server).await;
    let connection = Arc::new(connection);
    let ask = |number: u32| {
        let connection = Arc::clone(&connection);
        tokio::spawn(async move {
            let text = number.to_string().into_bytes();
            if number.is_multiple_of(3) {
                let answers = connection.answers(&[echo(&text), echo(b"and")].concat(), 2).await.unwrap();
                assert_eq!(answers, [Value::BulkString(text), Value::BulkString(b"and".into())]);
            } else {
                assert_eq!(connection.answer(&echo(&text)).await.unwrap(), Value::BulkString(text));
            }
        })
    };
    let tasks: Vec<_> = (0..500).map(ask).collect();
    for task in tasks {
        in_time(task).await.unwrap();
    }
}

/// Whoever leaves takes his answer with him: nobody else gets it.
#[tokio::test]
async fn an_answer_that_nobody_waits_for_goes_to_nobody_else() {
    let server = Redis::start();
    let (connection, _heard) = pipe_to(&server).await;
    server.pause();
    let left = echo(b"of one who left");
    assert!(tokio::time::timeout(Duration::from_millis(20), connection.answer(&left)).await.is_err(), "the server stands still");
    server.resume();
    assert_eq!(in_time(connection.answer(&echo(b"mine"))).await.unwrap(), Value::BulkString(b"mine".into()));
}

#[tokio::test]
async fn what_is_pushed_is_no_answer_and_a_subscription_has_one() {
    let server = Redis::start();
    let (connection, mut heard) = pipe_to(&server).await;
    let channel = |verb: &str| redis::cmd(verb).arg("c").get_packed_command();
    assert_eq!(in_time(connection.answer(&channel("SUBSCRIBE"))).await.unwrap(), Value::Okay);
    server.call(&["PUBLISH", "c", "hello"]);
    assert_eq!(in_time(heard.recv()).await.unwrap(), Some(b"hello".to_vec()));
    assert_eq!(in_time(connection.answer(&channel("UNSUBSCRIBE"))).await.unwrap(), Value::Okay);
    assert_eq!(in_time(connection.answer(&echo(b"after"))).await.unwrap(), Value::BulkString(b"after".into()));
}

#[tokio::test]
async fn who_waits_hears_of_the_end_whoever_makes_it() {
    let server = Redis::start();
    let (connection, mut heard) = pipe_to(&server).await;
    let (other, mut heard_by_other) = pipe_to(&server).await;
    server.pause();
    let request = echo(b"never answered");
    let (answer, ()) = in_time(async { tokio::join!(connection.answer(&request), async { connection.close() }) }).await;
    assert!(answer.is_err() && connection.is_closed(), "closed here");
    assert!(connection.answer(&request).await.is_err(), "nothing is sent any more");
    drop(connection);
    assert_eq!(in_time(heard.recv()).await, None, "no news: whoever closed it knows");
    let (answer, ()) = in_time(async { tokio::join!(other.answer(&request), async { server.kill() }) }).await;
    assert!(answer.is_err(), "ended by the server");
    assert_eq!(in_time(heard_by_other.recv()).await, Some(None));
    assert!(other.is_closed());
}

/// The thread of the connection's runtime does something else: a request from another thread is sent all the same.
#[test]
fn a_request_leaves_though_the_porter_is_kept_from_work() {
    let server = Redis::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (connection, _heard) = runtime.block_on(pipe_to(&server));
    // Nobody drives that runtime now.
    let waker = Waker::noop();
    let set = redis::cmd("SET").arg("sent").arg("yes").get_packed_command();
    let mut answer = std::pin::pin!(connection.answer(&set));
    assert!(answer.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
    let begun = std::time::Instant::now();
    while server.call(&["GET", "sent"]).text().trim() != "yes" {
        assert!(begun.elapsed() < LONG, "it was not sent");
    }
    assert_eq!(runtime.block_on(in_time(answer)).unwrap(), Value::Okay);
}

/// One who asked alone and does not look for his answer, though he was woken for it, keeps nobody else from theirs, nor from what
/// is pushed.
#[tokio::test]
async fn who_does_not_look_keeps_nobody_waiting() {
    let server = Redis::start();
    let (connection, mut heard) = pipe_to(&server).await;
    assert_eq!(in_time(connection.answer(&redis::cmd("SUBSCRIBE").arg("c").get_packed_command())).await.unwrap(), Value::Okay);
    let (woken, wakes) = std::sync::mpsc::channel();
    let waker = Waker::from(Arc::new(Tells(woken)));
    let first = echo(b"first");
    let mut idle = std::pin::pin!(connection.answer(&first));
    assert!(idle.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    eventually("he is woken", async || wakes.try_recv().is_ok()).await;
    server.call(&["PUBLISH", "c", "hello"]);
    connection.remind();
    assert_eq!(in_time(heard.recv()).await.unwrap(), Some(b"hello".to_vec()), "the porter looks");
    assert_eq!(in_time(idle).await.unwrap(), Value::BulkString(b"first".into()));

    // The second comes when the first was woken, and needs no reminder.
    let mut idle = std::pin::pin!(connection.answer(&first));
    assert!(idle.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    eventually("he is woken", async || wakes.try_recv().is_ok()).await;
    assert_eq!(in_time(connection.answer(&echo(b"second"))).await.unwrap(), Value::BulkString(b"second".into()));
    assert_eq!(in_time(idle).await.unwrap(), Value::BulkString(b"first".into()));

    // The second comes before anything was answered.
    server.pause();
    let mut idle = std::pin::pin!(connection.answer(&first));
    assert!(idle.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let second = echo(b"second");
    let mut other = std::pin::pin!(connection.answer(&second));
    assert!(other.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    server.resume();
    assert_eq!(in_time(other).await.unwrap(), Value::BulkString(b"second".into()));
    assert_eq!(in_time(idle).await.unwrap(), Value::BulkString(b"first".into()));
}

/// Who leaves after he was woken takes nothing with him but his own answer.
#[tokio::test]
async fn who_leaves_when_he_is_woken_has_the_porter_look() {
    let server = Redis::start();
    let (connection, mut heard) = pipe_to(&server).await;
    assert_eq!(in_time(connection.answer(&redis::cmd("SUBSCRIBE").arg("c").get_packed_command())).await.unwrap(), Value::Okay);
    let (woken, wakes) = std::sync::mpsc::channel();
    let waker = Waker::from(Arc::new(Tells(woken)));
    // What is pushed is all that comes: it wakes whoever asks alone, and he leaves.
    let slow = redis::cmd("BLPOP").arg("nothing").arg(0).get_packed_command();
    let mut asked = Box::pin(connection.answer(&slow));
    assert!(asked.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    server.call(&["PUBLISH", "c", "hello"]);
    eventually("he is woken", async || wakes.try_recv().is_ok()).await;
    drop(asked);
    assert_eq!(in_time(heard.recv()).await.unwrap(), Some(b"hello".to_vec()));
}

/// Two at a time in a runtime with two threads: each is alone now and then, and then not. Nobody's wake is lost to the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_come_and_go_have_all_their_answers() {
    let server = tokio::task::spawn_blocking(Redis::start).await.unwrap();
    let (connection, _heard) = pipe_to(&server).await;
    let connection = Arc::new(connection);
    let ask = |task: u32| {
        let connection = Arc::clone(&connection);
        tokio::spawn(async move {
            for number in 0..5000 {
                let text = format!("{task} {number}").into_bytes();
                assert_eq!(in_time(connection.answer(&echo(&text))).await.unwrap(), Value::BulkString(text));
            }
        })
    };
    let tasks: Vec<_> = (0..3).map(ask).collect();
    for task in tasks {
        task.await.unwrap();
    }
}

/// One asks from a thread of his own, and the porter is in another: whoever of both reads, no answer is left lying.
#[test]
fn who_asks_from_another_thread_has_all_his_answers() {
    let server = Redis::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (connection, _heard) = runtime.block_on(pipe_to(&server));
    for number in 0..20_000 {
        let text = number.to_string().into_bytes();
        // Somebody has the porter look again and again.
        connection.0.bell.call_porter();
        assert_eq!(runtime.block_on(in_time(connection.answer(&echo(&text)))).unwrap(), Value::BulkString(text));
    }
}

/// The end of the connection is told to one who reads himself, and to whoever listens.
#[tokio::test]
async fn who_asks_alone_hears_of_the_end() {
    let server = Redis::start();
    let (connection, mut heard) = pipe_to(&server).await;
    server.pause();
    let request = echo(b"never answered");
    let (answer, ()) = in_time(async { tokio::join!(connection.answer(&request), async { server.kill() }) }).await;
    assert!(answer.is_err() && connection.is_closed());
    assert_eq!(in_time(heard.recv()).await, Some(None));
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
