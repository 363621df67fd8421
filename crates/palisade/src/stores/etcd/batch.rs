//! Claims and releases that find others in flight go together: as one transaction that nests
//! theirs, and so with one commit.
//!
//! Each is the same transaction that it would have been alone. All their writes have one revision,
//! and the server compares for all of them before it writes for any: so two of one line never go
//! together, nor two of which one line is within the other. A batch that the server refuses has
//! changed nothing; then each goes alone, and has its own response.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::Handle;

use super::claims::ClaimTable;
use super::client::cluster::{Cluster, Failed, Resend, SUSPECT, Sent};
use super::client::proto::{Response, ResponseOp, TXN, TxnRequest, TxnResponse};
use super::client::txn;
use crate::error::Error;
use crate::store::ClaimId;
use crate::stores::batch::{self, BatchExecutor, Limits};

/// How many go together. Servers take 128 operations, nested ones included.
const MOST: usize = 32;

const LIMITS: Limits = Limits {
    in_flight: 4,
    largest: MOST,
    // Many requests for one name do not wait for each other: the server commits together what
    // arrives at the same time.
    apart: 64,
    // A member that hangs does not hold up later requests: they go to another one.
    patience: Some(SUSPECT),
    reply_wakes: false,
};

pub(super) type Batcher = batch::Batcher<Executor>;

/// A transaction that goes alone or with others.
#[derive(Clone)]
pub(super) struct Request {
    /// What the keys of its line begin with.
    pub(super) line: Vec<u8>,
    pub(super) txn: TxnRequest,
    /// Set for the request of a claim, which is not sent once its caller has left.
    pub(super) claim: Option<ClaimId>,
}

pub(super) struct Executor {
    cluster: Arc<Cluster>,
    claims: Arc<ClaimTable>,
    /// The largest batch that the server has not yet refused for its size.
    most: AtomicUsize,
}

pub(super) fn batcher(
    cluster: &Arc<Cluster>,
    claims: &Arc<ClaimTable>,
    runtime: &Handle,
) -> Arc<Batcher> {
    Batcher::new(Executor::new(cluster, claims), runtime.clone(), LIMITS)
}

impl Executor {
    fn new(cluster: &Arc<Cluster>, claims: &Arc<ClaimTable>) -> Executor {
        Executor {
            cluster: Arc::clone(cluster),
            claims: Arc::clone(claims),
            most: AtomicUsize::new(MOST),
        }
    }

    async fn alone(&self, request: Request) -> Result<(TxnResponse, Sent), Failed> {
        let resend = resend([&request]);
        self.cluster.call_counted(TXN, request.txn, resend).await
    }

    async fn one_by_one(
        &self,
        batch: Vec<Request>,
        before: Sent,
    ) -> Vec<Result<(TxnResponse, Sent), Failed>> {
        let mut outcomes = Vec::with_capacity(batch.len());
        let mut silent = None;
        for request in batch {
            // If one is not answered, the others do not wait for the time-out again.
            let outcome = match &silent {
                Some(failed) => Err(Failed::clone(failed)),
                None => self.alone(request).await,
            };
            silent = outcome
                .as_ref()
                .err()
                .filter(|failed| !failed.refused)
                .cloned();
            let in_all = |sent: Sent| if before == Sent::Again { before } else { sent };
            let outcome = outcome.map(|(response, sent)| (response, in_all(sent)));
            outcomes.push(outcome.map_err(|failed| Failed {
                sent: in_all(failed.sent),
                ..failed
            }));
        }
        outcomes
    }
}

impl BatchExecutor for Executor {
    type Request = Request;
    type Reply = Result<(TxnResponse, Sent), Failed>;

    fn can_join(&self, batch: &[Request], request: &Request) -> bool {
        let apart = |other: &Request| {
            !other.line.starts_with(&request.line) && !request.line.starts_with(&other.line)
        };
        batch.is_empty()
            || batch.len() < self.most.load(Ordering::Relaxed) && batch.iter().all(apart)
    }

    /// Releases go before claims.
    fn is_urgent(&self, request: &Request) -> bool {
        request.claim.is_none()
    }

    async fn execute(&self, batch: Vec<Request>) -> Vec<Self::Reply> {
        let is_wanted: Vec<bool> = batch
            .iter()
            .map(|request| self.is_wanted(request))
            .collect();
        let wanted = batch
            .into_iter()
            .zip(&is_wanted)
            .filter_map(|(request, wanted)| wanted.then_some(request))
            .collect();
        let mut answers = self.send(wanted).await.into_iter();
        let answer = |wanted: bool| {
            if wanted {
                answers.next().unwrap_or_else(|| Err(not_answered()))
            } else {
                Err(not_sent())
            }
        };
        is_wanted.into_iter().map(answer).collect()
    }
}

