use std::path::Path;
use std::process::Command;

use crate::ours::{Kind, Ours};
use crate::participant::{Fault, Participant};
use crate::peer::{Peer, installed, source};

/// Started often and for a few seconds: the compiler that takes time is left out.
const JAVA_OPTIONS: [&str; 4] = [
    "-Xmx64m",
    "-Xshare:auto",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
];

/// A table of locks, as the other programs create it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// A unique name, an owner, an expiry.
    Simple,
    /// ShedLock's.
    Shedlock,
    /// None: the database's own session locks.
    Session,
}

/// A program that uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// Palisade with `format=simple` or `format=shedlock`.
    Ours(Table),
    /// Python: psycopg, or MySQL Connector/Python, with INSERT and DELETE.
    Plain,
    /// Java: ShedLock, with its provider for JDBC.
    Shedlock,
    /// Python: psycopg with `pg_advisory_lock`, or MySQL Connector/Python with `GET_LOCK`.
    Advisory,
    /// Rust: sqlx with `PgAdvisoryLock`. PostgreSQL only.
    Sqlx,
    /// Ours, with the keys of sqlx.
    OursAsSqlx,
    /// Asks for no lock, and enters. For saboteurs.
    Barges,
    /// Ends the lock of any holder, and enters. For saboteurs.
    EndsAny(Table),
}

impl Table {
    /// What the documentation of the peers says to create in PostgreSQL.
    #[must_use]
    pub fn in_postgres(self) -> &'static str {
        match self {
            Self::Simple => {
                "CREATE TABLE distributed_lock (id BIGSERIAL PRIMARY KEY, lock_name VARCHAR(128) NOT NULL UNIQUE, \
                 owner_id VARCHAR(128) NOT NULL, expire_time TIMESTAMP NOT NULL, \
                 create_time TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP)"
            }
            Self::Shedlock => {
                "CREATE TABLE shedlock (name VARCHAR(64) NOT NULL, lock_until TIMESTAMP NOT NULL, \
                 locked_at TIMESTAMP NOT NULL, locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name))"
            }
            Self::Session => "",
        }
    }

    /// The same for MySQL and MariaDB.
    #[must_use]
    pub fn in_mysql(self) -> &'static str {
        match self {
            Self::Simple => {
                "CREATE TABLE distributed_lock (id BIGINT NOT NULL AUTO_INCREMENT, lock_name VARCHAR(128) NOT NULL, \
                 owner_id VARCHAR(128) NOT NULL, expire_time DATETIME NOT NULL, \
                 create_time DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP, PRIMARY KEY (id), \
                 UNIQUE KEY uk_lock_name (lock_name)) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4"
            }
            Self::Shedlock => {
                "CREATE TABLE shedlock (name VARCHAR(64) NOT NULL, lock_until TIMESTAMP(3) NOT NULL, \
                 locked_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3), locked_by VARCHAR(255) NOT NULL, \
                 PRIMARY KEY (name))"
            }
            Self::Session => "",
        }
    }

    /// The program of others that uses it.
    #[must_use]
    pub fn peer(self) -> Library {
        match self {
            Self::Simple => Library::Plain,
            Self::Shedlock => Library::Shedlock,
            Self::Session => Library::Advisory,
        }
    }
}

impl Library {
    const ALL: [Self; 11] = [
        Self::Ours(Table::Simple),
        Self::Ours(Table::Shedlock),
        Self::Plain,
        Self::Shedlock,
        Self::EndsAny(Table::Simple),
        Self::EndsAny(Table::Shedlock),
        Self::Ours(Table::Session),
        Self::OursAsSqlx,
        Self::Advisory,
        Self::Sqlx,
        Self::Barges,
    ];

    /// Its name, by which a driver knows it too.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ours(Table::Simple) => "palisade",
            Self::Ours(Table::Shedlock) => "palisade-as-shedlock",
            Self::Plain => "plain",
            Self::Shedlock => "shedlock",
            Self::EndsAny(Table::Simple) => "deletes-any",
            Self::EndsAny(Table::Shedlock) => "ends-any",
            Self::Ours(Table::Session) => "palisade-session",
            Self::OursAsSqlx => "palisade-as-sqlx",
            Self::Advisory => "advisory",
            Self::Sqlx => "sqlx",
            Self::Barges | Self::EndsAny(Table::Session) => "barges",
        }
    }

    /// The library of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|library| library.name() == name)
    }

    /// Starts its driver, for the database at `postgres://…` or `mysql://…`. `rust` is the driver of
    /// ours.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub fn start(self, url: &str, rust: impl AsRef<Path>) -> Result<Peer, Fault> {
        let mut command = match self {
            Self::Ours(_) | Self::OursAsSqlx | Self::Sqlx => {
                let mut driver = Command::new(rust.as_ref());
                driver.arg("sql");
                driver
            }
            Self::Plain | Self::EndsAny(_) | Self::Advisory | Self::Barges => {
                let mut python = Command::new(installed("sql-python")?.join("venv/bin/python"));
                python.arg(source("sql-python/driver.py"));
                python
            }
            Self::Shedlock => {
                let place = installed("sql-java")?;
                let mut java = Command::new("java");
                java.args(JAVA_OPTIONS)
                    .arg("-cp")
                    .arg(format!("{0}/classes:{0}/lib/*", place.display()));
                java.arg("Driver");
                java
            }
        };
        command.args([self.name(), url]);
        Peer::start(self.name(), command)
    }

    /// Ours, in this process: what the driver serves.
    ///
    /// # Errors
    ///
    /// When it cannot connect, or is in another language.
    pub fn connect(self, url: &str) -> Result<Box<dyn Participant>, Fault> {
        let words = match self {
            // The peer writes what the clock of its session shows.
            Self::Ours(Table::Simple) => "format=simple&zone=server",
            Self::Ours(Table::Shedlock) => "format=shedlock",
            Self::Ours(Table::Session) => "format=session",
            Self::OursAsSqlx => "format=session&keys=sqlx",
            Self::Sqlx => return Ok(Box::new(super::sqlx::Peer::connect(url)?)),
            other => return Err(Fault::new(format!("{} is not in Rust", other.name()))),
        };
        Ok(Box::new(Ours::connect(
            &format!("{url}?{words}"),
            Kind::Mutex,
        )?))
    }
}
