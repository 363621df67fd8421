//! A server that hangs, as a process that is stopped does: it accepts connections, and answers
//! nothing.

#![cfg(all(
    feature = "redis",
    feature = "etcd",
    feature = "zookeeper",
    feature = "postgres",
    feature = "mysql"
))]

mod common;

use std::time::{Duration, Instant};

use common::{Done, Place, Running, is_alive, until, within};
use palisade_testkit::etcd::Etcd;
use palisade_testkit::mariadb::MariaDb;
use palisade_testkit::postgres::Postgres;
use palisade_testkit::redis::{Five, Redis};
use palisade_testkit::zookeeper::ZooKeeper;

/// What the pages promise: no wait is overrun by more, the start of the process included.
const PROMISED: Duration = Duration::from_millis(250);

/// On a busy machine a process starts late. What is late by itself is late in each attempt.
const ATTEMPTS: usize = 5;

/// For the ends that the pages bound by a second: what a busy machine may add.
const SLACK: Duration = Duration::from_millis(550);

/// A claim in line is renewed at least so often: the request that goes unanswered is sent by then.
const HEARTBEAT: Duration = Duration::from_millis(1700);

/// A server that the test can stop.
struct Server {
    place: Place,
    /// Whether the store has a line that shows its waiters.
    shows_waiters: bool,
    pause: Box<dyn Fn()>,
    resume: Box<dyn Fn()>,
}

macro_rules! server {
    ($start:expr, $url:expr) => {{
        let server = std::rc::Rc::new($start);
        let again = std::rc::Rc::clone(&server);
        Server {
            place: Place::of($url(&*server)),
            shows_waiters: true,
            pause: Box::new(move || server.pause()),
            resume: Box::new(move || again.resume()),
        }
    }};
}

fn redis() -> Server {
    server!(Redis::start(), |server: &Redis| server.url())
}

fn etcd() -> Server {
    server!(Etcd::start(), |server: &Etcd| format!(
        "etcd://{}/hung",
        server.address()
    ))
}

fn zookeeper() -> Server {
    server!(
        ZooKeeper::with().long_sessions().start(),
        |server: &ZooKeeper| format!("zk://{}/hung", server.address())
    )
}

fn postgres() -> Server {
    server!(Postgres::start(), |server: &Postgres| server.url())
}

fn mariadb() -> Server {
    server!(MariaDb::start(), |server: &MariaDb| server.url())
}

/// Five servers, all of which hang.
fn redlock() -> Server {
    let five = std::rc::Rc::new(Five::start());
    let again = std::rc::Rc::clone(&five);
    Server {
        place: Place::of(format!("{}?young=vote", five.url())),
        shows_waiters: false,
        pause: Box::new(move || five.nodes().iter().for_each(|node| node.pause())),
        resume: Box::new(move || again.nodes().iter().for_each(|node| node.resume())),
    }
}

/// A command line that waits for a name, and how it is to end.
struct Case {
    line: &'static str,
    /// How long it is to wait.
    wait: Duration,
    /// Since when on that counts.
    since: Since,
}

#[derive(Clone, Copy, PartialEq)]
enum Since {
    Start,
    /// The first request that the server leaves unanswered.
    Silence,
}

const fn case(line: &'static str, millis: u64, since: Since) -> Case {
    Case {
        line,
        wait: Duration::from_millis(millis),
        since,
    }
}

/// How a case has ended, and by how much it overran its wait.
struct Ended<'a> {
    case: &'a Case,
    done: Done,
    took: Duration,
    overrun: Duration,
}

