//! Fences through random orders of messages: the scripts on a real server, which stands for three or
//! five by as many pairs of keys, and clients whose requests and replies are late, lost or out of
//! order, and who crash.

use std::collections::HashMap;

use palisade_testkit::redis::Redis;
use redis::{Connection, ConnectionLike, Value};

use super::super::claim::Tally;
use super::super::*;
use crate::stores::redis::REVOKE;

const LEASE: u64 = 600_000;
const HISTORIES: usize = 40;
/// Of each history.
const STEPS: usize = 400;

/// What goes wrong beside late and lost messages.
#[derive(Clone, Copy, PartialEq)]
enum Faults {
    None,
    /// Leases end too early: the clocks jump.
    Clocks,
    /// The same, and a minority is replaced by empty servers when all have the last fence.
    Replaced,
}

/// A request on its way.
struct Message {
    to: usize,
    call: Call,
    kind: Kind,
    /// The client that waits for the reply, and for which of its rounds.
    from: (usize, u64),
}

#[derive(Clone, Copy)]
enum Kind {
    Claim,
    Renew(u64),
    Release,
    Revoke,
}

#[derive(Default)]
struct Actor {
    claim: u64,
    /// The fences of the first and of the last round.
    first: u64,
    fence: u64,
    rounds: usize,
    /// Which replies are waited for.
    waits_for: u64,
    state: State,
    /// The least fence that the attempt may have: above those of all grants when it began.
    least: u64,
}

#[derive(Default)]
enum State {
    #[default]
    Idle,
    Asks(Tally, usize),
    Holds {
        gone: usize,
    },
}

struct World {
    nodes: usize,
    quorum: usize,
    random: fastrand::Rng,
    server: Connection,
    /// The server's clock when the history began.
    base: u64,
    faults: Faults,
    actors: [Actor; 3],
    in_flight: Vec<Message>,
    rounds: u64,
    /// The fences of all grants, and whose they are.
    granted: HashMap<u64, u64>,
    highest: u64,
    /// How often a minority was replaced.
    replaced: usize,
}

fn keys(node: usize) -> [String; 2] {
    [format!("lock {node}"), format!("fence {node}")]
}

fn call(script: &'static Script, node: usize) -> Call {
    let [lock, fence] = keys(node);
    Call::new(script, &lock).beside(&fence)
}

impl World {
    fn send(
        &mut self,
        node: usize,
        script: &'static Script,
        words: &[String],
        kind: Kind,
        at: usize,
    ) {
        let call = words
            .iter()
            .fold(call(script, node), |call, word| call.text(word));
        self.in_flight.push(Message {
            to: node,
            call,
            kind,
            from: (at, self.actors[at].waits_for),
        });
    }

    fn ask<T: redis::FromRedisValue>(&mut self, words: &[&str]) -> T {
        redis::cmd(words[0])
            .arg(&words[1..])
            .query(&mut self.server)
            .expect("an answer")
    }

    fn run(&mut self, call: &Call) -> Value {
        let by_hash = self.server.req_packed_command(&call.by_hash());
        match by_hash.expect("a reply") {
            Value::ServerError(error) if error.code() == "NOSCRIPT" => {
                let whole = self.server.req_packed_command(&call.whole());
                whole.expect("a reply").extract_error().expect("no error")
            }
            reply => reply.extract_error().expect("no error"),
        }
    }

    fn step(&mut self) {
        match self.random.u8(..100) {
            0..88 if !self.in_flight.is_empty() => {
                let at = self.random.usize(..self.in_flight.len());
                let message = self.in_flight.swap_remove(at);
                if self.random.u8(..20) > 0 {
                    self.deliver(message);
                } else if matches!(message.kind, Kind::Release) {
                    // It is repeated.
                    self.in_flight.push(message);
                }
            }
            88..91 if self.faults != Faults::None => {
                let node = self.random.usize(..self.nodes);
                self.ask::<i64>(&["DEL", &keys(node)[0]]);
            }
            91..93 if self.faults == Faults::Replaced => self.replace_some(),
            _ => {
                let at = self.random.usize(..self.actors.len());
                self.act(at);
            }
        }
    }

