//! Claims and releases that find others on their way go together: one transaction that holds them, and so one commit for all.
//!
//! Each is the very transaction that it would have been alone, nested in the other. All that they write has one revision, and the
//! server compares for all of them before it writes for any: so two of one line never go together, nor two of which one line is
//! within the other. A group that the server refuses has done nothing; then each goes alone, and has its own answer.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::client::cluster::{Again, Cluster, Failed, SUSPECT, Sent};
use super::client::lane::Lane;
use super::client::lanes::ended;
use super::client::proto::{
    DELETE_RANGE, DeleteRangeRequest, DeleteRangeResponse, Request, RequestOp, Response, ResponseOp, TXN, TxnRequest, TxnResponse,
};
use crate::error::Error;
use crate::stores::gather::Carries;

/// How many may be on their way before others wait for them. The server commits what comes at the same time together.
pub(super) const AT_ONCE: usize = 4;
/// How many go together. Servers take 128 operations, of all depths.
pub(super) const MOST: usize = 32;

/// What goes, alone or with others.
#[derive(Clone)]
pub(super) struct Verb {
    /// What the keys of its line begin with.
    pub(super) line: Vec<u8>,
    pub(super) request: Request,
    pub(super) again: Again,
}

impl Verb {
    /// Asks by itself.
    pub(super) async fn alone(self, cluster: &Arc<Cluster>) -> Result<(TxnResponse, Sent), Failed> {
        match self.request {
            Request::Txn(txn) => cluster.ask_noting_sends(TXN, txn, self.again).await,
            Request::Delete(delete) => {
                let (response, sent): (DeleteRangeResponse, Sent) =
                    cluster.ask_noting_sends::<DeleteRangeRequest, _>(DELETE_RANGE, delete, self.again).await?;
                let header = response.header.clone();
                let responses = vec![ResponseOp { response: Some(Response::Delete(response)) }];
                Ok((TxnResponse { header, succeeded: true, responses }, sent))
            }
            other @ (Request::Range(_) | Request::Put(_)) => {
                let txn = TxnRequest { success: vec![RequestOp { request: Some(other) }], ..TxnRequest::default() };
                cluster.ask_noting_sends(TXN, txn, self.again).await
            }
        }
    }
}

pub(super) struct Carrier {
    /// They have the lane, which has this.
    cluster: Weak<Cluster>,
    lane: Weak<Lane>,
    request_timeout: Duration,
    /// How many the server has not yet refused for their number.
    most: AtomicUsize,
}

impl Carrier {
    pub(super) fn new(cluster: &Arc<Cluster>, lane: &Arc<Lane>) -> Carrier {
        Carrier {
            cluster: Arc::downgrade(cluster),
            lane: Arc::downgrade(lane),
            request_timeout: cluster.request_timeout,
            most: AtomicUsize::new(MOST),
        }
    }

    async fn alone(&self, verb: Verb) -> Result<(TxnResponse, Sent), Failed> {
        let cluster = self.cluster.upgrade().ok_or_else(ended)?;
        verb.alone(&cluster).await
    }

    async fn one_by_one(&self, group: Vec<Verb>, before: Sent) -> Vec<Result<(TxnResponse, Sent), Failed>> {
        let mut answers = Vec::with_capacity(group.len());
        let mut silent = None;
        for verb in group {
            // One that has no answer costs the others no more than it costs itself.
            let answer = match &silent {
                Some(failed) => Err(Failed::clone(failed)),
                None => self.alone(verb).await,
            };
            silent = answer.as_ref().err().filter(|failed| !failed.refused).cloned();
            answers.push(answer.map(|(response, sent)| (response, if before == Sent::Again { before } else { sent })));
        }
        answers
    }
}

impl Carries for Carrier {
    type Request = Verb;
    type Answer = Result<(TxnResponse, Sent), Failed>;

    fn fits(&self, group: &[Verb], verb: &Verb) -> bool {
        let apart = |other: &Verb| !other.line.starts_with(&verb.line) && !verb.line.starts_with(&other.line);
        group.is_empty() || group.len() < self.most.load(Ordering::Relaxed) && group.iter().all(apart)
    }

