//! MySQL or MariaDB by [`mysql_async`].

use async_trait::async_trait;
pub use mysql_async;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Params, Row, Transaction, Value};

use super::{
    Dialect, Driver, DriverError, Fault, InTransaction, OutsideTransaction, Param, Session, sealed,
};

/// A lock that was waited for too long; one that was not to be had at once (MySQL).
const BUSY: [u16; 2] = [1205, 3572];
/// A deadlock; a row that has changed since the snapshot (MariaDB with
/// `innodb_snapshot_isolation`).
const VICTIM: [u16; 2] = [1213, 1020];
const DUPLICATE: [u16; 1] = [1062];
/// The server is stopping, or has ended the connection: what it was doing may be done.
const UNANSWERED: [u16; 3] = [1053, 1927, 4031];

/// MySQL or MariaDB by `mysql_async`.
#[derive(Clone, Copy, Debug)]
pub enum Mysql {}

impl sealed::Sealed for Mysql {}

impl Driver for Mysql {
    type Value<'v> = Value;
    type Owned = Value;
    type Row = Row;
    type Error = mysql_async::Error;
    const DIALECT: Dialect = Dialect::Mysql;

    fn lend(value: &Value) -> Value {
        value.clone()
    }

    fn again<'s, 'v: 's>(value: &'s Value) -> Value {
        value.clone()
    }

    fn text(row: &Row, column: usize) -> Result<Option<String>, mysql_async::Error> {
        Ok(row.as_ref(column).and_then(text))
    }
}

impl sealed::Sealed for mysql_async::Error {}

impl DriverError for mysql_async::Error {
    fn fault(&self) -> Fault {
        match self {
            mysql_async::Error::Server(error) => match error.code {
                code if BUSY.contains(&code) => Fault::Busy,
                code if VICTIM.contains(&code) => Fault::Victim,
                code if DUPLICATE.contains(&code) => Fault::Duplicate,
                code if UNANSWERED.contains(&code) => Fault::Unanswered,
                _ => Fault::Refused,
            },
            _ => Fault::Unanswered,
        }
    }
}

impl<Q: Queryable> sealed::Sealed for &mut Q {}

#[async_trait]
impl<Q: Queryable> Session<Mysql> for &mut Q {
    async fn execute<'v>(
        &mut self,
        text: &str,
        values: &[Param<'_, Value>],
    ) -> Result<u64, mysql_async::Error> {
        let done = self.exec_iter(text, bound(values)).await?;
        let affected = done.affected_rows();
        done.drop_result().await?;
        Ok(affected)
    }

    async fn read<'v>(
        &mut self,
        text: &str,
        values: &[Param<'_, Value>],
    ) -> Result<Option<Vec<Option<String>>>, mysql_async::Error> {
        let row: Option<Row> = self.exec_first(text, bound(values)).await?;
        Ok(row.map(|row| row.unwrap().iter().map(self::text).collect()))
    }

    async fn rows<'v>(
        &mut self,
        text: &str,
        values: &[Param<'_, Value>],
    ) -> Result<Vec<Row>, mysql_async::Error> {
        self.exec(text, bound(values)).await
    }

    async fn run(&mut self, text: &str) -> Result<(), mysql_async::Error> {
        self.query_drop(text).await
    }
}

impl InTransaction<Mysql> for &mut Transaction<'_> {}

impl OutsideTransaction<Mysql> for &mut Conn {}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::Bytes(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        _ => None,
    }
}

fn bound(values: &[Param<'_, Value>]) -> Params {
    let bound = values.iter().map(|value| match value {
        Param::Number(number) => Value::Int(*number),
        Param::Text(text) => Value::from(*text),
        Param::Given(given) => (*given).clone(),
    });
    Params::Positional(bound.collect())
}
