//! `elect`, from outside: on the file of one machine, and on etcd, where `etcdctl elect` takes
//! part.

mod common;

use std::fs;

use common::{Done, Place, Running, is_alive, until};
use rustix::process::Signal;

/// Writes down its fence and its process at each beginning, then works until it is told to stop.
const LEADS: &str = "echo $PALISADE_FENCE >> fences; echo $$ >> pids; exec sleep 300";

/// The lines of a file, once there are so many.
fn lines(place: &Place, name: &str, count: usize) -> Vec<u64> {
    let read = || fs::read_to_string(place.path(name)).unwrap_or_default();
    until(&format!("{name} has {count} lines"), || {
        read().ends_with('\n') && read().lines().count() >= count
    });
    let lines: Vec<u64> = read()
        .lines()
        .map(|line| line.parse().expect("a number"))
        .collect();
    assert_eq!(lines.len(), count, "{lines:?}");
    lines
}

fn force_open(place: &Place, name: &str) -> Done {
    let done = place.verb(&format!(
        "release {name} --fence {} --yes",
        place.fence(name)
    ));
    assert_eq!(done.code, 0, "{done:?}");
    done
}

#[test]
fn the_commands_own_code_is_passed_on() {
    let place = Place::new();
    let script = "echo $PALISADE_NAME $PALISADE_STORE $PALISADE_OWNER $PALISADE_LEASE_MS $PALISADE_FENCE; exit 7";
    let done = place.run("elect --owner me --lease 20s own", script);
    assert_eq!(
        (done.code, done.stdout.as_str(), done.stderr.as_str()),
        (7, "own sqlite me 20000 1\n", ""),
        "{done:?}"
    );
    assert_eq!(
        place.run("elect own", "exit 0").code,
        0,
        "done is done, and no one campaigns again"
    );
    assert_eq!(place.run("elect own", "kill -TERM $$").code, 143);
    assert_eq!(
        place
            .finish(place.command(["elect", "own", "--", "no-such-command"]))
            .code,
        127
    );
    assert_eq!(place.holders("own"), 0);
}

#[test]
fn a_lost_lead_stops_the_command_campaigns_again_and_runs_it_again() {
    let place = Place::new();
    let script = "trap 'echo told >> told; exit 0' TERM
        echo $PALISADE_FENCE >> fences; echo $$ >> pids
        if test -e told; then exit 9; fi; while :; do sleep 0.02; done";
    let running = place.start("elect --owner me again", script);
    let first = lines(&place, "pids", 1)[0];
    force_open(&place, "again");
    let done = running.end();
    assert_eq!(done.code, 9, "the code of the second one: {done:?}");
    assert!(!is_alive(u32::try_from(first).unwrap()));
    let fences = lines(&place, "fences", 2);
    assert!(fences[0] < fences[1], "{fences:?}");
    assert_eq!(
        fs::read_to_string(place.path("told")).unwrap(),
        "told\n",
        "the first was told to stop, once"
    );
    assert!(
        done.stderr.contains("again is lost") && done.stderr.contains("campaigning again"),
        "{done:?}"
    );
}

#[test]
fn a_lost_lead_goes_behind_the_waiters() {
    let place = Place::new();
    let loser = place.start("elect --owner loser --value loser turns", LEADS);
    lines(&place, "fences", 1);
    let next = place.waiter(
        "elect --value next turns",
        "turns",
        "echo $PALISADE_FENCE >> fences; echo $$ > next; exec sleep 300",
        1,
    );
    force_open(&place, "turns");
    place.written_pid("next");
    until("the loser waits", || place.waiters("turns") == 1);
    let shown = place.show("turns");
    assert_eq!(
        (&shown["holders"][0]["owner"], &shown["waiters"][0]["owner"]),
        (&"next".into(), &"loser".into()),
        "{shown}"
    );
    next.signal(Signal::TERM);
    assert_eq!(next.end().code, 143);
    let fences = lines(&place, "fences", 3);
    assert!(fences.is_sorted(), "{fences:?}");
    drop(loser);
}

#[test]
fn a_longest_hold_is_a_term_of_office() {
    let place = Place::new();
    let running = place.start("elect --max-hold 500ms term", LEADS);
    let fences = lines_at_least(&place, "fences", 3);
    assert!(fences.is_sorted(), "{fences:?}");
    assert!(
        running.stderr().contains("longest hold"),
        "{}",
        running.stderr()
    );
}

fn lines_at_least(place: &Place, name: &str, count: usize) -> Vec<u64> {
    let read = || fs::read_to_string(place.path(name)).unwrap_or_default();
    until(&format!("{name} has {count} lines"), || {
        read().lines().count() >= count && read().ends_with('\n')
    });
    read()
        .lines()
        .map(|line| line.parse().expect("a number"))
        .collect()
}

