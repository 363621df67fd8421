//! `sqlite:/path` — the line in a file, for the processes of one machine. No server.
//!
//! The file decides: every verb is one write transaction on it. Beside it, in the folder
//! `<path>-clients`, each client has a named pipe that it keeps locked for as long as it lives, and
//! a socket to be woken by. A grant lives while its lease runs *and* its client is alive: when a
//! process is killed, the next in line has the lock a moment later, not a lease later.
//!
//! # What a verb costs
//!
//! | verb | transactions | messages |
//! |---|---|---|
//! | acquire, free | 1 | 0 |
//! | acquire, in line | 1, and 1 for each heartbeat (a third of the wait lease) | 0 |
//! | release | 1 | 1 to the next in line |
//! | hand-off | 0 more | 0 more |
//! | renewal | 1 for all claims of the client | 0 |
//!
//! # What may lose a grant
//!
//! Only the loss of the file, or a restart of the machine, after which no holder is left. Commits
//! are not synced (`synchronous=NORMAL`): a power cut may lose the last ones, and fences jump to
//! the next multiple of 2^40 at the next boot, so that they never repeat.

mod blocking_process;
mod boot;
mod columns;
mod deaths;
mod file;
mod inspect;
mod lines;
mod liveness;
mod wake_socket;

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, params};

use self::file::{Database, Refusal};
use self::lines::{Loaded, WakeMessage};
use self::liveness::{Folder, Life};
use self::wake_socket::Inbox;
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::line::StoreTime;
use crate::store::{
    Answer, Capability, Change, Claim, ClaimId, ClaimRef, ClientHandle, Durability, Extensions,
    FenceSource, Grant, Lease, Liveness, Page, Ping, Query, ServerInfo, Standing, Store,
};
use crate::stores::kit::line::{Effect, Event, LineBackend, LineStore};
use crate::url::StoreUrl;

/// The capability of the SQLite store.
pub const CAPABILITY: Capability = Capability {
    store: "sqlite",
    durability: Durability::Machine,
    fence: FenceSource::Counter,
    ..Capability::LINE
};

/// How many lines a page of a list has.
const PAGE: i64 = 256;
/// How often a client removes what dead clients have left.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// How long a waiter pauses after it has asked because of a death.
const ANSWERED_BY: Duration = Duration::from_millis(50);
/// How often a waiter reads again which clients are before it.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The SQLite store: lines in a file.
pub type SqliteStore = LineStore<Sqlite>;

/// One client's access to the file.
pub struct Sqlite(Arc<Shared>);

struct Shared {
    database: Database,
    /// Set by the first claim.
    client: OnceLock<Client>,
    starting: std::sync::Mutex<()>,
    /// Held by the transaction of this client that waits for its turn at the file.
    turn: Arc<tokio::sync::Mutex<()>>,
    inbox: Inbox,
    /// When the last sweep was, in ms of the file's time.
    swept_ms: AtomicU64,
}

/// This client, as others see it.
struct Client {
    id: String,
    folder: Folder,
    life: Life,
}

/// Opens `sqlite:/path`. The file is made at first use.
pub(crate) fn open(url: StoreUrl) -> Result<Arc<dyn Store>> {
    url.finish(&[])?;
    match url.local_path()? {
        "" => Err(Error::config(
            "sqlite: needs a file; write sqlite:/path/to/locks.db",
        )),
        path => {
            // Only a check of the folder: a place that can never work is an error of the URL, and
            // is reported at once.
            file::check_place(Path::new(path))?;
            Ok(Arc::new(SqliteStore::new(path)))
        }
    }
}

impl SqliteStore {
    /// The store in this file. The file is made at first use; its folder must be there.
    pub fn new(path: impl Into<PathBuf>) -> SqliteStore {
        LineStore(Sqlite(Arc::new(Shared {
            database: Database::new(path.into()),
            client: OnceLock::new(),
            starting: std::sync::Mutex::default(),
            turn: Arc::default(),
            inbox: Inbox::default(),
            swept_ms: AtomicU64::new(0),
        })))
    }

    /// The file.
    pub fn path(&self) -> &Path {
        self.0.0.database.path()
    }
}

