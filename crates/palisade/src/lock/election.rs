//! One leader at a time, whom others can read and observe.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::options::{Options, option_methods};
use crate::engine::Core;
use crate::engine::acquire::WaitLimit;
use crate::engine::poll_inside::broken_off;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::guard::{Guard, until_stopped};
use crate::lease::{LossReason, Status};
use crate::name::Name;
use crate::store::{Change, Leader, Mode, Observation, Query, Released, Standing, Store};

/// An election: a mutex whose holder proclaims a value. Made by
/// [`Client::election`](crate::Client::election).
///
/// ```
/// # use palisade::blocking::Wait;
/// # fn main() -> palisade::Result<()> {
/// let election = palisade::connect("memory:").wait()?.election("scheduler");
/// let leadership = election.campaign("http://node-1:8080").wait()?; // waits in line
/// let leader = election.leader().wait()?.expect("a leader");
/// assert_eq!((leader.value.as_str(), leader.fence), ("http://node-1:8080", leadership.fence()));
/// leadership.resign().wait()?;
/// # Ok(())
/// # }
/// ```
///
/// The value takes the place of the owner in lists. The election and the mutex of one name
/// are one line, so the holder of the mutex leads. On etcd it is the election of Go's
/// `concurrency.Election` and of `etcdctl elect`: the value is stored as it is, and there is no
/// place for a [`reason`](Election::reason).
#[derive(Clone)]
pub struct Election {
    options: Options,
}

impl Election {
    pub(crate) fn new(options: Options) -> Election {
        Election { options }
    }

    option_methods!();

    /// Checks name and options without asking the store.
    ///
    /// # Errors
    ///
    /// As `campaign`, before a request is sent.
    pub fn check(&self) -> Result<()> {
        self.options.plan(Mode::Exclusive).map(drop)
    }

    /// Waits in line to lead, without a limit, and proclaims this value from then on.
    ///
    /// # Errors
    ///
    /// Never because another candidate leads. See [`ErrorKind`](crate::ErrorKind).
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the candidacy is withdrawn, and with it the place in line.
    pub async fn campaign(&self, value: impl AsRef<str>) -> Result<Leadership> {
        self.options
            .waited(self.campaign_within(value, WaitLimit::Forever).await?)
    }

    /// Leads if there is no leader and no waiting candidate.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`](crate::ErrorKind). A present leader is not an error.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the candidacy is withdrawn.
    pub async fn try_campaign(&self, value: impl AsRef<str>) -> Result<Option<Leadership>> {
        self.campaign_within(value, WaitLimit::Now).await
    }

    /// Waits in line to lead for at most so long; zero is one attempt.
    ///
    /// # Errors
    ///
    /// [`Timeout`](crate::ErrorKind::Timeout) with the leader when the wait ran out.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the candidacy is withdrawn.
    pub async fn campaign_timeout(
        &self,
        value: impl AsRef<str>,
        longest: Duration,
    ) -> Result<Leadership> {
        self.options.waited(
            self.campaign_within(value, WaitLimit::AtMost(longest))
                .await?,
        )
    }

    /// Waits in line to lead as the value says; `None` when it says [`Now`](WaitLimit::Now) and
    /// another candidate leads.
    ///
    /// # Errors
    ///
    /// [`Timeout`](crate::ErrorKind::Timeout) with the leader when a wait ran out; that another
    /// leads now is no error.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the candidacy is withdrawn.
    pub async fn campaign_within(
        &self,
        value: impl AsRef<str>,
        wait: WaitLimit,
    ) -> Result<Option<Leadership>> {
        let held = self
            .with(value.as_ref())
            .acquire_within(Mode::Exclusive, wait)
            .await?;
        Ok(held.map(|held| Leadership::new(Guard::new(Arc::new(held)))))
    }

    /// Leads, and runs the body while it does; then resigns. A body that a loss interrupts is
    /// dropped at the stop margin before it, and begins anew when this candidate leads again.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> palisade::Result<()> {
    /// let election = palisade::connect("memory:").await?.election("scheduler");
    /// let terms = election.run("http://node-1:8080", async |leadership| leadership.fence().get()).await?;
    /// # assert_eq!(terms, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`campaign`](Election::campaign) and [`resign`](Leadership::resign); never
    /// that the lead was lost.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, the body is dropped, and the lead or the candidacy is released.
    pub async fn run<T, F, Fut>(&self, value: impl AsRef<str>, mut body: F) -> Result<T>
    where
        F: FnMut(Arc<Leadership>) -> Fut,
        Fut: Future<Output = T>,
    {
        loop {
            let leadership = Arc::new(self.campaign(value.as_ref()).await?);
            let (stop, ends) = (leadership.on_lost(), leadership.guard.ends());
            let done = until_stopped(&stop, body(Arc::clone(&leadership))).await;
            // The client's thread releases the lead also if the store cannot be reached now.
            let resigned = ends.now();
            if let Some(done) = done {
                return resigned.outcome().await.map(|_| done);
            }
            tracing::info!(name = &*self.options.name, status = ?leadership.guard.status(), "the lead is over; campaigns again");
        }
    }

    fn with(&self, value: &str) -> Options {
        Options {
            owner: value.into(),
            candidate: true,
            ..self.options.clone()
        }
    }

