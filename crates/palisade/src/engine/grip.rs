//! A grip: a claim in our hands, waiting or holding. Dropping it gives it back.

use std::sync::Arc;

use super::Core;
use super::give_back::GivingBack;
use crate::fence::Fence;
use crate::lease::kept::Kept;
use crate::store::Ending;

pub(crate) struct Grip {
    pub(crate) core: Arc<Core>,
    pub(crate) kept: Arc<Kept>,
    /// How it ends when it is dropped; `None` when somebody else has seen to its end. Until a user has it, nothing of it
    /// counts: neither its once-per mark nor its min-hold.
    ending: Option<Ending>,
}

impl Grip {
    /// Takes up a claim; it is given back however this ends.
    pub(crate) fn new(core: Arc<Core>, kept: Arc<Kept>) -> Grip {
        core.ledger.keep(&kept);
        Grip { core, kept, ending: Some(Ending::Undo) }
    }

    /// Takes up a grant that this client does not have yet; `None` when it has.
    pub(crate) fn adopted(core: Arc<Core>, kept: Arc<Kept>) -> Option<Grip> {
        let new = core.ledger.keep_new(&kept);
        new.then(|| Grip { core, kept, ending: Some(Ending::Release) })
    }

    /// It has come to its user: from now on it counts.
    #[must_use]
    pub(crate) fn arrived(mut self) -> Grip {
        self.ending = Some(Ending::Release);
        self
    }

    pub(crate) fn fence(&self) -> Fence {
        self.kept.fence()
    }

    /// Stops keeping the grant without giving it back.
    pub(crate) fn let_be(mut self) {
        self.ending = None;
        self.core.ledger.forget(&self.kept);
    }

    /// Begins to give the grant back.
    pub(crate) fn give_back(mut self, ending: Ending) -> GivingBack {
        self.ending = None;
        self.core.give_back(&self.kept, ending)
    }
}

impl Drop for Grip {
    fn drop(&mut self) {
        if let Some(ending) = self.ending {
            self.core.give_back(&self.kept, ending).in_background();
        }
    }
}
