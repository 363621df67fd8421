//! PostgreSQL by [`tokio_postgres`].

use async_trait::async_trait;
pub use tokio_postgres;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, GenericClient, Row, Transaction};

use super::{
    Dialect, Driver, DriverError, Fault, InTransaction, OutsideTransaction, Param, Session, sealed,
};

/// PostgreSQL by `tokio_postgres`.
#[derive(Clone, Copy, Debug)]
pub enum Postgres {}

/// A value of a column that was computed: made by `into()` from what `tokio_postgres` can send.
#[derive(Debug)]
pub struct Computed(Box<dyn ToSql + Send + Sync>);

impl<T: ToSql + Send + Sync + 'static> From<T> for Computed {
    fn from(value: T) -> Computed {
        Computed(Box::new(value))
    }
}

impl sealed::Sealed for Postgres {}

impl Driver for Postgres {
    type Value<'v> = &'v (dyn ToSql + Sync);
    type Owned = Computed;
    type Row = Row;
    type Error = tokio_postgres::Error;
    const DIALECT: Dialect = Dialect::Postgres;

    fn lend(value: &Computed) -> &(dyn ToSql + Sync) {
        &*value.0
    }

    fn again<'s, 'v: 's>(value: &'s &'v (dyn ToSql + Sync)) -> &'s (dyn ToSql + Sync) {
        *value
    }

    fn text(row: &Row, column: usize) -> Result<Option<String>, tokio_postgres::Error> {
        row.try_get(column)
    }
}

impl sealed::Sealed for tokio_postgres::Error {}

impl DriverError for tokio_postgres::Error {
    fn fault(&self) -> Fault {
        match self.code() {
            Some(code) if *code == SqlState::LOCK_NOT_AVAILABLE => Fault::Busy,
            Some(code)
                if *code == SqlState::T_R_SERIALIZATION_FAILURE
                    || *code == SqlState::T_R_DEADLOCK_DETECTED =>
            {
                Fault::Victim
            }
            Some(code) if *code == SqlState::UNIQUE_VIOLATION => Fault::Duplicate,
            // It may have been done by a server that was told to stop meanwhile, or crashed.
            Some(code)
                if ["57P", "08"]
                    .iter()
                    .any(|class| code.code().starts_with(class)) =>
            {
                Fault::Unanswered
            }
            Some(_) => Fault::Refused,
            None if self.is_closed()
                || std::error::Error::source(self)
                    .is_some_and(|cause| cause.is::<std::io::Error>()) =>
            {
                Fault::Unanswered
            }
            // A value that cannot be sent as the type of its column: nothing was sent.
            None => Fault::Refused,
        }
    }
}

impl<C: GenericClient + Sync> sealed::Sealed for &C {}

#[async_trait]
impl<C: GenericClient + Sync> Session<Postgres> for &C {
    async fn execute<'v>(
        &mut self,
        text: &str,
        values: &[Param<'_, &'v (dyn ToSql + Sync)>],
    ) -> Result<u64, tokio_postgres::Error> {
        GenericClient::execute(*self, text, &bound(values)).await
    }

    async fn read<'v>(
        &mut self,
        text: &str,
        values: &[Param<'_, &'v (dyn ToSql + Sync)>],
    ) -> Result<Option<Vec<Option<String>>>, tokio_postgres::Error> {
        let row = GenericClient::query_opt(*self, text, &bound(values)).await?;
        row.map(|row| (0..row.len()).map(|column| row.try_get(column)).collect())
            .transpose()
    }

    async fn rows<'v>(
        &mut self,
        text: &str,
        values: &[Param<'_, &'v (dyn ToSql + Sync)>],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        GenericClient::query(*self, text, &bound(values)).await
    }

    async fn run(&mut self, text: &str) -> Result<(), tokio_postgres::Error> {
        GenericClient::batch_execute(*self, text).await
    }
}

impl InTransaction<Postgres> for &Transaction<'_> {}

impl OutsideTransaction<Postgres> for &Client {}

fn bound<'p>(values: &'p [Param<'p, &'p (dyn ToSql + Sync)>]) -> Vec<&'p (dyn ToSql + Sync)> {
    let bound = values.iter().map(|value| match value {
        Param::Number(number) => number as &(dyn ToSql + Sync),
        Param::Text(text) => text,
        Param::Given(given) => **given,
    });
    bound.collect()
}