    /// The current leader; `None` when there is none. It may have changed by the time you read it:
    /// protect a write that only the leader may make by its [fence](Leadership::fence).
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`](crate::ErrorKind); [`Unsupported`](crate::ErrorKind::Unsupported) where the
    /// store does not know: see
    /// [`Capability::holders_known`](crate::store::Capability::holders_known).
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        let capability = self.options.core.capability();
        if !capability.holders_known {
            return Err(Error::unsupported(format!(
                "{capability} does not know what the holder of a lock calls itself; \
                 elect in another format, or let the leader write its name where others read it"
            )));
        }
        let (store, query) = (
            Arc::clone(&self.options.core.store),
            Query::Leader(self.name()?),
        );
        let page = self
            .options
            .core
            .call(async move { store.inspect(&query).await })
            .await?;
        let holders = page.lines.into_iter().flat_map(|line| line.holders);
        // A holder that only keeps the name closed leads no more.
        let leads = holders
            .into_iter()
            .find(|holder| holder.lease_left != Some(Duration::ZERO));
        Ok(leads.map(|holder| Leader {
            value: holder.owner,
            fence: holder.fence,
        }))
    }

    /// Observes the leaders: first the present one, then each change, as the store pushes it.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) where the store cannot push it: see
    /// [`Capability::observe`](crate::store::Capability::observe).
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point.
    pub async fn observe(&self) -> Result<Observer> {
        let core = Arc::clone(&self.options.core);
        let (store, name) = (Arc::clone(&core.store), self.name()?);
        let observation = core
            .call(async move {
                match store.extensions().observe {
                    Some(observes) => observes.observe(&name).await,
                    None => Err(cannot_observe(&*store)),
                }
            })
            .await?;
        Ok(Observer {
            observation,
            _core: core,
        })
    }

    fn name(&self) -> Result<Name> {
        Name::new(&*self.options.name)
    }
}

/// The lead, as long as it lasts. Dropping it resigns; [`resign`](Leadership::resign) does so and
/// says what became of it.
#[must_use = "a leadership that is dropped at once ends at once"]
pub struct Leadership {
    guard: Guard,
    /// One proclamation at a time: an earlier one that is sent again must not undo a later one.
    proclaiming: tokio::sync::Mutex<()>,
}

impl Leadership {
    fn new(guard: Guard) -> Leadership {
        Leadership {
            guard,
            proclaiming: tokio::sync::Mutex::new(()),
        }
    }

    /// The number of this leadership: higher than that of every leader before. A resource that has
    /// seen a higher one refuses it.
    pub fn fence(&self) -> Fence {
        self.guard.fence()
    }

    /// Whether it leads now. Reads the clock and asks no server.
    pub fn is_held(&self) -> bool {
        self.guard.is_held()
    }

    /// Completes when the lead is lost, with the reason; see [`Guard::lost`].
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again; a loss is never missed.
    pub async fn lost(&self) -> LossReason {
        self.guard.lost().await
    }

    /// A token that is cancelled shortly before the lead would be lost; see [`Guard::on_lost`].
    pub fn on_lost(&self) -> CancellationToken {
        self.guard.on_lost()
    }

    /// The guard of the lead.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// The guard alone, for code that takes guards. Dropping it resigns.
    pub fn into_guard(self) -> Guard {
        self.guard
    }

    /// Changes the value while leading.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) once it leads no more: nothing was changed then, unless the
    /// store was out of reach meanwhile. [`Unsupported`](crate::ErrorKind::Unsupported) where the
    /// value stays as it was: see [`Capability::proclaim`](crate::store::Capability::proclaim).
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the value may have been changed or not.
    pub async fn proclaim(&self, value: impl AsRef<str>) -> Result<()> {
        let _one_at_a_time = self.proclaiming.lock().await;
        let (core, tracked) = (&self.guard.held().core, &self.guard.held().tracked);
        let value: Arc<str> = value.as_ref().into();
        loop {
            if let Status::Lost(reason) = self.guard.status() {
                return Err(Error::lost(reason));
            }
            let (store, claim, value) = (
                Arc::clone(&core.store),
                tracked.to_ref(),
                Arc::clone(&value),
            );
            match core
                .call(async move { store.change(&claim, Change::Proclaim(value)).await })
                .await
            {
                Ok(Standing::Held(_)) => return Ok(()),
                Ok(Standing::Gone(why)) => tracked.ended(why),
                Err(error) if error.retry_may_help() => core.pause(RETRY).await?,
                Err(error) => return Err(error),
                Ok(Standing::Waiting(_)) => {
                    return Err(Error::protocol(
                        "the store says that a leader waits to lead",
                    ));
                }
            }
        }
    }

    /// Gives the lead to the next in line, and says whether it was held until now; see
    /// [`Guard::release`].
    ///
    /// # Errors
    ///
    /// As [`Guard::release`].
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, it resigns all the same.
    pub async fn resign(self) -> Result<Released> {
        self.guard.release().await
    }
}

/// Between two attempts to proclaim.
const RETRY: Duration = Duration::from_millis(50);

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Leadership").field(&self.guard).finish()
    }
}

/// Receives the leaders. Made by [`Election::observe`].
///
/// While the store is reachable it receives every leader and every value, in order. After an outage
/// it receives the current leader, if that is not the last one received. The absence of a leader is
/// not reported. Leaders that are not read yet are kept.
pub struct Observer {
    observation: Observation,
    /// Keeps the client's thread alive, which listens.
    _core: Arc<Core>,
}

impl Observer {
    /// The next leader, or the next value of the same one. Waits while nothing changes, through
    /// whatever happens to the connection.
    ///
    /// # Errors
    ///
    /// Errors that waiting cannot mend: rights that were taken away, or an answer that we do not
    /// understand.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point; nothing is missed by it.
    pub async fn next(&mut self) -> Result<Leader> {
        self.observation
            .next()
            .await
            .unwrap_or_else(|| Err(broken_off()))
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").finish_non_exhaustive()
    }
}

fn cannot_observe(store: &dyn Store) -> Error {
    Error::unsupported(format!(
        "{} cannot push who leads; ask for the leader when you need it",
        store.capability()
    ))
}
