//! The store contract: what a store is asked, what it answers, and what it says it can do.
//!
//! This is the implementor's side. Users hold a [`Client`](crate::Client) and its locks.
//!
//! # Contract
//!
//! - [`Store::claim`] is one request, idempotent by [`ClaimId`], and never waits for another holder (unless
//!   [`Capability::claim_blocks`]). Waiting is the core's loop: claim, then wake, then renew or claim again.
//! - The core runs store futures to their end; [`Store::wake`] and [`Store::event`] alone may be dropped half-way. So every
//!   other future must end by itself within the store's request time-out.
//! - Release and renew are conditional on claim *and* fence, never on the name alone.
//! - Expiry is the store's, by the store's clock. Deadlines are the core's, by ours. Neither compares with the other.
//! - A store value serves one client: pushes and events go to whoever opened it.
//! - A store knows nothing of guards and keepers. It is called on the client's own thread, inside the client's own tokio
//!   runtime; claims and releases also in the caller's, where [`Capability::runs`] says so.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::lease::{LossReason, Moment};
use crate::name::{Name, hex};

/// A system that decides who holds what. See the [module documentation](self) for the contract.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// What this store, in this format, can do and promises.
    fn capability(&self) -> &Capability;

    /// The client's own runtime has started: told once, before anything is asked.
    fn attach(&self, runtime: &tokio::runtime::Handle) {
        let _ = runtime;
    }

    /// Asks for the name: granted, queued or busy. The same claim again finds its own grant or place, and counts as a renewal.
    async fn claim(&self, claim: &Claim) -> Result<Answer>;

    /// Returns when it is worth asking again, or with the grant itself when the store pushed it.
    ///
    /// The core keeps its own timers (time left, heartbeat, backoff): a store that cannot push waits here for ever. A claim
    /// that is sent again begins a new life: a push to the one before is not for it. The core confirms such a push by a renewal.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time. For a claim that stands in line, a push that came since it was sent must not be lost: the
    /// next call returns at once. What is kept for a busy claim lives in this future only: it is not released.
    async fn wake(&self, claim: &Claim) -> Woken;

    /// Which part of the store has a name: claims of different parts are renewed in requests of their own, so that a server
    /// which hangs does not hold up the others. The same number for all where there is only one.
    fn part(&self, name: &Name) -> u64 {
        let _ = name;
        0
    }

    /// Extends the leases of all these claims, waiting and holding, and says where each stands, in the same order.
    ///
    /// Each has its own answer: what could not be asked about one server's claims changes nothing for another's.
    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>>;

    /// Ends a claim in whatever state it is: release, cancel, time-out and drop are this one verb. A seal that is sent again
    /// by the claim that set it is done, not lost.
    async fn release(&self, claim: &ClaimRef, ending: Ending) -> Result<Released>;

    /// Turns a writer into a reader in one step, keeping its fence; readers next in line come in with it. Idempotent.
    ///
    /// The claim still says exclusive: a store goes by what it has on record.
    async fn downgrade(&self, claim: &ClaimRef) -> Result<Standing> {
        let _ = claim;
        Err(Error::unsupported(format!("the store {} cannot turn a write lock into a read lock", self.capability().store)))
    }

    /// Makes a grant outlive this client: from now on nothing but its lease ends it. Renews it. Idempotent.
    ///
    /// Called for claims that were made [detachable](Claim::detachable), and for all where each claim has a lease of its own.
    async fn detach(&self, claim: &ClaimRef) -> Result<Standing> {
        let mut answers = self.renew(std::slice::from_ref(claim)).await;
        answers.pop().unwrap_or_else(|| Err(Error::protocol("the store does not say where the grant stands")))
    }

    /// Who leads an election: whoever is first in line.
    async fn leader(&self, name: &Name) -> Result<Option<Leader>> {
        let page = self.inspect(&Query::Show(name.clone())).await?;
        let holders = page.lines.into_iter().flat_map(|line| line.holders);
        // One that only keeps the name closed leads no more.
        let holder = holders.into_iter().find(|holder| holder.lease_left != Some(Duration::ZERO));
        Ok(holder.map(|holder| Leader { value: holder.owner, fence: holder.fence }))
    }

    /// Changes the value of a claim that leads, and says where it stands. Idempotent.
    async fn proclaim(&self, claim: &ClaimRef, value: &str) -> Result<Standing> {
        let _ = (claim, value);
        let capability = self.capability();
        Err(Error::unsupported(format!("{capability} cannot change a leader's value; resign, and campaign with the other")))
    }

    /// Watches who leads an election. Returns when the store has answered; from then on the observation hears of each change.
    async fn observe(&self, name: &Name) -> Result<Observation> {
        let _ = name;
        let capability = self.capability();
        Err(Error::unsupported(format!("{capability} cannot push who leads; ask for the leader when you need it")))
    }

    /// Ends somebody else's grant, named by its fence ([`Fence::NONE`] for a peer's grant without one).
    async fn revoke(&self, name: &Name, fence: Fence) -> Result<Revoked>;

    /// Lists lines by prefix, or shows one.
    async fn inspect(&self, query: &Query) -> Result<Page>;

    /// A descriptor that a child process may inherit: while it is open anywhere, this client's claims are not taken for dead.
    ///
    /// Only a store that asks whether its clients are alive has one.
    fn liveness(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }

    /// What a write in the same system can compare to know that this claim still holds; `None` where there is no such thing, or
    /// the claim does not hold. Where it follows from the claim alone it need not be asked here. For ZooKeeper: the path of its node;
    /// for etcd: what its key ends with.
    fn lock_key(&self, claim: ClaimId) -> Option<String> {
        let _ = claim;
        None
    }

    /// Returns the next thing that the core must hear of: contact lost or regained, a grant that ended early.
    ///
    /// The core always waits here while it uses the store: a store may take its pushes to waiters from here, too.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time; no event may be lost by it.
    async fn event(&self) -> Event {
        std::future::pending().await
    }
}

