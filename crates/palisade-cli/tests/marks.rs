//! What `--once-per` and `--min-hold` leave of a name is shown, named in the refusal, and cleared.

mod common;

use common::{Place, until};
use palisade::Client;
use palisade::blocking::Wait;

#[test]
fn a_name_that_ran_shows_when_and_when_it_is_due() {
    let place = Place::new();
    assert_eq!(place.run("run --once-per 1h tick", "true").code, 0);
    let shown = place.verb("show tick");
    for text in [
        "tick is not held",
        "ran at 20",
        "due again 20",
        "palisade release tick --mark",
    ] {
        assert!(shown.stdout.contains(text), "{text}: {shown:?}");
    }
    let json = place.show("tick");
    for field in ["ran_at", "due_at"] {
        assert!(
            json[field].as_str().is_some_and(|time| time.ends_with('Z')),
            "{json}"
        );
    }
    assert!(json.get("closed_until").is_none(), "{json}");
    let list = place.verb("list");
    assert!(list.stdout.contains("ran at 20"), "{list:?}");
    let skipped = place.run("run --once-per 1h tick", "true");
    assert_eq!(skipped.code, 75, "{skipped:?}");
    assert!(
        skipped.stderr.contains("ago; due again 20") && skipped.stderr.contains("(in 59m"),
        "{skipped:?}"
    );
}

#[test]
fn a_mark_can_be_cleared() {
    let place = Place::new();
    assert_eq!(place.run("run --once-per 1h tick", "true").code, 0);
    assert_eq!(place.run("run --once-per 1h tick", "true").code, 75);
    let cleared = place.verb("release tick --mark");
    assert_eq!(
        (cleared.code, cleared.stdout.as_str()),
        (0, ""),
        "{cleared:?}"
    );
    assert_eq!(place.run("run --once-per 1h tick", "true").code, 0);
    let nothing = place.verb("release other --mark");
    assert_eq!(nothing.code, 0);
    assert!(nothing.stderr.contains("no mark"), "{nothing:?}");
    assert_eq!(place.verb("release tick --mark --fence 1").code, 64);
}

#[test]
fn a_closed_name_says_until_when() {
    let place = Place::new();
    assert_eq!(place.run("run --min-hold 1h n", "true").code, 0);
    let shown = place.verb("show n");
    assert!(shown.stdout.contains("closed until 20"), "{shown:?}");
    assert!(place.show("n")["closed_until"].is_string());
    // The run has ended: what closes the name is no holder.
    assert!(
        shown.stdout.contains("n is not held") && !shown.stdout.contains("held by"),
        "{shown:?}"
    );
    assert_eq!(place.holders("n"), 0);
    let list = place.verb("list");
    let row = list.stdout.lines().find(|row| row.starts_with("n "));
    assert!(
        row.is_some_and(|row| row.contains("closed until 20") && !row.contains(":true")),
        "{list:?}"
    );
    for line in [
        "run --try n",
        "run --wait 300ms n",
        "acquire --wait 300ms n",
    ] {
        let busy = if line.starts_with("run") {
            place.run(line, "true")
        } else {
            place.verb(line)
        };
        assert_eq!(busy.code, 75, "{line}");
        assert!(busy.stderr.contains("n is closed until 20"), "{busy:?}");
    }
    assert_eq!(place.verb("release n --mark").code, 0);
    until("it is open", || place.run("run --try n", "true").code == 0);
}

/// A holder that keeps the name closed beyond its run still holds it.
#[test]
fn a_holder_with_a_min_hold_is_shown_as_one() {
    let place = Place::new();
    let _held = place.holder("run --owner web-1 --min-hold 1h n");
    let shown = place.verb("show n");
    for text in ["held by web-1", "closed until 20"] {
        assert!(shown.stdout.contains(text), "{shown:?}");
    }
    for line in ["run --try n", "run --wait 300ms n"] {
        let busy = place.run(line, "true");
        assert!(busy.stderr.contains("n is held by web-1"), "{busy:?}");
    }
}

#[test]
fn work_that_is_done_is_shown() {
    let place = Place::new();
    let locks = Client::connect(place.url()).expect("a store");
    let work = locks.once("import").begin().wait().expect("an answer");
    work.expect("not done yet").finish().wait().expect("done");
    let shown = place.verb("show import");
    for text in [
        "import is not held",
        "done, and remembered until 20",
        "palisade release import --mark",
    ] {
        assert!(shown.stdout.contains(text), "{text}: {shown:?}");
    }
    let json = place.show("import");
    assert!(
        json["done_until"]
            .as_str()
            .is_some_and(|time| time.ends_with('Z')),
        "{json}"
    );
    let list = place.verb("list");
    assert!(
        list.stdout.contains("done, and remembered until 20"),
        "{list:?}"
    );
    assert_eq!(place.verb("release import --mark").code, 0);
    assert!(place.show("import").get("done_until").is_none());
    let again = locks.once("import").begin().wait().expect("an answer");
    assert!(again.is_some(), "it may be done again");
}
