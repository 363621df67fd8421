//! Nodes that are made and deleted at the same time go together: one transaction, with one trip
//! through the servers.
//!
//! ```text
//! multi   create /a/_c_<guid>-lock-, delete /b/_c_<guid>-lock-0000000003, create /c/_c_<guid>-lock-
//! list    /a                            answered after it, on the same session: our node is in it
//! list    /c
//! ```
//!
//! All steps are done, or none. If none is, the step that was refused goes alone, and the others
//! once more together. The fence of a lock is the transaction that made its node: so one
//! transaction makes no two nodes of one line.

use std::collections::HashMap;
use std::sync::Arc;

use super::client::proto::{ANY, Code, Created, Make, Multi, Outcome, Request, Stat, Step, Undone};
use super::client::{Failed, LONGEST, Sent, Session, client_ended};
use super::failure::{gone, unexpected, unsure};
use crate::store::{ClaimId, ClientHandle};
use crate::stores::batch::{self, BatchExecutor, Limits};

/// Fewer tasks than may be in flight at once never wait for each other.
const LIMITS: Limits = Limits {
    in_flight: 4,
    largest: 128,
    apart: 4,
    patience: None,
    reply_wakes: true,
};
/// How often the rest of a transaction that was refused goes together again.
const TRIES: usize = 2;
/// The bytes of a step beside its path and its data.
const STEP: usize = 64;

pub(super) type Batcher = batch::Batcher<OnSession>;

/// The batches of this session.
pub(super) fn on(session: &Arc<Session>) -> Arc<Batcher> {
    Batcher::new(
        OnSession(Arc::clone(session)),
        tokio::runtime::Handle::current(),
        LIMITS,
    )
}

/// A request that may go with others.
pub(super) enum Action {
    /// Boxed: it is moved several times before it is sent.
    Join(Box<Join>),
    /// Deletes the node of this path.
    Delete(String),
}

/// Makes a node in a line, and reads the line.
pub(super) struct Join {
    /// Parents of the line that may be missing.
    pub(super) parents: Vec<String>,
    pub(super) line: String,
    /// The path of the node, to which the server adds its number.
    pub(super) node: String,
    pub(super) value: Vec<u8>,
    /// The claim that wants the node, and the client that knows whether its caller has left.
    pub(super) wanted: Option<(ClientHandle, ClaimId)>,
}

/// The node that was made; none for a deletion.
type Reply = Result<Option<Joined>, Failed>;

/// A node that was made.
pub(super) struct Joined {
    pub(super) path: String,
    /// The transaction that made it.
    pub(super) czxid: i64,
    pub(super) line: Result<Vec<String>, Failed>,
}

impl Joined {
    /// Its name, without the path.
    pub(super) fn child(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }
}

/// A single join in flight.
pub(super) struct SentJoin {
    parents: Vec<Sent<()>>,
    create: Sent<Created>,
    list: Sent<Vec<String>>,
}

impl Join {
    fn is_wanted(&self) -> bool {
        self.wanted
            .as_ref()
            .is_none_or(|(client, claim)| client.wants(*claim))
    }

    /// Sends it alone.
    pub(super) fn send(&self, session: &Arc<Session>) -> SentJoin {
        let parents = self.make_parents(session);
        let create = session.send(Request::create(
            &self.node,
            &self.value,
            session.acl(),
            Make::EphemeralSequential,
        ));
        SentJoin {
            parents,
            create,
            list: session.send(Request::children(&self.line)),
        }
    }

    fn make_parents(&self, session: &Arc<Session>) -> Vec<Sent<()>> {
        self.parents
            .iter()
            .map(|path| session.send(Request::container(path, session.acl())))
            .collect()
    }
}