impl Server {
    /// Starts all of them at once, hangs the server when they are `ready`, and waits for their
    /// ends. `None` when they are not ready in time, or one has ended already.
    fn hang<'a>(
        &self,
        cases: &'a [Case],
        ready: impl FnOnce(&[Running]) -> bool,
    ) -> Option<Vec<Ended<'a>>> {
        let begun = Instant::now();
        let mut running: Vec<Running> = cases.iter().map(|case| self.start(case.line)).collect();
        if !ready(&running) || running.iter_mut().any(Running::has_ended) {
            return None;
        }
        (self.pause)();
        let stopped = Instant::now();
        let ended = std::thread::scope(|scope| {
            let end = |(case, running): (&'a Case, Running)| {
                scope.spawn(move || {
                    let done = running.end();
                    let (from, bound) = match case.since {
                        Since::Start => (begun, case.wait),
                        Since::Silence => (stopped, case.wait + HEARTBEAT),
                    };
                    let took = from.elapsed();
                    let overrun = took.saturating_sub(bound);
                    Ended {
                        case,
                        done,
                        took,
                        overrun,
                    }
                })
            };
            let threads: Vec<_> = cases.iter().zip(running).map(end).collect();
            let ended = threads.into_iter().map(|thread| thread.join());
            ended.map(|ended| ended.expect("it ends")).collect()
        });
        (self.resume)();
        Some(ended)
    }

    fn start(&self, line: &str) -> Running {
        if line.contains("acquire") {
            self.place.launch(self.place.command(line.split(' ')))
        } else {
            self.place.start(line, "echo never")
        }
    }
}

/// Tries until each case has once ended in time. How each ends is checked at every attempt.
fn in_time<'a>(mut scene: impl FnMut() -> Option<Vec<Ended<'a>>>, check: impl Fn(&Case, &Done)) {
    let mut late = vec!["it was not ready in time".to_owned()];
    for _ in 0..ATTEMPTS {
        let Some(ended) = scene() else { continue };
        for Ended {
            case, done, took, ..
        } in &ended
        {
            // The request that is in flight at that moment was sent a little before it.
            let early = match case.since {
                Since::Start => Duration::ZERO,
                Since::Silence => Duration::from_millis(100),
            };
            assert!(
                *took + early >= case.wait && done.stdout.is_empty(),
                "{} took {took:?}: {done:?}",
                case.line
            );
            check(case, done);
            eprintln!("{} took {took:?}", case.line);
        }
        late = ended
            .into_iter()
            .filter(|ended| ended.overrun > PROMISED)
            .map(|ended| {
                format!(
                    "{} took {:?}: {:?}",
                    ended.case.line, ended.took, ended.done
                )
            })
            .collect();
        if late.is_empty() {
            return;
        }
        eprintln!("late: {late:#?}");
    }
    panic!("late in each of {ATTEMPTS} attempts: {late:#?}");
}

/// Neither a wait nor the patience with the store is overrun by more than the pages say, whether
/// the server hangs from the beginning or while the claim waits.
fn waits_end_in_time(server: Server) {
    let place = &server.place;
    // It is there, and the name is held.
    let holder = place.holder("run --lease 40s --owner web-1 held");
    let cases = [
        case("run --wait 1s free", 1000, Since::Start),
        case("acquire --wait 3s free", 3000, Since::Start),
        case("run --store-wait 2s free", 2000, Since::Start),
    ];
    in_time(
        || {
            (server.pause)();
            server.hang(&cases, |_| true)
        },
        |case, done| {
            assert_eq!(done.code, 69, "{}: {done:?}", case.line);
        },
    );
    let cases = [
        case("run -v --wait 4s held", 4000, Since::Start),
        case("run --wait 3s held", 3000, Since::Start),
        case("acquire --wait 3s held", 3000, Since::Start),
        case("run --store-wait 2s held", 2000, Since::Silence),
        // Less than a request may take.
        case("run --store-wait 500ms held", 500, Since::Silence),
    ];
    let in_line = || {
        until("the holder is seen", || place.holders("held") == 1);
        until("the line is empty", || place.waiters("held") == 0);
        server.hang(&cases, |running| {
            let is_shown = || {
                let shown = running[0].stderr();
                shown.contains("waiting for held: held by web-1")
            };
            let all_wait = || !server.shows_waiters || place.waiters("held") == cases.len();
            // Before the first of them leaves.
            within(Duration::from_millis(2500), || is_shown() && all_wait())
        })
    };
    in_time(in_line, |case, done| {
        if case.since == Since::Silence {
            assert_eq!(done.code, 69, "{}: {done:?}", case.line);
        } else {
            assert_eq!(done.code, 75, "{}: {done:?}", case.line);
            let last = done.stderr.lines().last().unwrap_or_default();
            assert!(last.contains("held by web-1"), "{}: {done:?}", case.line);
        }
    });
    holder.kill();
}

