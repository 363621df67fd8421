//! Requests that are done once, however often they are sent.

use std::marker::PhantomData;

use super::{Dialect, Driver, InTransaction, Param, RowError, Statement};
use crate::error::Error;
use crate::stores::sql::Identifier;

/// A table of requests that were done, with their results.
///
/// The id of the request is inserted in the transaction that does its work, so both are committed or
/// neither is. A repeated request is not done again: it gets the result of the first. One that comes
/// while the first is still under way waits for the end of that transaction, and is the first itself
/// if it was rolled back.
///
/// This needs no lock and no fence. It is the last defence, for the case that a lock or its user has
/// failed, or that a reply was lost and the client has sent the request again.
///
/// Rows are never deleted here. Delete those that no client repeats any more, by their column
/// `since`.
#[derive(Clone, Debug)]
pub struct Requests<D> {
    table: Identifier,
    driver: PhantomData<D>,
}

/// What is known of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// It is the first of its id: do the work, [`finish`](Requests::finish) it, and commit.
    New,
    /// It was done before, and committed. This was its result; `None` when it was committed without.
    Repeated(Option<String>),
}

/// The longest id, in bytes.
const LONGEST: usize = 255;

impl<D: Driver> Requests<D> {
    /// A table by its name. [`create_statement`](Requests::create_statement) has its columns.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) for a name that is not letters, digits and underscores.
    pub fn new(table: &str) -> Result<Requests<D>, Error> {
        Ok(Requests {
            table: Identifier::new("the name of the table", table)?,
            driver: PhantomData,
        })
    }

    /// The statement that creates the table, if it is not there. Ids are compared by their bytes.
    pub fn create_statement(&self) -> String {
        let table = &self.table;
        match D::DIALECT {
            Dialect::Postgres => format!(
                "CREATE TABLE IF NOT EXISTS \"{table}\" (\"id\" text COLLATE \"C\" PRIMARY KEY, \"result\" text, \
                 \"repeats\" bigint NOT NULL DEFAULT 0, \"since\" timestamptz NOT NULL DEFAULT now())"
            ),
            Dialect::Mysql => format!(
                "CREATE TABLE IF NOT EXISTS `{table}` (`id` varbinary({LONGEST}) PRIMARY KEY, `result` longtext, \
                 `repeats` bigint NOT NULL DEFAULT 0, `since` timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP) \
                 ENGINE=InnoDB CHARACTER SET utf8mb4"
            ),
        }
    }

    /// The statements of [`begin`](Requests::begin), in their order: one that inserts the id or
    /// counts a repetition, and one that reads `repeats`, which is 0 for a new request, and the
    /// result. The id is the only value of each.
    pub fn begin_statements(&self) -> [String; 2] {
        [self.insert(), self.read()].map(|statement| statement.text)
    }

    /// The statement of [`finish`](Requests::finish). PostgreSQL: `$1` is the id, `$2` the result.
    /// MySQL: the result, the id.
    pub fn finish_statement(&self) -> String {
        self.update().text
    }

    /// Inserts the id of a request in your transaction, or says what its result was.
    ///
    /// For a new request the transaction goes on with the work. For a repeated one, commit or roll
    /// back: either will do.
    ///
    /// # Errors
    ///
    /// [`RowError::Name`] for an id that is empty or longer than 255 bytes. [`RowError::Sql`] when
    /// the database refuses; where [`may_retry`](RowError::may_retry) says so, run the whole
    /// transaction again.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the id may have been inserted: roll back.
    pub async fn begin(
        &self,
        mut transaction: impl InTransaction<D>,
        id: &str,
    ) -> Result<Request, RowError<D::Error>> {
        if id.is_empty() || id.len() > LONGEST {
            return Err(RowError::Name(Error::config(format!(
                "the id of a request has 1 to {LONGEST} bytes, and this one has {}",
                id.len()
            ))));
        }
        let (insert, read) = (self.insert(), self.read());
        let values = [Param::Text(id)];
        transaction
            .execute(&insert.text, &insert.places(&values))
            .await
            .map_err(RowError::Sql)?;
        // The count of an upsert cannot be trusted on MySQL. Now the row is locked, and is as this
        // transaction will commit it.
        let row = transaction.read(&read.text, &read.places(&values)).await;
        let mut columns = row
            .map_err(RowError::Sql)?
            .ok_or(RowError::NoRow)?
            .into_iter();
        match columns.next().flatten().as_deref() {
            Some("0") => Ok(Request::New),
            Some(_) => Ok(Request::Repeated(columns.next().flatten())),
            None => Err(RowError::Corrupt { found: None }),
        }
    }

    /// Stores the result of a new request in the same transaction. Commit it then.
    ///
    /// # Errors
    ///
    /// [`RowError::NoRow`] when the request was not begun in this transaction.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the result may have been stored: roll back.
    pub async fn finish(
        &self,
        mut transaction: impl InTransaction<D>,
        id: &str,
        result: &str,
    ) -> Result<(), RowError<D::Error>> {
        let (update, read) = (self.update(), self.read());
        let values = [Param::Text(id), Param::Text(result)];
        let affected = transaction
            .execute(&update.text, &update.places(&values))
            .await
            .map_err(RowError::Sql)?;
        if affected > 0 {
            return Ok(());
        }
        // MySQL may count none where the result is the same as before.
        let row = transaction.read(&read.text, &read.places(&values)).await;
        let row = row.map_err(RowError::Sql)?.ok_or(RowError::NoRow)?;
        match row.into_iter().nth(1).flatten() {
            Some(stored) if stored == result => Ok(()),
            _ => Err(RowError::NoRow),
        }
    }

    fn insert(&self) -> Statement {
        let table = &self.table;
        let conflict = match D::DIALECT {
            Dialect::Postgres => "ON CONFLICT (\"id\") DO UPDATE SET",
            Dialect::Mysql => "ON DUPLICATE KEY UPDATE",
        };
        Statement::of::<D>(&format!(
            "INSERT INTO \"{table}\" (\"id\") VALUES ($1) {conflict} \"repeats\" = \"{table}\".\"repeats\" + 1"
        ))
    }

    fn read(&self) -> Statement {
        let (text, lock) = match D::DIALECT {
            Dialect::Postgres => ("text", ""),
            Dialect::Mysql => ("CHAR", " FOR UPDATE"),
        };
        Statement::of::<D>(&format!(
            "SELECT CAST(\"repeats\" AS {text}), \"result\" FROM \"{}\" WHERE \"id\" = $1{lock}",
            self.table
        ))
    }

    fn update(&self) -> Statement {
        Statement::of::<D>(&format!(
            "UPDATE \"{}\" SET \"result\" = $2 WHERE \"id\" = $1",
            self.table
        ))
    }
}
