//! PgBouncer: a pooler that lends a session of PostgreSQL for each transaction.
//!
//! ```no_run
//! use palisade_testkit::{pgbouncer::PgBouncer, postgres::Postgres};
//!
//! let postgres = Postgres::start();
//! let pooler = PgBouncer::start(&postgres);
//! println!("{}", pooler.url());
//! ```

use std::net::SocketAddr;

use rustix::process::Signal;

use crate::command;
use crate::dir::Dir;
use crate::error::{OrPanic, Result};
use crate::lan::Place;
use crate::port::Port;
use crate::postgres::{self, Postgres};
use crate::process::{Recipe, Server, is_root, with_free_ports};

/// It refuses to run as root.
const USER: &str = "postgres";

/// One PgBouncer in front of the database `locks` of a PostgreSQL. [`Server`] has the faults.
#[derive(Debug)]
pub struct PgBouncer {
    server: Server,
    address: SocketAddr,
}

impl std::ops::Deref for PgBouncer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl PgBouncer {
    /// Starts one that pools by transaction, and returns when it answers.
    ///
    /// # Panics
    ///
    /// When it does not start.
    #[must_use]
    pub fn start(postgres: &Postgres) -> Self {
        with_free_ports(|| Self::start_once(postgres.address())).or_panic()
    }

    fn start_once(postgres: SocketAddr) -> Result<Self> {
        let (dir, port, place) = (Dir::new("pgbouncer"), Port::new(), Place::default());
        let address: SocketAddr = (place.ip(), port.number()).into();
        let users = dir.write("users.txt", "\"locker\" \"lockpw\"\n");
        let settings = format!(
            "[databases]\nlocks = host={} port={} dbname=locks\n\
             [pgbouncer]\nlisten_addr = {}\nlisten_port = {}\nunix_socket_dir =\n\
             auth_type = scram-sha-256\nauth_file = {}\npool_mode = transaction\n\
             max_client_conn = 300\ndefault_pool_size = 20\n",
            postgres.ip(),
            postgres.port(),
            address.ip(),
            address.port(),
            users.display(),
        );
        let settings = dir.write("pgbouncer.ini", &settings);
        if is_root() {
            command::give(dir.path(), USER)?;
        }
        let mut recipe = Recipe::new("pgbouncer", &place).args([settings]);
        recipe.user = Some(USER);
        recipe.stop = Signal::INT;
        let probe = Box::new(move || {
            postgres::sql_of(("locker", "lockpw"), address, "locks", "select 1")
                .map(drop)
                .map_err(|failure| failure.to_string())
        });
        let server = Server::start(recipe, dir, vec![port], probe)?;
        Ok(Self { server, address })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The database `locks` as its owner, through the pooler.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://locker:lockpw@{}/locks", self.address)
    }
}
