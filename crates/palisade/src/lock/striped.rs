//! One lock as several: part of a hot thing, or the whole of it.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::options::{Options, option_methods};
use super::{Member, Multi, Mutex};
use crate::error::{Error, Result};
use crate::store::Mode;

/// A mutex in stripes, for a name that many claims want at once. Made by
/// [`Client::striped`](crate::Client::striped).
///
/// Each stripe is a [`Mutex`] of its own, with its own line. Work on a part takes the stripe of its
/// [`key`](Striped::stripe) and waits only for work on the same stripe. Work on everything takes
/// [`whole`](Striped::whole), all stripes at once.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> palisade::Result<()> {
/// let locks = palisade::connect("memory:").await?;
/// let stock = locks.striped("stock/42", 16);
///
/// let part = stock.stripe("order 4711").acquire().await?; //     one of 16
/// assert!(stock.whole().try_acquire().await?.is_none()); //      a part of it is held
/// part.release().await?;
///
/// let whole = stock.whole().acquire().await?; //                 stocktaking: all of them
/// assert!(stock.stripe("order 4712").try_acquire().await?.is_none());
/// # drop(whole);
/// # Ok(())
/// # }
/// ```
///
/// # When it helps
///
/// When the lock is the bottleneck, and **what it guards can be divided as the lock is**:
///
/// - A hot item whose amount is kept in as many parts as there are stripes, such as 16 rows of a
///   table: a buyer takes a piece from the part with the number of the stripe
///   ([`index`](Striped::index)), and the whole is locked to count or to balance.
/// - Too many keys to lock them all: a lock for each account is best for one account, but a monthly
///   closing cannot take a million locks. It can take 64 stripes.
///
/// It does not help where all claims change the same value: two stripes held at once would let two
/// writers at it. It is not needed where each key has a lock of its own and no work concerns all
/// of them: `stock/42` and `stock/43` never wait for each other.
///
/// # What it costs
///
/// A stripe costs what a mutex costs. The whole is acquired stripe by stripe, so it takes as many
/// requests, one after the other, and waits until each stripe was free for it. More stripes make
/// parts faster and the whole slower.
///
/// # What all clients must share
///
/// The name and the number of stripes. Clients with two numbers do not exclude each other, because
/// the number is a part of each stripe's name: stripe 3 of `stock/42` in 16 is the mutex
/// `stock/42.3of16`, and so it is listed. To change the number, stop all clients that use the old
/// one.
///
/// The stripe of a key is the same in every process and in every version: the first eight bytes of
/// the SHA-256 of the key, as a big-endian number, modulo the number of stripes.
///
/// ```
/// # use palisade::blocking::Wait;
/// # let locks = palisade::connect("memory:").wait()?;
/// assert_eq!(locks.striped("stock/42", 16).index("order 4711"), 8);
/// # Ok::<(), palisade::Error>(())
/// ```
#[derive(Clone)]
pub struct Striped {
    options: Options,
    stripes: u32,
}

impl Striped {
    /// The most stripes that there can be: the whole takes a request for each.
    pub const MOST: u32 = 1024;

    pub(crate) fn new(mut options: Options, stripes: u32) -> Striped {
        if !(1..=Striped::MOST).contains(&stripes) {
            options.refused = Some(Error::config(format!(
                "{} cannot be striped into {stripes}; give 1 to {} stripes",
                options.name,
                Striped::MOST
            )));
        }
        Striped { options, stripes }
    }

    option_methods!();

    /// Checks name, number and options without asking the store.
    ///
    /// # Errors
    ///
    /// As `acquire` of a stripe, before a request is sent.
    pub fn check(&self) -> Result<()> {
        // The last one has the longest name.
        self.at(self.stripes.saturating_sub(1))
            .options
            .plan(Mode::Exclusive)
            .map(drop)
    }

    /// How many stripes there are.
    pub fn stripes(&self) -> u32 {
        self.stripes
    }

    /// The number of the stripe of this key, from 0 on: for data that is divided in the same way.
    pub fn index(&self, key: impl AsRef<[u8]>) -> u32 {
        let hash = Sha256::digest(key.as_ref());
        let head = hash
            .iter()
            .take(8)
            .fold(0, |head: u64, byte| (head << 8) | u64::from(*byte));
        // Below a number of 32 bits. A number of 0 is refused when the stripe is acquired.
        u32::try_from(head % u64::from(self.stripes.max(1))).unwrap_or(0)
    }

    /// The stripe of this key.
    pub fn stripe(&self, key: impl AsRef<[u8]>) -> Mutex {
        self.at(self.index(key))
    }

    /// All stripes: what holds them excludes every part, and every other holder of the whole.
    ///
    /// They are acquired in one order by all clients, so that two of them never wait for each other.
    /// What already holds a stripe must not wait for the whole: it would wait for itself.
    pub fn whole(&self) -> Multi {
        // At least one, which carries the refusal.
        Multi::of((0..self.stripes.clamp(1, Striped::MOST)).map(|at| Member::from(self.at(at))))
    }

    fn at(&self, index: u32) -> Mutex {
        let Options { name, .. } = &self.options;
        let name: Arc<str> = format!("{name}.{index}of{}", self.stripes).into();
        Mutex::new(Options {
            name,
            ..self.options.clone()
        })
    }
}
