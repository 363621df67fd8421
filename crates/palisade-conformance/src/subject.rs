//! The store under test, and what every check needs around it.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use palisade::{Client, Error, ErrorKind, Result};

use palisade::lease::BootClock;
use palisade::store::{
    Capability, Claim, ClaimId, ClientHandle, Kind, Listener, Mode, Push, Store,
};
use tokio::sync::mpsc;

use crate::as_mutex::{Adapted, As};

/// How long a check waits for what must come. Generous: a check that fails is slow, one that passes
/// is not.
pub const PATIENCE: Duration = Duration::from_secs(20);

static PATIENCE_MS: AtomicU64 = AtomicU64::new(0);

/// How long checks wait for what must come: [`PATIENCE`], unless it was set.
pub fn patience() -> Duration {
    match PATIENCE_MS.load(Ordering::Relaxed) {
        0 => PATIENCE,
        millis => Duration::from_millis(millis),
    }
}

/// Sets how long checks of this process wait. For those who expect checks to fail.
pub fn set_patience(patience: Duration) {
    PATIENCE_MS.store(
        u64::try_from(patience.as_millis()).unwrap_or(u64::MAX),
        Ordering::Relaxed,
    );
}

/// Faults that a test can cause in a deployment from outside. Each hook returns a value whose drop
/// ends the fault.
///
/// Lost replies, lost pushes and cuts need no hook: [`Faulty`](crate::faults::Faulty) does them to
/// any store.
#[derive(Default)]
pub struct Hooks {
    /// Makes the store stand still: no request is answered.
    pub pause: Option<Hook>,
    /// Ends the sessions of all its clients behind their backs: the store takes them for dead.
    pub lose_sessions: Option<Hook>,
}

/// Something done to a deployment, until it is dropped.
pub type Hook = Box<dyn Fn() -> Box<dyn Send> + Send + Sync>;

/// A deployment under test. Each call of `open` is another client's connection to it.
pub struct Subject {
    open: Box<dyn Fn() -> Arc<dyn Store> + Send + Sync>,
    url: Option<String>,
    kind: As,
    hooks: Hooks,
    /// Keeps checks that run at the same time on one server apart.
    salt: u64,
}

impl Subject {
    /// A deployment, by how a client connects to it.
    pub fn new(open: impl Fn() -> Arc<dyn Store> + Send + Sync + 'static) -> Subject {
        Subject {
            open: Box::new(open),
            url: None,
            kind: As::Mutex,
            hooks: Hooks::default(),
            salt: fastrand::u64(..),
        }
    }

    /// The same deployment, with every mutex made as something else.
    #[must_use]
    pub fn adapted(self, kind: As) -> Subject {
        let open = self.open;
        Subject {
            open: Box::new(move || Adapted::over(open(), kind)),
            kind,
            ..self
        }
    }

    /// Sets the faults that a test can cause in it.
    #[must_use]
    pub fn with_hooks(self, hooks: Hooks) -> Subject {
        Subject { hooks, ..self }
    }

    /// The faults that a test can cause in it.
    pub fn hooks(&self) -> &Hooks {
        &self.hooks
    }

    /// Whether a mutex is a mutex here. Checks that mix kinds of one name need that.
    pub fn is_as_it_is(&self) -> bool {
        self.kind == As::Mutex
    }

    /// Whether a name can serve a reader after a mutex was released, and the reverse.
    pub fn kinds_take_turns(&self) -> bool {
        !(self.kind == As::Semaphore && self.capability().semaphore_stays)
    }

    /// The URL by which another process reaches the same deployment, for checks across processes.
    #[must_use]
    pub fn with_url(self, url: impl Into<String>) -> Subject {
        Subject {
            url: Some(url.into()),
            ..self
        }
    }

    /// The URL for another process, if there is one.
    pub fn url(&self) -> Option<&str> {
        self.url.as_deref()
    }

    /// A connection of its own.
    pub fn store(&self) -> Arc<dyn Store> {
        (self.open)()
    }

    /// A connection of its own, and what it says without being asked. For checks of the contract,
    /// inside a runtime.
    pub fn store_with_pushes(&self) -> (Arc<dyn Store>, mpsc::UnboundedReceiver<Push>) {
        let (tell, heard) = mpsc::unbounded_channel();
        let store = self.store();
        store.attach(ClientHandle::new(
            tokio::runtime::Handle::current(),
            Arc::new(PushSender(tell)),
        ));
        (store, heard)
    }

    /// A client on a connection of its own.
    pub fn client(&self) -> Client {
        Client::over(self.store(), Arc::new(BootClock))
    }

    /// The capability of the deployment.
    pub fn capability(&self) -> Capability {
        *self.store().capability()
    }

    /// A name that no other check uses.
    pub fn name(&self, what: &str) -> String {
        format!("{what}-{:016x}", self.salt)
    }

    /// A mutex claim that queues, with a lease that outlasts every check.
    pub fn claim(&self, what: &str) -> Claim {
        Claim {
            id: ClaimId::from_bits(fastrand::u128(..)),
            name: palisade::Name::new(self.name(what)).expect("a good name"),
            kind: Kind::Mutex,
            mode: Mode::Exclusive,
            owner: "conformance".into(),
            reason: None,
            value: None,
            lease: Duration::from_secs(60),
            exact_lease: false,
            queue: true,
            min_hold: None,
            once_per: None,
            detachable: false,
        }
    }
}

struct PushSender(mpsc::UnboundedSender<Push>);

impl Listener for PushSender {
    fn hear(&self, push: Push) {
        // A check that has ended does not listen any more.
        let _ = self.0.send(push);
    }
}

/// Waits in vain for a name that is held, and gives the error. A store that did not answer within a
/// short wait is given a longer one.
///
/// # Panics
///
/// When a wait succeeds, or when the store does not answer in time.
pub async fn in_vain<T, F: Future<Output = Result<T>>>(
    mut wait: Duration,
    mut acquire: impl FnMut(Duration) -> F,
) -> Error {
    loop {
        let error = acquire(wait).await.map(drop).expect_err("it is held");
        if error.kind() != ErrorKind::Unavailable || wait > patience() {
            return error;
        }
        wait = (wait * 2).max(Duration::from_millis(10));
    }
}

/// Asks again and again until the answer is yes.
///
/// # Panics
///
/// When it is not yes in time; `what` says what was expected.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut ask: impl FnMut() -> F) {
    let begun = Instant::now();
    while !ask().await {
        assert!(
            begun.elapsed() < patience(),
            "not in {:?}: {what}",
            patience()
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