/// 128 random bits that name one claim. A secret: who knows it can end the claim.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClaimId(u128);

impl ClaimId {
    /// A new id from the operating system's random numbers.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when the system has none to give.
    pub fn random() -> Result<ClaimId> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes)
            .map_err(|cause| Error::unavailable("the operating system gives no random numbers").with_source(cause))?;
        // One by one: numbers in store would be the same in a machine that is copied while it runs.
        Ok(ClaimId(u128::from_be_bytes(bytes)))
    }

    /// The id with these bits, as read back from a store.
    pub const fn from_bits(bits: u128) -> ClaimId {
        ClaimId(bits)
    }

    /// The bits, as a store writes them.
    pub const fn bits(self) -> u128 {
        self.0
    }

    /// The id as 32 hex digits. A secret.
    pub fn reveal(self) -> String {
        let mut text = String::with_capacity(32);
        self.write(&mut text);
        text
    }

    /// Writes what [`reveal`](ClaimId::reveal) shows.
    pub(crate) fn write(self, text: &mut String) {
        let mut digits = [[0; 2]; 16];
        digits.iter_mut().zip(self.0.to_be_bytes()).for_each(|(digits, byte)| *digits = hex(byte));
        text.push_str(str::from_utf8(digits.as_flattened()).unwrap_or_default());
    }

    /// Reads what [`reveal`](ClaimId::reveal) wrote.
    pub fn parse(text: &str) -> Option<ClaimId> {
        let hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        hex.then(|| u128::from_str_radix(text, 16).ok()).flatten().map(ClaimId)
    }
}

/// What is kept of each claim.
pub(crate) type ByClaim<T> = HashMap<ClaimId, T, BuildHasherDefault<OfRandom>>;

/// A hash for what is random already. Whoever chose ids on purpose, to be adopted, could only make its own client slow.
#[derive(Default)]
pub(crate) struct OfRandom(u64);

impl Hasher for OfRandom {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u128(&mut self, bits: u128) {
        self.0 ^= (bits >> 64) as u64 ^ bits as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Six digits are enough to tell two claims apart in a log, and too few to end one.
impl fmt::Debug for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:06x}…", self.0 >> 104)
    }
}

/// Which object of the store a claim is for. One name serves one kind at a time, except that the mutex is the write side of the
/// rwlock where [`Capability::mutex_is_write_side`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// One holder.
    Mutex,
    /// Many readers or one writer.
    RwLock,
    /// At most `limit` permits held at once.
    Semaphore {
        /// How many permits there are.
        limit: u32,
    },
}

impl Kind {
    /// Whether claims of both kinds can stand in one line.
    pub fn shares_line_with(self, other: Kind) -> bool {
        match (self, other) {
            (Kind::Semaphore { limit: mine }, Kind::Semaphore { limit: theirs }) => mine == theirs,
            (Kind::Semaphore { .. }, _) | (_, Kind::Semaphore { .. }) => false,
            _ => true,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Mutex => f.write_str("mutex"),
            Kind::RwLock => f.write_str("rwlock"),
            Kind::Semaphore { limit } => write!(f, "semaphore of {limit}"),
        }
    }
}

