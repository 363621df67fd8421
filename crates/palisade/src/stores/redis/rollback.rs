//! Detects a server that has lost its data and whose clock is behind: by the last fence that this
//! client has seen of each name.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::fence::Fence;
use crate::name::Name;
use crate::store::Mode;

/// How many names are remembered.
const NAMES: usize = 8192;

#[derive(Default)]
pub(in crate::stores) struct Rollback(Mutex<HashMap<Name, Fence>>);

impl Rollback {
    /// The last fence of a name that was noted, unless it was forgotten.
    pub(in crate::stores) fn last(&self, name: &Name) -> Option<Fence> {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.get(name).copied()
    }

    /// Notes the fence of a grant; `false` when it is below one that was seen before. The same one
    /// again is the same grant.
    ///
    /// Only an exclusive grant is refused: a reader that finds its grant again may be older than
    /// another that still holds.
    pub(in crate::stores) fn accept(&self, name: &Name, mode: Mode, fence: Fence) -> bool {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match seen.get_mut(name) {
            Some(last) if fence < *last => mode != Mode::Exclusive,
            Some(last) => {
                *last = fence;
                true
            }
            None => {
                if seen.len() >= NAMES {
                    // The older half by fence, which is by time.
                    let mut fences: Vec<Fence> = seen.values().copied().collect();
                    let middle = fences.len() / 2;
                    let (_, median, _) = fences.select_nth_unstable(middle);
                    let median = *median;
                    seen.retain(|_, fence| *fence > median);
                }
                seen.insert(name.clone(), fence);
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lower_fence_is_detected_and_old_names_are_forgotten() {
        let seen = Rollback::default();
        let name = |number: usize| Name::new(format!("n{number}")).expect("a name");
        let fence = |number| Fence::new(number).expect("a fence");
        assert!(seen.accept(&name(0), Mode::Exclusive, fence(7)));
        assert!(
            seen.accept(&name(0), Mode::Exclusive, fence(7)),
            "the same grant"
        );
        assert!(!seen.accept(&name(0), Mode::Exclusive, fence(6)));
        assert!(
            seen.accept(&name(0), Mode::Shared, fence(6)),
            "readers are many"
        );
        assert!(seen.accept(&name(0), Mode::Exclusive, fence(8)));
        for number in 1..3 * NAMES {
            assert!(seen.accept(&name(number), Mode::Exclusive, fence(number as u64 + 10)));
        }
        assert!(seen.0.lock().expect("whole").len() <= NAMES);
        assert!(
            !seen.accept(&name(3 * NAMES - 1), Mode::Exclusive, fence(1)),
            "the latest are remembered"
        );
    }
}