    fn deliver(&mut self, message: Message) {
        let reply = self.run(&message.call);
        let at = message.from.0;
        let actor = &mut self.actors[at];
        if message.from.1 != actor.waits_for || self.random.u8(..10) == 0 {
            return;
        }
        match (&mut actor.state, message.kind) {
            (State::Asks(tally, left), Kind::Claim) => {
                *left -= 1;
                tally.read(message.to, reply).expect("a vote");
                if tally.is_decided(self.quorum, *left) {
                    self.decide(at);
                }
            }
            (State::Holds { gone }, Kind::Renew(fence)) => match reply {
                Value::BulkString(held) => assert_eq!(held, fence.to_string().as_bytes()),
                _ => {
                    *gone += 1;
                    if *gone > self.nodes - self.quorum {
                        self.give_back(at, &[]);
                    }
                }
            },
            _ => {}
        }
    }

    fn act(&mut self, at: usize) {
        let choice = self.random.u8(..10);
        match self.actors[at].state {
            State::Idle => self.begin(at),
            // Out of time.
            State::Asks(..) if choice < 2 => self.decide(at),
            // It has crashed, and leaves what it got.
            State::Asks(..) if choice == 2 => self.actors[at].state = State::Idle,
            State::Asks(..) if choice == 3 && self.faults != Faults::None => self.revoke(at),
            State::Asks(..) => {}
            State::Holds { .. } => match choice {
                0..4 => self.renew(at),
                4 => {
                    // The answer was lost on its way to the caller, who asks again.
                    self.actors[at].rounds = 0;
                    self.actors[at].least = self.highest;
                    self.round(at);
                }
                5 if self.faults != Faults::None => self.revoke(at),
                6.. => self.give_back(at, &[]),
                _ => {}
            },
        }
    }

    /// Few numbers, so that clients propose the same ones, and some that are far behind or ahead.
    fn begin(&mut self, at: usize) {
        let proposed = match self.random.u8(..20) {
            0 => self.base - 5_000_000,
            1 => self.base + self.random.u64(..2000),
            _ => self.base + self.random.u64(..20),
        };
        let is_new = self.random.bool();
        let actor = &mut self.actors[at];
        if is_new || actor.claim == 0 {
            // Another client, which has seen no fence.
            self.rounds += 1;
            (actor.claim, actor.fence) = (self.rounds, 0);
        }
        // A client's own attempts have higher and higher fences.
        actor.first = proposed.max(actor.fence + 1);
        actor.fence = actor.first;
        actor.rounds = 0;
        // Above all grants that were there before.
        actor.least = self.highest + 1;
        self.round(at);
    }

    fn round(&mut self, at: usize) {
        self.rounds += 1;
        let actor = &mut self.actors[at];
        actor.rounds += 1;
        actor.waits_for = self.rounds;
        actor.state = State::Asks(Tally::default(), self.nodes);
        let words = [
            format!("{:032x}", actor.claim),
            LEASE.to_string(),
            actor.fence.to_string(),
            "owner".to_owned(),
        ];
        (0..self.nodes).for_each(|node| self.send(node, &CLAIM, &words, Kind::Claim, at));
    }

    fn decide(&mut self, at: usize) {
        let actor = &mut self.actors[at];
        let State::Asks(tally, _) = std::mem::take(&mut actor.state) else {
            unreachable!("it asks")
        };
        if tally.stored >= self.quorum {
            return self.is_granted(at);
        }
        match tally.again(self.quorum, actor.rounds) {
            Some(floor) => {
                actor.fence = floor.max(actor.fence) + 1;
                self.round(at);
            }
            None => self.give_back(at, &tally.not_ours),
        }
    }

    fn is_granted(&mut self, at: usize) {
        let actor = &mut self.actors[at];
        actor.state = State::Holds { gone: 0 };
        let (claim, fence, least) = (actor.claim, actor.fence, actor.least);
        // A claim that asks again may find its own grant.
        let first = *self.granted.entry(fence).or_insert(claim);
        assert_eq!(first, claim, "{fence} twice");
        assert!(fence >= least, "{fence} is below {least}");
        let stored = (0..self.nodes).filter(|node| self.last(*node) >= fence);
        assert!(
            stored.count() >= self.quorum || self.faults == Faults::Replaced,
            "{fence} is not on a majority"
        );
        self.highest = self.highest.max(fence);
        let holders = self
            .actors
            .iter()
            .filter(|one| matches!(one.state, State::Holds { .. }));
        assert!(
            self.faults != Faults::None || holders.count() == 1,
            "two holders"
        );
    }

