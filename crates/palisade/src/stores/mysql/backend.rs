//! The state that the verbs share: the client, the texts of the statements, and the claims.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::watch;

use super::client::{Client, Contact, Done, How, Session, Statement, code_of};
use super::schema::{Schema, Unusable};
use super::settings::Settings;
use super::table::{Spot, Texts};
use super::wait::Waits;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{ByClaim, Claim, ClaimId, ClientHandle};
use crate::url::StoreUrl;

/// How often lines are looked for that nothing is in any more, and for how long they are kept then:
/// the last fence outlives the name.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
const KEEP_FENCE: Duration = Duration::from_secs(600);
/// How many are deleted in one transaction.
const SWEEP: i64 = 200;

pub(super) struct Backend {
    pub(super) settings: Settings,
    pub(super) schema: Schema,
    pub(super) texts: Texts,
    pub(super) client: Client,
    core: Arc<Core>,
    pub(super) waits: Waits,
    claims: Mutex<ByClaim<Entry>>,
    /// Whether the tables are known to be there.
    ready: AtomicBool,
    checking: tokio::sync::Mutex<()>,
    me: Weak<Backend>,
}

/// The core, to push to.
#[derive(Default)]
struct Core(OnceLock<ClientHandle>);

impl Contact for Core {
    fn lost(&self) {
        if let Some(client) = self.0.get() {
            client.contact_lost();
        }
    }

    fn regained(&self) {
        if let Some(client) = self.0.get() {
            client.contact_regained();
        }
    }
}

/// A claim that waits or holds.
struct Entry {
    /// The session that has its bell.
    bell: Session,
    /// Its place in line, for the task that waits for it.
    spot: Option<watch::Sender<Spot>>,
}

impl Backend {
    /// Nothing is connected.
    pub(super) fn open(url: StoreUrl) -> Result<Arc<Backend>> {
        let (settings, client) = Settings::read(url)?;
        let (schema, core) = (Schema::of(&settings), Arc::new(Core::default()));
        Ok(Arc::new_cyclic(|me| Backend {
            texts: Texts::of(&schema),
            schema,
            client: Client::new(client, Arc::clone(&core) as Arc<dyn Contact>),
            core,
            waits: Waits::new(settings.waits),
            settings,
            claims: Mutex::default(),
            ready: AtomicBool::new(false),
            checking: tokio::sync::Mutex::new(()),
            me: Weak::clone(me),
        }))
    }

    pub(super) fn attach(&self, client: ClientHandle) {
        // Told once.
        let _ = self.core.0.set(client);
    }

    /// The core; `None` for a store that is used without a client.
    pub(super) fn core(&self) -> Option<&ClientHandle> {
        self.core.0.get()
    }

    /// Runs a statement of the tables, which are created first where they are missing.
    pub(super) async fn run(&self, statement: &Statement, how: How) -> Result<Done> {
        self.make_ready().await?;
        let done = self.client.run(statement, how).await;
        // The tables or routines are gone: the next request creates them.
        if let Err(error) = &done
            && matches!(code_of(error), Some(1146 | 1305))
        {
            self.ready.store(false, Ordering::Release);
            return Err(Error::unavailable(
                "the tables or routines of the locks were dropped while they were in use; the next request creates them",
            )
            .with_source(error.clone()));
        }
        done
    }

    async fn make_ready(&self) -> Result<()> {
        if self.ready.load(Ordering::Acquire) {
            return Ok(());
        }
        self.create_tables().await.map(drop)
    }

    /// Checks that the tables are there, and creates them if not. In a task of its own: other
    /// requests wait for it, and its caller may not be polled.
    pub(super) async fn create_tables(&self) -> Result<bool> {
        let Some(backend) = self.me.upgrade() else {
            return Err(Error::unavailable("the client is ending"));
        };
        let created = tokio::spawn(async move {
            let _one_at_a_time = backend.checking.lock().await;
            let mut connection = backend.client.connect().await?;
            if connection.server.galera {
                return Err(Error::config(
                    "this server is a node of a Galera cluster (wsrep_on), where GET_LOCK is refused and a row is locked on one node only; \
                     use a server outside of a cluster, or another store",
                ));
            }
            let limit = backend.client.settings().request_timeout;
            let created = backend.schema.create(&mut connection, limit).await;
            if created.is_ok() {
                connection.close().await;
            } else {
                connection.abandon();
            }
            let created = created.map_err(|why| backend.unusable(why))?;
            let is_first = !backend.ready.swap(true, Ordering::AcqRel);
            if is_first && backend.settings.layout.is_none() {
                tokio::spawn(sweep(Weak::clone(&backend.me)));
            }
            Ok(created)
        });
        created
            .await
            .unwrap_or_else(|_| Err(Error::unavailable("the client is ending")))
    }

