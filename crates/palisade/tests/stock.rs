//! The example of the shop, on servers: without a lock it oversells, and with each means it does
//! not. The page shows what it prints.

#![cfg(all(
    feature = "sqlite",
    feature = "redis",
    feature = "etcd",
    feature = "zookeeper",
    feature = "postgres",
    feature = "mysql"
))]

#[path = "../examples/stock.rs"]
mod stock;

use palisade_testkit::etcd::Etcd;
use palisade_testkit::mariadb::MariaDb;
use palisade_testkit::postgres::Postgres;
use palisade_testkit::redis::{Five, Redis};
use palisade_testkit::zookeeper::ZooKeeper;

const PAGE: &str = include_str!("../../../docs/recipes/stock.md");
/// What must oversell, or the rest proves nothing.
const WITHOUT: [&str; 3] = ["no lock", "no request id", "lock alone"];

/// A line of the table without what differs from run to run: the time; who was first among many, and
/// so how many were refused; and by how much many without a lock oversell.
fn stable(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [way @ .., sold, oversold, refused, _time, "ms"] = words.as_slice() else {
        return words.join(" ");
    };
    let many = way.join(" ").ends_with("200 buyers");
    let figures = match (many, *oversold) {
        (true, "0") => format!("{sold} 0 …"),
        (true, _) => "… oversold …".to_owned(),
        (false, _) => format!("{sold} {oversold} {refused}"),
    };
    format!("{} {figures}", way.join(" "))
}

fn shown() -> Vec<String> {
    let lines = PAGE.lines().skip_while(|line| !line.starts_with("STORE "));
    let lines = lines.take_while(|line| *line != "```");
    lines.map(stable).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_shop_without_a_lock_oversells_and_the_page_says_so() {
    let (redis, five, etcd) = (Redis::start(), Five::start(), Etcd::start());
    let (zookeeper, postgres, mariadb) = (ZooKeeper::start(), Postgres::start(), MariaDb::start());
    let urls = [
        redis.url(),
        format!("{}?young=vote", five.url()),
        format!("etcd://{}", etcd.address()),
        format!("zk://{}", zookeeper.address()),
        postgres.url(),
        mariadb.url(),
    ];
    let table = stock::run(&urls).await.expect("it runs");
    println!("{table}");
    for row in &table.0 {
        let without = WITHOUT.iter().any(|without| row.way.starts_with(without));
        assert_eq!(row.oversold > 0, without, "{row:?}");
        if row.way.ends_with("200 buyers") && !without {
            assert_eq!(row.sold, 100, "the shop is not empty: {row:?}");
        }
    }
    let printed: Vec<String> = table.to_string().lines().map(stable).collect();
    assert_eq!(
        printed,
        shown(),
        "paste the new table into the page:\n{table}"
    );
    let left =
        "SELECT count(*) FROM information_schema.tables WHERE table_name LIKE 'stock_example%'";
    assert_eq!(postgres.sql(left), "0");
    assert_eq!(mariadb.sql(left), "0");
}