impl SentJoin {
    pub(super) async fn answer(self) -> Result<Joined, Failed> {
        // The last first: the others are there by then, so that the caller is woken once.
        let line = self.list.answer().await;
        let mut denied = None;
        for made in self.parents {
            match made.answer().await {
                Ok(()) => {}
                // It exists, or it is not ours to make: the node itself will tell.
                Err(Failed::Refused(
                    Code::NodeExists | Code::NoNode | Code::NoChildrenForEphemerals,
                )) => {}
                Err(failed @ Failed::Refused(Code::NoAuth)) => denied = Some(failed),
                Err(failed) => return Err(failed),
            }
        }
        let Created { path, czxid } = match (self.create.answer().await, denied) {
            // A retry would not give us the right, and the caller would hear that the servers are
            // at fault.
            (Err(failed), Some(denied)) if failed.is(Code::NoNode) => return Err(denied),
            (created, _) => created?,
        };
        Ok(Joined { path, czxid, line })
    }
}

impl Action {
    /// Whether it must be sent: a caller that has left wants no node, but its node to be deleted.
    fn is_wanted(&self) -> bool {
        match self {
            Action::Join(join) => join.is_wanted(),
            Action::Delete(_) => true,
        }
    }

    /// About how long it is in a request.
    fn bytes(&self) -> usize {
        match self {
            Action::Join(join) => STEP + join.node.len() + join.value.len(),
            Action::Delete(path) => STEP + path.len(),
        }
    }

    fn step<'a>(&'a self, session: &Session) -> Step<'a> {
        match self {
            Action::Join(join) => {
                let (path, data) = (&join.node, &join.value);
                Step::Create {
                    path,
                    data,
                    acl: session.acl(),
                    make: Make::EphemeralSequential,
                }
            }
            Action::Delete(path) => Step::Delete { path, version: ANY },
        }
    }

    /// No two actions of one transaction may have this in common.
    fn target(&self) -> &str {
        match self {
            Action::Join(join) => &join.line,
            Action::Delete(path) => path,
        }
    }

    fn send(&self, session: &Arc<Session>) -> Single {
        match self {
            Action::Join(join) => Single::Join(join.send(session)),
            Action::Delete(path) => Single::Delete(session.send(Request::delete(path))),
        }
    }
}

/// A single action in flight.
enum Single {
    Join(SentJoin),
    Delete(Sent<()>),
}

impl Single {
    async fn answer(self) -> Reply {
        match self {
            Single::Join(sent) => sent.answer().await.map(Some),
            Single::Delete(sent) => sent.answer().await.map(|()| None),
        }
    }
}

/// Sends batches on one session.
pub(super) struct OnSession(Arc<Session>);

impl BatchExecutor for OnSession {
    type Request = Action;
    type Reply = Reply;

    /// Actions of one line go in transactions of their own, one behind the other.
    fn can_join(&self, group: &[Action], action: &Action) -> bool {
        group.is_empty()
            || group.iter().map(Action::bytes).sum::<usize>() + action.bytes() <= LONGEST / 2
    }

    /// Releases and withdrawals go before claims.
    fn is_urgent(&self, action: &Action) -> bool {
        matches!(action, Action::Delete(_))
    }

    async fn execute(&self, group: Vec<Action>) -> Vec<Reply> {
        let _open = self.0.keep_open();
        let mut answers: Vec<(usize, Reply)> = Vec::with_capacity(group.len());
        let (wanted, left): (Vec<_>, Vec<_>) = group
            .iter()
            .enumerate()
            .partition(|(_, action)| action.is_wanted());
        answers.extend(left.into_iter().map(|(at, _)| (at, Err(Failed::NotSent))));
        let mut parts = split(wanted);
        while !parts.is_empty() {
            // All in one go.
            let sent: Vec<InFlight<'_>> = parts.drain(..).map(|part| part.send(&self.0)).collect();
            for sent in sent {
                match sent {
                    InFlight::Single(at, single) => answers.push((at, single.answer().await)),
                    InFlight::Transaction(part, sent) => match sent.answer(&self.0, &part).await {
                        Ok(done) => {
                            answers.extend(part.actions.iter().map(|(at, _)| *at).zip(done))
                        }
                        Err(NotDone::Refused(at)) => parts.extend(part.without(at)),
                        Err(NotDone::Failed(failed)) => {
                            let failed = |(at, _): &(usize, _)| (*at, Err(failed.clone()));
                            answers.extend(part.actions.iter().map(failed));
                        }
                    },
                }
            }
        }
        answers.sort_unstable_by_key(|(at, _)| *at);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }
}

