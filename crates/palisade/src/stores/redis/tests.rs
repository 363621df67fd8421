//! Properties that are not visible through the public API.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use palisade_testkit::redis::Redis;

use super::backend::Backend;
use super::client::{Address, Purpose, Server, TimedCall};
use super::line;
use crate::store::{Claim, ClaimId, ClientHandle, Listener, Push, Standing};
use crate::url::StoreUrl;

const LONG: Duration = Duration::from_secs(30);

fn locks_of(url: &str) -> Arc<Backend> {
    Backend::open(StoreUrl::parse(url).unwrap()).unwrap()
}

async fn server_of(backend: &Arc<Backend>, server: &Redis) -> Arc<Server> {
    let address = Address::new("127.0.0.1", server.address().port());
    backend
        .client
        .server(&address, Purpose::Requests)
        .await
        .unwrap()
}

fn mutex(name: &str) -> Arc<Claim> {
    Arc::new(Claim::of_mutex(ClaimId::random().unwrap(), name, LONG))
}

#[tokio::test]
async fn renewals_do_not_wait_for_the_inbox_on_a_server_that_hangs() {
    let (good, hangs) = (Redis::start(), Redis::start());
    // The server that hangs is not given up before the test is over.
    let backend = locks_of(&format!("{}?request_timeout=600s", good.url()));
    let (client, claim) = (&backend.client, mutex("elsewhere"));
    let key = backend.settings.key(&claim.name);
    let on_good = server_of(&backend, &good).await;
    on_good
        .call(&line::claim(&key, &claim, client.inbox()))
        .await
        .unwrap();
    let on_hanging = server_of(&backend, &hangs).await;
    hangs.pause();
    client.ensure_inbox(&on_hanging);
    let renewal = line::renew(&key, &claim.to_ref(None), client.inbox());
    let renewed = tokio::time::timeout(
        LONG,
        client.call_all(
            vec![TimedCall {
                call: renewal,
                limit: LONG,
            }],
            Purpose::Renewals,
            true,
        ),
    )
    .await;
    assert!(
        !client.is_subscribed(),
        "the inbox is being opened on a server that does not answer"
    );
    hangs.resume();
    let answer = renewed
        .expect("the renewal waits for a server that it does not need")
        .pop()
        .unwrap()
        .unwrap();
    assert!(
        matches!(line::standing(&answer, &claim), Ok(Standing::Held(_))),
        "{answer:?}"
    );
}

#[tokio::test]
async fn nothing_is_kept_of_keyspace_waiters_that_left() {
    let server = Redis::start();
    let backend = locks_of(&server.url());
    let (wanted, handle) = wanted_claims();
    backend.attach(handle);
    let (keyspace, on) = (&backend.channels, server_of(&backend, &server).await);
    let channel = backend.settings.keyspace_channel("theirs");
    let subscribed = || {
        server
            .call(&["PUBSUB", "CHANNELS"])
            .text()
            .contains("theirs")
    };
    keyspace.busy(&channel, &on, ClaimId::random().unwrap(), None, &backend);
    // The claim asks again as soon as the key is subscribed.
    while keyspace.waiting(&channel) != Some(0) {
        tokio::task::yield_now().await;
    }
    assert!(subscribed());
    let claims: Vec<ClaimId> = (0..100).map(|_| ClaimId::random().unwrap()).collect();
    wanted.lock().unwrap().extend(&claims);
    for claim in &claims {
        keyspace.busy(&channel, &on, *claim, keyspace.changes(&channel), &backend);
    }
    keyspace.sweep(&backend).await;
    assert_eq!(keyspace.waiting(&channel), Some(100), "they are wanted");
    wanted.lock().unwrap().clear();
    keyspace.sweep(&backend).await;
    keyspace.sweep(&backend).await;
    assert_eq!(keyspace.waiting(&channel), None);
    assert!(!subscribed());
}

/// A client that wants only these claims.
fn wanted_claims() -> (Arc<Mutex<HashSet<ClaimId>>>, ClientHandle) {
    struct Wants(Arc<Mutex<HashSet<ClaimId>>>);
    impl Listener for Wants {
        fn hear(&self, _: Push) {}

        fn wants(&self, claim: ClaimId) -> bool {
            self.0.lock().unwrap().contains(&claim)
        }
    }
    let wanted = Arc::default();
    let handle = ClientHandle::new(
        tokio::runtime::Handle::current(),
        Arc::new(Wants(Arc::clone(&wanted))),
    );
    (wanted, handle)
}

#[tokio::test]
async fn the_last_fence_of_a_simple_lock_outlives_it_however_long_it_is_held() {
    let server = Redis::start();
    let backend = crate::connect(format!("{}?format=simple", server.url()))
        .await
        .unwrap();
    let guard = backend
        .mutex("held")
        .lease(Duration::from_secs(3))
        .acquire()
        .await
        .unwrap();
    let fence = guard.fence().to_string();
    let mark = "palisade:1:fence:{held}";
    let left = |key: &str| {
        server
            .call(&["PTTL", key])
            .text()
            .trim()
            .parse::<i64>()
            .unwrap()
    };
    assert!(left(mark) > left("held"));
    // As if the lock had been held for nearly as long as its last fence is kept.
    server.call(&["PEXPIRE", mark, "60000"]);
    let renewed = async {
        while left(mark) <= 60_000 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(LONG, renewed)
        .await
        .expect("a renewal keeps the mark");
    assert_eq!(server.call(&["GET", mark]).text().trim(), fence);
    assert!(guard.is_held());
}
