//! What became of the stock.

use std::fmt;
use std::time::Duration;

/// What the shop has at the beginning.
pub const STOCK: i64 = 100;

/// One way to sell, and its result.
#[derive(Debug)]
#[allow(dead_code, reason = "the test reads them")]
pub struct Row {
    pub store: String,
    pub way: &'static str,
    pub sold: i64,
    /// Sold, and not there, or not ordered.
    pub oversold: i64,
    pub refused: usize,
    pub time: Duration,
}

/// The rows in their order.
#[derive(Debug, Default)]
pub struct Table(pub Vec<Row>);

impl Table {
    /// Adds a way whose buyers wanted more than there is.
    pub fn add(&mut self, store: &str, way: &'static str, sale: Sale) {
        self.add_of(store, way, sale, STOCK);
    }

    /// The same where no more than this should have been sold.
    pub fn add_of(&mut self, store: &str, way: &'static str, sale: Sale, most: i64) {
        self.0.push(Row {
            store: store.to_owned(),
            way,
            sold: sale.sold,
            oversold: (sale.sold - most).max(0),
            refused: sale.refused,
            time: sale.time,
        });
    }
}

/// What the buyers were told.
#[derive(Clone, Copy, Debug)]
pub struct Sale {
    pub sold: i64,
    pub refused: usize,
    pub time: Duration,
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<10} {:<44} {:>5} {:>9} {:>8} {:>9}",
            "STORE", "WAY", "SOLD", "OVERSOLD", "REFUSED", "TIME"
        )?;
        for row in &self.0 {
            let time = format!("{} ms", row.time.as_millis());
            writeln!(
                f,
                "{:<10} {:<44} {:>5} {:>9} {:>8} {time:>9}",
                row.store, row.way, row.sold, row.oversold, row.refused
            )?;
        }
        Ok(())
    }
}
