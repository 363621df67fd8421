//! MariaDB.
//!
//! ```no_run
//! use palisade_testkit::mariadb::MariaDb;
//!
//! let mariadb = MariaDb::start();
//! assert_eq!(mariadb.sql("select 1 + 1"), "2");
//! mariadb.pause();
//! mariadb.resume();
//!
//! let guarded = MariaDb::with().tls().clock().start();
//! guarded.clock().set_ahead(std::time::Duration::from_secs(3600));
//! println!("{} with the authority {}", guarded.url(), palisade_testkit::certs().ca.display());
//! ```

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::certs::certs;
use crate::clock::Clock;
use crate::dir::Dir;
use crate::error::{OrPanic, Result};
use crate::lan::Place;
use crate::port::Port;
use crate::process::{Recipe, Server, TOOL_LIMIT, is_root};
use crate::spec::server;
use crate::{command, template};

/// It refuses to run as root.
const USER: &str = "mysql";

/// Its default, 96 MB, would be copied for every server.
const LOG_SIZE: &str = "--innodb-log-file-size=8M";

/// Read at every start, so it must bear repetition.
const USERS: &str = "\
create database if not exists locks;
create user if not exists locker@'%' identified by 'lockpw';
grant all on locks.* to locker@'%';
";

/// How a MariaDB is to be. Plain, unless something is said.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    tls: bool,
    clock: bool,
    args: Vec<String>,
    place: Place,
}

impl Setup {
    /// Gives it one more word on its command line: `--innodb-file-per-table=0`.
    #[must_use]
    pub fn arg(mut self, word: impl Into<String>) -> Self {
        self.args.push(word.into());
        self
    }

    /// Offers TLS. A client certificate is not asked for.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    fn start_once(&self) -> Result<MariaDb> {
        let (dir, port) = (Dir::new("mariadb"), Port::new());
        let address: SocketAddr = (self.place.ip(), port.number()).into();
        let (data, socket) = (dir.path().join("data"), dir.path().join("socket"));
        template::copy("mariadbd", &data, make_template)?;
        let users = dir.write("users.sql", USERS);
        if is_root() {
            command::give(dir.path(), USER)?;
        }
        let mut recipe = Recipe::new("mariadbd", &self.place)
            .args([
                "--no-defaults",
                "--skip-log-bin",
                "--skip-name-resolve",
                "--max-connections=500",
                LOG_SIZE,
            ])
            .args([
                word("datadir", &data),
                // Of its own: a server that starts deletes the temporary tables that it finds there.
                word("tmpdir", dir.path()),
                word("socket", &socket),
                word("init-file", &users),
            ])
            .args([word("pid-file", &dir.path().join("pid"))])
            .args([
                format!("--port={}", address.port()),
                format!("--bind-address={}", address.ip()),
            ]);
        if self.tls {
            let certs = certs();
            let files = [
                word("ssl-cert", &certs.server),
                word("ssl-key", &certs.server_key),
                word("ssl-ca", &certs.ca),
            ];
            recipe = recipe.args(files);
        }
        recipe = recipe.args(self.args.iter().cloned());
        recipe.user = Some(USER);
        let clock = self
            .clock
            .then(|| Clock::give(&mut recipe, &dir))
            .transpose()?;
        let probe = Box::new({
            let socket = socket.clone();
            move || {
                sql(&socket, "select 1")
                    .map(drop)
                    .map_err(|failure| failure.to_string())
            }
        });
        let server = Server::start(recipe, dir, vec![port], probe)?;
        Ok(MariaDb {
            server,
            address,
            socket,
            clock,
        })
    }
}

fn word(name: &str, value: &Path) -> OsString {
    let mut word = OsString::from(format!("--{name}="));
    word.push(value);
    word
}

fn make_template(dir: &Dir) -> Result<PathBuf> {
    let data = dir.path().join("data");
    let mut install = command::command("mariadb-install-db")?;
    install.args([
        "--no-defaults",
        "--auth-root-authentication-method=normal",
        "--skip-test-db",
        LOG_SIZE,
    ]);
    install.arg(word("datadir", &data));
    install.arg(word("tmpdir", dir.path()));
    if is_root() {
        command::give(dir.path(), USER)?;
        install.arg(format!("--user={USER}"));
    }
    command::run(install, Duration::from_secs(120))?;
    Ok(data)
}

/// One MariaDB server, with a database `locks` for the user `locker`. [`Server`] has the faults.
#[derive(Debug)]
pub struct MariaDb {
    server: Server,
    address: SocketAddr,
    socket: PathBuf,
    clock: Option<Clock>,
}

server!(MariaDb, clock);

impl MariaDb {
    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The database `locks` as its user. TLS also needs the authority: [`crate::certs()`].
    #[must_use]
    pub fn url(&self) -> String {
        format!("mysql://locker:lockpw@{}/locks", self.address)
    }

    /// Runs SQL in the database `locks` as the superuser, and returns the values, a line for each
    /// row, with tabs between.
    ///
    /// # Panics
    ///
    /// When it fails.
    #[track_caller]
    pub fn sql(&self, text: &str) -> String {
        self.try_sql(text).or_panic()
    }

    /// As [`MariaDb::sql`], for a server that may be down: says why it failed.
    pub fn try_sql(&self, text: &str) -> Result<String, String> {
        sql(&self.socket, text).map_err(|failure| failure.to_string())
    }
}

fn sql(socket: &Path, text: &str) -> Result<String> {
    let mut mariadb = command::command("mariadb")?;
    mariadb.args([
        "--no-defaults",
        "-uroot",
        "--batch",
        "--skip-column-names",
        "--connect-timeout=5",
    ]);
    mariadb
        .arg(word("socket", socket))
        .args(["--execute", text, "locks"]);
    command::run(mariadb, TOOL_LIMIT).map(|said| said.trim_end().to_owned())
}