impl Executor {
    fn is_wanted(&self, request: &Request) -> bool {
        request
            .claim
            .is_none_or(|claim| self.claims.is_wanted(claim))
    }

    async fn send(&self, mut batch: Vec<Request>) -> Vec<Result<(TxnResponse, Sent), Failed>> {
        if batch.len() <= 1 {
            return match batch.pop() {
                Some(request) => vec![self.alone(request).await],
                None => Vec::new(),
            };
        }
        let resend = resend(&batch);
        let together = txn::always(
            batch
                .iter()
                .map(|request| txn::nested(request.txn.clone()))
                .collect(),
        );
        match self
            .cluster
            .call_counted::<_, TxnResponse>(TXN, together, resend)
            .await
        {
            Ok((
                TxnResponse {
                    header, responses, ..
                },
                sent,
            )) if responses.len() == batch.len() => {
                let own = |op: ResponseOp| match op.response {
                    // Only the whole has a header.
                    Some(Response::Txn(txn)) => Ok((
                        TxnResponse {
                            header: header.clone(),
                            ..txn
                        },
                        sent,
                    )),
                    _ => Err(not_answered()),
                };
                responses.into_iter().map(own).collect()
            }
            Ok(_) => batch.iter().map(|_| Err(not_answered())).collect(),
            Err(failed) if failed.refused => {
                if failed.error.to_string().contains("too many operations") {
                    self.most.store((batch.len() / 2).max(1), Ordering::Relaxed);
                }
                self.one_by_one(batch, failed.sent).await
            }
            Err(failed) => batch.iter().map(|_| Err(failed.clone())).collect(),
        }
    }
}

/// A claim that is sent twice has the same response; the second response of a release says that
/// the key is gone.
fn resend<'a>(batch: impl IntoIterator<Item = &'a Request>) -> Resend {
    match batch.into_iter().all(|request| request.claim.is_some()) {
        true => Resend::IfUnsure,
        false => Resend::Never,
    }
}

fn not_sent() -> Failed {
    Error::unavailable("the claim was withdrawn before it was sent")
        .with_nothing_sent()
        .into()
}

fn not_answered() -> Failed {
    Error::protocol("the store has not answered every part of a transaction").into()
}

#[cfg(test)]
mod tests {
    use palisade_testkit::etcd::Etcd;

    use super::super::client::settings::Endpoints;
    use std::time::Duration;

    use super::*;

    fn executor(server: &Etcd) -> (Executor, Arc<Cluster>) {
        let url: crate::url::StoreUrl =
            format!("etcd://{}/lock", server.address()).parse().unwrap();
        let cluster = Cluster::new(&Endpoints::read(&url).unwrap()).unwrap();
        (Executor::new(&cluster, &Arc::default()), cluster)
    }

    /// As a claim asks: the key if the line is empty, else who is first.
    fn claim(line: &str, lease: i64) -> Request {
        let key = format!("{line}key");
        let asking = TxnRequest {
            compare: vec![txn::is_empty(line.as_bytes())],
            success: vec![txn::put(key.as_bytes(), b"value".to_vec(), lease)],
            failure: vec![txn::read_first(line.as_bytes())],
        };
        Request {
            line: line.into(),
            txn: asking,
            claim: Some(ClaimId::from_bits(1)),
        }
    }

    fn release(line: &str, created: i64) -> Request {
        let key = format!("{line}key").into_bytes();
        let txn = txn::only_if(txn::created_at(&key, created), txn::delete(&key));
        Request {
            line: line.into(),
            txn,
            claim: None,
        }
    }

    /// Whether the condition was met, at which revision, how many keys were read, and how many
    /// deleted.
    type Outcome = (bool, i64, usize, i64);

    fn outcomes(answers: Vec<<Executor as BatchExecutor>::Reply>) -> Vec<Option<Outcome>> {
        let one = |answer: <Executor as BatchExecutor>::Reply| {
            let (response, sent) = answer.ok()?;
            assert_eq!(sent, Sent::Once);
            let deleted = txn::deleted_by(&response);
            Some((
                response.succeeded,
                txn::revision_of(&response),
                txn::keys_of(response).len(),
                deleted,
            ))
        };
        answers.into_iter().map(one).collect()
    }

