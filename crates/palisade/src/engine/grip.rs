//! A grip: a grant in our hands. Dropping it gives it back.

use std::sync::Arc;

use super::Core;
use super::give_back::GivingBack;
use crate::fence::Fence;
use crate::lease::kept::{Kept, Stage};
use crate::store::Ending;

pub(crate) struct Grip {
    pub(crate) core: Arc<Core>,
    pub(crate) kept: Arc<Kept>,
    fence: Fence,
    /// Cleared when somebody else has seen to its end.
    armed: bool,
}

impl Grip {
    /// Takes up a claim; it is given back however this ends.
    pub(crate) fn new(core: Arc<Core>, kept: Arc<Kept>) -> Grip {
        let fence = match kept.stage() {
            Stage::Held(fence) | Stage::Lost { fence, .. } => fence,
            _ => Fence::NONE,
        };
        core.ledger.keep(&kept);
        Grip { core, kept, fence, armed: true }
    }

    pub(crate) fn fence(&self) -> Fence {
        self.fence
    }

    /// Stops keeping the grant without giving it back.
    pub(crate) fn let_be(mut self) {
        self.armed = false;
        self.core.ledger.forget(&self.kept);
    }

    /// Begins to give the grant back.
    pub(crate) fn give_back(mut self, ending: Ending) -> GivingBack {
        self.armed = false;
        self.core.give_back(&self.kept, ending)
    }
}

impl Drop for Grip {
    fn drop(&mut self) {
        if self.armed {
            self.core.give_back(&self.kept, Ending::Release).in_background();
        }
    }
}
