//! Nodes that are made and deleted at the same time go together: one transaction, with one trip through the servers.
//!
//! ```text
//! multi   create /a/_c_<guid>-lock-, delete /b/_c_<guid>-lock-0000000003, create /c/_c_<guid>-lock-
//! list    /a                            answered after it, on the same session: ours is in it
//! list    /c
//! ```
//!
//! All are done, or none. If none is, whoever was refused goes alone, and the others once more together. The fence of a lock is
//! the transaction that made its node: so one transaction makes no two nodes of one line.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use super::claiming::{gone, unsure};
use super::failure::{Failed, LONGEST, client_ended};
use super::jute::Broken;
use super::proto::{self, ANY, Code, Make, Multi, Outcome, Request, Step};
use super::session::{Sent, Session};
use crate::lease::{BootClock, Clock, Moment};
use crate::stores::gather::{Carries, Gather};

/// How many groups are on their way at once. Fewer tasks than that never wait for each other.
const AT_ONCE: usize = 4;
/// How many go together at most.
const MOST: usize = 128;
/// How often those go together again that were not refused themselves.
const TRIES: usize = 2;
/// What a step has beside its path and its data.
const STEP: usize = 64;

pub(super) type Together = Gather<Carrier>;

/// Those who go together on this session.
pub(super) fn on(session: &Weak<Session>) -> Arc<Together> {
    Gather::new(Carrier(Weak::clone(session)), tokio::runtime::Handle::current(), AT_ONCE, MOST)
}

pub(super) enum Ask {
    /// Boxed: it is handed on several times before it is sent.
    Stand(Box<Stand>),
    /// Deletes the node of this path.
    Delete(String),
}

/// Makes a node in a line, and reads the line.
pub(super) struct Stand {
    /// Nodes above it that may not be there yet.
    pub(super) missing: Vec<String>,
    pub(super) line: String,
    /// The path of the node, to which the server adds its number.
    pub(super) wanted: String,
    pub(super) value: Vec<u8>,
}

pub(super) enum Told {
    Stands(Result<Stands, Failed>),
    Deleted(Result<(), Failed>),
}

/// A node that was made.
pub(super) struct Stands {
    pub(super) path: String,
    /// The transaction that made it.
    pub(super) czxid: i64,
    pub(super) line: Result<Vec<String>, Failed>,
    /// When it was asked for. Who goes with others may have waited before.
    pub(super) sent: Moment,
}

impl Stands {
    /// Its name, without the path.
    pub(super) fn child(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }
}

/// A node on its way, alone.
pub(super) struct Standing {
    sent: Moment,
    making: Vec<Sent>,
    create: Sent,
    list: Sent,
}

impl Stand {
    /// Sends it alone.
    pub(super) fn send(&self, session: &Arc<Session>) -> Standing {
        let sent = BootClock.now();
        let making = self.make_missing(session);
        let create = session.send(Request::create(&self.wanted, &self.value, session.acl(), Make::EphemeralSequential));
        Standing { sent, making, create, list: session.send(Request::children(&self.line, false)) }
    }

    fn make_missing(&self, session: &Arc<Session>) -> Vec<Sent> {
        let make = |path: &String| session.send(Request::create(path, b"", session.acl(), Make::Container));
        self.missing.iter().map(make).collect()
    }
}

impl Standing {
    pub(super) async fn answer(self) -> Result<Stands, Failed> {
        // The last first: the others are there by then, so that whoever waits is woken once.
        let line = self.list.answer().await;
        let mut denied = None;
        for made in self.making {
            match made.answer().await {
                Ok(_) => {}
                // There already, or not ours to make: the node itself will tell.
                Err(Failed::Refused(Code::NodeExists | Code::NoNode)) => {}
                Err(failed @ Failed::Refused(Code::NoAuth)) => denied = Some(failed),
                Err(Failed::Refused(Code::NoChildrenForEphemerals)) => {}
                Err(failed) => return Err(failed),
            }
        }
        let created = self.create.answer().await;
        let created = match (created, denied) {
            // Trying again would not make it ours to make, and whoever asked would hear that the servers are at fault.
            (Err(failed), Some(denied)) if failed.is(Code::NoNode) => return Err(denied),
            (created, _) => created?,
        };
        let (path, stat) = proto::created(&created)?;
        let line = line.and_then(|body| Ok(proto::children(&body)?));
        Ok(Stands { path, czxid: stat.czxid, line, sent: self.sent })
    }
}