    fn unusable(&self, why: Unusable) -> Error {
        match why {
            Unusable::Failed(failure) => {
                let error = failure.into_error(self.client.settings(), false);
                match (error.kind(), code_of(&error)) {
                    (ErrorKind::Denied, Some(code)) => Error::new(
                        ErrorKind::Denied,
                        format!(
                            "the tables of the locks are missing, and this user may not create them ({code}); \
                             run `palisade schema` as a user who may, or let an administrator run what `palisade schema --print` writes"
                        ),
                    )
                    .with_source(error),
                    _ => error,
                }
            }
            Unusable::Newer(version) => Error::protocol(format!(
                "the tables of the locks are of version {version}, and this program knows version {}; upgrade it, or use another table=",
                super::schema::VERSION
            )),
            Unusable::Busy => Error::unavailable(
                "another client is creating the tables of the locks, and does not finish; does it hang?",
            ),
        }
    }

    fn claims(&self) -> MutexGuard<'_, ByClaim<Entry>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session that has the bell of a claim, while it is open.
    pub(super) fn bell_of(&self, claim: ClaimId) -> Option<Session> {
        let bell = self.claims().get(&claim).map(|entry| entry.bell)?;
        Some(bell).filter(|bell| self.client.is_open(*bell))
    }

    /// A claim holds.
    pub(super) fn holds(&self, claim: ClaimId, bell: Session) {
        self.claims().insert(claim, Entry { bell, spot: None });
    }

    /// A claim waits, at this spot: a task waits for its turn.
    pub(super) fn waits_at(&self, claim: &Arc<Claim>, bell: Session, spot: Spot) {
        let Some(backend) = self.me.upgrade() else {
            return;
        };
        let seen = {
            let mut claims = self.claims();
            let entry = claims.entry(claim.id).or_insert(Entry { bell, spot: None });
            entry.bell = bell;
            match &entry.spot {
                Some(told) if !told.is_closed() => {
                    told.send_replace(spot);
                    return;
                }
                _ => {}
            }
            let (tell, seen) = watch::channel(spot);
            entry.spot = Some(tell);
            seen
        };
        let waiting = super::wait::wait(Arc::downgrade(&backend), Arc::clone(claim), seen);
        match self.core() {
            Some(core) => core.while_waiting(claim.id, waiting),
            None => drop(tokio::spawn(waiting)),
        }
    }

    /// A claim has ended.
    pub(super) fn forget(&self, claim: ClaimId) {
        self.claims().remove(&claim);
    }

    /// Rings the bell of a claim that the store does not have any more.
    pub(super) fn ring(&self, claim: ClaimId) {
        let Some(bell) = self.bell_of(claim) else {
            return;
        };
        self.forget(claim);
        if let Some(backend) = self.me.upgrade() {
            let statement = self.texts.ring(claim);
            tokio::spawn(async move {
                let pinned = Some(bell);
                // The session that had it is over, if this fails: then it has rung.
                let _ = backend
                    .client
                    .run(
                        &statement,
                        How {
                            pinned,
                            ..How::URGENT
                        },
                    )
                    .await;
            });
        }
    }
}

async fn sweep(backend: Weak<Backend>) {
    loop {
        tokio::time::sleep(SWEEP_EVERY.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
        loop {
            let Some(backend) = backend.upgrade() else {
                return;
            };
            backend.waits.close_idle();
            if !backend.ready.load(Ordering::Acquire) {
                return;
            }
            let statement = backend.texts.sweep(KEEP_FENCE, SWEEP);
            let how = How {
                urgent: false,
                ..How::URGENT
            };
            match backend.client.run(&statement, how).await {
                Ok(done) if super::table::count(&done.rows) == Some(SWEEP) => {}
                _ => break,
            }
        }
    }
}
