//! A shop that keeps its stock in a file, and knows nothing of locks.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use palisade::Fence;
use palisade::fence::sqlite::rusqlite::Connection;
use palisade::fence::sqlite::{FencedTable, RowError};

use super::Result;
use super::table::STOCK;

#[derive(Clone)]
pub struct Shop {
    database: Arc<Mutex<Connection>>,
    fenced: FencedTable,
}

impl Shop {
    pub fn open(path: &Path) -> Result<Shop> {
        let database = Connection::open(path)?;
        database.execute_batch(
            "PRAGMA synchronous = off; PRAGMA journal_mode = wal;
             CREATE TABLE stock (item TEXT PRIMARY KEY, pieces INTEGER, fence INTEGER NOT NULL DEFAULT 0);
             INSERT INTO stock (item) VALUES ('bolt')",
        )?;
        Ok(Shop {
            database: Arc::new(Mutex::new(database)),
            fenced: FencedTable::new("stock", "item", "fence")?,
        })
    }

    fn with<T>(&self, work: impl FnOnce(&Connection) -> T) -> T {
        work(&self.database.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// As it is in the morning.
    pub fn fill(&self) -> Result<()> {
        let fill = "UPDATE stock SET pieces = ?1, fence = 0";
        self.with(|database| database.execute(fill, [STOCK]))?;
        Ok(())
    }

    pub fn read(&self) -> Result<i64> {
        let read = "SELECT pieces FROM stock";
        Ok(self.with(|database| database.query_row(read, [], |row| row.get(0)))?)
    }

    /// Whatever has happened since it was read.
    pub fn write(&self, pieces: i64) -> Result<()> {
        let write = "UPDATE stock SET pieces = ?1";
        self.with(|database| database.execute(write, [pieces]))?;
        Ok(())
    }

    /// Refuses earlier fences from now on.
    pub fn install(&self, fence: Fence) -> Result<()> {
        Ok(self.with(|database| self.fenced.install(database, &"bolt", fence))?)
    }

    /// Whether this fence may write.
    pub fn write_fenced(&self, pieces: i64, fence: Fence) -> Result<bool> {
        let columns: [(&str, &dyn palisade::fence::sqlite::rusqlite::ToSql); 1] =
            [("pieces", &pieces)];
        match self.with(|database| self.fenced.update(database, &"bolt", fence, &columns)) {
            Ok(()) => Ok(true),
            Err(RowError::Stale { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