/// A leader that is killed: its command goes with it, and the other's begins.
fn a_killed_leader_is_replaced(place: &Place) {
    let leader = place.start("elect --lease 4s --value one killed", LEADS);
    let pid = u32::try_from(lines(place, "pids", 1)[0]).unwrap();
    let _next = place.waiter("elect --lease 4s --value two killed", "killed", LEADS, 1);
    leader.kill();
    let fences = lines(place, "fences", 2);
    assert!(fences[0] < fences[1], "{fences:?}");
    until("its command is gone", || !is_alive(pid));
    assert_eq!(place.show("killed")["holders"][0]["owner"], "two");
}

#[test]
fn a_killed_leader_is_replaced_on_one_machine() {
    a_killed_leader_is_replaced(&Place::new());
}

#[test]
fn signals_go_to_the_command_and_end_the_campaign() {
    let place = Place::new();
    let leader = place.start(
        "elect signals",
        "trap 'echo got > usr1' USR1; echo $$ > pid; while :; do sleep 0.02; done",
    );
    place.written_pid("pid");
    leader.signal(Signal::USR1);
    assert_eq!(place.written("usr1"), "got");
    let waits = place.waiter("elect signals", "signals", "echo never", 1);
    // Not INT, which is ignored by what a script starts in the background.
    waits.signal(Signal::TERM);
    let done = waits.end();
    assert_eq!((done.code, done.stdout.as_str()), (143, ""), "{done:?}");
    assert_eq!(place.waiters("signals"), 0);
    leader.signal(Signal::TERM);
    let done = leader.end();
    assert_eq!(done.code, 143, "{done:?}");
    assert!(!done.stderr.contains("campaigning"), "{done:?}");
    assert_eq!(place.holders("signals"), 0);
}

/// Told to end while the command of a lost lead is being stopped, it does not begin again.
#[test]
fn a_signal_while_the_lead_is_lost_ends_the_campaign() {
    let place = Place::new();
    let script = "trap 'echo 1 >> told' TERM
        echo $$ >> pids; while ! test -e go; do sleep 0.02; done";
    let running = place.start("elect --lease 4m --kill-after 50s leaving", script);
    lines(&place, "pids", 1);
    force_open(&place, "leaving");
    lines(&place, "told", 1);
    running.signal(Signal::TERM);
    lines(&place, "told", 2);
    fs::write(place.path("go"), "").unwrap();
    let done = running.end();
    assert_eq!(done.code, 79, "{done:?}");
    assert!(!done.stderr.contains("campaigning"), "{done:?}");
    lines(&place, "pids", 1);
}

#[test]
fn one_attempt_is_busy_and_names_the_leader() {
    let place = Place::new();
    let _leader = place.holder("elect --value web-1 --reason upgrade busy");
    let done = place.run("elect --try busy", "echo never");
    assert_eq!((done.code, done.stdout.as_str()), (75, ""), "{done:?}");
    assert!(done.stderr.contains("held by web-1 (upgrade)"), "{done:?}");
    assert_eq!(
        place
            .run("elect --wait 200ms --busy-exit-code 3 busy", "echo never")
            .code,
        3
    );
    assert_eq!(
        place.run("run --try busy", "echo never").code,
        75,
        "the mutex of the name is the same line"
    );
}

#[test]
fn the_leader_can_be_asked_for() {
    let place = Place::new();
    let nobody = place.verb("elect --leader asked");
    assert_eq!((nobody.code, nobody.stdout.as_str()), (0, ""), "{nobody:?}");
    assert!(nobody.stderr.contains("there is no leader"), "{nobody:?}");
    let json = |done: &Done| serde_json::from_str::<serde_json::Value>(&done.stdout).expect("JSON");
    let nobody = json(&place.verb("elect --leader --json asked"));
    assert_eq!(
        nobody,
        serde_json::json!({"name": "asked", "store": "sqlite", "value": null, "fence": null})
    );
    let _leader = place.holder("elect --value http://web-1:80 asked");
    let done = place.verb("elect --leader asked");
    assert_eq!(
        (done.code, done.stdout.as_str(), done.stderr.as_str()),
        (0, "1 http://web-1:80\n", ""),
        "{done:?}"
    );
    let leader = json(&place.verb("elect --leader --json asked"));
    assert_eq!(
        leader,
        serde_json::json!({"name": "asked", "store": "sqlite", "value": "http://web-1:80", "fence": "1"})
    );
}

#[test]
fn what_makes_no_sense_is_bad_usage() {
    let place = Place::new();
    for line in [
        "elect name",
        "elect --leader name -- true",
        "elect --observe --leader name",
        "elect --json name -- true",
        "elect --on-lost ignore name -- true",
        "elect --shared name -- true",
        "elect --lease 100ms name -- true",
        "elect --kill-after 20s name -- true",
    ] {
        let done = place.verb(line);
        assert_eq!(done.code, 64, "{line}: {done:?}");
    }
    let done = place.verb("elect --observe name");
    assert_eq!((done.code, done.stdout.as_str()), (64, ""), "{done:?}");
    assert!(
        done.stderr.contains("sqlite") && done.stderr.contains("ask for the leader"),
        "{done:?}"
    );
}