    #[tokio::test]
    async fn lines_that_touch_do_not_go_together() {
        let url: crate::url::StoreUrl = "etcd://127.0.0.1:1/lock".parse().unwrap();
        let cluster = Cluster::new(&Endpoints::read(&url).unwrap()).unwrap();
        let executor = Executor::new(&cluster, &Arc::default());
        let group = [claim("a/", 0), release("b/c/", 1)];
        for (line, fits) in [
            ("c/", true),
            ("ab/", true),
            ("a/", false),
            ("a/b/", false),
            ("b/", false),
            ("b/c/", false),
        ] {
            assert_eq!(executor.can_join(&group, &claim(line, 0)), fits, "{line}");
        }
    }

    #[tokio::test]
    async fn each_request_has_its_own_response() {
        let server = tokio::task::spawn_blocking(Etcd::start).await.unwrap();
        let (executor, cluster) = executor(&server);
        let (lease, _) = cluster.grant_lease(Duration::from_secs(60)).await.unwrap();
        let first = outcomes(executor.execute(vec![claim("taken/", lease)]).await);
        let Some(Some((true, created, 0, 0))) = first.first().cloned() else {
            panic!("{first:?}")
        };
        let group = vec![
            claim("free/", lease),
            claim("taken/", lease),
            release("missing/", created),
            claim("other/", lease),
        ];
        let next = |succeeded: bool, read: usize| Some((succeeded, created + 1, read, 0));
        assert_eq!(
            outcomes(executor.execute(group).await),
            [next(true, 0), next(false, 1), next(false, 0), next(true, 0)]
        );
        let group = vec![
            release("free/", created + 1),
            release("taken/", created),
            release("other/", created),
        ];
        let ended = |done: bool| Some((done, created + 2, 0, i64::from(done)));
        assert_eq!(
            outcomes(executor.execute(group).await),
            [ended(true), ended(true), ended(false)],
            "only by its revision"
        );
        assert!(executor.execute(Vec::new()).await.is_empty());
    }

    /// A batch that is refused has changed nothing, and only the requests fail that are refused
    /// alone.
    #[tokio::test]
    async fn a_lease_that_is_gone_fails_its_own_claims_only() {
        let server = tokio::task::spawn_blocking(Etcd::start).await.unwrap();
        let (executor, cluster) = executor(&server);
        let (lease, _) = cluster.grant_lease(Duration::from_secs(60)).await.unwrap();
        let held = outcomes(executor.execute(vec![claim("held/", lease)]).await);
        let Some(Some((true, created, ..))) = held.first().cloned() else {
            panic!("{held:?}")
        };
        let group = vec![
            claim("a/", lease),
            claim("b/", lease + 1),
            release("held/", created),
            claim("c/", lease),
        ];
        let answers = executor.execute(group).await;
        assert!(answers[1].as_ref().is_err_and(|failed| failed.lease_gone));
        let outcomes = outcomes(answers);
        let done: Vec<bool> = outcomes.iter().map(Option::is_some).collect();
        assert_eq!(done, [true, false, true, true]);
        assert!(
            outcomes[2].is_some_and(|(.., deleted)| deleted == 1),
            "released once: {outcomes:?}"
        );
    }

    /// A server with a low limit is not sent too many operations again and again.
    #[tokio::test]
    async fn a_server_with_a_lower_limit_gets_smaller_batches() {
        let server = tokio::task::spawn_blocking(|| Etcd::with().max_txn_ops(8).start())
            .await
            .unwrap();
        let (executor, cluster) = executor(&server);
        let (lease, _) = cluster.grant_lease(Duration::from_secs(60)).await.unwrap();
        let claims =
            |round: usize| (0..MOST).map(move |number| claim(&format!("{round}-{number}/"), lease));
        for round in 0..4 {
            let mut group: Vec<Request> = Vec::new();
            for claim in claims(round) {
                if executor.can_join(&group, &claim) {
                    group.push(claim);
                }
            }
            let sent = group.len();
            let answers = outcomes(executor.execute(group).await);
            assert!(
                answers
                    .iter()
                    .all(|answer| answer.is_some_and(|(taken, ..)| taken)),
                "{answers:?}"
            );
            let revisions: std::collections::HashSet<i64> = answers
                .iter()
                .flatten()
                .map(|(_, revision, ..)| *revision)
                .collect();
            let expected = [(32, 32), (16, 16), (8, 8), (4, 1)];
            assert_eq!(
                (sent, revisions.len()),
                expected[round],
                "how many went, in how many transactions"
            );
        }
    }
}
