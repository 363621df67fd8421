use std::thread::ThreadId;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

use super::*;

fn client() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

/// Begins something that its caller does not wait for.
fn begin(client: &Handle, task: impl Future<Output = ()> + Send + 'static) {
    drop(Lender::of(client).begin(task));
}

fn this_thread() -> ThreadId {
    std::thread::current().id()
}

#[test]
fn it_begins_here_and_goes_on_there() {
    let client = client();
    let (wake, woken) = oneshot::channel::<()>();
    let (ended, end) = std::sync::mpsc::channel();
    let begun = Arc::new(Mutex::new(None));
    let begins = Arc::clone(&begun);
    begin(client.handle(), async move {
        *begins.lock().expect("no panic") = Some(this_thread());
        woken.await.expect("woken");
        // By the client's clock: this thread has none.
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        ended.send(this_thread()).expect("somebody listens");
    });
    assert_eq!(*begun.lock().expect("no panic"), Some(this_thread()), "before anybody was woken");
    wake.send(()).expect("it waits");
    assert_ne!(end.recv().expect("it ends"), this_thread());
}

#[test]
fn one_that_is_woken_while_it_begins_goes_on() {
    let client = client();
    let (ended, end) = std::sync::mpsc::channel();
    begin(client.handle(), async move {
        tokio::task::yield_now().await;
        ended.send(()).expect("somebody listens");
    });
    end.recv().expect("it ends");
}

#[test]
fn one_that_panics_or_is_forgotten_is_dropped() {
    let client = client();
    let (dropped, drops) = std::sync::mpsc::channel::<()>();
    let held = dropped.clone();
    begin(client.handle(), async move {
        let _held = held;
        panic!("on purpose");
    });
    let (forgets, forgotten) = oneshot::channel::<()>();
    begin(client.handle(), async move {
        let _held = dropped;
        drop(forgotten.await);
    });
    // The client ends first: what would go on there does not.
    client.shutdown_background();
    drop(forgets);
    assert!(drops.recv().is_err(), "all of it is gone");
}

/// One that takes nothing back while a test runs, however slow the machine is.
fn patient(client: &Runtime) -> Arc<Lender> {
    Lender::with_patience(client.handle(), Duration::from_secs(600))
}

/// A task that waits for its first wake, and tells in which thread it goes on.
fn waits(client: &Runtime) -> (Going, oneshot::Sender<()>, oneshot::Receiver<ThreadId>) {
    let (wake, woken) = oneshot::channel::<()>();
    let (reply, brought) = oneshot::channel();
    let going = patient(client).begin(async move {
        woken.await.expect("woken");
        // By the client's clock, wherever that is.
        drop(tokio::time::timeout(Duration::from_secs(60), std::future::ready(())).await);
        let _ = reply.send(this_thread());
    });
    (going, wake, brought)
}

fn polled<T>(future: &mut Pin<Box<impl Future<Output = T>>>) -> Poll<T> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn who_waits_goes_on_with_it_himself() {
    let client = client();
    let (going, wake, brought) = waits(&client);
    let mut brings = Box::pin(going.brings(brought));
    assert!(polled(&mut brings).is_pending());
    wake.send(()).expect("it waits");
    assert_eq!(polled(&mut brings), Poll::Ready(Ok(this_thread())));
}

/// It is the user's, and runs in the thread that others depend on.
#[test]
fn a_waker_that_panics_is_nobody_elses_trouble() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker of the user's");
        }
    }
    let client = client();
    let (going, wake, brought) = waits(&client);
    let mut brings = Box::pin(going.brings(brought));
    assert!(brings.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::new(Panics)))).is_pending());
    wake.send(()).expect("it waits");
    assert_eq!(polled(&mut brings), Poll::Ready(Ok(this_thread())), "it is his as before");
}

/// A client that ends while something is lent leaves nothing of it behind.
#[test]
fn what_was_lent_does_not_outlive_its_client() {
    let client = client();
    let (wake, woken) = oneshot::channel::<()>();
    let (reply, brought) = oneshot::channel();
    let lender = patient(&client);
    let ended = Arc::downgrade(&lender);
    let going = lender.begin(async move {
        woken.await.expect("woken");
        let _ = reply.send(());
    });
    let mut brings = Box::pin(going.brings(brought));
    assert!(polled(&mut brings).is_pending());
    wake.send(()).expect("it waits");
    assert_eq!(polled(&mut brings), Poll::Ready(Ok(())));
    drop((brings, lender));
    // At once: nobody looks any more for what was left lying.
    client.shutdown_timeout(Duration::from_secs(30));
    assert!(ended.upgrade().is_none());
}

/// What takes more than one answer is the client's from the second on.
#[test]
fn it_is_lent_once() {
    let client = client();
    let (wake, woken) = oneshot::channel::<()>();
    let (wake_again, woken_again) = oneshot::channel::<()>();
    let (reply, brought) = oneshot::channel();
    let going = patient(&client).begin(async move {
        woken.await.expect("woken");
        let first = this_thread();
        woken_again.await.expect("woken again");
        let _ = reply.send((first, this_thread()));
    });
    let mut brings = Box::pin(going.brings(brought));
    assert!(polled(&mut brings).is_pending());
    wake.send(()).expect("it waits");
    assert!(polled(&mut brings).is_pending());
    wake_again.send(()).expect("it waits");
    let (first, second) = client.block_on(brings).expect("it brings something");
    assert_eq!(first, this_thread());
    assert_ne!(second, this_thread());
}

#[test]
fn what_the_caller_leaves_lying_goes_on_there() {
    let client = client();
    let (told, hears) = std::sync::mpsc::channel();
    for leaves in [false, true] {
        let (wake, woken) = oneshot::channel::<()>();
        let (reply, brought) = oneshot::channel();
        let tell = told.clone();
        let going = Lender::of(client.handle()).begin(async move {
            woken.await.expect("woken");
            tell.send(this_thread()).expect("somebody listens");
            let _ = reply.send(());
        });
        let mut brings = Box::pin(going.brings(brought));
        assert!(polled(&mut brings).is_pending());
        wake.send(()).expect("it waits");
        // He was woken, and does not look; or he leaves.
        let brings = if leaves { None } else { Some(brings) };
        let thread = hears.recv_timeout(Duration::from_secs(30)).expect("it goes on without him");
        assert_ne!(thread, this_thread());
        if let Some(brings) = brings {
            assert_eq!(client.block_on(brings), Ok(()), "he finds it when he looks");
        }
    }
}
