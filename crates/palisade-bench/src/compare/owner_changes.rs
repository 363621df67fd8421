//! How often the lock changed hands.

use std::time::Duration;

/// One acquisition.
#[derive(Clone, Copy)]
pub(crate) struct Turn {
    pub(crate) process: usize,
    /// On the clock that all processes share.
    pub(crate) at: Duration,
    pub(crate) waited: Duration,
}

/// How often the owner changed, from this time on. The first turn that counts may change the owner
/// as well: the one before it is known.
///
/// A process that gets the lock records the time before it releases, so the order of the records is
/// the order of the turns.
pub(crate) fn owner_changes(turns: &mut [Turn], from: Duration) -> usize {
    turns.sort_by_key(|turn| turn.at);
    turns
        .windows(2)
        .filter(|pair| pair[1].at >= from && pair[0].process != pair[1].process)
        .count()
}

/// The most turns of a process by the least.
pub(crate) fn unfairness(turns: &[Turn], processes: usize) -> f64 {
    let mut shares = vec![0_u32; processes];
    for turn in turns {
        shares[turn.process] += 1;
    }
    let of = |share: Option<u32>| f64::from(share.unwrap_or_default());
    of(shares.iter().max().copied()) / of(shares.iter().min().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(process: usize, at: u64) -> Turn {
        Turn {
            process,
            at: Duration::from_nanos(at),
            waited: Duration::ZERO,
        }
    }

    #[test]
    fn a_process_that_takes_it_again_changes_no_owner() {
        let mut turns = [
            turn(0, 1),
            turn(0, 2),
            turn(0, 6),
            turn(1, 3),
            turn(1, 5),
            turn(2, 4),
        ];
        assert_eq!(owner_changes(&mut turns, Duration::ZERO), 4);
        assert_eq!(
            owner_changes(&mut turns, Duration::from_nanos(4)),
            3,
            "with the one that the first of them makes"
        );
        assert_eq!(unfairness(&turns, 3), 3.0);
        assert_eq!(unfairness(&turns, 4), f64::INFINITY);
    }
}
