//! The stock in a MySQL or MariaDB: the database's own means, and a fenced row.

use std::time::{Duration, Instant};

use palisade::fence::mysql::{FencedTable, Request, Requests, RowError, Writes};
use palisade::row_lock::mysql::{LockedTable, RowLockError};
use palisade::versioned::mysql::mysql_async::prelude::Queryable;
use palisade::versioned::mysql::mysql_async::{Conn, TxOpts};
use palisade::versioned::mysql::{RowSwapped, SwapError, VersionedTable};

use super::Result;
use super::buyers::{Buyer, COUNTERS, TWO, Think, many, sell};
use super::table::{STOCK, Sale, Table};

const LONGEST: Duration = Duration::from_secs(30);

/// How a customer buys.
#[derive(Clone)]
enum Way {
    Unlocked,
    RowLock(LockedTable),
    Version(VersionedTable),
    /// With the id of the order.
    Request(Requests, String),
}

struct Customer {
    conn: Conn,
    table: String,
    way: Way,
    think: Think,
}

async fn connect(url: &str) -> Result<Conn> {
    // The words behind it are ours, and so is the other scheme.
    let url = url.split('?').next().unwrap_or(url);
    let url = url.replacen("mariadb://", "mysql://", 1);
    Ok(Conn::from_url(url).await?)
}

impl Buyer for Customer {
    async fn buy(&mut self, wanted: i64) -> Result<bool> {
        match self.way.clone() {
            Way::Unlocked => self.buy_unlocked(wanted).await,
            Way::Version(stock) => self.buy_if_unchanged(&stock, wanted).await,
            // These may have to run again.
            Way::RowLock(_) | Way::Request(..) => loop {
                match self.buy_in_transaction(wanted).await {
                    Err(error) if may_retry(&*error) => self.think.think().await,
                    answer => return answer,
                }
            },
        }
    }
}

