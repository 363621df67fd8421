//! Login by certificate or by password; and what happens to locks that are held and waited
//! for when the server does not know us any more.

#![cfg(feature = "etcd")]

mod common;

use std::time::Duration;

use common::actors::{Confirmed, connect, is_renewed};
use common::etcd::{LIMIT, LONG, Metrics, Pair, keys};
use palisade::store::Revoked;
use palisade::{Client, ErrorKind, LossReason, Released};
use palisade_conformance::eventually;
use palisade_testkit::certs;
use palisade_testkit::etcd::Etcd;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_is_known_by_its_certificate() {
    let server = Etcd::with().mutual_tls().start();
    let certs = certs();
    let (ca, cert, key) = (
        certs.ca.display(),
        certs.client.display(),
        certs.client_key.display(),
    );
    let address = server.address();
    let url = format!("etcds://{address}/lock?ca={ca}&cert={cert}&key={key}");
    let clients = [connect(&url), connect(&url), connect(&url)];
    let pair = Pair::begin(clients.each_ref(), "certified", LONG).await;
    let next = pair.hands_over().await;
    assert_eq!(next.release().await.expect("an answer"), Released::Done);
    // Without one, or without TLS, or by an authority that we do not trust: the client is refused,
    // and it is said why.
    for (url, words) in [
        // In TLS 1.3 a client may hear only that the connection was closed.
        (
            format!("etcds://{address}/lock?ca={ca}"),
            "cannot be reached",
        ),
        (format!("etcd://{address}/lock"), "cannot be reached"),
        (
            format!("etcds://{address}/lock?cert={cert}&key={key}"),
            "ertificate",
        ),
    ] {
        let refused = connect(&url)
            .mutex("x")
            .try_acquire()
            .await
            .map(|_| ())
            .expect_err("not let in");
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{url}: {refused}");
        assert!(refused.to_string().contains(words), "{url}: {refused:?}");
    }
}

/// A library does not choose the cryptography of the whole process: the program may want another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_process_wide_tls_provider_is_installed() {
    let server = Etcd::with().tls().start();
    let client = connect(format!(
        "etcds://{}/lock?ca={}",
        server.address(),
        certs().ca.display()
    ));
    assert_eq!(
        client
            .mutex("x")
            .acquire()
            .await
            .expect("a grant")
            .release()
            .await
            .expect("an answer"),
        Released::Done
    );
    assert!(rustls::crypto::CryptoProvider::get_default().is_none());
}

/// A setting that cannot be used is a bad URL, in the words of the other stores.
#[test]
fn bad_settings_blame_the_url() {
    for (url, words) in [
        ("etcd://user@h/lock", "a user and a password"),
        ("etcd://h/lock?ca=/none", "etcds:"),
        ("etcds://h/lock?ca=/none", "ca= cannot be read"),
        ("etcds://h/lock?cert=/none", "cert= and key= go together"),
        ("etcd://h/lock?format=other", "format="),
        ("etcd://h/lock?prefix=other", "the prefix is the path"),
        ("etcd://h/lock?other=1", "other"),
    ] {
        let error = Client::connect(url).map(|_| ()).expect_err(url);
        assert!(
            error.blames_url() && error.kind() == ErrorKind::Config,
            "{url}: {error:?}"
        );
        assert!(error.to_string().contains(words), "{url}: {error}");
    }
}

/// With users, the name in the certificate is the user's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_is_a_login() {
    let server = Etcd::with().mutual_tls().auth().start();
    let certs = certs();
    let (ca, cert, key) = (
        certs.ca.display(),
        certs.client.display(),
        certs.client_key.display(),
    );
    let url = |path: &str| {
        format!(
            "etcds://{}/{path}?ca={ca}&cert={cert}&key={key}",
            server.address()
        )
    };
    let stranger = connect(url("lock"))
        .mutex("x")
        .try_acquire()
        .await
        .map(|_| ())
        .expect_err("an unknown name");
    assert_eq!(stranger.kind(), ErrorKind::Denied, "{stranger}");
    server.etcdctl(&["user", "add", "client:not-used"]);
    server.etcdctl(&["user", "grant-role", "client", "locks"]);
    let clients = [(); 3].map(|()| connect(url("lock")));
    let pair = Pair::begin(clients.each_ref(), "named", LONG).await;
    drop(pair.hands_over().await);
    let denied = connect(url("elsewhere"))
        .mutex("x")
        .try_acquire()
        .await
        .map(|_| ())
        .expect_err("no right");
    assert_eq!(denied.kind(), ErrorKind::Denied, "{denied}");
}

/// Three who log in: one to hold, one to wait, one to look.
fn clients(server: &Etcd) -> [Client; 3] {
    [(); 3].map(|()| connect(format!("etcd://locker:lockpw@{}/lock", server.address())))
}

/// A password that is set again, though it is the same, ends all logins of its user.
fn end_logins(server: &Etcd) {
    let mut etcdctl = std::process::Command::new("etcdctl");
    etcdctl
        .env("ETCDCTL_API", "3")
        .args(["--endpoints", &server.url(), "--user", "root:rootpw"]);
    etcdctl.args(["user", "passwd", "locker", "--interactive=false"]);
    let mut etcdctl = etcdctl
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("etcdctl");
    std::io::Write::write_all(&mut etcdctl.stdin.take().expect("a pipe"), b"lockpw\n")
        .expect("told");
    assert!(etcdctl.wait().expect("ended").success());
}

