//! A statement that may have to wait for a lock, and for how long.

use std::time::Duration;

use super::RowLockError;
use crate::database::{Dialect, Driver, DriverError, Fault, InTransaction, Param};

/// For how long a statement waits for a lock.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wait {
    /// As long as the database is set to.
    AsSet,
    /// The statement itself says that it does not wait.
    Not,
    AtMost(Duration),
}

/// Runs a statement that locks; `None` when the lock was not to be had within the wait. The
/// transaction goes on then, unless the database itself has set the limit.
pub(super) async fn rows<'v, D: Driver>(
    transaction: &mut impl InTransaction<D>,
    text: &str,
    values: &[Param<'_, D::Value<'v>>],
    wait: Wait,
) -> Result<Option<Vec<D::Row>>, RowLockError<D::Error>> {
    match (wait, D::DIALECT) {
        (Wait::AsSet, _) => Ok(Some(transaction.rows(text, values).await?)),
        (_, Dialect::Postgres) => in_savepoint(transaction, text, values, wait).await,
        (_, Dialect::Mysql) => with_limit(transaction, text, values, wait).await,
    }
}

/// PostgreSQL ends the whole transaction at any error, but for one inside a savepoint. A rollback to
/// it takes the limit back as well.
async fn in_savepoint<'v, D: Driver>(
    transaction: &mut impl InTransaction<D>,
    text: &str,
    values: &[Param<'_, D::Value<'v>>],
    wait: Wait,
) -> Result<Option<Vec<D::Row>>, RowLockError<D::Error>> {
    transaction.run("SAVEPOINT palisade_wait").await?;
    let before = match wait {
        Wait::AtMost(longest) => {
            // 0 would be no limit.
            let millis = longest.as_millis().clamp(1, i32::MAX.unsigned_abs().into());
            let limit = format!("{millis}ms");
            let limit: [Param<'_, D::Value<'v>>; 1] = [Param::Text(&limit)];
            let set =
                "SELECT current_setting('lock_timeout'), set_config('lock_timeout', $1, true)";
            let row = transaction.read(set, &limit).await?;
            row.and_then(|columns| columns.into_iter().next().flatten())
        }
        Wait::AsSet | Wait::Not => None,
    };
    match transaction.rows(text, values).await {
        Ok(rows) => {
            if let Some(before) = before {
                let before: [Param<'_, D::Value<'v>>; 1] = [Param::Text(&before)];
                let set = "SELECT set_config('lock_timeout', $1, true)";
                transaction.read(set, &before).await?;
            }
            transaction.run("RELEASE SAVEPOINT palisade_wait").await?;
            Ok(Some(rows))
        }
        Err(error) if error.fault() == Fault::Busy => {
            let back = "ROLLBACK TO SAVEPOINT palisade_wait; RELEASE SAVEPOINT palisade_wait";
            transaction.run(back).await?;
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// MySQL undoes only the statement when a wait runs out, unless it is told to undo the transaction.
/// Its limit belongs to the session, and counts whole seconds.
async fn with_limit<'v, D: Driver>(
    transaction: &mut impl InTransaction<D>,
    text: &str,
    values: &[Param<'_, D::Value<'v>>],
    wait: Wait,
) -> Result<Option<Vec<D::Row>>, RowLockError<D::Error>> {
    if let Wait::AtMost(longest) = wait {
        let up = u64::from(longest.subsec_nanos() > 0);
        let seconds = longest.as_secs().saturating_add(up).clamp(1, 1 << 30);
        let set = format!(
            "SET @palisade_wait = @@SESSION.innodb_lock_wait_timeout, \
             SESSION innodb_lock_wait_timeout = {seconds}"
        );
        transaction.run(&set).await?;
    }
    let locked = transaction.rows(text, values).await;
    let answered = !matches!(&locked, Err(error) if error.fault() == Fault::Unanswered);
    if matches!(wait, Wait::AtMost(_)) && answered {
        let back = "SET SESSION innodb_lock_wait_timeout = @palisade_wait";
        transaction.run(back).await?;
    }
    match locked {
        Ok(rows) => Ok(Some(rows)),
        Err(error) if error.fault() == Fault::Busy => {
            let ask = "SELECT IF(@@innodb_rollback_on_timeout, '1', '0')";
            let undone = transaction.read(ask, &[]).await?;
            match undone.and_then(|columns| columns.into_iter().next().flatten()) {
                Some(on) if on == "1" => Err(RowLockError::Victim(error)),
                _ => Ok(None),
            }
        }
        Err(error) => Err(error.into()),
    }
}
