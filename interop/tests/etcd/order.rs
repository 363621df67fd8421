//! First come, first served, across programs.

use palisade_interop::etcd::Library;
use palisade_interop::{Acquired, Fault, Participant, Peer, Released};
use palisade_testkit::shared;

use crate::{LONG, PATIENCE, begin, gets, in_line, line, ours, start, waits};

/// Ours between theirs and theirs between ours: all are served in the order of asking, which is
/// that of the create revisions.
#[test]
fn waiters_are_served_in_the_order_of_asking() -> Result<(), Fault> {
    let [go, holds, runs] = Library::PEERS;
    served_in_order(
        go,
        &[ours(), go, ours(), holds, go, ours(), runs, holds, ours()],
    )?;
    served_in_order(
        ours(),
        &[runs, ours(), holds, ours(), ours(), go, go, ours()],
    )
}

fn served_in_order(first: Library, others: &[Library]) -> Result<(), Fault> {
    let name = shared::name("order");
    let mut holder = start(first)?;
    assert_eq!(holder.acquire(&name, Some(LONG), PATIENCE)?, Acquired::Yes);
    let mut queue: Vec<(Library, Peer)> = Vec::new();
    for (index, library) in others.iter().enumerate() {
        let mut peer = start(*library)?;
        begin(&mut peer, &name)?;
        in_line(&name, index + 2);
        queue.push((*library, peer));
    }
    let asked = line(&name);
    for turn in 0..queue.len() {
        assert_ne!(holder.release()?, Released::NotHeld);
        gets(&mut queue[turn].1)?;
        assert_eq!(
            line(&name),
            asked[turn + 1..],
            "who holds is the next who asked, {:?}",
            queue[turn].0
        );
        // The next in line is the one that could overtake.
        if let Some((library, next)) = queue.get_mut(turn + 1) {
            waits(next, library.name())?;
        }
        for (library, later) in &mut queue[turn + 1..] {
            assert_eq!(
                later.awaited::<Acquired>(std::time::Duration::ZERO)?,
                None,
                "{library:?} was served early"
            );
        }
        holder = std::mem::replace(&mut queue[turn].1, holder);
    }
    assert_ne!(holder.release()?, Released::NotHeld);
    in_line(&name, 0);
    Ok(())
}
