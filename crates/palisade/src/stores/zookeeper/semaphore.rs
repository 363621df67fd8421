//! Permits, as Curator's `InterProcessSemaphoreV2` keeps them: a line of waiters, and a node for
//! each permit that is held.
//!
//! ```text
//! /pool/locks/_c_<guid>-lock-0000000007       the first here may take permits; the others wait in line
//! /pool/leases/_c_<guid>-lease-0000000003     one permit
//! ```
//!
//! Only the first in line adds permits; any client may take away its own. So permits that were free
//! when the first one looked are still free when it takes them. It takes them and leaves the line
//! in one step, which fails if its place was lost meanwhile.

use std::sync::Arc;

use super::backend::Backend;
use super::claim::busy;
use super::claims::{ClaimLocation, Entry, LOCKS, Permits, fence_of};
use super::client::proto::{ANY, Code, Make, Outcome, Request, Stat, Step};
use super::client::{Failed, OrMissing, Sent, Session};
use super::failure::{self, gone};
use super::position::Position;
use super::queue_rules::{Recipe, Verdict, lease_prefix};
use super::value::{self, Value};
use super::wait::holder_of;
use crate::fence::Fence;
use crate::store::{Answer, Grant};
use crate::stores::kit::session::wait::LOOKS;

/// What came of an attempt to take permits.
enum Taken {
    Granted(Grant),
    /// Too few are free.
    Full,
    /// Its place in line is lost.
    Lost,
}

/// A read of the nodes of a semaphore, in flight.
struct Nodes {
    base: Sent<Vec<String>>,
    leases: Sent<Vec<String>>,
    limit: Sent<(Vec<u8>, Stat)>,
}

impl Nodes {
    fn read(session: &Arc<Session>, location: &ClaimLocation) -> Nodes {
        Nodes {
            base: session.send(Request::children(&location.base)),
            leases: session.send(Request::children(&location.leases())),
            limit: session.send(Request::get_data(&location.leases())),
        }
    }

    /// One name serves one kind and one limit at a time. The answer has the permits that are held.
    async fn check(self, entry: &Entry, limit: u32) -> Result<Vec<String>, Failed> {
        let (base, leases, data) = (
            self.base.answer().await,
            self.leases.answer().await,
            self.limit.answer().await,
        );
        let (claim, location, _) = entry.parts();
        let kinds = [(Recipe::Mutex, "mutex"), (Recipe::Write, "rwlock")];
        let wanted = format!("semaphore of {limit}");
        for child in base? {
            if let Some((_, other)) = kinds
                .iter()
                .find(|(recipe, _)| child != LOCKS && recipe.is_kin(&child))
            {
                return Err(failure::other_kind(&claim.name, other, &wanted));
            }
        }
        let leases = leases?;
        match Value::read(&data?.0, &location.base)?.limit {
            Some(other) if other != limit && !leases.is_empty() => Err(failure::other_kind(
                &claim.name,
                &format!("semaphore of {other}"),
                &wanted,
            )),
            _ => Ok(leases),
        }
    }
}

impl Backend {
    pub(super) async fn enter_semaphore(
        self: &Arc<Self>,
        entry: &Entry,
        permits: Permits,
    ) -> Result<Answer, Failed> {
        let (claim, location, session) = entry.parts();
        let parents = [
            location.base.clone(),
            location.line().into_owned(),
            location.leases(),
        ];
        let (value, path) = (entry.value(), permit(location));
        let one = Request::multi(&[Step::Create {
            path: &path,
            data: &value,
            acl: session.acl(),
            make: Make::EphemeralSequential,
        }]);
        // All are taken in one step.
        failure::check_fits(
            one.len()
                .saturating_mul(usize::try_from(permits.count).unwrap_or(usize::MAX)),
        )?;
        let alone = |join: super::batch::Join| {
            let (sent, nodes) = (join.send(session), Nodes::read(session, location));
            async { (sent.answer().await, nodes) }
        };
        let (joined, line, nodes) = self.join(entry, &value, &parents, alone).await?;
        self.waits(entry, joined.child(), joined.czxid);
        let leases = match nodes.check(entry, permits.limit).await {
            Ok(leases) => leases,
            // Its place in line stays: the claim finds it when it is made again.
            Err(failed @ (Failed::Unsure(_) | Failed::Ended)) => return Err(failed),
            Err(refused) => {
                self.withdraw(claim.id).await?;
                return Err(refused);
            }
        };
        match location.recipe.verdict(&line, joined.child()) {
            Verdict::Missing => return Err(gone()),
            Verdict::Held => match self.take(entry, joined.child(), permits, &leases).await? {
                Taken::Granted(grant) => return Ok(Answer::Granted(grant)),
                Taken::Lost => return Err(gone()),
                Taken::Full => {}
            },
            Verdict::Blocked { .. } => {}
        }
        if claim.queue {
            return self.queued(claim).await;
        }
        let holder = leases
            .first()
            .map(|one| format!("{}/{one}", location.leases()));
        let holder = holder.map(|path| (session.send(Request::get_data(&path)), path));
        self.withdraw(claim.id).await?;
        let holder = match holder {
            Some((sent, path)) => holder_of(sent.answer().await, location, &path)?,
            None => None,
        };
        Ok(busy(holder))
    }