impl Ask {
    /// About how long it is in a request.
    fn bytes(&self) -> usize {
        match self {
            Ask::Stand(stand) => STEP + stand.wanted.len() + stand.value.len(),
            Ask::Delete(path) => STEP + path.len(),
        }
    }

    fn step<'a>(&'a self, session: &Session) -> Step<'a> {
        match self {
            Ask::Stand(stand) => {
                let (path, data) = (&stand.wanted, &stand.value);
                Step::Create { path, data, acl: session.acl(), make: Make::EphemeralSequential }
            }
            Ask::Delete(path) => Step::Delete { path, version: ANY },
        }
    }

    /// What no two of one transaction may have in common.
    fn apart_by(&self) -> &str {
        match self {
            Ask::Stand(stand) => &stand.line,
            Ask::Delete(path) => path,
        }
    }

    fn failed(&self, failed: Failed) -> Told {
        match self {
            Ask::Stand(_) => Told::Stands(Err(failed)),
            Ask::Delete(_) => Told::Deleted(Err(failed)),
        }
    }

    fn send(&self, session: &Arc<Session>) -> Alone {
        match self {
            Ask::Stand(stand) => Alone::Standing(stand.send(session)),
            Ask::Delete(path) => Alone::Deleting(session.send(Request::delete(path, ANY))),
        }
    }
}

/// On its way, alone.
enum Alone {
    Standing(Standing),
    Deleting(Sent),
}

impl Alone {
    async fn answer(self) -> Told {
        match self {
            Alone::Standing(standing) => Told::Stands(standing.answer().await),
            Alone::Deleting(sent) => Told::Deleted(sent.answer().await.map(drop)),
        }
    }
}

/// Takes groups to the server, on one session.
pub(super) struct Carrier(Weak<Session>);

impl Carries for Carrier {
    type Request = Ask;
    type Answer = Told;

    /// The last answer is waited for first, and the others are there by then.
    const ANSWER_WAKES: bool = true;

    /// Those of one line go in transactions of their own, one behind the other.
    fn fits(&self, group: &[Ask], ask: &Ask) -> bool {
        group.is_empty() || group.iter().map(Ask::bytes).sum::<usize>() + ask.bytes() <= LONGEST / 2
    }

    async fn carry_alone(&self, ask: Ask) -> Option<Told> {
        let Some(session) = self.0.upgrade() else { return Some(ask.failed(Failed::Ended)) };
        let sent = ask.send(&session);
        drop((ask, session));
        Some(sent.answer().await)
    }

    async fn carry(&self, group: Vec<Ask>) -> Vec<Told> {
        let Some(session) = self.0.upgrade() else {
            return group.iter().map(|ask| ask.failed(Failed::Ended)).collect();
        };
        let _debt = session.debt();
        let mut told: Vec<(usize, Told)> = Vec::with_capacity(group.len());
        let mut parts = apart(&group);
        while !parts.is_empty() {
            // All in one go.
            let sent: Vec<Sending<'_>> = parts.drain(..).map(|part| part.send(&session)).collect();
            for sending in sent {
                match sending {
                    Sending::Alone(at, alone) => told.push((at, alone.answer().await)),
                    Sending::Together(part, sent) => match sent.answer(&session, &part).await {
                        Ok(done) => told.extend(part.asks.iter().map(|(at, _)| *at).zip(done)),
                        Err(Undone::Refused(at)) => parts.extend(part.without(at)),
                        Err(Undone::Failed(failed)) => {
                            told.extend(part.asks.iter().map(|(at, ask)| (*at, ask.failed(failed.clone()))));
                        }
                    },
                }
            }
        }
        told.sort_unstable_by_key(|(at, _)| *at);
        told.into_iter().map(|(_, told)| told).collect()
    }
}

