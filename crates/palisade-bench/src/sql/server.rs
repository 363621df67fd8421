//! The private server that all sides use, its CPU time, and the statements that it has received.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use palisade_testkit::mariadb::MariaDb;
use palisade_testkit::postgres::Postgres;

use super::{Database, POSTGRES};
use crate::compare::network::Network;
use crate::compare::{self, Result, start_quietly};

/// What the kernel's table counts in.
const TICK: Duration = Duration::from_millis(10);

pub(super) struct Server {
    kind: Kind,
    url: String,
    _network: Network,
}

enum Kind {
    Postgres(Postgres),
    Mysql(MariaDb),
}

impl Kind {
    fn start(database: Database) -> Result<Kind> {
        if database.scheme != POSTGRES.scheme {
            return Ok(Kind::Mysql(start_quietly(MariaDb::start)?));
        }
        let server = start_quietly(Postgres::start)?;
        // It counts the statements of clients, and not those inside of routines.
        server.try_sql("ALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements'")?;
        server.restart();
        server.try_sql("CREATE EXTENSION pg_stat_statements")?;
        Ok(Kind::Postgres(server))
    }

    fn sql(&self, text: &str) -> Result<String> {
        Ok(match self {
            Kind::Postgres(server) => server.try_sql(text)?,
            Kind::Mysql(server) => server.try_sql(text)?,
        })
    }

    fn address(&self) -> SocketAddr {
        match self {
            Kind::Postgres(server) => server.address(),
            Kind::Mysql(server) => server.address(),
        }
    }
}

impl Server {
    pub(super) fn start(database: Database, rtt: Option<Duration>) -> Result<Server> {
        let kind = Kind::start(database)?;
        let network = Network::to(kind.address(), rtt)?;
        // The format is for ours. Raw takes it to know how to lock.
        let url = format!(
            "{}://locker:lockpw@{}/locks?format={}",
            database.scheme, network.address, database.format
        );
        Ok(Server {
            kind,
            url,
            _network: network,
        })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }
}

impl compare::Server for Server {
    fn pid(&self) -> u32 {
        match &self.kind {
            Kind::Postgres(server) => server.pid(),
            Kind::Mysql(server) => server.pid(),
        }
    }

    /// With its children, of which PostgreSQL has one for each connection.
    fn cpu(&self) -> Result<Duration> {
        let server = self.pid().to_string();
        let mut ticks = 0;
        for entry in fs::read_dir("/proc")?.flatten() {
            let process = entry.file_name().to_string_lossy().into_owned();
            // One that has ended meanwhile has no table.
            let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else {
                continue;
            };
            // The name in parentheses may have spaces. Behind it: state, parent, and from the
            // twelfth on the time in user mode, in the kernel, and both of children that have
            // ended.
            let after = stat.rsplit(") ").next().unwrap_or_default();
            let fields: Vec<&str> = after.split(' ').collect();
            if process == server || fields.get(1) == Some(&server.as_str()) {
                let times = fields.iter().skip(11).take(4);
                ticks += times
                    .filter_map(|ticks| ticks.parse::<u32>().ok())
                    .sum::<u32>();
            }
        }
        Ok(TICK * ticks)
    }

    /// The statements of all clients.
    fn counted(&self) -> Result<Vec<f64>> {
        let said = self.kind.sql(match self.kind {
            Kind::Postgres(_) => "SELECT coalesce(sum(calls), 0) FROM pg_stat_statements",
            Kind::Mysql(_) => "SHOW GLOBAL STATUS LIKE 'Questions'",
        })?;
        let number = said.split_whitespace().last().unwrap_or_default();
        Ok(vec![number.parse()?])
    }
}
