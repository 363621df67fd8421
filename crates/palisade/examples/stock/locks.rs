//! A shop without a lock, and the same shop with a lock of each store.

use std::time::{Duration, Instant};

use palisade::{Client, ErrorKind, Mutex};

use super::Result;
use super::buyers::{Buyer, COUNTERS, TWO, Think, many, sell};
use super::shop::Shop;
use super::table::{Sale, Table};

/// Reads, thinks, writes; under a lock, if it has one.
struct Customer {
    shop: Shop,
    lock: Option<Mutex>,
    think: Think,
}

impl Buyer for Customer {
    async fn buy(&mut self, wanted: i64) -> Result<bool> {
        let guard = match &self.lock {
            Some(lock) => Some(lock.acquire().await?),
            None => None,
        };
        let left = self.shop.read()? - wanted;
        if left >= 0 {
            self.think.think().await;
            self.shop.write(left)?;
        }
        if let Some(guard) = guard {
            guard.release().await?;
        }
        Ok(left >= 0)
    }
}

fn customers(count: usize, shop: &Shop, lock: Option<&Mutex>, think: &Think) -> Vec<Customer> {
    let customer = || Customer {
        shop: shop.clone(),
        lock: lock.cloned(),
        think: think.clone(),
    };
    std::iter::repeat_with(customer).take(count).collect()
}

/// What goes wrong.
pub async fn without(shop: &Shop, table: &mut Table) -> Result<()> {
    shop.fill()?;
    let sale = sell(customers(2, shop, None, &Think::both()), &TWO).await?;
    table.add("-", "no lock: two buyers of 60", sale);
    shop.fill()?;
    let sale = sell(customers(COUNTERS, shop, None, &Think::Briefly), &many()).await?;
    table.add("-", "no lock: 200 buyers", sale);
    shop.fill()?;
    // There is enough for both, and so each is sold.
    let sale = sell(customers(1, shop, None, &Think::Briefly), &[30, 30]).await?;
    table.add_of("-", "no request id: an order of 30 sent twice", sale, 30);
    Ok(())
}

pub async fn with(client: &Client, store: &str, shop: &Shop, table: &mut Table) -> Result<()> {
    let name = format!("stock-example-{:016x}", fastrand::u64(..));
    let lock = client.mutex(&name);
    shop.fill()?;
    let sale = sell(customers(2, shop, Some(&lock), &Think::one()), &TWO).await?;
    table.add(store, "lock: two buyers of 60", sale);
    shop.fill()?;
    let buyers = customers(COUNTERS, shop, Some(&lock), &Think::Briefly);
    let sale = sell(buyers, &many()).await?;
    table.add(store, "lock: 200 buyers", sale);
    if store == "memory" {
        let sale = paused(client, &lock, shop, false).await?;
        table.add(store, "lock alone: a buyer is paused past its lease", sale);
    }
    let sale = paused(client, &lock, shop, true).await?;
    table.add(store, "lock and fenced row: a buyer is paused", sale);
    if client.capability().once {
        let sale = twice(client, &format!("{name}-order"), shop).await?;
        table.add_of(store, "once: an order of 30 sent twice", sale, 30);
    }
    Ok(())
}

/// The first buyer has read, and stands still while its lease ends. The second buys meanwhile.
async fn paused(client: &Client, lock: &Mutex, shop: &Shop, fenced: bool) -> Result<Sale> {
    shop.fill()?;
    let begun = Instant::now();
    let lease = client
        .capability()
        .min_lease
        .max(Duration::from_millis(500));
    let first = lock
        .clone()
        .lease(lease)
        .auto_renew(false)
        .acquire()
        .await?;
    if fenced {
        shop.install(first.fence())?; // before it reads
    }
    let seen_by_first = shop.read()?;

    let second = lock.acquire().await?; // when the lease is over
    if fenced {
        shop.install(second.fence())?;
    }
    let seen_by_second = shop.read()?;

    let (mut sold, mut refused) = (0, 0);
    for (seen, guard) in [(seen_by_second, &second), (seen_by_first, &first)] {
        let written = if fenced {
            shop.write_fenced(seen - 60, guard.fence())?
        } else {
            shop.write(seen - 60)?;
            true
        };
        match written {
            true => sold += 60,
            false => refused += 1,
        }
    }
    second.release().await?;
    Ok(Sale {
        sold,
        refused,
        time: begun.elapsed(),
    })
}

/// Two that bring the same order.
struct Sender {
    client: Client,
    order: String,
    shop: Shop,
}

impl Buyer for Sender {
    async fn buy(&mut self, wanted: i64) -> Result<bool> {
        let Some(first) = self.client.once(&self.order).begin().await? else {
            return Ok(false); // it is done
        };
        self.shop.write(self.shop.read()? - wanted)?;
        first.finish().await?;
        Ok(true)
    }
}

async fn twice(client: &Client, order: &str, shop: &Shop) -> Result<Sale> {
    shop.fill()?;
    let sender = || Sender {
        client: client.clone(),
        order: order.to_owned(),
        shop: shop.clone(),
    };
    let sale = sell(vec![sender(), sender()], &[30, 30]).await?;
    match client.clear_marks(order).await {
        Err(error) if error.kind() != ErrorKind::Unsupported => Err(error.into()),
        _ => Ok(sale),
    }
}
