//! Login to ZooKeeper by SASL or by certificate, and what becomes of locks when connections
//! are made anew.

#![cfg(all(feature = "zookeeper-sasl", feature = "zookeeper-tls"))]

mod common;

use common::actors::connect;
use common::zookeeper::{LIMIT, LONG, Pair, nodes, proxy};
use palisade::{ErrorKind, Released};
use palisade_conformance::eventually;
use palisade_testkit::certs;
use palisade_testkit::zookeeper::{Setup, ZooKeeper};

/// A server whose users come with SASL.
fn with_users() -> Setup {
    ZooKeeper::with()
        .long_sessions()
        .user("locker", "lockpw")
        .user("other", "otherpw")
}

/// The login by this URL is refused; the error says why, and does not contain the password.
async fn is_refused(url: &str, words: &str) {
    let asked = tokio::time::timeout(LIMIT, async {
        connect(url).mutex("x").try_acquire().await.map(|_| ())
    });
    let refused = asked
        .await
        .expect("no wait without an end")
        .expect_err("not let in");
    assert_eq!(refused.kind(), ErrorKind::Denied, "{url}: {refused:?}");
    let said = format!("{refused} {refused:?}");
    assert!(said.contains(words), "{url}: {said}");
    assert!(!said.contains("wrongpw"), "{said}");
}

/// Nodes that are made after a SASL login are that user's, also by later connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_of_sasl_has_its_locks_to_itself() {
    let server = with_users().start();
    let proxy = proxy(&server);
    let url = |login: &str, words: &str| {
        format!(
            "zk://{login}{}/lock?request_timeout=2s{words}",
            server.address()
        )
    };
    let through = format!(
        "zk://locker:lockpw@{}/lock?auth=sasl&request_timeout=2s",
        proxy.address()
    );
    let clients = [
        connect(&through),
        connect(&through),
        connect(url("locker:lockpw@", "&auth=sasl")),
    ];
    let pair = Pair::begin(clients.each_ref(), "private", LONG).await;
    // Clients without a login, with another kind of login, or as another user.
    for stranger in [
        url("", ""),
        url("locker:lockpw@", ""),
        url("other:otherpw@", "&auth=sasl"),
    ] {
        for (name, format) in [
            ("private", "curator"),
            ("not-there-yet", "curator"),
            ("not-there-yet", "plain"),
        ] {
            let stranger = format!("{stranger}&format={format}");
            let refused = connect(&stranger)
                .mutex(name)
                .try_acquire()
                .await
                .map(|_| ())
                .expect_err("no right");
            assert_eq!(refused.kind(), ErrorKind::Denied, "{stranger}: {refused}");
        }
    }
    // Everything is asked again by another connection, on which no login was made yet.
    for _ in 0..3 {
        proxy.reset();
        eventually("connected again", async || proxy.connections() >= 2).await;
    }
    pair.stands();
    let next = pair.hands_over().await;
    assert!(next.is_held());
    assert_eq!(next.release().await.expect("an answer"), Released::Done);
    eventually("no node is left", async || nodes(&server).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_that_fails_is_said_and_never_waited_for() {
    let server = with_users()
        .user("latin", "gr\u{fc}\u{df}e")
        .user("far", "\u{43f}\u{430}\u{440}\u{43e}\u{43b}\u{44c}")
        .start();
    let url = |login: &str| format!("zk://{login}@{}/?auth=sasl", server.address());
    is_refused(&url("locker:wrongpw"), "user or the password").await;
    is_refused(&url("nobody:wrongpw"), "user or the password").await;
    for (user, password) in [
        ("latin", "gr%C3%BC%C3%9Fe"),
        ("far", "%D0%BF%D0%B0%D1%80%D0%BE%D0%BB%D1%8C"),
    ] {
        let client = connect(url(&format!("{user}:{password}")));
        let guard = client
            .mutex(user)
            .acquire_timeout(LIMIT)
            .await
            .expect("let in");
        assert_eq!(guard.release().await.expect("an answer"), Released::Done);
    }
    // A server that has no users at all.
    let plain = ZooKeeper::start();
    is_refused(
        &format!("zk://locker:wrongpw@{}/lock?auth=sasl", plain.address()),
        "no SASL login",
    )
    .await;
}

/// Servers that demand a login, and one that accepts clients whose login has failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_may_insist_on_a_login() {
    let required: &[&[(&str, &str)]] = &[
        &[("sessionRequireClientSASLAuth", "true")],
        &[
            ("enforce.auth.enabled", "true"),
            ("enforce.auth.schemes", "sasl"),
        ],
        &[("allowSaslFailedClients", "true")],
    ];
    for words in required {
        let mut setup = with_users();
        for (word, value) in *words {
            setup = setup.set(word, value);
        }
        let server = setup.start();
        let at = server.address();
        let client = connect(format!("zk://locker:lockpw@{at}/lock?auth=sasl"));
        let guard = client
            .mutex("required")
            .acquire_timeout(LIMIT)
            .await
            .expect("let in");
        assert_eq!(guard.release().await.expect("an answer"), Released::Done);
        is_refused(
            &format!("zk://locker:wrongpw@{at}/lock?auth=sasl"),
            "user or the password",
        )
        .await;
        if words
            .iter()
            .all(|(word, _)| *word != "allowSaslFailedClients")
        {
            is_refused(&format!("zk://{at}/lock"), "auth=").await;
            is_refused(&format!("zk://locker:wrongpw@{at}/lock"), "auth=").await;
        }
    }
}

/// With `ssl.clientAuth=need`, the one remedy against those who would end others' sessions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_is_known_by_its_certificate() {
    let server = with_users().mutual_tls().start();
    let certs = certs();
    let (ca, cert, key) = (
        certs.ca.display(),
        certs.client.display(),
        certs.client_key.display(),
    );
    let address = format!("localhost:{}", server.tls_address().port());
    for login in ["", "alice:secret@", "locker:lockpw@"] {
        let words = if login.starts_with("locker") {
            "&auth=sasl"
        } else {
            ""
        };
        let url = format!(
            "zks://{login}{address}/lock-{}?ca={ca}&cert={cert}&key={key}{words}",
            login.len()
        );
        let clients = [connect(&url), connect(&url), connect(&url)];
        let next = Pair::begin(clients.each_ref(), "certified", LONG)
            .await
            .hands_over()
            .await;
        assert_eq!(next.release().await.expect("an answer"), Released::Done);
    }
    // Without one, or by an authority that we do not trust.
    let anonymous = connect(format!("zks://{address}/lock?ca={ca}&connect_timeout=2s"));
    let refused = anonymous
        .mutex("x")
        .try_acquire()
        .await
        .map(|_| ())
        .expect_err("not let in");
    assert!(
        matches!(refused.kind(), ErrorKind::Unavailable | ErrorKind::Denied),
        "{refused:?}"
    );
    let distrusted = connect(format!("zks://{address}/lock?cert={cert}&key={key}"));
    let refused = distrusted
        .mutex("x")
        .try_acquire()
        .await
        .map(|_| ())
        .expect_err("not let in");
    assert_eq!(refused.kind(), ErrorKind::Denied, "{refused:?}");
}
