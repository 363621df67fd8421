//! Rows that compare the fence of each write.

use std::marker::PhantomData;

use super::{Compared, Dialect, Driver, Found, Param, RowError, Session, Statement};
use crate::database::{column_name, names};
use crate::error::Error;
use crate::fence::Fence;

/// A table whose rows check the fence of each write.
#[derive(Clone, Debug)]
pub struct FencedTable<D> {
    compared: Compared,
    driver: PhantomData<D>,
}

/// How often one grant may write to a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// Once: a repeated request of the same grant is refused, too.
    Once,
    /// As often as it likes.
    Often,
}

impl Writes {
    /// How the row's fence compares with that of a write that passes.
    fn order(self) -> &'static str {
        match self {
            Writes::Once => "<",
            Writes::Often => "<=",
        }
    }
}

impl<D: Driver> FencedTable<D> {
    /// A table by its name, the column of its key, and the column of its fence.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) for a name that is not letters, digits and underscores.
    pub fn new(table: &str, key: &str, fence: &str) -> Result<FencedTable<D>, Error> {
        Ok(FencedTable {
            compared: Compared::new(table, key, "the column of the fence", fence)?,
            driver: PhantomData,
        })
    }

    /// The statement of a write to these columns. Zero rows are a refusal.
    ///
    /// PostgreSQL: `$1` is the key, `$2` the fence, `$3` and so on the columns. MySQL, in the order
    /// of the text: the fence, the columns, the key, the fence. There a driver that counts changed
    /// rows instead of found ones says zero, too, when [`Writes::Often`] writes what is there
    /// already.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) for a name that is not letters, digits and underscores.
    pub fn update_statement(&self, writes: Writes, columns: &[&str]) -> Result<String, Error> {
        Ok(self.update_to(writes, columns)?.text)
    }

    /// The statements that write a row which may not be there yet, in their order. Zero rows of the
    /// last one are a refusal.
    ///
    /// PostgreSQL has one: `$1` is the key, `$2` the fence, `$3` and so on the columns. MySQL has
    /// two: the first makes the row if it is not there (the key, the fence, the columns), and its
    /// count says nothing. The second is that of
    /// [`update_statement`](FencedTable::update_statement). `INSERT … ON DUPLICATE KEY UPDATE` alone
    /// will not do: with drivers that count found rows, a refused write counts like one that was
    /// done.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) for a name that is not letters, digits and underscores.
    pub fn upsert_statements(
        &self,
        writes: Writes,
        columns: &[&str],
    ) -> Result<Vec<String>, Error> {
        let statements = self.upsert_to(writes, columns)?.into_iter();
        Ok(statements.map(|statement| statement.text).collect())
    }

    /// Raises the mark of a row before it is read, so that no earlier holder's write can follow the
    /// read.
    ///
    /// # Errors
    ///
    /// [`RowError::Stale`] when a later holder has written or installed its fence.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the mark may have been raised.
    pub async fn install(
        &self,
        database: impl Session<D>,
        key: D::Value<'_>,
        fence: Fence,
    ) -> Result<(), RowError<D::Error>> {
        self.update(database, key, fence, Writes::Often, &[]).await
    }

