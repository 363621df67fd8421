//! Permits, as Curator's `InterProcessSemaphoreV2` keeps them: a line of those who wait, and a node for each permit that is held.
//!
//! ```text
//! /pool/locks/_c_<guid>-lock-0000000007       who is first here may take permits; the others wait in line
//! /pool/leases/_c_<guid>-lease-0000000003     one permit
//! ```
//!
//! Only whoever is first in line adds permits; anybody may take away its own. So permits that were free when the first one looked are
//! still free when it takes them. It takes them and leaves the line in one step, which fails if its place was lost meanwhile.

use std::sync::Arc;

use super::claiming::{LOOKS, Stood, gone, holder_of};
use super::failure::{self, Failed};
use super::known::{LOCKS, Seat, Stage};
use super::proto::{self, ANY, Code, Make, Multi, Outcome, Request, Step};
use super::recipe::{Recipe, Verdict, lease_prefix};
use super::session::Session;
use super::shared::{Shared, fence_of};
use super::value::{self, Value};
use crate::error::Error;
use crate::fence::Fence;
use crate::store::{Answer, Busy, Claim, Grant};

/// What the server answered to one of several questions.
type Body = Result<Vec<u8>, Failed>;

/// What came of an attempt to take permits.
enum Taken {
    Granted(Grant),
    /// Too few are free.
    Full {
        /// One of those who hold some.
        one: Option<String>,
    },
    /// Its place in line is lost.
    Lost,
}

impl Shared {
    pub(super) async fn enter_semaphore(
        self: &Arc<Self>,
        claim: &Claim,
        seat: &Arc<Seat>,
        session: &Arc<Session>,
        permits: (u32, u32),
    ) -> Result<Answer, Failed> {
        let parents = [seat.base.clone(), seat.line().into_owned(), seat.leases()];
        let value = self.value_of(claim, session);
        let wanted = format!("{}/{}", seat.leases(), lease_prefix(&seat.guid));
        let (acl, make) = (self.settings.acl(), Make::EphemeralSequential);
        let one = Request::multi(&[Step::Create { path: &wanted, data: &value, acl, make }]).body.len();
        // All are taken in one step.
        failure::fits(one.saturating_mul(usize::try_from(permits.0).unwrap_or(usize::MAX)))?;
        let look = || {
            vec![
                session.send(Request::children(&seat.base, false)),
                session.send(Request::children(&seat.leases(), false)),
                session.send(Request::get_data(&seat.leases(), false)),
            ]
        };
        let (stands, line, looked) = self.stand(session, seat, &value, &parents, Some(&look)).await?;
        let child = stands.child().to_owned();
        self.waits(claim, seat, session, (child.clone(), stands.czxid), stands.sent);
        let mut answers = Vec::new();
        for sent in looked {
            answers.push(sent.answer().await);
        }
        let [base, leases, limit] = answers.try_into().map_err(|_| gone())?;
        let looked = [base, leases, limit];
        let leases = match self.check_semaphore(seat, permits, looked) {
            Ok(checked) => checked,
            // Its place in line stays: whoever asks again finds it.
            Err(failed @ (Failed::Unsure(_) | Failed::Ended)) => return Err(failed),
            Err(refused) => {
                self.withdraw(claim.id).await?;
                return Err(refused);
            }
        };
        let holder = match seat.recipe.verdict(&line, &child) {
            Verdict::Missing => return Err(gone()),
            Verdict::Held => match self.take(claim, seat, session, (&child, permits), &leases).await? {
                Taken::Granted(grant) => return Ok(Answer::Granted(grant)),
                Taken::Lost => return Err(gone()),
                Taken::Full { one } => one.map(|one| format!("{}/{one}", seat.leases())),
            },
            Verdict::Blocked { .. } => leases.first().map(|one| format!("{}/{one}", seat.leases())),
        };
        if claim.queue {
            return match self.look(claim).await? {
                Stood::Granted(grant) => Ok(Answer::Granted(grant)),
                Stood::Queued(holder) => Ok(Answer::Queued(self.place(claim.id, claim, holder))),
                Stood::Gone => Err(gone()),
            };
        }
        let asked = holder.map(|path| (session.send(Request::get_data(&path, false)), path));
        self.withdraw(claim.id).await?;
        let holder = match asked {
            Some((sent, path)) => holder_of(sent.answer().await, seat, &path)?,
            None => None,
        };
        Ok(Answer::Busy(Busy { holder, ..Busy::default() }))
    }