#[test]
fn waits_end_in_time_on_redis() {
    waits_end_in_time(redis());
}

#[test]
fn waits_end_in_time_on_etcd() {
    waits_end_in_time(etcd());
}

#[test]
fn waits_end_in_time_on_zookeeper() {
    waits_end_in_time(zookeeper());
}

#[test]
fn waits_end_in_time_on_postgres() {
    waits_end_in_time(postgres());
}

#[test]
fn waits_end_in_time_on_mariadb() {
    waits_end_in_time(mariadb());
}

#[test]
fn waits_end_in_time_on_redlock() {
    waits_end_in_time(redlock());
}

/// Once the command is stopped, palisade does not linger to release a lock that is lost.
fn leaves_soon_after_a_loss(
    Server {
        place,
        pause,
        resume,
        ..
    }: Server,
    verb: &str,
) {
    let running = place.start(
        &format!("{verb} --lease 6s lost"),
        "echo $$ > pid; exec sleep 60",
    );
    let child = place.written_pid("pid");
    pause();
    until("the command is stopped", || !is_alive(child));
    let stopped = Instant::now();
    if verb.starts_with("elect") {
        // It campaigns again, and leaves when it is told to.
        running.signal(rustix::process::Signal::TERM);
    }
    let done = running.end();
    let took = stopped.elapsed();
    resume();
    assert!(done.stderr.contains("lost is lost"), "{done:?}");
    assert!(
        took < Duration::from_secs(1) + SLACK,
        "{verb}: {took:?} after the command"
    );
    if verb == "run" {
        assert_eq!(done.code, 79, "{done:?}");
    }
}

#[test]
fn a_run_leaves_soon_after_a_loss() {
    for server in [redis(), etcd(), zookeeper()] {
        leaves_soon_after_a_loss(server, "run");
    }
}

#[test]
fn an_elected_leader_leaves_soon_after_a_loss() {
    for server in [redis(), etcd(), zookeeper()] {
        leaves_soon_after_a_loss(server, "elect");
    }
}

#[test]
fn a_run_leaves_soon_after_a_loss_on_a_database_or_a_quorum() {
    for server in [postgres(), mariadb(), redlock()] {
        leaves_soon_after_a_loss(server, "run");
    }
}

#[test]
fn an_elected_leader_leaves_soon_after_a_loss_on_a_database_or_a_quorum() {
    for server in [postgres(), mariadb(), redlock()] {
        leaves_soon_after_a_loss(server, "elect");
    }
}

#[test]
fn patience_with_the_store_may_have_no_end() {
    let Server {
        place,
        pause,
        resume,
        ..
    } = redis();
    pause();
    let begun = Instant::now();
    assert_eq!(place.run("run --store-wait 1s n", "true").code, 69);
    assert!(begun.elapsed() < Duration::from_secs(1) + SLACK);
    assert_eq!(
        place
            .run("run --store-wait forever --wait 1s n", "true")
            .code,
        69
    );
    let mut patient = place.start("run --store-wait forever n", "exit 5");
    let left = within(Duration::from_secs(12), || patient.has_ended());
    assert!(
        !left,
        "longer than the default of 10 s: {}",
        patient.stderr()
    );
    resume();
    assert_eq!(patient.end().code, 5);
}
