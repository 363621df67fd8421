//! A shop with 100 pieces, and buyers who want more: who oversells, and what helps.
//!
//! ```sh
//! cargo run -p palisade --example stock -- redis://127.0.0.1 postgres://user:password@host/shop
//! ```
//!
//! Takes the URLs of stores as arguments, or in `STOCK_URLS`. It always runs `memory:` and a file of
//! its own for `sqlite:`. In a database it makes two tables and drops them again. The page
//! `docs/recipes/stock.md` explains the table that it prints.

#![allow(
    missing_docs,
    unreachable_pub,
    reason = "an example, and a part of a test"
)]

#[path = "stock/buyers.rs"]
mod buyers;
#[path = "stock/locks.rs"]
mod locks;
#[path = "stock/mysql.rs"]
mod mysql;
#[path = "stock/postgres.rs"]
mod postgres;
#[path = "stock/shop.rs"]
mod shop;
#[path = "stock/table.rs"]
mod table;

use std::time::Duration;

use palisade::Client;

use self::shop::Shop;
pub use self::table::Table;

pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// A store that does not answer by then is left out.
const REACHABLE: Duration = Duration::from_secs(20);

#[allow(dead_code, reason = "the test runs the rest")]
#[tokio::main]
async fn main() -> Result<()> {
    let mut urls: Vec<String> = std::env::args().skip(1).collect();
    if urls.is_empty() {
        let named = std::env::var("STOCK_URLS").unwrap_or_default();
        urls.extend(named.split_whitespace().map(str::to_owned));
    }
    print!("{}", run(&urls).await?);
    Ok(())
}

/// Every way in every store that can be reached.
pub async fn run(urls: &[String]) -> Result<Table> {
    let folder = Folder::new()?;
    let shop = Shop::open(&folder.0.join("shop.db"))?;
    let mut table = Table::default();
    locks::without(&shop, &mut table).await?;
    let own = format!("sqlite:{}", folder.0.join("locks.db").display());
    for url in ["memory:", &own]
        .into_iter()
        .chain(urls.iter().map(String::as_str))
    {
        let client = Client::connect(url)?;
        let name = name(&client);
        match tokio::time::timeout(REACHABLE, client.ping()).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                eprintln!("{name} is left out: {error}");
                continue;
            }
            Err(_) => {
                eprintln!("{name} is left out: no answer in {REACHABLE:?}");
                continue;
            }
        }
        locks::with(&client, &name, &shop, &mut table).await?;
        match name.as_str() {
            "postgres" => postgres::ways(url, &client, &mut table).await?,
            "mysql" => mysql::ways(url, &client, &mut table).await?,
            _ => {}
        }
        client.shutdown().await;
    }
    Ok(table)
}

/// The store, and the format where it is not the usual one.
fn name(client: &Client) -> String {
    let capability = client.capability();
    match (capability.store, capability.format) {
        (store, "line" | "palisade" | "mutex" | "curator" | "table") => store.to_owned(),
        ("redlock", _) => "redlock".to_owned(),
        (store, format) => format!("{store} {format}"),
    }
}

/// A folder of its own, removed at the end.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new() -> Result<Folder> {
        let path = std::env::temp_dir().join(format!("palisade-stock-{:016x}", fastrand::u64(..)));
        std::fs::create_dir(&path)?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
