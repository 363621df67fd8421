//! Who is woken when something can be read.

use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

use super::locked;

/// Rings when something can be read.
#[derive(Default)]
pub(super) struct Bell(Mutex<Wakers>);

/// Tells those who wait for an answer from each other.
pub(super) type Turn = u64;

#[derive(Default)]
struct Wakers {
    /// The one who waits for an answer alone, so that he may read it. Others before him may not have noticed yet that they have theirs.
    alone: Option<Turn>,
    last_turn: Turn,
    asker: Option<Waker>,
    /// Whether it has rung for him and he has not looked yet. Until somebody does, it does not ring again.
    is_unheard: bool,
    porter: Option<Waker>,
}

impl Bell {
    /// Somebody waits for an answer now, alone or not: of two, nobody reads what is the other's.
    pub(super) fn wait(&self, alone: bool) -> Turn {
        let mut wakers = locked(&self.0);
        wakers.last_turn += 1;
        let turn = wakers.last_turn;
        wakers.alone = alone.then_some(turn);
        let asker = wakers.asker.take();
        let calls = std::mem::take(&mut wakers.is_unheard) || asker.is_some();
        let porter = wakers.porter.clone().filter(|_| calls);
        drop(wakers);
        // He hears of his answer in another way from now on.
        asker.into_iter().chain(porter).for_each(Waker::wake);
        turn
    }

    /// Has the porter look, if it has rung for somebody who does not.
    pub(super) fn remind(&self) {
        let mut wakers = locked(&self.0);
        let calls = std::mem::take(&mut wakers.is_unheard);
        let porter = wakers.porter.clone().filter(|_| calls);
        drop(wakers);
        porter.into_iter().for_each(Waker::wake);
    }

    /// Rings for this one, if it still waits alone.
    pub(super) fn rings_for(&self, turn: Turn, asker: &Waker) -> bool {
        let mut wakers = locked(&self.0);
        let is_alone = wakers.alone == Some(turn);
        if is_alone {
            (wakers.asker, wakers.is_unheard) = (Some(asker.clone()), false);
        }
        is_alone
    }

    /// Who the porter is.
    pub(super) fn is_porters(&self, waker: &Waker) {
        let mut wakers = locked(&self.0);
        if !wakers.porter.as_ref().is_some_and(|known| known.will_wake(waker)) {
            wakers.porter = Some(waker.clone());
        }
    }

    /// Whoever it rang for has looked, or somebody else will.
    pub(super) fn forget(&self, turn: Turn) {
        let mut wakers = locked(&self.0);
        if wakers.alone == Some(turn) {
            (wakers.alone, wakers.asker, wakers.is_unheard) = (None, None, false);
        }
    }

    /// Somebody else than the one who waits alone has read: it may be the answer that he waits for. He hears of it in no other way.
    pub(super) fn wake_asker(&self, reader: Option<Turn>) {
        let mut wakers = locked(&self.0);
        let asker = if reader.is_some() && wakers.alone == reader { None } else { wakers.asker.take() };
        drop(wakers);
        asker.into_iter().for_each(Waker::wake);
    }

    pub(super) fn call_porter(&self) {
        let porter = locked(&self.0).porter.clone();
        porter.into_iter().for_each(Waker::wake);
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let woken = {
            let mut wakers = locked(&self.0);
            let asker = wakers.asker.take();
            wakers.is_unheard = asker.is_some();
            asker.or_else(|| wakers.porter.clone())
        };
        woken.into_iter().for_each(Waker::wake);
    }
}