/// Splits a group into transactions. No two of one line are in one, since they would have the same fence; and who came first, goes
/// first.
fn apart(group: &[Ask]) -> Vec<Part<'_>> {
    let (mut met, mut parts): (HashMap<&str, usize>, Vec<Part<'_>>) = Default::default();
    for (at, ask) in group.iter().enumerate() {
        let before = met.entry(ask.apart_by()).or_default();
        match parts.get_mut(*before) {
            Some(part) => part.asks.push((at, ask)),
            None => parts.push(Part { asks: vec![(at, ask)], refused: 0 }),
        }
        *before += 1;
    }
    parts
}

/// Those of a group that go in one transaction.
struct Part<'a> {
    asks: Vec<(usize, &'a Ask)>,
    /// How often it was refused because of one of them.
    refused: usize,
}

enum Sending<'a> {
    Alone(usize, Alone),
    Together(Part<'a>, Transaction),
}

impl<'a> Part<'a> {
    fn send(self, session: &Arc<Session>) -> Sending<'a> {
        if let [(at, ask)] = *self.asks {
            return Sending::Alone(at, ask.send(session));
        }
        let stands = self.asks.iter().filter_map(|(_, ask)| match ask {
            Ask::Stand(stand) => Some(stand),
            Ask::Delete(_) => None,
        });
        let sent = BootClock.now();
        let making = stands.clone().flat_map(|stand| stand.make_missing(session)).collect();
        let steps: Vec<Step<'_>> = self.asks.iter().map(|(_, ask)| ask.step(session)).collect();
        let multi = session.send(Request::multi(&steps));
        let lines = stands.map(|stand| session.send(Request::children_and_stat(&stand.line))).collect();
        Sending::Together(self, Transaction { sent, making, multi, lines })
    }

    /// Whoever was refused goes alone; and so does everybody, if that happens too often.
    fn without(self, refused: Option<usize>) -> Vec<Part<'a>> {
        let alone = |ask| Part { asks: vec![ask], refused: 0 };
        let Some(at) = refused.filter(|at| *at < self.asks.len() && self.refused + 1 < TRIES) else {
            return self.asks.into_iter().map(alone).collect();
        };
        let mut rest = Part { refused: self.refused + 1, ..self };
        vec![alone(rest.asks.remove(at)), rest]
    }
}

/// Why a transaction was not done.
enum Undone {
    /// Nothing of it was, because of this one, if that is known.
    Refused(Option<usize>),
    /// The same for all.
    Failed(Failed),
}

/// A transaction on its way, and the lines behind it.
struct Transaction {
    sent: Moment,
    making: Vec<Sent>,
    multi: Sent,
    lines: Vec<Sent>,
}

impl Transaction {
    async fn answer(self, session: &Arc<Session>, part: &Part<'_>) -> Result<Vec<Told>, Undone> {
        for made in self.making {
            // What is still missing then, the transaction is refused for.
            let _ = made.answer().await;
        }
        let reply = match self.multi.reply().await {
            Ok(reply) => reply,
            Err(Failed::Refused(_)) => return Err(Undone::Refused(None)),
            Err(failed) => return Err(Undone::Failed(failed)),
        };
        let done = match proto::multi(&reply.body) {
            Ok(Multi::Done(done)) => done,
            Ok(Multi::Failed(codes)) => {
                let cause = Some(Multi::cause(&codes)).filter(|cause| *cause != Code::RolledBack);
                return Err(Undone::Refused(cause.and_then(|cause| codes.iter().position(|code| *code == cause))));
            }
            Err(broken) => return Err(Undone::Failed(broken.into())),
        };
        let (mut made, mut done, mut lines) = (Vec::with_capacity(part.asks.len()), done.into_iter(), self.lines.into_iter());
        for (_, ask) in &part.asks {
            made.push(match (ask, done.next()) {
                (Ask::Delete(_), Some(Outcome::Nothing)) => Err(Told::Deleted(Ok(()))),
                (Ask::Stand(_), Some(Outcome::Created(path))) => match lines.next() {
                    Some(line) => Ok(Made::of(session, path, reply.zxid, line).await),
                    None => Err(ask.failed(gone())),
                },
                (ask, _) => Err(ask.failed(Broken.into())),
            });
        }
        let mut told = Vec::with_capacity(made.len());
        for made in made {
            told.push(match made {
                Ok(made) => Told::Stands(made.stands(self.sent).await),
                Err(told) => told,
            });
        }
        Ok(told)
    }
}