/// Whether the transaction failed only because of others at the same time.
fn may_retry(error: &(dyn std::error::Error + Send + Sync + 'static)) -> bool {
    let row = error.downcast_ref::<RowLockError>();
    let request = error.downcast_ref::<RowError>();
    row.is_some_and(RowLockError::may_retry) || request.is_some_and(RowError::may_retry)
}

impl Customer {
    async fn buy_unlocked(&mut self, wanted: i64) -> Result<bool> {
        let read = format!("SELECT pieces FROM {}", self.table);
        let left = self
            .conn
            .query_first::<i64, _>(read)
            .await?
            .ok_or("no stock")?
            - wanted;
        if left >= 0 {
            self.think.think().await;
            let write = format!("UPDATE {} SET pieces = {left}", self.table);
            self.conn.query_drop(write).await?;
        }
        Ok(left >= 0)
    }

    async fn buy_in_transaction(&mut self, wanted: i64) -> Result<bool> {
        let mut transaction = self.conn.start_transaction(TxOpts::default()).await?;
        let sold = match &self.way {
            Way::RowLock(stock) => {
                let row = stock.lock_timeout(&mut transaction, "bolt".into(), &["pieces"], LONGEST);
                let mut row = row.await?;
                let left = row.row().get::<i64, _>(0).ok_or("no stock")? - wanted;
                if left >= 0 {
                    self.think.think().await;
                    row.update(&[("pieces", left.into())]).await?;
                }
                left >= 0
            }
            Way::Request(requests, order) => {
                let request = requests.begin(&mut transaction, order).await?;
                if request == Request::New {
                    let sell = format!("UPDATE {} SET pieces = pieces - {wanted}", self.table);
                    transaction.query_drop(sell).await?;
                    requests.finish(&mut transaction, order, "sold").await?;
                }
                request == Request::New
            }
            Way::Unlocked | Way::Version(_) => return Err("not in a transaction".into()),
        };
        transaction.commit().await?;
        Ok(sold)
    }

    async fn buy_if_unchanged(&mut self, stock: &VersionedTable, wanted: i64) -> Result<bool> {
        // Once by hand, so that two can be seen to meet.
        let seen = stock
            .get(&mut self.conn, "bolt".into(), &["pieces"])
            .await?;
        let seen = seen.ok_or("no stock")?;
        let left = seen.row.get::<i64, _>(0).ok_or("no stock")? - wanted;
        if left < 0 {
            return Ok(false);
        }
        self.think.think().await;
        let written = [("pieces", left.into())];
        let swapped = stock.swap(&mut self.conn, "bolt".into(), Some(seen.version), &written);
        if let RowSwapped::Done(_) = swapped.await? {
            return Ok(true);
        }
        loop {
            let sold = stock.update(&mut self.conn, "bolt".into(), &["pieces"], |row| {
                let left = row?.get::<i64, _>(0)? - wanted;
                (left >= 0).then(|| vec![("pieces", left.into())])
            });
            match sold.await {
                Err(SwapError::Contended { .. }) => {}
                answer => return Ok(answer?.is_some()),
            }
        }
    }
}

pub async fn ways(url: &str, locks: &palisade::Client, table: &mut Table) -> Result<()> {
    let name = format!("stock_example_{:016x}", fastrand::u64(..));
    let mut shop = connect(url).await?;
    let requests = Requests::new(&format!("{name}_order"))?;
    for statement in [
        format!(
            "CREATE TABLE {name} (item VARCHAR(99) PRIMARY KEY, pieces BIGINT, version BIGINT NOT NULL DEFAULT 1, \
             fence BIGINT NOT NULL DEFAULT 0) ENGINE=InnoDB"
        ),
        format!("INSERT INTO {name} (item) VALUES ('bolt')"),
        requests.create_statement(),
    ] {
        shop.query_drop(statement).await?;
    }
    let done = all(url, locks, &mut shop, &name, requests, table).await;
    shop.query_drop(format!("DROP TABLE {name}, {name}_order"))
        .await?;
    shop.disconnect().await?;
    done
}

async fn all(
    url: &str,
    locks: &palisade::Client,
    shop: &mut Conn,
    name: &str,
    requests: Requests,
    table: &mut Table,
) -> Result<()> {
    let order = Way::Request(requests, "order 4711".to_owned());
    let row = Way::RowLock(LockedTable::new(name, "item")?);
    let version = Way::Version(VersionedTable::new(name, "item", "version")?);
    let (both, one, brief) = (Think::both(), Think::one(), Think::Briefly);
    let (two, many, twice) = (TWO.to_vec(), many(), vec![30, 30]);
    let ways = [
        (
            "no lock: two buyers of 60",
            Way::Unlocked,
            &both,
            2,
            &two,
            STOCK,
        ),
        (
            "SELECT … FOR UPDATE: two buyers of 60",
            row.clone(),
            &one,
            2,
            &two,
            STOCK,
        ),
        (
            "SELECT … FOR UPDATE: 200 buyers",
            row,
            &brief,
            COUNTERS,
            &many,
            STOCK,
        ),
        (
            "version check: two buyers of 60",
            version.clone(),
            &both,
            2,
            &two,
            STOCK,
        ),
        (
            "version check: 200 buyers",
            version,
            &brief,
            COUNTERS,
            &many,
            STOCK,
        ),
        (
            "request id: an order of 30 sent twice",
            order,
            &brief,
            2,
            &twice,
            30,
        ),
    ];
    for (title, way, think, count, orders, most) in ways {
        fill(shop, name).await?;
        let mut customers = Vec::new();
        for _ in 0..count {
            customers.push(Customer {
                conn: connect(url).await?,
                table: name.to_owned(),
                way: way.clone(),
                think: think.clone(),
            });
        }
        table.add_of("mysql", title, sell(customers, orders).await?, most);
    }
    fill(shop, name).await?;
    let sale = paused(locks, shop, name).await?;
    table.add("mysql", "lock and own fenced row: a buyer is paused", sale);
    Ok(())
}

async fn fill(shop: &mut Conn, name: &str) -> Result<()> {
    let fill = format!("UPDATE {name} SET pieces = {STOCK}, fence = 0");
    Ok(shop.query_drop(fill).await?)
}

/// The first buyer has read, and stands still while its lease ends. The second buys meanwhile.
async fn paused(locks: &palisade::Client, shop: &mut Conn, name: &str) -> Result<Sale> {
    let begun = Instant::now();
    let stock = FencedTable::new(name, "item", "fence")?;
    let lease = locks.capability().min_lease.max(Duration::from_millis(500));
    let lock = locks.mutex(name);
    let first = lock
        .clone()
        .lease(lease)
        .auto_renew(false)
        .acquire()
        .await?;
    let read = format!("SELECT pieces FROM {name}");
    stock
        .install(&mut *shop, "bolt".into(), first.fence())
        .await?; // before it reads
    let seen_by_first: i64 = shop.query_first(&read).await?.ok_or("no stock")?;

    let second = lock.acquire().await?; // when the lease is over
    stock
        .install(&mut *shop, "bolt".into(), second.fence())
        .await?;
    let seen_by_second: i64 = shop.query_first(&read).await?.ok_or("no stock")?;

    let (mut sold, mut refused) = (0, 0);
    for (seen, guard) in [(seen_by_second, &second), (seen_by_first, &first)] {
        let columns = [("pieces", (seen - 60).into())];
        let fence = guard.fence();
        let written = stock.update(&mut *shop, "bolt".into(), fence, Writes::Often, &columns);
        match written.await {
            Ok(()) => sold += 60,
            Err(RowError::Stale { .. }) => refused += 1,
            Err(error) => return Err(error.into()),
        }
    }
    second.release().await?;
    Ok(Sale {
        sold,
        refused,
        time: begun.elapsed(),
    })
}
