//! A table with a column that each write compares.

use super::{Dialect, Driver, Param, Session, Statement};
use crate::error::Error;
use crate::stores::sql::Identifier;

/// A column of a row, as it is now.
pub(crate) enum Found {
    NoRow,
    Value(Option<String>),
}

/// A table, the column of its key, and the column that each write compares.
#[derive(Clone, Debug)]
pub(crate) struct Compared {
    pub(crate) table: Identifier,
    pub(crate) key: Identifier,
    pub(crate) column: Identifier,
}

impl Compared {
    pub(crate) fn new(table: &str, key: &str, what: &str, column: &str) -> Result<Compared, Error> {
        Ok(Compared {
            table: Identifier::new("the name of the table", table)?,
            key: Identifier::new("the column of the key", key)?,
            column: Identifier::new(what, column)?,
        })
    }

    /// `"a" = $3, "b" = $4`, with a separator before each.
    pub(crate) fn assignments(columns: &[&str]) -> Result<Vec<String>, Error> {
        let columns = (3..).zip(columns);
        columns
            .map(|(place, column)| Ok(format!("\"{}\" = ${place}", column_name(column)?)))
            .collect()
    }

    /// Reads the compared column. MySQL must lock the row: in a transaction it would answer from a
    /// snapshot that is older than what the UPDATE has compared.
    pub(crate) fn read_statement<D: Driver>(&self) -> Statement {
        let Compared { table, key, column } = self;
        let (text, lock) = match D::DIALECT {
            Dialect::Postgres => ("text", ""),
            Dialect::Mysql => ("CHAR", " FOR UPDATE"),
        };
        Statement::of::<D>(&format!(
            "SELECT CAST(\"{column}\" AS {text}) FROM \"{table}\" WHERE \"{key}\" = $1{lock}"
        ))
    }

    pub(crate) async fn read<D: Driver>(
        &self,
        database: &mut impl Session<D>,
        key: &D::Value<'_>,
    ) -> Result<Found, D::Error> {
        let read = self.read_statement::<D>();
        let row = database
            .read(&read.text, &read.places(&[Param::Given(key)]))
            .await?;
        Ok(match row {
            None => Found::NoRow,
            Some(columns) => Found::Value(columns.into_iter().next().flatten()),
        })
    }
}

pub(crate) fn column_name(name: &str) -> Result<Identifier, Error> {
    Identifier::new("the name of a column", name)
}

/// The names of columns that come with their values.
pub(crate) fn names<'c, V>(columns: &[(&'c str, V)]) -> Vec<&'c str> {
    columns.iter().map(|(name, _)| *name).collect()
}