    /// One name serves one kind and one limit at a time. The answer has the permits that are held.
    fn check_semaphore(
        &self,
        seat: &Seat,
        (_, limit): (u32, u32),
        [base, leases, data]: [Body; 3],
    ) -> Result<Vec<String>, Failed> {
        let kinds = [(Recipe::Mutex, "mutex"), (Recipe::Write, "rwlock")];
        for child in proto::children(&base?)? {
            if let Some((_, other)) = kinds.iter().find(|(recipe, _)| child != LOCKS && recipe.is_kin(&child)) {
                return Err(Failed::Never(Error::config(format!(
                    "the name serves as a {other} now, and cannot serve as a semaphore of {limit} at the same time"
                ))));
            }
        }
        let leases = proto::children(&leases?)?;
        let (data, _) = proto::data(&data?)?;
        let on_record = Value::read(&data, &seat.base)?.limit;
        match on_record {
            Some(other) if other != limit && !leases.is_empty() => Err(Failed::Never(Error::config(format!(
                "the name serves as a semaphore of {other} now, and cannot serve as a semaphore of {limit} at the same time"
            )))),
            _ => Ok(leases),
        }
    }

    /// Takes permits, if enough are free: we are first in line.
    async fn take(
        self: &Arc<Self>,
        claim: &Claim,
        seat: &Arc<Seat>,
        session: &Arc<Session>,
        (child, (count, limit)): (&str, (u32, u32)),
        leases: &[String],
    ) -> Result<Taken, Failed> {
        let free = u64::from(limit).saturating_sub(leases.len() as u64);
        if free < u64::from(count) {
            return Ok(Taken::Full { one: leases.first().cloned() });
        }
        let (own, dir) = (format!("{}/{child}", seat.line()), seat.leases());
        let wanted = format!("{dir}/{}", lease_prefix(&seat.guid));
        let (value, limit) = (self.value_of(claim, session), value::of_limit(limit));
        // The first step says of which transaction it is a part, as the others do not: the fence.
        let mut steps = vec![Step::SetData { path: &dir, data: &limit, version: ANY }];
        let acl = self.settings.acl();
        steps.extend((0..count).map(|_| Step::Create { path: &wanted, data: &value, acl, make: Make::EphemeralSequential }));
        steps.push(Step::Delete { path: &own, version: ANY });
        let done = match proto::multi(&session.ask(Request::multi(&steps)).await?)? {
            Multi::Done(done) => done,
            Multi::Failed(codes) => match Multi::cause(&codes) {
                // Its place, or the nodes of the name.
                Code::NoNode | Code::RolledBack => return Ok(Taken::Lost),
                other => return Err(Failed::Refused(other)),
            },
        };
        let (mut nodes, mut fence) = (Vec::new(), Fence::NONE);
        for outcome in done {
            match outcome {
                Outcome::Created(path) => nodes.push(path),
                Outcome::Changed(stat) => fence = fence_of(stat.mzxid),
                Outcome::Nothing => {}
            }
        }
        self.holds(claim, seat, session, (nodes, fence));
        Ok(Taken::Granted(Grant { fence, lease: session.lease() }))
    }

    /// Our turn has come in the line of a semaphore: takes permits, or waits until some are given back.
    pub(super) async fn first_in_line(
        self: &Arc<Self>,
        claim: &Claim,
        seat: &Arc<Seat>,
        session: &Arc<Session>,
        child: &str,
        permits: (u32, u32),
    ) -> Result<Stood, Failed> {
        for _ in 0..LOOKS {
            self.claims.lock().watch(session.id(), &seat.leases(), claim.id);
            let leases = match session.ask(Request::children(&seat.leases(), true)).await {
                Ok(body) => proto::children(&body)?,
                Err(failed) if failed.is(Code::NoNode) => {
                    self.claims.lock().is_not_watched(session.id(), &seat.leases(), claim.id);
                    // Reaped, since it was empty: the step that takes permits needs it.
                    for made in self.make_parents(session, &[seat.leases()], true) {
                        let _ = made.answer().await;
                    }
                    continue;
                }
                Err(failed) => {
                    self.claims.lock().is_not_watched(session.id(), &seat.leases(), claim.id);
                    return Err(failed);
                }
            };
            match self.take(claim, seat, session, (child, permits), &leases).await? {
                Taken::Granted(grant) => return Ok(Stood::Granted(grant)),
                Taken::Lost => return self.left_the_line(claim, seat, session).await,
                Taken::Full { .. } => {
                    if let Some(Stage::Waiting(waiting)) =
                        self.claims.lock().known.get_mut(&claim.id).map(|known| &mut known.stage)
                    {
                        waiting.is_first = true;
                    }
                    return Ok(Stood::Queued(None));
                }
            }
        }
        Err(gone())
    }
}
