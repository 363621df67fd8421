//! Redlock: ours and the peers' at one lock on the same five servers.

use std::time::Duration;

use palisade_interop::redis::Library;
use palisade_interop::sabotage::Mistake;
use palisade_interop::{Acquired, Contest, Extended, Fault, Participant, Released, Witness};
use palisade_testkit::redis::{Five, Redis};

use crate::contests::{seconds, show};
use crate::{LONG, ONCE, PATIENCE, contestants, sabotage, start_at};

const NAME: &str = "five";

fn five() -> (Five, String) {
    let five = Five::start_as(&Redis::with());
    let urls: Vec<String> = five.nodes().iter().map(|node| node.url()).collect();
    (five, urls.join(","))
}

/// Each is refused while the other holds, and gets the lock after the release.
#[test]
fn each_waits_for_the_other() -> Result<(), Fault> {
    let (_five, url) = five();
    for peer in Library::REDLOCK_PEERS {
        let mut ours = start_at(Library::Ours, &url)?;
        let mut theirs = start_at(peer, &url)?;
        assert_eq!(ours.acquire(NAME, Some(LONG), PATIENCE)?, Acquired::Yes);
        assert_eq!(theirs.acquire(NAME, Some(LONG), ONCE)?, Acquired::Busy);
        assert_eq!(ours.release()?, Released::Yes);
        assert_eq!(theirs.acquire(NAME, Some(LONG), PATIENCE)?, Acquired::Yes);
        assert_eq!(ours.acquire(NAME, Some(LONG), ONCE)?, Acquired::Busy);
        assert_eq!(theirs.extend(LONG)?, Extended::Yes);
        assert_ne!(theirs.release()?, Released::NotHeld);
        assert_eq!(ours.acquire(NAME, Some(LONG), PATIENCE)?, Acquired::Yes);
        assert_eq!(ours.release()?, Released::Yes);
    }
    Ok(())
}

#[test]
fn all_contend_on_five_servers() -> Result<(), Fault> {
    let (_five, url) = five();
    let witness = Redis::start();
    let libraries: Vec<Library> = [Library::Ours, Library::Ours]
        .into_iter()
        .chain(Library::REDLOCK_PEERS)
        .collect();
    let mut participants = contestants(&libraries, &url)?;
    let contest = Contest::new(NAME, Duration::from_secs(seconds()));
    let outcome = contest.run(&mut participants, &Witness::new(&witness.url())?)?;
    show("on five servers", &outcome);
    // Votes are split, and each library pauses as it likes: one turn is all that is certain.
    outcome.assert_fair(1);
    Ok(())
}

/// The same contest with a saboteur: the judge sees it.
#[test]
fn a_saboteur_on_five_servers_is_seen() -> Result<(), Fault> {
    let (_five, url) = five();
    let witness = Redis::start();
    let honest = [Library::Ours, Library::NodeRedlock];
    for mistake in [Mistake::IgnoresTheAnswer, Mistake::DeletesWithoutComparing] {
        sabotage::among(&honest, &url, &witness.url(), mistake)?;
    }
    Ok(())
}
