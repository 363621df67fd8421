//! The matrix: every deployment, with its mutexes as mutexes, as writers and as semaphores of one,
//! passes every check.

use std::sync::{Arc, LazyLock, Mutex};

use palisade::lease::BootClock;
use palisade::stores::memory::MemoryStore;
use palisade::stores::sqlite::SqliteStore;
use palisade_conformance::{As, Hooks, Subject, suite};
use palisade_testkit::etcd::{Cluster, Etcd};
use palisade_testkit::mariadb::MariaDb;
use palisade_testkit::postgres::Postgres;
use palisade_testkit::redis::{Five, Redis, documented_rights};
use palisade_testkit::shared;
use palisade_testkit::zookeeper::{Ensemble, ZooKeeper};

fn memory() -> Subject {
    let store = MemoryStore::new(Arc::new(BootClock));
    Subject::new(move || Arc::new(store.another()))
}

fn sqlite() -> Subject {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("locks.db");
    let url = format!("sqlite:{}", path.display());
    let database = path.clone();
    // An open write transaction makes the file hang for all other connections.
    let pause = move || -> Box<dyn Send> {
        let connection = rusqlite::Connection::open(&database).expect("opened");
        connection
            .busy_timeout(palisade_conformance::PATIENCE)
            .expect("set");
        connection
            .execute_batch("BEGIN IMMEDIATE")
            .expect("our turn");
        Box::new(connection)
    };
    let clients = folder.path().join("locks.db-clients");
    // A client is alive as long as its pipe is open.
    let lose_sessions = move || -> Box<dyn Send> {
        let files = std::fs::read_dir(&clients)
            .expect("a folder of clients")
            .flatten();
        for pipe in files
            .map(|file| file.path())
            .filter(|path| path.extension().is_some_and(|kind| kind == "pipe"))
        {
            std::fs::remove_file(pipe).expect("removed");
        }
        Box::new(())
    };
    Subject::new(move || {
        // Kept for as long as the subject is.
        let _ = &folder;
        Arc::new(SqliteStore::new(&path))
    })
    .with_url(url)
    .with_hooks(Hooks {
        pause: Some(Box::new(pause)),
        lose_sessions: Some(Box::new(lose_sessions)),
    })
}

fn by_url(url: String) -> Subject {
    let open = url.clone();
    Subject::new(move || {
        palisade::stores::open(open.parse().expect("a good URL")).expect("a store")
    })
    .with_url(url)
}

/// The words that make a URL of this format.
fn format_of(format: &str, url: &str) -> String {
    format!(
        "{url}{}format={format}",
        if url.contains('?') { '&' } else { '?' }
    )
}

/// A server of its own, which can stand still.
fn redis_alone(format: &str, server: Redis) -> Subject {
    let server = Arc::new(server);
    let kept = Arc::clone(&server);
    let pause = move || -> Box<dyn Send> {
        server.pause();
        Box::new(Resumes(Arc::clone(&server)))
    };
    let url = format_of(format, &kept.url());
    let open = url.clone();
    let open = move || {
        let _ = &kept;
        palisade::stores::open(open.parse().expect("a good URL")).expect("a store")
    };
    Subject::new(open).with_url(url).with_hooks(Hooks {
        pause: Some(Box::new(pause)),
        ..Hooks::default()
    })
}

struct Resumes(Arc<Redis>);

impl Drop for Resumes {
    fn drop(&mut self) {
        self.0.resume();
    }
}

fn redis(format: &str) -> Subject {
    redis_alone(format, Redis::start())
}

/// A server that tells what becomes of its keys.
fn redis_events(format: &str) -> Subject {
    redis_alone(
        format,
        Redis::with().set("notify-keyspace-events", "Kgx").start(),
    )
}

/// With the rights that the documentation asks for, and no others.
fn redis_secured(format: &str) -> Subject {
    let rights = documented_rights(format.split('&').next().unwrap_or(format));
    let server = Redis::with().tls().acl(&rights).start();
    let ca = palisade_testkit::certs().ca.display().to_string();
    let kept = Arc::new(server);
    let url = format!(
        "rediss://locks:lockpw@localhost:{}/0?ca={ca}&format={format}",
        kept.address().port()
    );
    let open = url.clone();
    let open = move || {
        let _ = &kept;
        palisade::stores::open(open.parse().expect("a good URL")).expect("a store")
    };
    Subject::new(open).with_url(url)
}