    /// Writes columns of a row, unless a later holder has written or installed its fence: check and
    /// write are one statement.
    ///
    /// # Errors
    ///
    /// [`RowError::Stale`] when a later holder was first; [`RowError::NoRow`] when there is no such
    /// row. Nothing is changed then.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the row may have been written.
    pub async fn update<'v>(
        &self,
        mut database: impl Session<D>,
        key: D::Value<'v>,
        fence: Fence,
        writes: Writes,
        columns: &[(&str, D::Value<'v>)],
    ) -> Result<(), RowError<D::Error>> {
        let statements = [self.update_to(writes, &names(columns))?];
        self.write(&mut database, &statements, &key, fence, writes, columns)
            .await
    }

    /// The same for a row that may not be there yet: then it is made, with the fence. The key needs
    /// a unique index.
    ///
    /// A row that is not there knows no fence, so that a stale holder may make it. The next holder's
    /// own upsert follows, and is not refused.
    ///
    /// # Errors
    ///
    /// [`RowError::Stale`] when a later holder was first. Nothing is changed then.
    /// [`RowError::NoRow`] on MySQL when another unique index of the table stands in the way.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the row may have been written.
    pub async fn upsert<'v>(
        &self,
        mut database: impl Session<D>,
        key: D::Value<'v>,
        fence: Fence,
        writes: Writes,
        columns: &[(&str, D::Value<'v>)],
    ) -> Result<(), RowError<D::Error>> {
        let statements = self.upsert_to(writes, &names(columns))?;
        self.write(&mut database, &statements, &key, fence, writes, columns)
            .await
    }

    /// The highest fence that a row has seen; `None` when there is no such row. On MySQL a
    /// transaction has the row locked then.
    ///
    /// # Errors
    ///
    /// [`RowError::Corrupt`] when the column holds no fence, [`RowError::Sql`] when the database
    /// refuses.
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed.
    pub async fn highest(
        &self,
        mut database: impl Session<D>,
        key: D::Value<'_>,
    ) -> Result<Option<Fence>, RowError<D::Error>> {
        self.read_highest(&mut database, &key).await
    }

    async fn read_highest(
        &self,
        database: &mut impl Session<D>,
        key: &D::Value<'_>,
    ) -> Result<Option<Fence>, RowError<D::Error>> {
        match self
            .compared
            .read(database, key)
            .await
            .map_err(RowError::Sql)?
        {
            Found::NoRow => Ok(None),
            Found::Value(found) => match found.as_deref().map(str::parse) {
                Some(Ok(highest)) => Ok(Some(highest)),
                _ => Err(RowError::Corrupt { found }),
            },
        }
    }

    async fn write<'v>(
        &self,
        database: &mut impl Session<D>,
        statements: &[Statement],
        key: &D::Value<'v>,
        offered: Fence,
        writes: Writes,
        columns: &[(&str, D::Value<'v>)],
    ) -> Result<(), RowError<D::Error>> {
        if offered.is_none() {
            return Err(RowError::NoFence);
        }
        // A fence is below 2^63.
        let number = i64::try_from(offered.get()).unwrap_or(i64::MAX);
        let mut values = vec![Param::Given(key), Param::Number(number)];
        values.extend(columns.iter().map(|(_, value)| Param::Given(value)));
        let mut affected = 0;
        for statement in statements {
            affected = database
                .execute(&statement.text, &statement.places(&values))
                .await
                .map_err(RowError::Sql)?;
        }
        if affected > 0 {
            return Ok(());
        }
        match self.read_highest(database, key).await? {
            None => Err(RowError::NoRow),
            // Then it was not higher when the statement compared it: the row was found, and had
            // these values already.
            Some(highest)
                if highest == offered
                    && writes == Writes::Often
                    && D::DIALECT == Dialect::Mysql =>
            {
                Ok(())
            }
            Some(highest) => Err(RowError::Stale { highest, offered }),
        }
    }

    fn update_to(&self, writes: Writes, columns: &[&str]) -> Result<Statement, Error> {
        let Compared { table, key, column } = &self.compared;
        let mut set = vec![format!("\"{column}\" = $2")];
        set.extend(Compared::assignments(columns)?);
        Ok(Statement::of::<D>(&format!(
            "UPDATE \"{table}\" SET {} WHERE \"{key}\" = $1 AND \"{column}\" {} $2",
            set.join(", "),
            writes.order()
        )))
    }

    fn upsert_to(&self, writes: Writes, columns: &[&str]) -> Result<Vec<Statement>, Error> {
        let Compared { table, key, column } = &self.compared;
        let (mut names, mut values) = (format!("\"{key}\", \"{column}\""), String::new());
        let mut set = vec![format!("\"{column}\" = excluded.\"{column}\"")];
        for (place, name) in (3..).zip(columns) {
            let name = column_name(name)?;
            names.push_str(&format!(", \"{name}\""));
            values.push_str(&format!(", ${place}"));
            set.push(format!("\"{name}\" = excluded.\"{name}\""));
        }
        match D::DIALECT {
            Dialect::Postgres => Ok(vec![Statement::of::<D>(&format!(
                "INSERT INTO \"{table}\" ({names}) VALUES ($1, $2{values}) ON CONFLICT (\"{key}\") \
                 DO UPDATE SET {} WHERE \"{table}\".\"{column}\" {} excluded.\"{column}\"",
                set.join(", "),
                writes.order()
            ))]),
            // The count of an upsert cannot be trusted, so a new row begins one below, and the
            // update that follows is what counts.
            Dialect::Mysql => Ok(vec![
                Statement::of::<D>(&format!(
                    "INSERT INTO \"{table}\" ({names}) VALUES ($1, $2 - 1{values}) \
                     ON DUPLICATE KEY UPDATE \"{column}\" = \"{table}\".\"{column}\""
                )),
                self.update_to(writes, columns)?,
            ]),
        }
    }
}
