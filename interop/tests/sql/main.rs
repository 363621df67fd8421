//! Ours, a plain Python program and ShedLock at one table of PostgreSQL and of MariaDB, each in a
//! process of its own.

mod contests;
mod exclusion;

use std::time::Duration;

use palisade_interop::sql::{Library, Table};
use palisade_interop::{Contestant, Fault, Peer};
use palisade_testkit::mariadb::MariaDb;
use palisade_testkit::postgres::Postgres;

/// A lease that outlasts every test.
const LONG: Duration = Duration::from_secs(60);

/// How long a waiter waits for a lock that it must get.
const PATIENCE: Duration = Duration::from_secs(30);

/// No time at all: one attempt.
const ONCE: Duration = Duration::ZERO;

/// A server with the table as the peer creates it.
enum Server {
    Postgres(Postgres),
    MariaDb(MariaDb),
}

impl Server {
    fn postgres(table: Table) -> Server {
        let server = Postgres::start();
        if table != Table::Session {
            server.sql(&format!(
                "{}; ALTER TABLE {} OWNER TO locker",
                table.in_postgres(),
                name(table)
            ));
        }
        Server::Postgres(server)
    }

    fn mariadb(table: Table) -> Server {
        let server = MariaDb::start();
        if table != Table::Session {
            server.sql(&format!("USE locks; {}", table.in_mysql()));
        }
        Server::MariaDb(server)
    }

    fn url(&self) -> String {
        match self {
            Server::Postgres(server) => server.url(),
            Server::MariaDb(server) => server.url(),
        }
    }

    fn sql(&self, text: &str) -> String {
        match self {
            Server::Postgres(server) => server.sql(text),
            Server::MariaDb(server) => server.sql(&format!("USE locks; {text}")),
        }
    }

    fn start(&self, library: Library) -> Result<Peer, Fault> {
        library.start(&self.url(), env!("CARGO_BIN_EXE_interop-driver"))
    }

    fn contestants(&self, libraries: &[Library]) -> Result<Vec<Contestant>, Fault> {
        let contestant = |(index, library): (usize, &Library)| {
            let peer: Box<dyn palisade_interop::Participant> = Box::new(self.start(*library)?);
            Ok((format!("{} {}", library.name(), index + 1), peer))
        };
        libraries.iter().enumerate().map(contestant).collect()
    }
}

fn name(table: Table) -> &'static str {
    match table {
        Table::Simple => "distributed_lock",
        Table::Shedlock => "shedlock",
        Table::Session => "none",
    }
}

macro_rules! tables {
    ($($module:ident: $server:ident, $table:ident;)+) => {
        $(mod $module {
            use super::*;

            fn server() -> Server {
                Server::$server(Table::$table)
            }

            #[test]
            fn together() -> Result<(), Fault> {
                contests::together(stringify!($module), &server(), Table::$table)
            }

            #[test]
            fn a_saboteur_is_seen() -> Result<(), Fault> {
                contests::sabotaged(stringify!($module), &server(), Table::$table)
            }

            #[test]
            fn they_hold_and_wait() -> Result<(), Fault> {
                let (ours, peer) = (Library::Ours(Table::$table), Table::$table.peer());
                let server = server();
                exclusion::holds(&server, ours, peer)?;
                exclusion::holds(&server, peer, ours)
            }

            #[test]
            fn a_crash_frees_after_the_lease() -> Result<(), Fault> {
                let (ours, peer) = (Library::Ours(Table::$table), Table::$table.peer());
                let server = server();
                exclusion::crashes(&server, ours, peer)?;
                exclusion::crashes(&server, peer, ours)
            }

            #[test]
            fn ours_releases_in_vain() -> Result<(), Fault> {
                exclusion::releases_in_vain(&server(), Table::$table)
            }
        })+
    };
}

tables! {
    postgres_simple: postgres, Simple;
    postgres_shedlock: postgres, Shedlock;
    mariadb_simple: mariadb, Simple;
    mariadb_shedlock: mariadb, Shedlock;
}

/// The session locks of a server, ours and the peers'.
mod session {
    use super::*;

    fn both(server: &Server, [one, other]: [Library; 2]) -> Result<(), Fault> {
        exclusion::holds(server, one, other)?;
        exclusion::holds(server, other, one)?;
        exclusion::crashes_at_once(server, one, other)?;
        exclusion::crashes_at_once(server, other, one)
    }

    const PYTHON: [Library; 2] = [Library::Ours(Table::Session), Library::Advisory];
    const SQLX: [Library; 2] = [Library::OursAsSqlx, Library::Sqlx];

    #[test]
    fn postgres_with_python() -> Result<(), Fault> {
        let server = Server::postgres(Table::Session);
        both(&server, PYTHON)?;
        contests::of("postgres_session", &server, PYTHON)?;
        contests::barged("postgres_session", &server)
    }

    #[test]
    fn postgres_with_sqlx() -> Result<(), Fault> {
        let server = Server::postgres(Table::Session);
        both(&server, SQLX)?;
        contests::of("postgres_session_sqlx", &server, SQLX)
    }

    #[test]
    fn mariadb_with_python() -> Result<(), Fault> {
        let server = Server::mariadb(Table::Session);
        both(&server, PYTHON)?;
        contests::of("mariadb_session", &server, PYTHON)?;
        contests::barged("mariadb_session", &server)
    }
}