/// Splits a batch into transactions. No two of one line are in one, since they would have the same
/// fence; the first to come goes first.
fn split(batch: Vec<(usize, &Action)>) -> Vec<Part<'_>> {
    let (mut met, mut parts): (HashMap<&str, usize>, Vec<Part<'_>>) = Default::default();
    for (at, action) in batch {
        let before = met.entry(action.target()).or_default();
        match parts.get_mut(*before) {
            Some(part) => part.actions.push((at, action)),
            None => parts.push(Part {
                actions: vec![(at, action)],
                refused: 0,
            }),
        }
        *before += 1;
    }
    parts
}

/// The actions of a batch that go in one transaction, each with its place in the batch.
struct Part<'a> {
    actions: Vec<(usize, &'a Action)>,
    /// How often it was refused because of one of them.
    refused: usize,
}

enum InFlight<'a> {
    Single(usize, Single),
    Transaction(Part<'a>, Transaction),
}

impl<'a> Part<'a> {
    fn send(self, session: &Arc<Session>) -> InFlight<'a> {
        if let [(at, action)] = *self.actions {
            return InFlight::Single(at, action.send(session));
        }
        let joins = self.actions.iter().filter_map(|(_, action)| match action {
            Action::Join(join) => Some(join),
            Action::Delete(_) => None,
        });
        let parents = joins
            .clone()
            .flat_map(|join| join.make_parents(session))
            .collect();
        let steps: Vec<Step<'_>> = self
            .actions
            .iter()
            .map(|(_, action)| action.step(session))
            .collect();
        let multi = session.send(Request::multi(&steps));
        let lines = joins
            .map(|join| session.send(Request::children_and_stat(&join.line)))
            .collect();
        InFlight::Transaction(
            self,
            Transaction {
                parents,
                multi,
                lines,
            },
        )
    }

    /// The action that was refused goes alone; and so do all of them, if that happens too often.
    fn without(self, refused: Option<usize>) -> Vec<Part<'a>> {
        let alone = |action| Part {
            actions: vec![action],
            refused: 0,
        };
        let Some(at) = refused.filter(|at| *at < self.actions.len() && self.refused + 1 < TRIES)
        else {
            return self.actions.into_iter().map(alone).collect();
        };
        let mut rest = Part {
            refused: self.refused + 1,
            ..self
        };
        vec![alone(rest.actions.remove(at)), rest]
    }
}

/// Why a transaction was not done.
enum NotDone {
    /// Nothing of it was, because of this action, if that is known.
    Refused(Option<usize>),
    /// The same for all.
    Failed(Failed),
}

/// A transaction in flight, and the lines behind it.
struct Transaction {
    parents: Vec<Sent<()>>,
    multi: Sent<Multi>,
    lines: Vec<Sent<(Vec<String>, Stat)>>,
}

impl Transaction {
    async fn answer(self, session: &Arc<Session>, part: &Part<'_>) -> Result<Vec<Reply>, NotDone> {
        for made in self.parents {
            // If one is still missing then, the transaction is refused.
            let _ = made.answer().await;
        }
        let (done, zxid) = match self.multi.with_zxid().await {
            Ok((Ok(done), zxid)) => (done, zxid),
            Ok((Err(Undone { step, .. }), _)) => return Err(NotDone::Refused(step)),
            Err(Failed::Refused(_)) => return Err(NotDone::Refused(None)),
            Err(failed) => return Err(NotDone::Failed(failed)),
        };
        let (mut made, mut done, mut lines) = (
            Vec::with_capacity(part.actions.len()),
            done.into_iter(),
            self.lines.into_iter(),
        );
        for (_, action) in &part.actions {
            made.push(match (action, done.next()) {
                (Action::Delete(_), Some(Outcome::Nothing)) => Err(Ok(None)),
                (Action::Join(_), Some(Outcome::Created(path))) => match lines.next() {
                    Some(line) => Ok(Made::of(session, path, zxid, line).await),
                    None => Err(Err(gone())),
                },
                _ => Err(Err(unexpected())),
            });
        }
        let mut answers = Vec::with_capacity(made.len());
        for made in made {
            answers.push(match made {
                Ok(made) => made.joined().await.map(Some),
                Err(reply) => reply,
            });
        }
        Ok(answers)
    }
}

