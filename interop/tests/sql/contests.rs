//! All contend at once, honest and otherwise.

use std::io::Write;
use std::time::Duration;

use palisade_interop::check::Violation;
use palisade_interop::sql::{Library, Table};
use palisade_interop::{Contest, Fault, Outcome, Witness};
use palisade_testkit::redis::Redis;

use crate::Server;

/// What every participant must reach, per second of a contest. Far less than any has on a busy
/// machine, and more than nothing.
const LEAST_PER_SECOND: f64 = 0.3;

/// A mistake need not show in the first contest. It must in one of these.
const CONTESTS: u32 = 20;

/// `PALISADE_INTEROP_SECONDS` changes how long a contest takes.
fn seconds() -> u64 {
    match std::env::var("PALISADE_INTEROP_SECONDS") {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("PALISADE_INTEROP_SECONDS={text} is no number of seconds")),
        Err(_) => 10,
    }
}

pub(crate) fn together(title: &str, server: &Server, table: Table) -> Result<(), Fault> {
    of(title, server, [Library::Ours(table), table.peer()])
}

/// Two of each.
pub(crate) fn of(title: &str, server: &Server, [ours, peer]: [Library; 2]) -> Result<(), Fault> {
    let witness = Redis::start();
    let mut participants = server.contestants(&[ours, peer, ours, peer])?;
    let contest = Contest::new("contested", Duration::from_secs(seconds()));
    let outcome = contest.run(&mut participants, &Witness::new(&witness.url())?)?;
    show(title, &outcome);
    outcome.assert_fair((seconds() as f64 * LEAST_PER_SECOND) as u64);
    Ok(())
}

/// The same with a program that ends the locks of others: the judge must see it.
pub(crate) fn sabotaged(title: &str, server: &Server, table: Table) -> Result<(), Fault> {
    let witness = Redis::start();
    let libraries = [Library::Ours(table), table.peer(), Library::EndsAny(table)];
    let mut participants = server.contestants(&libraries)?;
    // Long enough inside to overlap.
    let contest = Contest {
        stay: Duration::from_millis(5),
        ..Contest::new("contested", Duration::from_secs(1))
    };
    for _ in 0..CONTESTS {
        let outcome = contest.run(&mut participants, &Witness::new(&witness.url())?)?;
        let finds = |wanted: fn(&Violation) -> bool| outcome.violations.iter().any(wanted);
        let two = finds(|violation| matches!(violation, Violation::Together { .. }));
        let told = finds(
            |violation| matches!(violation, Violation::Dispossessed(visit) if visit.starts_with("palisade")),
        );
        if two && told {
            show(&format!("{title}, sabotaged"), &outcome);
            return Ok(());
        }
    }
    panic!("the judge did not see in {CONTESTS} contests a saboteur that ends the locks of others");
}

/// The same with a program that asks for no lock: the judge must see it.
pub(crate) fn barged(title: &str, server: &Server) -> Result<(), Fault> {
    let witness = Redis::start();
    let table = Table::Session;
    let libraries = [Library::Ours(table), table.peer(), Library::Barges];
    let mut participants = server.contestants(&libraries)?;
    let contest = Contest {
        stay: Duration::from_millis(5),
        ..Contest::new("contested", Duration::from_secs(1))
    };
    for _ in 0..CONTESTS {
        let outcome = contest.run(&mut participants, &Witness::new(&witness.url())?)?;
        let is_two = |violation: &Violation| matches!(violation, Violation::Together { .. });
        if outcome.violations.iter().any(is_two) {
            show(&format!("{title}, sabotaged"), &outcome);
            return Ok(());
        }
    }
    panic!("the judge did not see in {CONTESTS} contests a saboteur that asks for no lock");
}

/// Past the test harness, which shows only what failing tests print.
fn show(title: &str, outcome: &Outcome) {
    writeln!(std::io::stderr(), "{title}: {outcome}").ok();
}