fn redis_sentinel(format: &str) -> Subject {
    by_url(format_of(format, &shared::redis_sentinel().url()))
}

fn redis_cluster(format: &str) -> Subject {
    by_url(format_of(format, &shared::redis_cluster().url()))
}

/// Five servers that one check has at a time: they can stand still. Starting five for each check would
/// take longer than the checks.
struct Lent(Option<Five>);

static FIVES: Mutex<Vec<Five>> = Mutex::new(Vec::new());

impl Lent {
    fn five() -> Lent {
        let kept = FIVES.lock().expect("whole").pop();
        Lent(Some(kept.unwrap_or_else(|| Five::start_as(&Redis::with()))))
    }

    fn servers(&self) -> &Five {
        self.0.as_ref().expect("until it is dropped")
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        FIVES.lock().expect("whole").extend(self.0.take());
    }
}

fn redlock() -> Subject {
    let five = Arc::new(Lent::five());
    let url = format!("{}?young=vote", five.servers().url());
    let (open, kept) = (url.clone(), Arc::clone(&five));
    let open = move || {
        let _ = &kept;
        palisade::stores::open(open.parse().expect("a good URL")).expect("a store")
    };
    let pause = move || -> Box<dyn Send> {
        five.servers().nodes().iter().for_each(|node| node.pause());
        Box::new(AllResume(Arc::clone(&five)))
    };
    Subject::new(open).with_url(url).with_hooks(Hooks {
        pause: Some(Box::new(pause)),
        ..Hooks::default()
    })
}

struct AllResume(Arc<Lent>);

impl Drop for AllResume {
    fn drop(&mut self) {
        self.0
            .servers()
            .nodes()
            .iter()
            .for_each(|node| node.resume());
    }
}

/// For all checks, in the state that this is in.
fn redlock_of(five: &'static LazyLock<Five>) -> Subject {
    by_url(format!("{}?young=vote", five.url()))
}

fn redlock_two_down() -> Subject {
    static FIVE: LazyLock<Five> = LazyLock::new(|| {
        let five = Five::start_as(&Redis::with());
        five.nodes()[..2].iter().for_each(|node| node.kill());
        five
    });
    redlock_of(&FIVE)
}

fn redlock_one_hung() -> Subject {
    static FIVE: LazyLock<Five> = LazyLock::new(|| {
        let five = Five::start_as(&Redis::with());
        five.nodes()[1].pause();
        five
    });
    redlock_of(&FIVE)
}

/// With the rights that the documentation asks for, and no others.
fn redlock_secured() -> Subject {
    static FIVE: LazyLock<Five> =
        LazyLock::new(|| Five::start_as(&Redis::with().tls().acl(&documented_rights("redlock"))));
    let ca = palisade_testkit::certs().ca.display().to_string();
    let hosts = FIVE
        .nodes()
        .iter()
        .map(|node| format!("localhost:{}", node.address().port()))
        .collect::<Vec<_>>()
        .join(",");
    by_url(format!(
        "redlocks://locks:lockpw@{hosts}/0?ca={ca}&young=vote"
    ))
}

/// One member, which can stand still, and whose leases can be revoked by hand.
fn etcd(format: &str) -> Subject {
    let server = Arc::new(Etcd::start());
    let url = format!("etcd://{}/lock?format={format}", server.address());
    let (open, kept) = (url.clone(), Arc::clone(&server));
    let open = move || {
        let _ = &kept;
        palisade::stores::open(open.parse().expect("a good URL")).expect("a store")
    };
    let paused = Arc::clone(&server);
    let pause = move || -> Box<dyn Send> {
        paused.pause();
        Box::new(ResumesEtcd(Arc::clone(&paused)))
    };
    let lose_sessions = move || -> Box<dyn Send> {
        let leases = server.etcdctl(&["lease", "list"]);
        for lease in leases
            .lines()
            .skip(1)
            .map(str::trim)
            .filter(|line| !line.is_empty())
        {
            server.etcdctl(&["lease", "revoke", lease]);
        }
        Box::new(())
    };
    let hooks = Hooks {
        pause: Some(Box::new(pause)),
        lose_sessions: Some(Box::new(lose_sessions)),
    };
    Subject::new(open).with_url(url).with_hooks(hooks)
}

