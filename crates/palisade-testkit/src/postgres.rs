//! PostgreSQL.
//!
//! ```no_run
//! use palisade_testkit::postgres::Postgres;
//!
//! let postgres = Postgres::start();
//! assert_eq!(postgres.sql("select 1 + 1"), "2");
//! postgres.restart(); // a crash, then recovery: everything confirmed is still there
//!
//! let guarded = Postgres::with().tls().clock().start();
//! guarded.clock().set_back(std::time::Duration::from_secs(3600));
//! println!("{} with the authority {}", guarded.url(), palisade_testkit::certs().ca.display());
//! ```

use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;

use crate::certs::certs;
use crate::clock::Clock;
use crate::dir::Dir;
use crate::error::{OrPanic, Result};
use crate::lan::Place;
use crate::port::Port;
use crate::process::{Recipe, Server, TOOL_LIMIT, is_root, with_free_ports};
use crate::spec::server;
use crate::{command, template};

/// It refuses to run as root.
const USER: &str = "postgres";
const PASSWORD: &str = "rootpw";

/// How a PostgreSQL is to be. Plain, unless something is said.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    tls: bool,
    clock: bool,
    place: Place,
}

impl Setup {
    /// Offers TLS. A client certificate is not asked for.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    fn start_once(&self) -> Result<Postgres> {
        let (dir, port) = (Dir::new("postgres"), Port::new());
        let address: SocketAddr = (self.place.ip(), port.number()).into();
        let data = dir.path().join("data");
        template::copy("initdb", &data, make_template)?;
        self.configure(&data, address)?;
        let postgres = self.run(dir, port, address)?;
        sql(
            address,
            "postgres",
            "create role locker login password 'lockpw'",
        )?;
        sql(address, "postgres", "create database locks owner locker")?;
        Ok(postgres)
    }

    /// Starts it on a data directory that is there.
    fn run(&self, dir: Dir, port: Port, address: SocketAddr) -> Result<Postgres> {
        if is_root() {
            command::give(dir.path(), USER)?;
        }
        let data = dir.path().join("data").into_os_string();
        let mut recipe = Recipe::new("postgres", &self.place).args(["-D".into(), data]);
        recipe.user = Some(USER);
        // The "fast" one: without waiting for clients to leave.
        recipe.stop = Signal::INT;
        let clock = self
            .clock
            .then(|| Clock::give(&mut recipe, &dir))
            .transpose()?;
        let probe = Box::new(move || {
            sql(address, "postgres", "select 1")
                .map(drop)
                .map_err(|failure| failure.to_string())
        });
        Ok(Postgres {
            server: Server::start(recipe, dir, vec![port], probe)?,
            address,
            clock,
        })
    }

    fn follow(&self, primary: SocketAddr) -> Result<Postgres> {
        let (dir, port) = (Dir::new("postgres"), Port::new());
        let address: SocketAddr = (self.place.ip(), port.number()).into();
        let data = dir.path().join("data");
        let mut copy = command::command("pg_basebackup")?;
        copy.env("PGPASSWORD", PASSWORD);
        copy.args(["--write-recovery-conf", "--checkpoint=fast", "--no-sync"]);
        copy.args(["-U", "postgres", "-h", &primary.ip().to_string()]);
        copy.args(["-p", &primary.port().to_string(), "-D"])
            .arg(&data);
        command::run(copy, TOOL_LIMIT)?;
        self.configure(&data, address)?;
        self.run(dir, port, address)
    }

    fn configure(&self, data: &Path, address: SocketAddr) -> Result<()> {
        let mut settings = format!(
            "\nlisten_addresses = '{}'\nport = {}\nunix_socket_directories = ''\nmax_connections = 300\n",
            address.ip(),
            address.port()
        );
        if self.tls {
            let (cert, key) = (data.join("server.crt"), data.join("server.key"));
            fs::copy(&certs().server, &cert)?;
            fs::copy(&certs().server_key, &key)?;
            // It refuses a key that others could read.
            fs::set_permissions(&key, Permissions::from_mode(0o600))?;
            settings
                .push_str("ssl = on\nssl_cert_file = 'server.crt'\nssl_key_file = 'server.key'\n");
        }
        append(&data.join("postgresql.conf"), &settings)?;
        append(
            &data.join("pg_hba.conf"),
            "\nhost all all 10.99.0.0/16 scram-sha-256\n",
        )
    }
}