impl Sqlite {
    /// Runs a transaction in the caller's thread if it can have its turn at once, else in a
    /// blocking task.
    async fn transact<T: Send + 'static>(
        &self,
        work: impl Fn(&Shared, &Connection, StoreTime) -> Result<(T, Vec<WakeMessage>)> + Send + 'static,
    ) -> Result<T> {
        let shared = Arc::clone(&self.0);
        let (answer, messages) = match shared
            .database
            .attempt(|connection, now| work(&shared, connection, now))
        {
            Ok(done) => done,
            Err(Refusal::Failed(error)) => return Err(error),
            Err(Refusal::Busy) => {
                // As a task, so that a caller that is not polled cannot have the turn. One at a
                // time, in order: many threads of one client would leave no turn to other
                // processes.
                let patient = tokio::spawn(async move {
                    let turn = Arc::clone(&shared.turn).lock_owned().await;
                    let run = move || {
                        let _turn = turn;
                        shared
                            .database
                            .run(|connection, now| work(&shared, connection, now))
                    };
                    tokio::task::spawn_blocking(run).await
                });
                let broken = |cause| {
                    Error::protocol("the transaction broke off; this is a bug").with_source(cause)
                };
                patient.await.map_err(broken)?.map_err(broken)??
            }
        };
        if !messages.is_empty()
            && let Ok(client) = self.0.client()
        {
            self.0.inbox.send(&client.folder, messages);
        }
        Ok(answer)
    }
}

impl Shared {
    fn sql<T>(&self, result: rusqlite::Result<T>) -> Result<T> {
        result.map_err(|error| file::failure(self.database.path(), error))
    }

    /// This client, alive from now on.
    fn client(&self) -> Result<&Client> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        let _starting = self
            .starting
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        let id = format!("{:016x}", ClaimId::random()?.bits() as u64);
        let place = |cause: std::io::Error| {
            let kind = if cause.kind() == std::io::ErrorKind::PermissionDenied {
                ErrorKind::Denied
            } else {
                ErrorKind::Unavailable
            };
            let path = self.database.path().display();
            Error::new(
                kind,
                format!("{path}: its folder {path}-clients cannot be used: {cause}"),
            )
            .with_source(cause)
        };
        let folder = Folder::beside(self.database.path()).map_err(place)?;
        let life = folder.live(&id).map_err(place)?;
        self.inbox.bind(&folder, &id).map_err(place)?;
        Ok(self.client.get_or_init(|| Client { id, folder, life }))
    }

    /// Removes expired entries of unused names and the files of dead clients, from time to time.
    fn sweep(&self, connection: &Connection, now: StoreTime, folder: &Folder) -> Result<()> {
        let now_ms = u64::try_from(now.since_zero().as_millis()).unwrap_or(u64::MAX);
        let last = self.swept_ms.load(Ordering::Relaxed);
        if now_ms < last.saturating_add(SWEEP_EVERY.as_millis() as u64) {
            return Ok(());
        }
        self.swept_ms.store(now_ms, Ordering::Relaxed);
        // A client's first claim must be quick. But where all clients are short commands, some of
        // them must sweep.
        if last == 0 && fastrand::u8(..) >= 8 {
            return Ok(());
        }
        let now = columns::time(now);
        self.sql(connection.execute(
            "DELETE FROM entries WHERE max(expiry_ns, keep_until_ns) <= ?1",
            [now],
        ))?;
        self.sql(connection.execute("DELETE FROM notes WHERE until_ns <= ?1", [now]))?;
        folder.sweep();
        Ok(())
    }

    /// Applies one event inside a transaction.
    fn apply(
        &self,
        connection: &Connection,
        now: StoreTime,
        event: &Event,
    ) -> Result<(Effect, Vec<WakeMessage>)> {
        let client = self.client()?;
        let mut told = Vec::new();
        let mut loaded = self.sql(Loaded::load(connection, now, event.name()))?;
        if let Event::Claim(claim) = event {
            self.sweep(connection, now, &client.folder)?;
            loaded = loaded.ours(claim.id, &client.id);
            loaded.reap(&client.folder, &client.id, &mut told);
        }
        let effect = event.apply(&mut loaded.line, now, &mut told)?;
        let messages = self.sql(loaded.save(&client.folder, &client.id, told))?;
        if let (Event::Change(claim, Change::Detach), Effect::Stands(Standing::Held(_))) =
            (event, &effect)
        {
            let let_go = connection.execute(
                "UPDATE entries SET client = NULL WHERE name = ?1 AND claim = ?2",
                params![
                    claim.claim.name.as_str(),
                    claim.claim.id.bits().to_be_bytes()
                ],
            );
            self.sql(let_go)?;
        }
        Ok((effect, messages))
    }

    /// Renews one claim inside a transaction. A holder needs one statement.
    fn renew(
        &self,
        connection: &Connection,
        now: StoreTime,
        claim: &ClaimRef,
    ) -> Result<(Standing, Vec<WakeMessage>)> {
        let ClaimRef { claim, fence } = claim;
        if let Some(fence) = fence
            && let Some(grant) = self.sql(renew_holder(connection, now, claim, *fence))?
        {
            return Ok((Standing::Held(grant), Vec::new()));
        }
        let client = self.client()?;
        let mut loaded = self.sql(Loaded::load(connection, now, &claim.name))?;
        let mut told = Vec::new();
        loaded.reap(&client.folder, &client.id, &mut told);
        let standing = loaded.line.renew(now, claim.id, *fence, &mut told);
        // A grant that the reaping made to this very claim is in its answer.
        told.retain(|news| news.claim() != claim.id);
        Ok((
            standing,
            self.sql(loaded.save(&client.folder, &client.id, told))?,
        ))
    }

    /// The clients before a waiting claim: the waiter before it, or else the holders. `None` when
    /// that cannot be read now.
    fn before(&self, claim: &Claim) -> Option<Vec<String>> {
        self.database.glance(|connection, _| {
            let id = claim.id.bits().to_be_bytes();
            let mut place =
                connection.prepare_cached("SELECT place FROM entries WHERE name = ?1 AND claim = ?2 AND fence IS NULL")?;
            let Some(place) = place.query_row(params![claim.name.as_str(), id], |row| row.get::<_, i64>(0)).optional()? else {
                return Ok(Vec::new());
            };
            let mut ahead = connection.prepare_cached(
                "SELECT client FROM entries WHERE name = ?1 AND place < ?2 AND fence IS NULL AND client IS NOT NULL \
                 ORDER BY place DESC LIMIT 1",
            )?;
            if let Some(waiter) = ahead.query_row(params![claim.name.as_str(), place], |row| row.get(0)).optional()? {
                return Ok(vec![waiter]);
            }
            let mut holders = connection.prepare_cached(
                "SELECT DISTINCT client FROM entries WHERE name = ?1 AND fence IS NOT NULL AND ghost = 0 AND client IS NOT NULL",
            )?;
            holders.query_map([claim.name.as_str()], |row| row.get(0))?.collect()
        })
    }
}

