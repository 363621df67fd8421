//! Rows that compare the mark of the holder.

use std::fmt;
use std::marker::PhantomData;

use sha2::{Digest, Sha256};

use super::{Compared, Dialect, Driver, Found, Param, RowError, Session, Statement};
use crate::error::Error;
use crate::guard::{DetachedGrant, Exclusive, Guard};
use crate::name::hex;
use crate::store::{ClaimId, Mode};

/// A table whose rows take a write only while they have the holder's mark.
///
/// Mark the row, read it, work, and write. The write passes if no other holder has marked the row in
/// between. No fence is needed, so this also suits a lock that has none.
///
/// **It excludes, but it does not order.** Of two processes that both believe that they hold the
/// lock, only the one that marked the row last can write. That may be the earlier holder, if it was
/// paused before it marked the row: then the later holder is the one that is refused. A
/// [`FencedTable`](super::FencedTable) refuses the earlier one in every case: prefer it where the
/// grant has a fence.
#[derive(Clone, Debug)]
pub struct MarkedTable<D> {
    compared: Compared,
    driver: PhantomData<D>,
}

/// What marks a row as a holder's: 32 hex digits, made of the unique value of the grant, and no
/// other grant has the same.
///
/// No secret: the value of the grant cannot be computed from it.
#[derive(Clone, PartialEq, Eq)]
pub struct Mark(String);

impl Mark {
    /// The mark of this guard.
    pub fn by(guard: &Guard<Exclusive>) -> Mark {
        Mark::of(guard.held().tracked.claim.id)
    }

    /// The mark of the grant that was carried here from another process.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) when the grant is not exclusive, or was cut short.
    pub fn by_grant(grant: &DetachedGrant) -> Result<Mark, Error> {
        if grant.mode == Mode::Exclusive {
            Ok(Mark::of(grant.claim_id()?))
        } else {
            Err(Error::config(format!(
                "the grant is {}, and only an exclusive one may write",
                grant.mode
            )))
        }
    }

    fn of(claim: ClaimId) -> Mark {
        let hash = Sha256::digest([b"palisade mark ".as_slice(), &claim.digits()].concat());
        let digits = hash.iter().take(16).flat_map(|byte| hex(*byte));
        Mark(digits.map(char::from).collect())
    }

    /// The text, for a driver of your own.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mark({})", self.0)
    }
}

impl<D: Driver> MarkedTable<D> {
    /// A table by its name, the column of its key, and the column of its mark, which takes a text of
    /// 32 characters.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) for a name that is not letters, digits and underscores.
    pub fn new(table: &str, key: &str, mark: &str) -> Result<MarkedTable<D>, Error> {
        Ok(MarkedTable {
            compared: Compared::new(table, key, "the column of the mark", mark)?,
            driver: PhantomData,
        })
    }

    /// The statement that marks a row. PostgreSQL: `$1` is the key, `$2` the mark. MySQL: the mark,
    /// the key.
    pub fn mark_statement(&self) -> String {
        self.mark_to().text
    }

    /// The statement of a write to these columns. Zero rows are a refusal.
    ///
    /// PostgreSQL: `$1` is the key, `$2` the mark, `$3` and so on the columns. MySQL, in the order of
    /// the text: the columns, the key, the mark. There a driver that counts changed rows instead of
    /// found ones says zero, too, when it writes what is there already.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) for a name that is not letters, digits and underscores,
    /// and when there are no columns.
    pub fn update_statement(&self, columns: &[&str]) -> Result<String, Error> {
        Ok(self.update_to(columns)?.text)
    }

    /// Marks a row as this holder's, whatever mark it had. Do so before you read it.
    ///
    /// # Errors
    ///
    /// [`RowError::NoRow`] when there is no such row.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the row may have been marked.
    pub async fn mark(
        &self,
        mut database: impl Session<D>,
        key: D::Value<'_>,
        mark: &Mark,
    ) -> Result<(), RowError<D::Error>> {
        self.write(&mut database, &self.mark_to(), &key, mark, &[])
            .await
    }

    /// Writes columns of a row if it still has the mark: check and write are one statement. The mark
    /// stays, so that the holder may write again.
    ///
    /// # Errors
    ///
    /// [`RowError::NotMarked`] when the row has another mark, or none. Nothing is changed then.
    /// [`RowError::NoRow`] when there is no such row.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the row may have been written.
    pub async fn update<'v>(
        &self,
        mut database: impl Session<D>,
        key: D::Value<'v>,
        mark: &Mark,
        columns: &[(&str, D::Value<'v>)],
    ) -> Result<(), RowError<D::Error>> {
        let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
        let statement = self.update_to(&names)?;
        self.write(&mut database, &statement, &key, mark, columns)
            .await
    }

    async fn write<'v>(
        &self,
        database: &mut impl Session<D>,
        statement: &Statement,
        key: &D::Value<'v>,
        mark: &Mark,
        columns: &[(&str, D::Value<'v>)],
    ) -> Result<(), RowError<D::Error>> {
        let mut values = vec![Param::Given(key), Param::Text(&mark.0)];
        values.extend(columns.iter().map(|(_, value)| Param::Given(value)));
        let affected = database
            .execute(&statement.text, &statement.places(&values))
            .await
            .map_err(RowError::Sql)?;
        if affected > 0 {
            return Ok(());
        }
        match self
            .compared
            .read(database, key)
            .await
            .map_err(RowError::Sql)?
        {
            Found::NoRow => Err(RowError::NoRow),
            // The row was found, and had these values already.
            Found::Value(Some(found)) if found == mark.0 && D::DIALECT == Dialect::Mysql => Ok(()),
            Found::Value(found) => Err(RowError::NotMarked { found }),
        }
    }

    fn mark_to(&self) -> Statement {
        let Compared { table, key, column } = &self.compared;
        Statement::of::<D>(&format!(
            "UPDATE \"{table}\" SET \"{column}\" = $2 WHERE \"{key}\" = $1"
        ))
    }

    fn update_to(&self, columns: &[&str]) -> Result<Statement, Error> {
        if columns.is_empty() {
            return Err(Error::config(
                "there is no column to write; name at least one",
            ));
        }
        let Compared { table, key, column } = &self.compared;
        Ok(Statement::of::<D>(&format!(
            "UPDATE \"{table}\" SET {} WHERE \"{key}\" = $1 AND \"{column}\" = $2",
            Compared::assignments(columns)?.join(", ")
        )))
    }
}
