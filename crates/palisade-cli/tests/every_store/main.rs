//! Every verb on every store and format, compared with what the page of the command says. What a
//! store cannot do is refused by its capability, with 64.

#![cfg(all(
    feature = "redis",
    feature = "etcd",
    feature = "zookeeper",
    feature = "postgres",
    feature = "mysql"
))]

#[path = "../common/mod.rs"]
mod common;
mod walk;

use common::Place;
use palisade_testkit::shared;

use self::walk::{Walk, json};

macro_rules! every_store {
    ($($test:ident: $store:literal / $format:literal, $place:expr;)+) => {
        $(
            #[test]
            fn $test() {
                Walk::new($place, ($store, $format)).all();
            }
        )+

        /// A format that is added later is walked through, too.
        #[test]
        fn every_format_is_walked_through() {
            let walked = ["memory line", $(concat!($store, " ", $format)),+];
            for line in Place::new().verb("stores --json").stdout.lines().map(json) {
                let format = format!("{} {}", line["store"], line["format"]).replace('"', "");
                assert!(walked.contains(&format.as_str()), "{format}");
            }
        }
    };
}

fn five() -> String {
    format!("{}?young=vote", shared::redis_five().url())
}

fn etcd() -> String {
    format!("etcd://{}", shared::etcd().address())
}

fn zookeeper(path: &str) -> String {
    use palisade_testkit::zookeeper::ZooKeeper;
    static ONE: std::sync::LazyLock<ZooKeeper> =
        std::sync::LazyLock::new(|| ZooKeeper::with().long_sessions().start());
    format!("zk://{}/{path}", ONE.address())
}

every_store! {
    sqlite_does_what_the_page_says: "sqlite" / "line", Place::new();
    redis_does_what_the_page_says: "redis" / "palisade", Place::of(shared::redis().url());
    redis_simple_does_what_the_page_says: "redis" / "simple",
        Place::of(format!("{}?format=simple", shared::redis().url()));
    redisson_does_what_the_page_says: "redis" / "redisson",
        Place::of(format!("{}?format=redisson", shared::redis().url()));
    redisson_fair_does_what_the_page_says: "redis" / "redisson&fair=yes",
        Place::of(format!("{}?format=redisson&fair=yes", shared::redis().url()));
    redlock_does_what_the_page_says: "redlock" / "simple", Place::of(five());
    etcd_does_what_the_page_says: "etcd" / "mutex", Place::of(format!("{}/walk", etcd()));
    etcd_plain_does_what_the_page_says: "etcd" / "plain", Place::of(format!("{}/plain?format=plain", etcd()));
    zookeeper_does_what_the_page_says: "zookeeper" / "curator", Place::of(zookeeper("walk"));
    kazoo_does_what_the_page_says: "zookeeper" / "kazoo", Place::of(zookeeper("kazoo?format=kazoo"));
    zookeeper_plain_does_what_the_page_says: "zookeeper" / "plain", Place::of(zookeeper("plain?format=plain"));
    postgres_does_what_the_page_says: "postgres" / "table", Place::of(shared::postgres().url());
    postgres_session_does_what_the_page_says: "postgres" / "session",
        Place::of(format!("{}?format=session", shared::postgres().url()));
    postgres_simple_does_what_the_page_says: "postgres" / "simple",
        Place::of(format!("{}?format=simple", shared::postgres().url()));
    postgres_shedlock_does_what_the_page_says: "postgres" / "shedlock",
        Place::of(format!("{}?format=shedlock", shared::postgres().url()));
    mariadb_does_what_the_page_says: "mysql" / "table", Place::of(shared::mariadb().url());
    mariadb_session_does_what_the_page_says: "mysql" / "session",
        Place::of(format!("{}?format=session", shared::mariadb().url()));
    mariadb_simple_does_what_the_page_says: "mysql" / "simple",
        Place::of(format!("{}?format=simple&zone=utc", shared::mariadb().url()));
    mariadb_shedlock_does_what_the_page_says: "mysql" / "shedlock",
        Place::of(format!("{}?format=shedlock", shared::mariadb().url()));
}