/// A node that was made together with others, and its line. Of its transaction the answer says nothing but by its own number.
struct Made {
    path: String,
    czxid: Czxid,
    line: Result<Vec<String>, Failed>,
}

enum Czxid {
    Known(i64),
    Asked(Sent),
}

impl Made {
    async fn of(session: &Arc<Session>, path: String, zxid: i64, line: Sent) -> Made {
        let line = line.answer().await.and_then(|body| Ok(proto::children_and_stat(&body)?));
        let czxid = match &line {
            // Somebody came or went meanwhile, and the node itself is asked. Otherwise it is the last that has changed the line, and
            // the two agree.
            Ok((_, above)) if above.pzxid != zxid => Czxid::Asked(session.send(Request::exists(&path, false))),
            _ => Czxid::Known(zxid),
        };
        Made { path, czxid, line: line.map(|(children, _)| children) }
    }

    async fn stands(self, sent: Moment) -> Result<Stands, Failed> {
        let czxid = match self.czxid {
            Czxid::Known(czxid) => czxid,
            Czxid::Asked(asked) => proto::stat(&asked.answer().await.map_err(unsure)?)?.czxid,
        };
        Ok(Stands { path: self.path, czxid, line: self.line, sent })
    }
}

impl Session {
    /// Makes a node in a line and reads the line, in one round trip, alone or together with others.
    pub(super) async fn stand(&self, stand: Stand) -> Result<Stands, Failed> {
        match self.together().ask(Ask::Stand(Box::new(stand))).await {
            Some(Told::Stands(stands)) => stands,
            _ => Err(broken_off()),
        }
    }

    /// Deletes a node, alone or together with others.
    pub(super) async fn delete(&self, path: String) -> Result<(), Failed> {
        match self.together().ask(Ask::Delete(path)).await {
            Some(Told::Deleted(deleted)) => deleted,
            _ => Err(broken_off()),
        }
    }
}

fn broken_off() -> Failed {
    Failed::Unsure(client_ended())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stand(line: &str) -> Ask {
        let (line, wanted) = (line.to_owned(), format!("{line}/_c_a-lock-"));
        Ask::Stand(Box::new(Stand { missing: Vec::new(), line, wanted, value: Vec::new() }))
    }

    fn delete(path: &str) -> Ask {
        Ask::Delete(path.to_owned())
    }

    fn places(parts: &[Part<'_>]) -> Vec<Vec<usize>> {
        parts.iter().map(|part| part.asks.iter().map(|(at, _)| *at).collect()).collect()
    }

    #[test]
    fn two_of_one_line_are_in_two_transactions() {
        let group = [stand("/a"), stand("/b"), stand("/a"), delete("/a/1"), stand("/a"), delete("/a/1"), stand("/c")];
        assert_eq!(places(&apart(&group)), [vec![0, 1, 3, 6], vec![2, 5], vec![4]]);
    }

    #[test]
    fn who_is_refused_goes_alone_and_then_everybody() {
        let group = [stand("/a"), stand("/b"), stand("/c"), stand("/d")];
        let mut again = apart(&group).remove(0).without(Some(1));
        assert_eq!(places(&again), [vec![1], vec![0, 2, 3]]);
        assert_eq!(places(&again.remove(1).without(Some(0))), [[0], [2], [3]]);
        assert_eq!(places(&apart(&group).remove(0).without(None)), [[0], [1], [2], [3]]);
    }
}
