//! The locks of one process of a contest.

use std::process::ExitCode;

use palisade::{Guard, Mutex};
use redis::Cmd;
use redis::aio::MultiplexedConnection;

use super::super::{Result, raw};
use super::bare::BareLock;
use crate::compare::caller_kind::CallerKind;
use crate::compare::ours;
use crate::compare::worker::{Contender, contend};

const TOKEN: &str = "raw:handoff";

/// In seconds. If no process has had the token for so long, it is lost, and the run ends with an
/// error.
const TOKEN_IS_LOST: u32 = 10;

/// Runs as one process of a contest.
pub(crate) fn worker(words: &[&str]) -> ExitCode {
    let [side, url, kind] = words else {
        return ExitCode::from(64);
    };
    let Some(kind) = CallerKind::of(kind) else {
        return ExitCode::from(64);
    };
    contend(kind, async || match *side {
        "ours" => Ok(Lock::Ours(ours::connect(url, "handoff").await?)),
        "floor" => Ok(Lock::Floor(BareLock::connect(url).await?)),
        _ => Lock::raw(url).await,
    })
}

enum Lock {
    Ours(Mutex),
    /// A list with one token in it, or none.
    Raw {
        connection: MultiplexedConnection,
        pop: Cmd,
        push: Cmd,
    },
    Floor(BareLock),
}

impl Lock {
    async fn raw(url: &str) -> Result<Lock> {
        let connection = raw::connect(url).await?;
        let (mut pop, mut push) = (redis::cmd("BLPOP"), redis::cmd("RPUSH"));
        pop.arg(TOKEN).arg(TOKEN_IS_LOST);
        push.arg(TOKEN).arg("token");
        Ok(Lock::Raw {
            connection,
            pop,
            push,
        })
    }
}

impl Contender for Lock {
    /// None where there is no guard.
    type Held = Option<Guard>;

    /// Brings the token. Our locks need none.
    async fn begin(&mut self) -> Result<()> {
        match self {
            Lock::Ours(_) | Lock::Floor(_) => Ok(()),
            Lock::Raw { .. } => self.give_back(None).await,
        }
    }

    async fn take(&mut self) -> Result<Option<Guard>> {
        match self {
            Lock::Ours(lock) => Ok(Some(lock.acquire().await?)),
            Lock::Raw {
                connection, pop, ..
            } => {
                let popped: Option<(String, String)> = pop.query_async(connection).await?;
                popped
                    .map(|_| None)
                    .ok_or_else(|| "raw: the token is lost".into())
            }
            Lock::Floor(lock) => lock.take().await.map(|()| None),
        }
    }

    async fn give_back(&mut self, held: Option<Guard>) -> Result<()> {
        match (self, held) {
            (Lock::Ours(_), Some(guard)) => ours::released(guard.release().await?),
            (Lock::Ours(_), None) => Ok(()),
            (
                Lock::Raw {
                    connection, push, ..
                },
                _,
            ) => Ok(push.exec_async(connection).await?),
            (Lock::Floor(lock), _) => lock.give_back().await,
        }
    }
}