/// How a claim holds: alone, with other readers, or as a part of the permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Alone.
    Exclusive,
    /// With other readers.
    Shared,
    /// So many of a semaphore's permits.
    Permits(u32),
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Exclusive => f.write_str("exclusive"),
            Mode::Shared => f.write_str("shared"),
            Mode::Permits(count) => write!(f, "{count} permits"),
        }
    }
}

/// A request for a name. Immutable; a claim that the store has forgotten is made again with a new id.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Names this claim, in the store and on the wire.
    pub id: ClaimId,
    /// What is asked for.
    pub name: Name,
    /// Which object of the store.
    pub kind: Kind,
    /// How it is to be held.
    pub mode: Mode,
    /// Who asks, for people to read.
    pub owner: Arc<str>,
    /// Why, for people to read.
    pub reason: Option<Arc<str>>,
    /// What a candidate of an election proclaims. Its owner is the same text: a store that knows nothing of elections looks no
    /// further, and one that shares them with peers writes the value as they do.
    pub value: Option<Arc<str>>,
    /// How long the claim lives without renewal once it holds.
    pub lease: Duration,
    /// Whether somebody asked for just this length. Where the store's server has limits of its own, it is refused outside of them; a
    /// length that nobody asked for becomes what the server grants. For sessions that are bounded: ZooKeeper.
    pub exact_lease: bool,
    /// Whether to stand in line when the name is taken. Otherwise the answer is busy, and nothing is left in the store.
    pub queue: bool,
    /// The name stays closed to others at least until grant + this, through release and crash.
    pub min_hold: Option<Duration>,
    /// Refused as busy while less than this has passed since the last grant of such a claim.
    pub once_per: Option<Duration>,
    /// Whether the grant must be able to outlive this client: it hangs on no session that other claims share.
    pub detachable: bool,
}

impl Claim {
    /// The longest time that a dead waiter can stand in line.
    pub const LONGEST_WAIT_LEASE: Duration = Duration::from_secs(5);

    /// How long the claim lives without renewal while it waits: short, so that dead waiters cost little.
    pub fn wait_lease(&self) -> Duration {
        self.lease.min(Self::LONGEST_WAIT_LEASE)
    }

    /// The short form that renew and release take.
    pub fn to_ref(self: &Arc<Self>, fence: Option<Fence>) -> ClaimRef {
        ClaimRef { claim: Arc::clone(self), fence }
    }
}

/// A claim that the store may already know, with the fence it holds by, when it is known to hold.
#[derive(Clone, Debug)]
pub struct ClaimRef {
    /// The claim as it was made.
    pub claim: Arc<Claim>,
    /// The fence of its grant; `None` while it is not known to hold.
    pub fence: Option<Fence>,
}

/// How long the store has promised to keep a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The length that the store granted. The core counts with the shorter of this and what was asked.
    pub length: Duration,
    /// When the length began on [`BootClock`](crate::lease::BootClock), if that was before this request was sent: a session
    /// that was renewed earlier.
    pub counted_from: Option<Moment>,
}

impl Lease {
    /// A lease that begins with the request that asked for it.
    pub fn of(length: Duration) -> Lease {
        Lease { length, counted_from: None }
    }
}

/// The store's yes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Higher than that of every earlier grant of the name.
    pub fence: Fence,
    /// How long it lasts.
    pub lease: Lease,
}

/// Where a waiting claim stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// How many claims stand before it, holders not counted, where the store knows.
    pub ahead: Option<u32>,
    /// After how long the passing of time alone admits this claim, if nobody before it renews: nothing wakes it then. So the
    /// first in line asks when a lease has run out, and who stands behind dead waiters asks when they are gone.
    pub ask_in: Option<Duration>,
    /// How long it keeps its place without renewal.
    pub lease: Lease,
    /// Who holds the name, where the store knows it without a further request.
    pub holder: Option<Holder>,
}

/// What the store says to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It holds.
    Granted(Grant),
    /// It stands in line.
    Queued(Place),
    /// The name is taken, or closed, and the claim was not queued.
    Busy(Busy),
    /// The name was sealed: what was to be done once is done.
    Sealed,
}

/// Why a claim was turned away.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Busy {
    /// Who holds the name, where the store knows.
    pub holder: Option<Holder>,
    /// After how long the passing of time alone may free the name, where the store knows.
    pub ask_in: Option<Duration>,
    /// Whether it was refused because such a claim was granted less than its `once_per` ago.
    pub too_soon: bool,
    /// Whether [`Store::wake`] tells when the name is free, though the store in general [cannot](Wakes::Poll).
    pub woken: bool,
}