    /// Takes permits, if enough are free: we are first in line.
    async fn take(
        self: &Arc<Self>,
        entry: &Entry,
        child: &str,
        Permits { count, limit }: Permits,
        leases: &[String],
    ) -> Result<Taken, Failed> {
        let Entry {
            location, session, ..
        } = entry;
        if u64::from(limit).saturating_sub(leases.len() as u64) < u64::from(count) {
            return Ok(Taken::Full);
        }
        let (own, dir, path) = (location.node(child), location.leases(), permit(location));
        let (value, limit, acl) = (entry.value(), value::of_limit(limit), session.acl());
        // The answer to the first step, unlike the others, has its transaction: the fence.
        let mut steps = vec![Step::SetData {
            path: &dir,
            data: &limit,
            version: ANY,
        }];
        steps.extend((0..count).map(|_| Step::Create {
            path: &path,
            data: &value,
            acl,
            make: Make::EphemeralSequential,
        }));
        steps.push(Step::Delete {
            path: &own,
            version: ANY,
        });
        let done = match session.ask(Request::multi(&steps)).await? {
            Ok(done) => done,
            // Its place, or the nodes of the name.
            Err(undone) if matches!(undone.code, Code::NoNode | Code::RolledBack) => {
                return Ok(Taken::Lost);
            }
            Err(undone) => return Err(Failed::Refused(undone.code)),
        };
        let (mut nodes, mut fence) = (Vec::new(), Fence::NONE);
        for outcome in done {
            match outcome {
                Outcome::Created(path) => nodes.push(path),
                Outcome::Changed(stat) => fence = fence_of(stat.mzxid),
                Outcome::Nothing => {}
            }
        }
        Ok(Taken::Granted(self.holds(entry, nodes, fence)))
    }

    /// A claim is first in the line of a semaphore: it takes permits, or waits until some are given
    /// back.
    pub(super) async fn first_in_line(
        self: &Arc<Self>,
        entry: &Entry,
        child: &str,
        permits: Permits,
    ) -> Result<Position, Failed> {
        let (claim, location, session) = entry.parts();
        let dir = location.leases();
        for _ in 0..LOOKS {
            self.watch_path(session, &dir, claim.id);
            let leases = session.ask(Request::children(&dir).watched()).await;
            if leases.is_err() {
                self.watches.remove(session.id(), &dir, claim.id);
            }
            let Some(leases) = leases.or_missing()? else {
                // Deleted by the servers, since it was empty: the step that takes permits needs it.
                for made in self.parents.make(session, std::slice::from_ref(&dir)) {
                    let _ = made.answer().await;
                }
                continue;
            };
            return match self.take(entry, child, permits, &leases).await? {
                Taken::Granted(grant) => Ok(Position::Granted(grant)),
                Taken::Lost => self.left_line(entry).await,
                Taken::Full => Ok(Position::Queued(None)),
            };
        }
        Err(gone())
    }
}

/// The path of a permit of this claim, to which the server appends its number.
fn permit(location: &ClaimLocation) -> String {
    format!("{}/{}", location.leases(), lease_prefix(&location.guid))
}