struct ResumesEtcd(Arc<Etcd>);

impl Drop for ResumesEtcd {
    fn drop(&mut self) {
        self.0.resume();
    }
}

/// Three members with TLS, and a user with the rights that the documentation asks for and no
/// others.
fn etcd_cluster(format: &str) -> Subject {
    static THREE: LazyLock<Cluster> = LazyLock::new(Cluster::secured);
    let ca = palisade_testkit::certs().ca.display().to_string();
    by_url(format!(
        "etcds://locker:lockpw@{}/lock?ca={ca}&format={format}",
        THREE.addresses()
    ))
}

/// One server, which can stand still, and whose sessions can be ended by hand.
fn zookeeper(format: &str) -> Subject {
    let server = Arc::new(ZooKeeper::with().long_sessions().start());
    let url = format!("zk://{}/locks?format={format}", server.address());
    let (open, kept) = (url.clone(), Arc::clone(&server));
    let open = move || {
        let _ = &kept;
        palisade::stores::open(open.parse().expect("a good URL")).expect("a store")
    };
    let paused = Arc::clone(&server);
    let pause = move || -> Box<dyn Send> {
        paused.pause();
        Box::new(ResumesZooKeeper(Arc::clone(&paused)))
    };
    let lose_sessions = move || -> Box<dyn Send> {
        for session in server.sessions() {
            server.end_session(session);
        }
        Box::new(())
    };
    let hooks = Hooks {
        pause: Some(Box::new(pause)),
        lose_sessions: Some(Box::new(lose_sessions)),
    };
    Subject::new(open).with_url(url).with_hooks(hooks)
}

struct ResumesZooKeeper(Arc<ZooKeeper>);

impl Drop for ResumesZooKeeper {
    fn drop(&mut self) {
        self.0.resume();
    }
}

/// One server for all checks: each takes seconds to start.
fn zookeeper_shared(format: &str) -> Subject {
    static ONE: LazyLock<ZooKeeper> = LazyLock::new(|| ZooKeeper::with().long_sessions().start());
    by_url(format!("zk://{}/{format}?format={format}", ONE.address()))
}

/// Three servers, and a login.
fn zookeeper_ensemble(format: &str, auth: &str) -> Subject {
    static THREE: LazyLock<Ensemble> = LazyLock::new(|| {
        Ensemble::start_as(&ZooKeeper::with().long_sessions().user("locker", "lockpw"))
    });
    by_url(format!(
        "zk://locker:lockpw@{}/{auth}?auth={auth}&format={format}",
        THREE.addresses()
    ))
}

/// One server, over TLS, which asks for a certificate.
fn zookeeper_tls(format: &str) -> Subject {
    static ONE: LazyLock<ZooKeeper> =
        LazyLock::new(|| ZooKeeper::with().long_sessions().mutual_tls().start());
    let certs = palisade_testkit::certs();
    let [ca, cert, key] =
        [&certs.ca, &certs.client, &certs.client_key].map(|path| path.display().to_string());
    let port = ONE.tls_address().port();
    by_url(format!(
        "zks://localhost:{port}/locks?ca={ca}&cert={cert}&key={key}&format={format}"
    ))
}

/// A server of its own, which can stand still.
fn postgres(format: &str) -> Subject {
    let server = Arc::new(Postgres::start());
    let url = format_of(format, &server.url());
    let (open, kept) = (url.clone(), Arc::clone(&server));
    let open = move || {
        let _ = &kept;
        palisade::stores::open(open.parse().expect("a good URL")).expect("a store")
    };
    let pause = move || -> Box<dyn Send> {
        server.pause();
        Box::new(Continues(Arc::clone(&server)))
    };
    let hooks = Hooks {
        pause: Some(Box::new(pause)),
        ..Hooks::default()
    };
    Subject::new(open).with_url(url).with_hooks(hooks)
}

struct Continues(Arc<Postgres>);

impl Drop for Continues {
    fn drop(&mut self) {
        self.0.resume();
    }
}