/// A node that was made together with others, and its line. The answer has only the transaction of
/// the whole.
struct Made {
    path: String,
    czxid: Czxid,
    line: Result<Vec<String>, Failed>,
}

enum Czxid {
    Known(i64),
    Asked(Sent<Stat>),
}

impl Made {
    async fn of(
        session: &Arc<Session>,
        path: String,
        zxid: i64,
        line: Sent<(Vec<String>, Stat)>,
    ) -> Made {
        let line = line.answer().await;
        let czxid = match &line {
            // The line has changed since, and the node itself is asked. Otherwise our transaction
            // is the last that has changed the line, and the two agree.
            Ok((_, parent)) if parent.pzxid != zxid => {
                Czxid::Asked(session.send(Request::exists(&path)))
            }
            _ => Czxid::Known(zxid),
        };
        Made {
            path,
            czxid,
            line: line.map(|(children, _)| children),
        }
    }

    async fn joined(self) -> Result<Joined, Failed> {
        let czxid = match self.czxid {
            Czxid::Known(czxid) => czxid,
            Czxid::Asked(asked) => asked.answer().await.map_err(unsure)?.czxid,
        };
        Ok(Joined {
            path: self.path,
            czxid,
            line: self.line,
        })
    }
}

impl Batcher {
    /// Makes a node in a line and reads the line, in one round trip, alone or in a batch.
    pub(super) async fn join(self: &Arc<Self>, join: Join) -> Result<Joined, Failed> {
        match self.ask(Action::Join(Box::new(join))).await {
            Some(Ok(Some(joined))) => Ok(joined),
            Some(Err(failed)) => Err(failed),
            _ => Err(Failed::Unsure(client_ended())),
        }
    }

    /// Deletes a node, alone or in a batch.
    pub(super) async fn delete(self: &Arc<Self>, path: String) -> Result<(), Failed> {
        match self.ask(Action::Delete(path)).await {
            Some(deleted) => deleted.map(|_| ()),
            None => Err(Failed::Unsure(client_ended())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join(line: &str) -> Action {
        let (line, node) = (line.to_owned(), format!("{line}/_c_a-lock-"));
        Action::Join(Box::new(Join {
            parents: Vec::new(),
            line,
            node,
            value: Vec::new(),
            wanted: None,
        }))
    }

    fn delete(path: &str) -> Action {
        Action::Delete(path.to_owned())
    }

    fn parts(batch: &[Action]) -> Vec<Part<'_>> {
        split(batch.iter().enumerate().collect())
    }

    fn places(parts: &[Part<'_>]) -> Vec<Vec<usize>> {
        parts
            .iter()
            .map(|part| part.actions.iter().map(|(at, _)| *at).collect())
            .collect()
    }

    #[test]
    fn two_of_one_line_are_in_two_transactions() {
        let batch = [
            join("/a"),
            join("/b"),
            join("/a"),
            delete("/a/1"),
            join("/a"),
            delete("/a/1"),
            join("/c"),
        ];
        assert_eq!(
            places(&parts(&batch)),
            [vec![0, 1, 3, 6], vec![2, 5], vec![4]]
        );
    }

    #[test]
    fn a_refused_action_goes_alone_and_then_all_do() {
        let batch = [join("/a"), join("/b"), join("/c"), join("/d")];
        let mut again = parts(&batch).remove(0).without(Some(1));
        assert_eq!(places(&again), [vec![1], vec![0, 2, 3]]);
        assert_eq!(places(&again.remove(1).without(Some(0))), [[0], [2], [3]]);
        assert_eq!(
            places(&parts(&batch).remove(0).without(None)),
            [[0], [1], [2], [3]]
        );
    }
}
