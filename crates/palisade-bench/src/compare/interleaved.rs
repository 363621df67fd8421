//! Many short turns, in an order that favours no side.
//!
//! A disk is slower in one second than in the next by more than the difference to measure, and a
//! Java process still collects garbage in the turn of the next side. So turns are short, and every
//! side follows every other equally often.

use std::time::Duration;

use super::Result;

/// Of each side.
const TURNS: usize = 40;

/// How much shorter a turn is than a round that was asked for.
const SHORTER: u32 = 5;

/// Gives every side its turns, in a loop. If their number is not prime, the sides do not follow
/// each other equally often.
pub(crate) fn measure<S, R, const N: usize>(
    sides: &[S; N],
    round: Duration,
    mut turn: impl FnMut(&S, Duration) -> Result<R>,
) -> Result<[Vec<R>; N]> {
    let mut turns = std::array::from_fn(|_| Vec::with_capacity(TURNS));
    for at in 0..TURNS {
        for side in order(N, at) {
            if let (Some(side), Some(turns)) = (sides.get(side), turns.get_mut(side)) {
                turns.push(turn(side, round / SHORTER)?);
            }
        }
    }
    Ok(turns)
}

/// The order of the sides in this turn: each begins equally often, and the step between them
/// changes.
fn order(sides: usize, turn: usize) -> impl Iterator<Item = usize> {
    let steps: Vec<usize> = (1..sides)
        .filter(|step| has_no_common_part(*step, sides))
        .collect();
    let step = steps
        .get(turn / sides.max(1) % steps.len().max(1))
        .copied()
        .unwrap_or(1);
    (0..sides).map(move |place| (turn + place * step) % sides)
}

fn has_no_common_part(one: usize, other: usize) -> bool {
    if other == 0 {
        one == 1
    } else {
        has_no_common_part(other, one % other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_side_comes_as_often_behind_every_other() {
        for sides in [3, 5] {
            let mut behind = vec![vec![0; sides]; sides];
            for turn in 0..sides * (sides - 1) {
                let order: Vec<usize> = order(sides, turn).collect();
                let mut sorted = order.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..sides).collect::<Vec<_>>(), "each has its turn");
                order
                    .windows(2)
                    .for_each(|pair| behind[pair[1]][pair[0]] += 1);
            }
            for (side, others) in behind.iter().enumerate() {
                let wanted: Vec<usize> = (0..sides)
                    .map(|other| if other == side { 0 } else { sides - 1 })
                    .collect();
                assert_eq!(*others, wanted, "side {side} of {sides}");
            }
        }
    }
}