#[cfg(feature = "etcd")]
mod etcd {
    use std::fs::File;
    use std::process::{Child, Command, Stdio};

    use palisade_testkit::etcd::Etcd;

    use super::*;

    fn place(server: &Etcd) -> Place {
        Place::of(format!("etcd://{}", server.address()))
    }

    /// The line is there as a whole line.
    fn says(running: &Running, line: &str) {
        until(&format!("it says {line:?}"), || {
            running.stdout().lines().any(|said| said == line)
        });
    }

    struct Etcdctl(Child);

    impl Drop for Etcdctl {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// `etcdctl elect`, with its output in this file.
    fn etcdctl(place: &Place, server: &Etcd, output: &str, words: &[&str]) -> Etcdctl {
        let output = File::create(place.path(output)).expect("a file");
        let mut etcdctl = Command::new("etcdctl");
        etcdctl
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &server.url(), "elect"])
            .args(words);
        Etcdctl(
            etcdctl
                .stdin(Stdio::null())
                .stdout(output)
                .stderr(Stdio::null())
                .spawn()
                .expect("etcdctl"),
        )
    }

    fn etcdctl_says(place: &Place, output: &str, line: &str) {
        let read = || fs::read_to_string(place.path(output)).unwrap_or_default();
        until(&format!("etcdctl says {line:?}"), || {
            read().lines().any(|said| said == line)
        });
    }

    #[test]
    fn a_killed_leader_is_replaced_when_its_lease_has_ended() {
        let server = Etcd::start();
        a_killed_leader_is_replaced(&place(&server));
    }

    #[test]
    fn a_lease_that_is_revoked_by_hand_stops_the_command_and_it_leads_again() {
        let server = Etcd::start();
        let place = place(&server);
        let _running = place.start("elect --value me revoked", LEADS);
        let first = u32::try_from(lines(&place, "pids", 1)[0]).unwrap();
        let leases = server.etcdctl(&["lease", "list"]);
        for lease in leases
            .lines()
            .skip(1)
            .map(str::trim)
            .filter(|lease| !lease.is_empty())
        {
            server.etcdctl(&["lease", "revoke", lease]);
        }
        let fences = lines(&place, "fences", 2);
        assert!(fences[0] < fences[1] && !is_alive(first), "{fences:?}");
        let done = place.verb("elect --leader revoked");
        assert_eq!(done.stdout, format!("{} me\n", fences[1]), "{done:?}");
    }

    #[test]
    fn observers_are_told_of_each_leader_and_etcdctl_takes_part() {
        let server = Etcd::start();
        let place = place(&server);
        let observer = place.launch(place.command(["elect", "--observe", "mixed"]));
        let json = place.launch(place.command(["elect", "-l", "--json", "mixed"]));
        let _listens = etcdctl(&place, &server, "listens", &["-l", "mixed"]);
        let ours = place.start("elect --value our-value mixed", LEADS);
        let first = lines(&place, "fences", 1)[0];
        says(&observer, &format!("{first} our-value"));
        etcdctl_says(&place, "listens", "our-value");
        let theirs = etcdctl(&place, &server, "theirs", &["mixed", "their value"]);
        until("theirs waits", || place.waiters("mixed") == 1);
        assert_eq!(
            fs::read_to_string(place.path("theirs")).unwrap(),
            "",
            "theirs leads beside ours"
        );
        // Ours loses the lead, and stands behind theirs.
        force_open(&place, "mixed");
        etcdctl_says(&place, "theirs", "their value");
        until("the observer hears of theirs", || {
            observer
                .stdout()
                .lines()
                .any(|line| line.ends_with(" their value"))
        });
        until("ours waits", || place.waiters("mixed") == 1);
        assert_eq!(
            lines(&place, "fences", 1),
            [first],
            "ours works beside theirs"
        );
        assert!(
            place
                .verb("elect --leader mixed")
                .stdout
                .ends_with(" their value\n")
        );
        let listed = place.verb("list");
        assert!(listed.stdout.contains("their value"), "{listed:?}");
        let told = Command::new("kill")
            .args(["-INT", &theirs.0.id().to_string()])
            .status()
            .expect("kill");
        assert!(told.success());
        let second = lines(&place, "fences", 2)[1];
        says(&observer, &format!("{second} our-value"));
        says(
            &json,
            &format!(
                "{{\"fence\":\"{second}\",\"name\":\"mixed\",\"store\":\"etcd\",\"value\":\"our-value\"}}"
            ),
        );
        assert_eq!(
            observer.stdout().lines().count(),
            3,
            "each is told once: {}",
            observer.stdout()
        );
        ours.signal(Signal::TERM);
        assert_eq!(ours.end().code, 143);
    }
}
