//! Elections: ours, Go's `concurrency.Election` and `etcdctl elect` have one leader, and all
//! observers hear of the same one.

use std::time::Duration;

use palisade_interop::etcd::Library;
use palisade_interop::{Acquired, Extended, Fault, Led, Participant, Peer, Proclaimed, Released};
use palisade_testkit::shared;

use crate::{LONG, PATIENCE, begin, gets, in_line, line, start, waits};

/// One observer of each kind, with the last value it was told.
struct Observers(Vec<(Library, Peer, Option<Led>)>);

impl Observers {
    fn start() -> Result<Self, Fault> {
        Library::ELECTIONS
            .into_iter()
            .map(|library| Ok((library, start(library)?, None)))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// The next value that each of them is told is this one.
    #[track_caller]
    fn hear(&mut self, name: &str, value: &str) -> Result<(), Fault> {
        for (library, observer, last) in &mut self.0 {
            let mut heard = observer.observe(name, PATIENCE)?;
            // To peers every write is a change: a leader of ours moves its key at its first
            // renewal, and peers report it again.
            while *library != Library::OurElection && last.as_ref() == Some(&heard) {
                heard = observer.observe(name, PATIENCE)?;
            }
            assert_eq!(heard, Led::By(value.to_owned()), "{library:?} observes");
            *last = Some(heard);
            // etcdctl can only observe.
            if *library != Library::EtcdctlElects {
                assert_eq!(
                    observer.leader(name)?,
                    Led::By(value.to_owned()),
                    "{library:?} asks who leads"
                );
            }
        }
        Ok(())
    }
}

/// Ours between theirs: each leads in the order of asking and proclaims its own value, and every
/// observer is told each in turn.
#[test]
fn candidates_lead_in_the_order_of_asking() -> Result<(), Fault> {
    let name = shared::name("election");
    let [ours, go, etcdctl] = Library::ELECTIONS;
    let mut observers = Observers::start()?;
    let mut candidates: Vec<(Library, Peer)> = Vec::new();
    for (index, library) in [go, ours, etcdctl, ours, go, etcdctl, ours]
        .into_iter()
        .enumerate()
    {
        let mut candidate = start(library)?;
        begin(&mut candidate, &name)?;
        in_line(&name, index + 1);
        candidates.push((library, candidate));
    }
    let asked = line(&name);
    for turn in 0..candidates.len() {
        let (library, leader) = &mut candidates[turn];
        gets(leader)?;
        let value = library.value_of(leader.pid());
        assert_eq!(line(&name), asked[turn..], "{value} is the next who asked");
        observers.hear(&name, &value)?;
        assert_eq!(leader.extend(LONG)?, Extended::Yes);
        for (library, later) in &mut candidates[turn + 1..] {
            assert_eq!(
                later.awaited::<Acquired>(Duration::ZERO)?,
                None,
                "{library:?} leads beside {value}"
            );
        }
        assert_ne!(candidates[turn].1.release()?, Released::NotHeld);
    }
    in_line(&name, 0);
    Ok(())
}

/// A proclaimed value reaches all observers, and no other call changes it.
#[test]
fn what_is_proclaimed_is_heard() -> Result<(), Fault> {
    for library in [Library::OurElection, Library::GoElection] {
        let name = shared::name("election");
        let (mut observers, mut leader, mut next) = (
            Observers::start()?,
            start(library)?,
            start(Library::GoElection)?,
        );
        assert_eq!(leader.acquire(&name, Some(LONG), PATIENCE)?, Acquired::Yes);
        begin(&mut next, &name)?;
        in_line(&name, 2);
        observers.hear(&name, &library.value_of(leader.pid()))?;
        assert_eq!(leader.proclaim("second")?, Proclaimed::Yes);
        observers.hear(&name, "second")?;
        waits(&mut next, "the next candidate")?;
        assert_eq!(leader.release()?, Released::Yes);
        gets(&mut next)?;
        assert_eq!(leader.proclaim("third")?, Proclaimed::NotHeld);
        observers.hear(&name, &Library::GoElection.value_of(next.pid()))?;
    }
    Ok(())
}

/// A killed leader is followed after its lease, and the observers are told.
fn follows((killed, heir): (Library, Library)) -> Result<(), Fault> {
    let name = shared::name("election");
    let (mut observers, mut leader, mut next) = (Observers::start()?, start(killed)?, start(heir)?);
    assert_eq!(
        leader.acquire(&name, Some(Duration::from_secs(2)), PATIENCE)?,
        Acquired::Yes
    );
    begin(&mut next, &name)?;
    in_line(&name, 2);
    observers.hear(&name, &killed.value_of(leader.pid()))?;
    leader.crash();
    gets(&mut next)?;
    observers.hear(&name, &heir.value_of(next.pid()))?;
    assert_ne!(next.release()?, Released::NotHeld);
    in_line(&name, 0);
    Ok(())
}

#[test]
fn go_follows_ours_that_was_killed() -> Result<(), Fault> {
    follows((Library::OurElection, Library::GoElection))
}

#[test]
fn etcdctl_follows_ours_that_was_killed() -> Result<(), Fault> {
    follows((Library::OurElection, Library::EtcdctlElects))
}

#[test]
fn ours_follows_go_that_was_killed() -> Result<(), Fault> {
    follows((Library::GoElection, Library::OurElection))
}

/// One line for mutex and election: the holder of the mutex leads, and a candidate waits for it.
#[test]
fn a_mutex_stands_in_the_way_of_a_candidate() -> Result<(), Fault> {
    let name = shared::name("election");
    let (mut mutex, mut candidate, mut go) = (
        start(Library::Go)?,
        start(Library::OurElection)?,
        start(Library::Go)?,
    );
    assert_eq!(mutex.acquire(&name, Some(LONG), PATIENCE)?, Acquired::Yes);
    begin(&mut candidate, &name)?;
    in_line(&name, 2);
    begin(&mut go, &name)?;
    in_line(&name, 3);
    waits(&mut candidate, "a candidate behind a mutex")?;
    assert_eq!(mutex.release()?, Released::Yes);
    gets(&mut candidate)?;
    waits(&mut go, "a mutex behind a leader")?;
    assert_eq!(candidate.release()?, Released::Yes);
    gets(&mut go)?;
    Ok(())
}