/// Renews a live holder without reading the rest of its line; `None` when it is not one.
fn renew_holder(
    connection: &Connection,
    now: StoreTime,
    claim: &Claim,
    fence: Fence,
) -> rusqlite::Result<Option<Grant>> {
    let mut update = connection.prepare_cached(
        "UPDATE entries SET expiry_ns = max(expiry_ns, ?1 + lease_ns) \
         WHERE name = ?2 AND claim = ?3 AND fence = ?4 AND ghost = 0 AND expiry_ns > ?1 RETURNING lease_ns",
    )?;
    let fence_number = i64::try_from(fence.get()).unwrap_or(i64::MAX);
    let key = params![
        columns::time(now),
        claim.name.as_str(),
        claim.id.bits().to_be_bytes(),
        fence_number
    ];
    let lease: Option<i64> = update.query_row(key, |row| row.get(0)).optional()?;
    Ok(lease.map(|lease| Grant {
        fence,
        lease: Lease::of(Duration::from_nanos(lease.unsigned_abs())),
    }))
}

#[async_trait]
impl LineBackend for Sqlite {
    fn capability(&self) -> &Capability {
        &CAPABILITY
    }

    fn attach(&self, client: ClientHandle) {
        self.0.inbox.attach(client);
    }

    async fn apply(&self, event: Event) -> Result<Effect> {
        let asked = event.clone();
        let effect = self
            .transact(move |shared, connection, now| shared.apply(connection, now, &asked))
            .await?;
        if let (Event::Claim(claim), Effect::Answered(Answer::Queued(_))) = (event, &effect) {
            self.watch_deaths(&claim);
        }
        Ok(effect)
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        let count = claims.len();
        let claims = claims.to_vec();
        let renewed = self.transact(move |shared, connection, now| {
            let mut messages = Vec::new();
            let mut standings = Vec::with_capacity(claims.len());
            for claim in &claims {
                let (standing, more) = shared.renew(connection, now, claim)?;
                standings.push(Ok(standing));
                messages.extend(more);
            }
            if let Some(client) = shared.client.get() {
                client.folder.keep_young(&client.life);
            }
            Ok((standings, messages))
        });
        renewed
            .await
            .unwrap_or_else(|error| vec![Err(error); count])
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let query = query.clone();
        self.transact(move |shared, connection, now| {
            let page = match &query {
                Query::Show(name) | Query::Leader(name) => Page {
                    lines: shared.view(connection, now, name)?.into_iter().collect(),
                    next: None,
                },
                Query::List { prefix, after } => {
                    shared.page(connection, now, prefix, after.as_deref().unwrap_or(""))?
                }
            };
            Ok((page, Vec::new()))
        })
        .await
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions {
            liveness: Some(self),
            ping: Some(self),
            ..Extensions::default()
        }
    }
}

#[async_trait]
impl Ping for Sqlite {
    async fn ping(&self) -> Result<ServerInfo> {
        // A transaction that may write, as every verb is: a file that is only readable is no store.
        self.transact(|_, _, _| Ok(((), Vec::new()))).await?;
        Ok(ServerInfo {
            product: "sqlite".to_owned(),
            version: Some(rusqlite::version().to_owned()),
            role: None,
            address: Some(self.0.database.path().display().to_string()),
        })
    }
}

impl Liveness for Sqlite {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.0.client.get()?.life.descriptor()
    }
}
