//! The stock in a PostgreSQL: the database's own means, and a fenced row.

use std::time::{Duration, Instant};

use palisade::fence::postgres::{FencedTable, Request, Requests, RowError, Writes};
use palisade::row_lock::postgres::{AdvisoryLock, LockedTable, RowLockError};
use palisade::versioned::postgres::tokio_postgres::{self, NoTls};
use palisade::versioned::postgres::{RowSwapped, SwapError, VersionedTable};

use super::Result;
use super::buyers::{Buyer, COUNTERS, TWO, Think, many, sell};
use super::table::{STOCK, Sale, Table};

const LONGEST: Duration = Duration::from_secs(30);

/// How a customer buys.
#[derive(Clone)]
enum Way {
    Unlocked,
    RowLock(LockedTable),
    Named(AdvisoryLock),
    Version(VersionedTable),
    /// With the id of the order.
    Request(Requests, String),
}

struct Customer {
    client: tokio_postgres::Client,
    table: String,
    way: Way,
    think: Think,
}

async fn connect(url: &str) -> Result<tokio_postgres::Client> {
    // The words behind it are ours.
    let url = url.split('?').next().unwrap_or(url);
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

impl Buyer for Customer {
    async fn buy(&mut self, wanted: i64) -> Result<bool> {
        match self.way.clone() {
            Way::Unlocked => self.buy_unlocked(wanted).await,
            Way::Version(stock) => self.buy_if_unchanged(&stock, wanted).await,
            // These may have to run again.
            Way::RowLock(_) | Way::Named(_) | Way::Request(..) => loop {
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
    async fn buy_unlocked(&self, wanted: i64) -> Result<bool> {
        let table = &self.table;
        let read = format!("SELECT pieces FROM {table}");
        let left = self.client.query_one(&read, &[]).await?.get::<_, i64>(0) - wanted;
        if left >= 0 {
            self.think.think().await;
            let write = format!("UPDATE {table} SET pieces = $1");
            self.client.execute(&write, &[&left]).await?;
        }
        Ok(left >= 0)
    }

    async fn buy_in_transaction(&mut self, wanted: i64) -> Result<bool> {
        let (table, think) = (&self.table, &self.think);
        let transaction = self.client.transaction().await?;
        let sold = match &self.way {
            Way::RowLock(stock) => {
                let row = stock.lock_timeout(&transaction, &"bolt", &["pieces"], LONGEST);
                let mut row = row.await?;
                let left = row.row().get::<_, i64>(0) - wanted;
                if left >= 0 {
                    think.think().await;
                    row.update(&[("pieces", &left)]).await?;
                }
                left >= 0
            }
            Way::Named(lock) => {
                let mut locked = lock.lock_timeout(&transaction, LONGEST).await?;
                let read = format!("SELECT pieces FROM {table}");
                let row = locked.transaction().query_one(&read, &[]).await?;
                let left = row.get::<_, i64>(0) - wanted;
                if left >= 0 {
                    think.think().await;
                    let write = format!("UPDATE {table} SET pieces = $1");
                    locked.transaction().execute(&write, &[&left]).await?;
                }
                left >= 0
            }
            Way::Request(requests, order) => {
                let request = requests.begin(&transaction, order).await?;
                if request == Request::New {
                    let sell = format!("UPDATE {table} SET pieces = pieces - $1");
                    transaction.execute(&sell, &[&wanted]).await?;
                    requests.finish(&transaction, order, "sold").await?;
                }
                request == Request::New
            }
            Way::Unlocked | Way::Version(_) => return Err("not in a transaction".into()),
        };
        transaction.commit().await?;
        Ok(sold)
    }

    async fn buy_if_unchanged(&self, stock: &VersionedTable, wanted: i64) -> Result<bool> {
        // Once by hand, so that two can be seen to meet.
        let seen = stock.get(&self.client, &"bolt", &["pieces"]).await?;
        let seen = seen.ok_or("no stock")?;
        let left = seen.row.get::<_, i64>(0) - wanted;
        if left < 0 {
            return Ok(false);
        }
        self.think.think().await;
        let written = [("pieces", &left as _)];
        let swapped = stock.swap(&self.client, &"bolt", Some(seen.version), &written);
        if let RowSwapped::Done(_) = swapped.await? {
            return Ok(true);
        }
        loop {
            let sold = stock.update(&self.client, &"bolt", &["pieces"], |row| {
                let left = row?.get::<_, i64>(0) - wanted;
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
    let shop = connect(url).await?;
    let requests = Requests::new(&format!("{name}_order"))?;
    shop.batch_execute(&format!(
        "CREATE TABLE {name} (item text PRIMARY KEY, pieces bigint, version bigint NOT NULL DEFAULT 1, \
         fence bigint NOT NULL DEFAULT 0); INSERT INTO {name} (item) VALUES ('bolt'); {}",
        requests.create_statement()
    ))
    .await?;
    let done = all(url, locks, &shop, &name, requests, table).await;
    shop.batch_execute(&format!("DROP TABLE {name}, {name}_order"))
        .await?;
    done
}

async fn all(
    url: &str,
    locks: &palisade::Client,
    shop: &tokio_postgres::Client,
    name: &str,
    requests: Requests,
    table: &mut Table,
) -> Result<()> {
    let order = Way::Request(requests, "order 4711".to_owned());
    let row = Way::RowLock(LockedTable::new(name, "item")?);
    let version = Way::Version(VersionedTable::new(name, "item", "version")?);
    let named = Way::Named(AdvisoryLock::named(name));
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
            "pg_advisory_xact_lock: 200 buyers",
            named,
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
                client: connect(url).await?,
                table: name.to_owned(),
                way: way.clone(),
                think: think.clone(),
            });
        }
        table.add_of("postgres", title, sell(customers, orders).await?, most);
    }
    fill(shop, name).await?;
    let sale = paused(locks, shop, name).await?;
    table.add(
        "postgres",
        "lock and own fenced row: a buyer is paused",
        sale,
    );
    Ok(())
}

async fn fill(shop: &tokio_postgres::Client, name: &str) -> Result<()> {
    let fill = format!("UPDATE {name} SET pieces = $1, fence = 0");
    shop.execute(&fill, &[&STOCK]).await?;
    Ok(())
}

/// The first buyer has read, and stands still while its lease ends. The second buys meanwhile.
async fn paused(
    locks: &palisade::Client,
    shop: &tokio_postgres::Client,
    name: &str,
) -> Result<Sale> {
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
    stock.install(shop, &"bolt", first.fence()).await?; // before it reads
    let seen_by_first: i64 = shop.query_one(&read, &[]).await?.get(0);

    let second = lock.acquire().await?; // when the lease is over
    stock.install(shop, &"bolt", second.fence()).await?;
    let seen_by_second: i64 = shop.query_one(&read, &[]).await?.get(0);

    let (mut sold, mut refused) = (0, 0);
    for (seen, guard) in [(seen_by_second, &second), (seen_by_first, &first)] {
        let left = seen - 60;
        let columns = [("pieces", &left as _)];
        let written = stock.update(shop, &"bolt", guard.fence(), Writes::Often, &columns);
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