    async fn carry(&self, mut group: Vec<Verb>) -> Vec<Self::Answer> {
        if group.len() <= 1 {
            return match group.pop() {
                Some(verb) => vec![self.alone(verb).await],
                None => Vec::new(),
            };
        }
        let again = if group.iter().all(|verb| verb.again == Again::Freely) { Again::Freely } else { Again::Never };
        let success = group.iter().map(|verb| RequestOp { request: Some(verb.request.clone()) }).collect();
        let together = TxnRequest { success, ..TxnRequest::default() };
        let answer = match self.cluster.upgrade() {
            Some(cluster) => cluster.ask_noting_sends::<_, TxnResponse>(TXN, together, again).await,
            None => Err(ended().into()),
        };
        match answer {
            Ok((response, _)) if response.responses.len() != group.len() => {
                let error = Failed::from(Error::protocol("the store has not answered every part of a transaction"));
                group.iter().map(|_| Err(error.clone())).collect()
            }
            Ok((TxnResponse { header, responses, .. }, sent)) => {
                let own = |op: ResponseOp| match op.response {
                    // Only the whole has a header.
                    Some(Response::Txn(txn)) => TxnResponse { header: header.clone(), ..txn },
                    response => {
                        let responses = vec![ResponseOp { response }];
                        TxnResponse { header: header.clone(), succeeded: true, responses }
                    }
                };
                responses.into_iter().map(|op| Ok((own(op), sent))).collect()
            }
            Err(failed) if failed.refused => {
                if failed.error.to_string().contains("too many operations") {
                    self.most.store((group.len() / 2).max(1), Ordering::Relaxed);
                }
                self.one_by_one(group, failed.sent).await
            }
            Err(failed) => group.iter().map(|_| Err(failed.clone())).collect(),
        }
    }

    /// Many at one name are as fast as they can be: the server commits together what comes at the same time.
    fn misfits_wait(&self) -> bool {
        false
    }

    /// Whoever comes after a member that hangs is to ask another one.
    fn patience(&self) -> Option<Duration> {
        Some(SUSPECT)
    }

    async fn sleep(&self, span: Duration) {
        if let Some(cluster) = self.cluster.upgrade() {
            cluster.lanes.timer(span).await;
        }
    }

