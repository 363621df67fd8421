//! Reentrancy, for callers that ask for it.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, Weak};

use super::options::Options;
use crate::engine::acquire::WaitLimit;
use crate::engine::held_claim::HeldClaim;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{Guard, GuardMode};
use crate::store::{Busy, Mode};

/// An identity may enter a lock again that it already holds. Made by
/// [`Client::identity`](crate::Client::identity).
///
/// Clones are the same identity. Two identities that show the same owner are not, and contend. An
/// identity never leaves its process.
#[derive(Clone)]
pub struct Identity {
    owner: Arc<str>,
    holds: Arc<std::sync::Mutex<HashMap<Key, Hold>>>,
}

/// Client and name: the same name in another store is another lock.
type Key = (usize, Arc<str>);

/// The hold of an identity on one name. A task keeps it locked while it asks the store, so that two
/// tasks of one identity do not contend with each other.
type Hold = Arc<tokio::sync::Mutex<Weak<HeldClaim>>>;

impl Identity {
    pub(crate) fn new(owner: &str) -> Identity {
        Identity {
            owner: owner.into(),
            holds: Arc::default(),
        }
    }

    /// The owner, as shown to others.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// Enters a lock: again if this identity holds it, else by a claim.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, a claim of its own is withdrawn.
    pub(crate) async fn enter<M: GuardMode>(
        &self,
        options: &Options,
        mode: Mode,
        wait: WaitLimit,
    ) -> Result<Guard<M>> {
        let begun = options.core.now();
        let hold = self.hold(options);
        let mut current = match wait {
            // Another task of this identity may be waiting in line with the lock of this hold.
            WaitLimit::AtMost(longest) => tokio::select! {
                biased;
                current = hold.lock() => current,
                paused = options.core.pause(longest) => {
                    paused?;
                    return Err(options.busy(Busy::default()));
                }
            },
            WaitLimit::Now | WaitLimit::Forever => hold.lock().await,
        };
        if let Some(held) = current.upgrade() {
            let guard = Guard::<M>::new(held);
            if guard.is_held() {
                check_same(options, mode, &guard)?;
                return Ok(guard);
            }
            // Lost, but not yet released: the holder is told. This is a new hold.
        }
        let left = match wait {
            WaitLimit::AtMost(longest) => {
                WaitLimit::AtMost(longest.saturating_sub(options.core.now().since(begun)))
            }
            WaitLimit::Now | WaitLimit::Forever => wait,
        };
        let options = Options {
            owner: Arc::clone(&self.owner),
            ..options.clone()
        };
        let held = Arc::new(options.waited(options.acquire_within(mode, left).await?)?);
        *current = Arc::downgrade(&held);
        Ok(Guard::new(held))
    }

    fn hold(&self, options: &Options) -> Hold {
        let name = (
            Arc::as_ptr(&options.core) as usize,
            Arc::clone(&options.name),
        );
        let mut holds = self.holds.lock().unwrap_or_else(PoisonError::into_inner);
        // A name that is neither held nor being entered is forgotten, so that an identity of many
        // names does not grow.
        if holds.len() >= 32 && !holds.contains_key(&name) {
            holds.retain(|_, hold| {
                Arc::strong_count(hold) > 1
                    || hold.try_lock().is_ok_and(|held| held.strong_count() > 0)
            });
        }
        Arc::clone(holds.entry(name).or_default())
    }
}

/// Refuses a claim that would wait for itself.
fn check_same<M: GuardMode>(options: &Options, mode: Mode, held: &Guard<M>) -> Result<()> {
    let tracked = &held.held().tracked;
    let kind = tracked.claim.kind;
    if tracked.is_leaving() {
        let message = format!(
            "{} is just being downgraded or detached by its holder",
            options.name
        );
        return Err(Error::new(ErrorKind::Deadlock, message));
    }
    if held.mode() == mode && kind == options.kind {
        return Ok(());
    }
    let message = format!(
        "this identity holds {} already as {} ({kind}) and asks for it as {mode} ({}): it would wait for itself; release it first",
        options.name,
        held.mode(),
        options.kind,
    );
    Err(Error::new(ErrorKind::Deadlock, message))
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}
