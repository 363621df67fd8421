use std::time::Duration;

use sqlx::postgres::{PgAdvisoryLock, PgAdvisoryLockGuard};
use sqlx::{Connection, Either, PgConnection};
use tokio::runtime::{Builder, Runtime};

use crate::participant::{Acquired, Extended, Fault, Participant, Released};

/// The crate sqlx.
pub(super) struct Peer {
    runtime: Runtime,
    url: String,
    connection: Option<PgConnection>,
    held: Option<PgAdvisoryLockGuard<'static, PgConnection>>,
}

impl Peer {
    pub(super) fn connect(url: &str) -> Result<Self, Fault> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Fault::of)?;
        Ok(Self {
            runtime,
            url: url.to_owned(),
            connection: None,
            held: None,
        })
    }

    fn connection(&mut self) -> Result<PgConnection, Fault> {
        match self.connection.take() {
            Some(connection) => Ok(connection),
            None => self
                .runtime
                .block_on(PgConnection::connect(&self.url))
                .map_err(Fault::of),
        }
    }
}

impl Participant for Peer {
    fn acquire(
        &mut self,
        name: &str,
        _: Option<Duration>,
        wait: Duration,
    ) -> Result<Acquired, Fault> {
        let connection = self.connection()?;
        // Its guard borrows it; a test has few names.
        let lock: &'static PgAdvisoryLock = Box::leak(Box::new(PgAdvisoryLock::new(name)));
        if wait.is_zero() {
            let tried = self.runtime.block_on(lock.try_acquire(connection));
            return Ok(match tried.map_err(Fault::of)? {
                Either::Left(guard) => {
                    self.held = Some(guard);
                    Acquired::Yes
                }
                Either::Right(connection) => {
                    self.connection = Some(connection);
                    Acquired::Busy
                }
            });
        }
        let waiting = async { tokio::time::timeout(wait, lock.acquire(connection)).await };
        match self.runtime.block_on(waiting) {
            Ok(guard) => {
                self.held = Some(guard.map_err(Fault::of)?);
                Ok(Acquired::Yes)
            }
            // Its connection has gone with it.
            Err(_) => Ok(Acquired::Busy),
        }
    }

    fn release(&mut self) -> Result<Released, Fault> {
        let Some(guard) = self.held.take() else {
            return Ok(Released::NotHeld);
        };
        let connection = self.runtime.block_on(guard.release_now());
        self.connection = Some(connection.map_err(Fault::of)?);
        Ok(Released::Unsaid)
    }

    fn extend(&mut self, _: Duration) -> Result<Extended, Fault> {
        // The server keeps it for as long as the connection lives.
        Ok(match self.held {
            Some(_) => Extended::Yes,
            None => Extended::NotHeld,
        })
    }
}