fn append(path: &Path, text: &str) -> Result<()> {
    let mut all = fs::read_to_string(path)?;
    all.push_str(text);
    Ok(fs::write(path, all)?)
}

fn make_template(dir: &Dir) -> Result<PathBuf> {
    let password = dir.write("password", PASSWORD);
    let data = dir.path().join("data");
    let mut initdb = command::command(if is_root() { "setpriv" } else { "initdb" })?;
    if is_root() {
        command::give(dir.path(), USER)?;
        initdb.args([
            &format!("--reuid={USER}"),
            &format!("--regid={USER}"),
            "--init-groups",
            "--",
        ]);
        initdb.arg(command::find("initdb")?);
    }
    initdb.args([
        "-U",
        "postgres",
        "-A",
        "scram-sha-256",
        "--no-sync",
        "-E",
        "UTF8",
        "--locale=C.UTF-8",
    ]);
    initdb.arg("-D").arg(&data).arg("--pwfile").arg(password);
    command::run(initdb, Duration::from_secs(120))?;
    Ok(data)
}

/// One PostgreSQL server, with a database `locks` that belongs to the user `locker`. [`Server`] has
/// the faults.
#[derive(Debug)]
pub struct Postgres {
    server: Server,
    address: SocketAddr,
    clock: Option<Clock>,
}

server!(Postgres, clock);

impl Postgres {
    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The database `locks` as its owner. TLS also needs the authority: [`crate::certs()`].
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://locker:lockpw@{}/locks", self.address)
    }

    /// Starts a standby that follows this server, and returns when it answers.
    ///
    /// # Panics
    ///
    /// When it does not start.
    #[must_use]
    pub fn standby(&self) -> Self {
        with_free_ports(|| Self::with().follow(self.address)).or_panic()
    }

    /// Cuts a standby off from its primary: what is written there from now on never comes here.
    pub fn stop_following(&self) {
        self.sql("alter system set primary_conninfo = ''");
        self.sql("select pg_reload_conf()");
        crate::eventually("it does not follow", TOOL_LIMIT, || {
            match self
                .sql("select count(*) from pg_stat_wal_receiver")
                .as_str()
            {
                "0" => Ok(()),
                _ => Err("it follows".to_owned()),
            }
        });
    }

    /// Makes a standby a primary, and returns when it takes writes.
    pub fn promote(&self) {
        assert_eq!(self.sql("select pg_promote()"), "t", "not promoted in time");
    }

    /// Runs SQL in the database `locks` as the superuser, and returns the values, a line for each
    /// row, with `|` between.
    ///
    /// # Panics
    ///
    /// When it fails.
    #[track_caller]
    pub fn sql(&self, text: &str) -> String {
        self.try_sql(text).or_panic()
    }

    /// As [`Postgres::sql`], for a server that may be down: says why it failed.
    pub fn try_sql(&self, text: &str) -> Result<String, String> {
        sql(self.address, "locks", text).map_err(|failure| failure.to_string())
    }
}

fn sql(address: SocketAddr, database: &str, text: &str) -> Result<String> {
    sql_of(("postgres", PASSWORD), address, database, text)
}

/// As this user, with this password.
pub(crate) fn sql_of(
    (user, password): (&str, &str),
    address: SocketAddr,
    database: &str,
    text: &str,
) -> Result<String> {
    let mut psql = command::command("psql")?;
    psql.env("PGPASSWORD", password)
        .env("PGCONNECT_TIMEOUT", "5");
    psql.args([
        "-X",
        "-q",
        "-A",
        "-t",
        "-v",
        "ON_ERROR_STOP=1",
        "-U",
        user,
        "-d",
        database,
    ]);
    psql.args([
        "-h",
        &address.ip().to_string(),
        "-p",
        &address.port().to_string(),
        "-c",
        text,
    ]);
    command::run(psql, TOOL_LIMIT).map(|said| said.trim_end().to_owned())
}