    fn renew(&mut self, at: usize) {
        self.rounds += 1;
        let actor = &mut self.actors[at];
        actor.waits_for = self.rounds;
        actor.state = State::Holds { gone: 0 };
        let (claim, fence) = (actor.claim, actor.fence);
        let words = [
            format!("{claim:032x}"),
            LEASE.to_string(),
            fence.to_string(),
            actor.first.to_string(),
        ];
        (0..self.nodes).for_each(|node| self.send(node, &RENEW, &words, Kind::Renew(fence), at));
    }

    fn give_back(&mut self, at: usize, not_ours: &[usize]) {
        let actor = &mut self.actors[at];
        actor.state = State::Idle;
        let words = [
            format!("{:032x}", actor.claim),
            actor.first.to_string(),
            actor.fence.to_string(),
        ];
        let nodes = (0..self.nodes).filter(|node| !not_ours.contains(node));
        nodes.for_each(|node| self.send(node, &RELEASE, &words, Kind::Release, at));
    }

    fn revoke(&mut self, at: usize) {
        let fence = match self.random.bool() {
            true => self.actors[at].fence,
            false => self.actors[at].first,
        };
        let words = [fence.to_string()];
        (0..self.nodes).for_each(|node| self.send(node, &REVOKE, &words, Kind::Revoke, at));
    }

    /// The last fence that a server has stored.
    fn last(&mut self, node: usize) -> u64 {
        let last: Option<String> = self.ask(&["GET", &keys(node)[1]]);
        let last = last.and_then(|last| last.split(' ').next()?.parse().ok());
        last.unwrap_or(0)
    }

    /// Where the last fence is on all servers, and no claim is between its votes.
    fn replace_some(&mut self) {
        let asks = |actor: &Actor| matches!(actor.state, State::Asks(..));
        if self.actors.iter().any(asks) {
            return;
        }
        let mut nodes: Vec<usize> = (0..self.nodes).collect();
        if self.highest == 0 || nodes.iter().any(|node| self.last(*node) < self.highest) {
            return;
        }
        self.random.shuffle(&mut nodes);
        for node in &nodes[..self.nodes - self.quorum] {
            let [lock, fence] = keys(*node);
            self.ask::<i64>(&["DEL", &lock, &fence]);
        }
        self.replaced += 1;
    }
}

/// What the histories have met, so that the test cannot pass by doing nothing.
#[derive(Debug, Default)]
struct Met {
    grants: usize,
    further_rounds: usize,
    replaced: usize,
}

fn histories(faults: Faults) {
    let soak = std::env::var("PALISADE_SOAK").map(|times| times.parse().expect("a number"));
    let count = HISTORIES * soak.unwrap_or(1);
    let seed = std::env::var("PALISADE_SEED").map_or_else(
        |_| fastrand::u64(..),
        |seed| seed.parse().expect("PALISADE_SEED is a number"),
    );
    println!("PALISADE_SEED={seed}");
    let redis = Redis::start();
    let client = redis::Client::open(redis.url()).expect("a URL");
    let mut server = client.get_connection().expect("a connection");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut met = Met::default();
    for _ in 0..count {
        let _: () = redis::cmd("FLUSHALL")
            .query(&mut server)
            .expect("an answer");
        let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(&mut server).expect("a time");
        let nodes = if random.bool() { 3 } else { 5 };
        let mut world = World {
            nodes,
            quorum: nodes / 2 + 1,
            random: random.fork(),
            server,
            base: seconds * 1_000_000 + micros,
            faults,
            actors: Default::default(),
            in_flight: Vec::new(),
            rounds: 0,
            granted: HashMap::new(),
            highest: 0,
            replaced: 0,
        };
        for _ in 0..STEPS {
            world.step();
            met.further_rounds += usize::from(world.actors.iter().any(|actor| actor.rounds > 1));
        }
        met.grants += world.granted.len();
        met.replaced += world.replaced;
        server = world.server;
    }
    println!("{met:?}");
    assert!(met.grants > count && met.further_rounds > count, "{met:?}");
    assert!(faults != Faults::Replaced || met.replaced > 0, "{met:?}");
}

#[test]
fn late_and_lost_messages_make_no_two_holders() {
    histories(Faults::None);
}

#[test]
fn fences_rise_whatever_ends_too_early() {
    histories(Faults::Clocks);
}

#[test]
fn fences_rise_though_a_minority_is_replaced() {
    histories(Faults::Replaced);
}