/// Why [`Store::wake`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// It is worth asking again.
    Ask,
    /// The store pushed the grant. It was given while the claim waited, so its lease is the waiter's.
    Granted(Fence),
}

/// Where a claim stands after a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Still in line.
    Waiting(Place),
    /// It holds, with the full lease.
    Held(Grant),
    /// The store does not have it any more, and never will again.
    Gone(Gone),
}

/// Why the store does not have a claim any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gone {
    /// Its lease ran out, or the store lost it.
    Expired,
    /// Somebody else holds the name.
    Taken,
    /// An operator ended it.
    Revoked,
    /// The session it lived in ended.
    SessionEnded,
    /// It waited, and the name was sealed meanwhile.
    Sealed,
    /// It waited, and such a claim was granted less than its `once_per` ago.
    TooSoon,
}

impl Gone {
    /// What the holder of such a claim is told.
    pub fn as_loss(self) -> LossReason {
        match self {
            Gone::Expired | Gone::Sealed | Gone::TooSoon => LossReason::Expired,
            Gone::Taken => LossReason::Taken,
            Gone::Revoked => LossReason::Revoked,
            Gone::SessionEnded => LossReason::SessionEnded,
        }
    }
}

/// How a claim ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Given back.
    Release,
    /// Given back as if it had never been granted: its once-per mark and its min-hold are taken back.
    Undo,
    /// Given back, and no claim is granted for so long: what was to be done once is done.
    Seal(Duration),
}

/// What became of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "a lock that was already lost may mean that the work was not protected"]
pub enum Released {
    /// The store gave it back: it was held until now.
    Done,
    /// It was not held any more: lost, expired or revoked before.
    AlreadyLost,
    /// The store could not be asked in time. It is tried again in the background; the lease ends it at the latest.
    Unknown,
}

/// What became of a revocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Revoked {
    /// The grant was ended.
    Done,
    /// Somebody else holds the name now: nothing was changed.
    OtherHolder {
        /// The fence of the grant that stands there now.
        fence: Fence,
    },
    /// Nobody holds the name.
    NotHeld,
}

/// Who leads an election.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Leader {
    /// What it proclaims.
    pub value: String,
    /// The fence of its leadership: higher than that of every leader before.
    pub fence: Fence,
}

/// Something that happened in the store without being asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Contact is lost. Guards are at risk; the core goes on renewing.
    CutOff,
    /// Contact is back, or another server answers now: the core renews every claim at once.
    Restored,
    /// The store ended this claim, and told us.
    Gone {
        /// The claim that ended.
        claim: ClaimId,
        /// Why.
        why: Gone,
    },
}

/// Who holds a name, for people to read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Who.
    pub owner: String,
    /// Why, where the holder said.
    pub reason: Option<String>,
    /// The fence of its grant; [`Fence::NONE`] where the format has none.
    pub fence: Fence,
    /// How it holds.
    pub mode: Mode,
    /// For how long it has held, where the store knows.
    pub held: Option<Duration>,
    /// How long its lease still runs, where the store knows.
    pub lease_left: Option<Duration>,
}

/// Who waits for a name, for people to read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiter {
    /// Who.
    pub owner: String,
    /// Why, where the waiter said.
    pub reason: Option<String>,
    /// How it wants to hold.
    pub mode: Mode,
    /// For how long it has waited, where the store knows.
    pub waited: Option<Duration>,
}

/// What to inspect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Query {
    /// The line of one name, with its waiters.
    Show(Name),
    /// The lines whose names begin so, in the store's own order, page by page.
    List {
        /// How the names begin; empty for all.
        prefix: String,
        /// [`Page::next`] of the page before; `None` for the first.
        after: Option<String>,
    },
}

/// The line of one name, as seen from outside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineView {
    /// The name.
    pub name: String,
    /// What it serves as.
    pub kind: Kind,
    /// Who holds it.
    pub holders: Vec<Holder>,
    /// Who waits, in order.
    pub waiters: Vec<Waiter>,
    /// Whether the store knows the waiters; if not, `waiters` says nothing.
    pub waiters_known: bool,
}

/// One page of lines.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Page {
    /// The lines.
    pub lines: Vec<LineView>,
    /// Where the next page begins; `None` after the last.
    pub next: Option<String>,
}

pub use crate::observation::{Observation, Teller};

pub use crate::capability::{Capability, Detach, Durability, FenceSource, LeaseUnit, Order, Runs, Wakes};