    /// Where the runtime of the lane stands still, nothing is even sent.
    async fn given_up(&self) {
        loop {
            self.sleep(self.request_timeout).await;
            let Some(lane) = self.lane.upgrade() else { return };
            lane.doubt();
            self.sleep(SUSPECT).await;
            if lane.is_doubted() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use palisade_testkit::etcd::Etcd;

    use super::super::client::endpoints::Endpoints;
    use super::super::client::txn;
    use super::super::session::Sessions;
    use super::*;

    fn lone(cluster: &Arc<Cluster>) -> Carrier {
        Carrier::new(cluster, &cluster.lanes.clients().unwrap())
    }

    fn carrier(server: &Etcd) -> (Carrier, Sessions) {
        let url: crate::url::StoreUrl = format!("etcd://{}/lock", server.address()).parse().unwrap();
        let cluster = Arc::new(Cluster::new(&Endpoints::read(&url).unwrap()).unwrap());
        (lone(&cluster), Sessions::new(&cluster))
    }

    /// As a claim asks: the key if the line is empty, else who is first.
    fn claim(line: &str, lease: i64) -> Verb {
        let key = format!("{line}key");
        let asking = TxnRequest {
            compare: vec![txn::is_empty(line.as_bytes())],
            success: vec![txn::put(key.as_bytes(), b"value".to_vec(), lease)],
            failure: vec![txn::read_first(line.as_bytes())],
        };
        Verb { line: line.into(), request: Request::Txn(asking), again: Again::Freely }
    }

    fn release(line: &str) -> Verb {
        let key = format!("{line}key").into_bytes();
        Verb { line: line.into(), request: Request::Delete(DeleteRangeRequest { key, prev_kv: true }), again: Again::Never }
    }

    /// Whether its condition was met, at which revision, how many keys it read, and when what it deleted was made.
    type Said = (bool, i64, usize, Vec<i64>);

    /// What each of these was answered.
    fn said(answers: Vec<<Carrier as Carries>::Answer>) -> Vec<Option<Said>> {
        let one = |answer: <Carrier as Carries>::Answer| {
            let (response, sent) = answer.ok()?;
            assert_eq!(sent, Sent::Once);
            let deleted = response.responses.iter().filter_map(|op| match &op.response {
                Some(Response::Delete(delete)) => Some(delete.prev_kvs.iter().map(|kv| kv.create_revision)),
                _ => None,
            });
            let deleted = deleted.flatten().collect();
            Some((response.succeeded, txn::revision_of(&response), txn::keys_of(response).len(), deleted))
        };
        answers.into_iter().map(one).collect()
    }

    #[tokio::test]
    async fn lines_that_touch_do_not_go_together() {
        let url: crate::url::StoreUrl = "etcd://127.0.0.1:1/lock".parse().unwrap();
        let cluster = Arc::new(Cluster::new(&Endpoints::read(&url).unwrap()).unwrap());
        let carrier = lone(&cluster);
        let group = [claim("a/", 0), release("b/c/")];
        for (line, fits) in [("c/", true), ("ab/", true), ("a/", false), ("a/b/", false), ("b/", false), ("b/c/", false)] {
            assert_eq!(carrier.fits(&group, &claim(line, 0)), fits, "{line}");
        }
    }

    /// In one group all are answered as if they were alone.
    #[tokio::test]
    async fn each_has_the_answer_that_is_its_own() {
        let server = tokio::task::spawn_blocking(Etcd::start).await.unwrap();
        let (carrier, sessions) = carrier(&server);
        let lease = sessions.open(Duration::from_secs(60)).await.unwrap().id;
        let first = said(carrier.carry(vec![claim("taken/", lease)]).await);
        let Some(Some((true, made, 0, _))) = first.first().cloned() else { panic!("{first:?}") };
        let group = vec![claim("free/", lease), claim("taken/", lease), release("nobody/"), claim("other/", lease)];
        let next = Some((true, made + 1, 0, vec![]));
        let taken = Some((false, made + 1, 1, vec![]));
        assert_eq!(said(carrier.carry(group).await), [next.clone(), taken, next.clone(), next]);
        let group = vec![release("free/"), release("taken/")];
        let ended = |made: i64, now: i64| Some((true, now, 0, vec![made]));
        assert_eq!(said(carrier.carry(group).await), [ended(made + 1, made + 2), ended(made, made + 2)]);
        assert!(carrier.carry(Vec::new()).await.is_empty());
    }

    /// Nothing was done by a group that is refused, and only those fail whose own fault it is.
    #[tokio::test]
    async fn a_lease_that_is_gone_is_the_fault_of_its_own_claims() {
        let server = tokio::task::spawn_blocking(Etcd::start).await.unwrap();
        let (carrier, sessions) = carrier(&server);
        let lease = sessions.open(Duration::from_secs(60)).await.unwrap().id;
        carrier.carry(vec![claim("held/", lease)]).await;
        let group = vec![claim("a/", lease), claim("b/", lease + 1), release("held/"), claim("c/", lease)];
        let answers = carrier.carry(group).await;
        assert!(answers[1].as_ref().is_err_and(|failed| failed.lease_gone));
        let said = said(answers);
        let done: Vec<bool> = said.iter().map(Option::is_some).collect();
        assert_eq!(done, [true, false, true, true]);
        assert!(said[2].as_ref().is_some_and(|(.., deleted)| deleted.len() == 1), "released once: {said:?}");
    }

    /// A server that takes few operations at once is not asked for more again and again.
    #[tokio::test]
    async fn a_server_that_takes_fewer_has_fewer() {
        let server = tokio::task::spawn_blocking(|| Etcd::with().max_txn_ops(8).start()).await.unwrap();
        let (carrier, sessions) = carrier(&server);
        let lease = sessions.open(Duration::from_secs(60)).await.unwrap().id;
        let claims = |round: usize| (0..MOST).map(move |number| claim(&format!("{round}-{number}/"), lease));
        for round in 0..4 {
            let mut group: Vec<Verb> = Vec::new();
            for claim in claims(round) {
                if carrier.fits(&group, &claim) {
                    group.push(claim);
                }
            }
            let sent = group.len();
            let answers = said(carrier.carry(group).await);
            assert!(answers.iter().all(|answer| answer.as_ref().is_some_and(|(taken, ..)| *taken)), "{answers:?}");
            let revisions: std::collections::HashSet<i64> = answers.iter().flatten().map(|(_, revision, ..)| *revision).collect();
            let expected = [(32, 32), (16, 16), (8, 8), (4, 1)];
            assert_eq!((sent, revisions.len()), expected[round], "how many went, in how many transactions");
        }
    }
}