/// Whether the token of a login is taken: by etcd's own word, in its log.
fn refusals(server: &Etcd) -> usize {
    let log = std::fs::read_to_string(server.dir().join("log")).unwrap_or_default();
    log.matches("invalid auth token").count()
}

/// However the server comes to forget a login, no client notices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_that_ends_is_made_again() {
    let server = Etcd::with().auth().start();
    let clients = clients(&server);
    let lease = Duration::from_secs(9);
    type Fault = fn(&Etcd);
    let faults: [(&str, Fault); 3] = [
        ("the password is set again", end_logins),
        ("a role is changed", |server| {
            server.etcdctl(&[
                "role",
                "grant-permission",
                "locks",
                "--prefix=true",
                "readwrite",
                "elsewhere/",
            ]);
            server.etcdctl(&[
                "role",
                "revoke-permission",
                "locks",
                "--prefix=true",
                "elsewhere/",
            ]);
        }),
        ("the server is restarted", |server| server.restart()),
    ];
    for (round, (what, fault)) in faults.into_iter().enumerate() {
        println!("{what}");
        let name = format!("login-{round}");
        let pair = Pair::begin(clients.each_ref(), &name, lease).await;
        let confirmed = Confirmed::of(&pair.held);
        fault(&server);
        confirmed.again(&pair.held).await;
        pair.stands();
        // A new waiter is woken too: its watch is opened with the login that has ended.
        let lock = clients[1].mutex(&name).lease(lease).store_wait(LONG);
        let third = tokio::spawn(async move { lock.acquire().await });
        eventually("two wait", async || keys(&server).len() == 3).await;
        let next = pair.hands_over().await;
        let fence = next.fence();
        assert_eq!(next.release().await.expect("an answer"), Released::Done);
        let third = tokio::time::timeout(LIMIT, third)
            .await
            .expect("gets in")
            .expect("no panic")
            .expect("a grant");
        assert!(third.fence() > fence);
        assert_eq!(third.release().await.expect("an answer"), Released::Done);
        println!("{} refusals so far", refusals(&server));
    }
}

/// A login that ends must not cost the watches: who waits is told by them, and not by the clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_are_opened_with_a_login_that_is_taken() {
    let server = Etcd::with().auth().start();
    let [holder, waiter, outside] = clients(&server);
    // It waits, so it has its stream.
    let warm = Pair::begin([&holder, &waiter, &outside], "warm", LONG).await;
    // The waiter's own key and the one before it, and the holder's.
    let watched = || Metrics::of(&server).watches();
    eventually("its watches are open", async || watched() == 3).await;
    end_logins(&server);
    let pair = Pair::begin([&holder, &waiter, &outside], "watched", LONG).await;
    eventually("these watches are open too", async || watched() == 6).await;
    drop(pair.hands_over().await);
    drop(warm.hands_over().await);
}

/// A login that is not used ends by itself. The streams that were opened with it go on, and the
/// next request logs in again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_that_ends_by_idleness_costs_no_lock() {
    // The server looks every second for those that have ended: so it is gone between two renewals.
    let (lasts, lease) = (1, Duration::from_secs(9));
    let server = Etcd::with().auth().login_lasts(lasts).start();
    let [client, waiter, outside] = clients(&server);
    let count = |method: &str| Metrics::of(&server).begun(method);
    // Renewed every third of it, on a stream; the other one by nothing.
    let held = client
        .mutex("idle")
        .lease(lease)
        .acquire()
        .await
        .expect("a grant");
    let told = client
        .mutex("told")
        .lease(LONG)
        .acquire()
        .await
        .expect("a grant");
    eventually("both are watched", async || {
        Metrics::of(&server).watches() == 2
    })
    .await;
    // Each is looked at once more after that. Then nothing is asked.
    is_renewed(&held).await;
    let (logins, asked) = (count("Authenticate"), count("Txn"));
    // This is what it is about: the login ends before the first of these, and is asked for by newer
    // servers.
    is_renewed(&held).await;
    is_renewed(&held).await;
    assert_eq!(count("Txn"), asked, "it was not idle");
    let next = client
        .mutex("next")
        .lease(LONG)
        .acquire()
        .await
        .expect("it logs in again");
    // By now, or by a keep-alive.
    assert!(count("Authenticate") > logins, "its login has not ended");
    // Watches that were opened with the old login still tell.
    assert_eq!(
        outside
            .revoke("told", told.fence())
            .await
            .expect("an answer"),
        Revoked::Done
    );
    assert_eq!(
        tokio::time::timeout(LIMIT, told.lost())
            .await
            .expect("by its watch"),
        LossReason::Revoked
    );
    assert!(held.is_held() && next.is_held());
    // A waiter asks by its heartbeats, each of which finds its login ended.
    let pair = Pair::begin([&client, &waiter, &outside], "waited", LONG).await;
    let logins = count("Authenticate");
    eventually("it has logged in twice", async || {
        count("Authenticate") >= logins + 2
    })
    .await;
    pair.stands();
    drop(pair.hands_over().await);
}