/// The same for session locks, where the sessions of all clients can be ended.
fn postgres_session() -> Subject {
    let server = Arc::new(Postgres::start());
    let url = format_of("session", &server.url());
    let (open, kept) = (url.clone(), Arc::clone(&server));
    let open = move || {
        let _ = &kept;
        palisade::stores::open(open.parse().expect("a good URL")).expect("a store")
    };
    let paused = Arc::clone(&server);
    let pause = move || -> Box<dyn Send> {
        paused.pause();
        Box::new(Continues(Arc::clone(&paused)))
    };
    let lose_sessions = move || -> Box<dyn Send> {
        server
            .sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'locker'");
        Box::new(())
    };
    let hooks = Hooks {
        pause: Some(Box::new(pause)),
        lose_sessions: Some(Box::new(lose_sessions)),
    };
    Subject::new(open).with_url(url).with_hooks(hooks)
}

/// One server for all checks, each in a schema of its own.
fn postgres_shared() -> Subject {
    static ONE: LazyLock<Postgres> = LazyLock::new(Postgres::start);
    by_url(format!("{}?schema=s{:x}", ONE.url(), fastrand::u64(..)))
}

/// The same in a table of its own, beside those of other programs.
fn postgres_table(format: &str) -> Subject {
    static ONE: LazyLock<Postgres> = LazyLock::new(Postgres::start);
    let table = format!("t{:x}", fastrand::u64(..));
    by_url(format_of(format, &format!("{}?table={table}", ONE.url())))
}

/// Over TLS, as a user with the rights that the documentation asks for and no others.
fn postgres_secured() -> Subject {
    static ONE: LazyLock<Postgres> = LazyLock::new(|| Postgres::with().tls().start());
    let schema = format!("s{:x}", fastrand::u64(..));
    let owner = format!("{}?schema={schema}", ONE.url());
    let owner = palisade::stores::open(owner.parse().expect("a good URL")).expect("a store");
    let statements = owner.extensions().schema.expect("tables").statements();
    ONE.sql(&statements);
    ONE.sql(&format!(
        "DO $$BEGIN CREATE ROLE app LOGIN PASSWORD 'apppw'; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END$$;
         GRANT USAGE ON SCHEMA \"{schema}\" TO app;
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA \"{schema}\" TO app;
         GRANT EXECUTE ON ALL ROUTINES IN SCHEMA \"{schema}\" TO app"
    ));
    let ca = palisade_testkit::certs().ca.display().to_string();
    by_url(format!(
        "postgres://app:apppw@localhost:{}/locks?schema={schema}&ca={ca}",
        ONE.address().port()
    ))
}

/// One server for the checks of a kind: each takes a second to start. The databases are apart.
fn mariadb(database: &str) -> Subject {
    static ONE: LazyLock<MariaDb> = LazyLock::new(|| MariaDb::with().tls().start());
    ONE.sql(&format!(
        "CREATE DATABASE IF NOT EXISTS {database}; GRANT ALL ON {database}.* TO locker@'%'"
    ));
    by_url(format!(
        "mysql://locker:lockpw@{}/{database}",
        ONE.address()
    ))
}

/// One server for all checks, each in a table of its own.
fn mariadb_table(format: &str) -> Subject {
    static ONE: LazyLock<MariaDb> = LazyLock::new(MariaDb::start);
    let table = format!("t{:x}", fastrand::u64(..));
    by_url(format_of(format, &format!("{}?table={table}", ONE.url())))
}

/// Over TLS, with a user who may not create tables.
fn mariadb_secured() -> Subject {
    static ONE: LazyLock<MariaDb> = LazyLock::new(|| {
        let server = MariaDb::with().tls().start();
        let url = server.url();
        tokio::runtime::Runtime::new()
            .expect("a runtime")
            .block_on(async { palisade::connect(&url).await?.create_schema().await })
            .expect("created by a user who may");
        server.sql(
            "CREATE USER worker@'%' IDENTIFIED BY 'workpw' REQUIRE SSL; \
             GRANT SELECT, INSERT, UPDATE, DELETE, EXECUTE ON locks.* TO worker@'%'",
        );
        server
    });
    let ca = palisade_testkit::certs().ca.display().to_string();
    by_url(format!(
        "mariadb://worker:workpw@localhost:{}/locks?ca={ca}",
        ONE.address().port()
    ))
}

