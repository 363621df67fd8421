//! Who is woken when something can be read.

use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

use super::locked;

/// Rings when something can be read.
#[derive(Default)]
pub(super) struct Bell(Mutex<Wakers>);

#[derive(Default)]
struct Wakers {
    /// Whether only one waits for an answer, so that he may read it.
    is_alone: bool,
    asker: Option<Waker>,
    /// Whether it has rung for him and he has not looked yet. Until somebody does, it does not ring again.
    is_unheard: bool,
    porter: Option<Waker>,
}

impl Bell {
    /// So many wait for an answer now. Of two, nobody reads what is the other's.
    pub(super) fn wait(&self, one: bool) {
        let mut wakers = locked(&self.0);
        wakers.is_alone = one;
        let asker = wakers.asker.take();
        let calls = std::mem::take(&mut wakers.is_unheard) || asker.is_some();
        let porter = wakers.porter.clone().filter(|_| calls);
        drop(wakers);
        // He hears of his answer in another way from now on.
        asker.into_iter().chain(porter).for_each(Waker::wake);
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
    pub(super) fn rings_for(&self, asker: &Waker) -> bool {
        let mut wakers = locked(&self.0);
        wakers.is_unheard = false;
        if wakers.is_alone {
            wakers.asker = Some(asker.clone());
        }
        wakers.is_alone
    }

    /// Who the porter is.
    pub(super) fn is_porters(&self, waker: &Waker) {
        let mut wakers = locked(&self.0);
        if !wakers.porter.as_ref().is_some_and(|known| known.will_wake(waker)) {
            wakers.porter = Some(waker.clone());
        }
    }

    /// Whoever it rang for has looked, or somebody else will.
    pub(super) fn forget_asker(&self) {
        let mut wakers = locked(&self.0);
        (wakers.asker, wakers.is_unheard) = (None, false);
    }

    pub(super) fn wake_asker(&self) {
        let asker = locked(&self.0).asker.take();
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