/// A server of its own, which can stand still.
fn mariadb_alone(words: &str) -> Subject {
    let server = Arc::new(MariaDb::start());
    let kept = Arc::clone(&server);
    let pause = move || -> Box<dyn Send> {
        server.pause();
        Box::new(RunsAgain(Arc::clone(&server)))
    };
    let url = format!("{}{words}", kept.url());
    let open = url.clone();
    let open = move || {
        let _ = &kept;
        palisade::stores::open(open.parse().expect("a good URL")).expect("a store")
    };
    Subject::new(open).with_url(url).with_hooks(Hooks {
        pause: Some(Box::new(pause)),
        ..Hooks::default()
    })
}

/// The same for session locks, where the sessions of all clients can be ended.
fn mariadb_session() -> Subject {
    let server = Arc::new(MariaDb::start());
    let url = format_of("session", &server.url());
    let (open, kept) = (url.clone(), Arc::clone(&server));
    let open = move || {
        let _ = &kept;
        palisade::stores::open(open.parse().expect("a good URL")).expect("a store")
    };
    let paused = Arc::clone(&server);
    let pause = move || -> Box<dyn Send> {
        paused.pause();
        Box::new(RunsAgain(Arc::clone(&paused)))
    };
    let lose_sessions = move || -> Box<dyn Send> {
        let ids = "SELECT id FROM information_schema.processlist WHERE user = 'locker'";
        for id in server.sql(ids).lines() {
            // It may have ended by itself.
            let _ = server.try_sql(&format!("KILL {id}"));
        }
        Box::new(())
    };
    let hooks = Hooks {
        pause: Some(Box::new(pause)),
        lose_sessions: Some(Box::new(lose_sessions)),
    };
    Subject::new(open).with_url(url).with_hooks(hooks)
}

struct RunsAgain(Arc<MariaDb>);

impl Drop for RunsAgain {
    fn drop(&mut self) {
        self.0.resume();
    }
}

/// Makes the tests of the table, and the table itself for the test below.
macro_rules! matrix {
    ($($store:literal / $format:literal: $($module:ident = $subject:expr, $kind:expr;)*)*) => {
        $($(suite!($module, $subject.adapted($kind));)*)*

        const MATRIX: &[(&str, &str, As)] = &[$($(($store, $format, $kind),)*)*];
    };
}

matrix! {
    "memory" / "line":
        memory_mutex = memory(), As::Mutex;
        memory_writer = memory(), As::Writer;
        memory_semaphore = memory(), As::Semaphore;
    "etcd" / "mutex":
        etcd_mutex = etcd("mutex"), As::Mutex;
        etcd_writer = etcd("mutex"), As::Writer;
        etcd_semaphore = etcd("mutex"), As::Semaphore;
        etcd_cluster_mutex = etcd_cluster("mutex"), As::Mutex;
    "etcd" / "plain":
        etcd_plain = etcd("plain"), As::Mutex;
    "zookeeper" / "curator":
        zookeeper_mutex = zookeeper("curator"), As::Mutex;
        zookeeper_writer = zookeeper_shared("curator"), As::Writer;
        zookeeper_semaphore = zookeeper_shared("curator"), As::Semaphore;
        zookeeper_ensemble_mutex = zookeeper_ensemble("curator", "digest"), As::Mutex;
        zookeeper_ensemble_semaphore = zookeeper_ensemble("curator", "sasl"), As::Semaphore;
        zookeeper_tls = zookeeper_tls("curator"), As::Mutex;
    "zookeeper" / "kazoo":
        zookeeper_kazoo = zookeeper_shared("kazoo"), As::Mutex;
        zookeeper_kazoo_writer = zookeeper_shared("kazoo"), As::Writer;
    "zookeeper" / "plain":
        zookeeper_plain = zookeeper("plain"), As::Mutex;
    "redis" / "palisade":
        redis_mutex = redis("palisade"), As::Mutex;
        redis_writer = redis("palisade"), As::Writer;
        redis_semaphore = redis("palisade"), As::Semaphore;
        redis_secured = redis_secured("palisade"), As::Mutex;
        redis_sentinel_mutex = redis_sentinel("palisade"), As::Mutex;
        redis_sentinel_writer = redis_sentinel("palisade"), As::Writer;
        redis_cluster_mutex = redis_cluster("palisade"), As::Mutex;
        redis_cluster_semaphore = redis_cluster("palisade"), As::Semaphore;
    "redis" / "simple":
        redis_simple = redis("simple"), As::Mutex;
        redis_simple_events = redis_events("simple"), As::Mutex;
        redis_simple_secured = redis_secured("simple"), As::Mutex;
        redis_simple_sentinel = redis_sentinel("simple"), As::Mutex;
        redis_simple_cluster = redis_cluster("simple"), As::Mutex;
    "redis" / "redisson":
        redis_redisson = redis("redisson"), As::Mutex;
        redis_redisson_writer = redis("redisson"), As::Writer;
        redis_redisson_secured = redis_secured("redisson"), As::Mutex;
        redis_redisson_sentinel = redis_sentinel("redisson"), As::Mutex;
        redis_redisson_cluster = redis_cluster("redisson"), As::Mutex;
        redis_redisson_cluster_writer = redis_cluster("redisson"), As::Writer;
        redis_redisson_semaphore = redis("redisson"), As::Semaphore;
        redis_redisson_cluster_semaphore = redis_cluster("redisson"), As::Semaphore;
        redis_redisson_expirable = redis("redisson&expirable=yes"), As::Semaphore;
        redis_redisson_expirable_sentinel = redis_sentinel("redisson&expirable=yes"), As::Semaphore;
    "redis" / "redisson&fair=yes":
        redis_redisson_fair = redis("redisson&fair=yes"), As::Mutex;
        redis_redisson_fair_secured = redis_secured("redisson&fair=yes"), As::Mutex;
        redis_redisson_fair_sentinel = redis_sentinel("redisson&fair=yes"), As::Mutex;
        redis_redisson_fair_cluster = redis_cluster("redisson&fair=yes"), As::Mutex;
    "mysql" / "table":
        mysql_mutex = mariadb_alone(""), As::Mutex;
        mysql_writer = mariadb("writer"), As::Writer;
        mysql_semaphore = mariadb("semaphore"), As::Semaphore;
        mysql_secured = mariadb_secured(), As::Mutex;
    "postgres" / "table":
        postgres_mutex = postgres("table"), As::Mutex;
        postgres_writer = postgres_shared(), As::Writer;
        postgres_semaphore = postgres_shared(), As::Semaphore;
        postgres_secured = postgres_secured(), As::Mutex;
    "mysql" / "session":
        mysql_session = mariadb_session(), As::Mutex;
    "mysql" / "simple":
        mysql_simple = mariadb_alone("?format=simple&zone=utc"), As::Mutex;
    "mysql" / "shedlock":
        mysql_shedlock = mariadb_table("shedlock"), As::Mutex;
    "postgres" / "session":
        postgres_session = postgres_session(), As::Mutex;
        postgres_session_writer = postgres_session(), As::Writer;
    "postgres" / "simple":
        postgres_simple = postgres("simple"), As::Mutex;
    "postgres" / "shedlock":
        postgres_shedlock = postgres_table("shedlock"), As::Mutex;
    "redlock" / "simple":
        redlock = redlock(), As::Mutex;
        redlock_two_down = redlock_two_down(), As::Mutex;
        redlock_one_hung = redlock_one_hung(), As::Mutex;
        redlock_secured = redlock_secured(), As::Mutex;
    "sqlite" / "line":
        sqlite_mutex = sqlite(), As::Mutex;
        sqlite_writer = sqlite(), As::Writer;
        sqlite_semaphore = sqlite(), As::Semaphore;
}

/// A store, a format or an adapter that is not in the table was forgotten.
#[test]
fn no_cell_is_missing() {
    for capability in palisade::stores::capabilities() {
        let mut kinds = vec![As::Mutex];
        kinds.extend(capability.rwlock.then_some(As::Writer));
        kinds.extend(capability.semaphore.then_some(As::Semaphore));
        for kind in kinds {
            let cell = (capability.store, capability.format, kind);
            assert!(MATRIX.contains(&cell), "{cell:?} is not in the matrix");
        }
    }
}
