use std::net::SocketAddr;
use std::time::Duration;
use std::{fs, path::PathBuf};

use crate::certs::certs;
use crate::clock::Clock;
use crate::command;
use crate::dir::Dir;
use crate::error::{Failure, OrPanic, Result};
use crate::lan::Place;
use crate::port::Port;
use crate::process::{Recipe, Server, TOOL_LIMIT};
use crate::resp::{Connection, Reply};
use crate::spec::server;

/// For the server's probe: one question, so that a hanging server does not eat all the patience.
const PROBE_LIMIT: Duration = Duration::from_secs(2);

/// A user for [`Setup::acl`] that may do everything a lock needs, on keys and channels that begin
/// with `lock:`.
pub const LOCKER: &str =
    "locker on >lockpw ~lock:* &lock:* +@read +@write +@scripting +@pubsub +@connection +wait";

/// The password of the user `default` where there are users at all.
const ROOT_PASSWORD: &str = "rootpw";

/// How a Redis is to be. Plain, unless something is said.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    tls: bool,
    acl: Option<String>,
    clock: bool,
    place: Place,
    bus: bool,
    sentinel: bool,
    settings: Vec<(String, String)>,
}

impl Setup {
    /// Speaks TLS only. A client certificate is accepted and not asked for.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Adds a user, in the words of a `user` line such as [`LOCKER`], and gives `default` the
    /// password `rootpw`.
    #[must_use]
    pub fn acl(mut self, user: &str) -> Self {
        self.acl = Some(user.to_owned());
        self
    }

    /// Writes every change to disk before it is confirmed, so that a restart keeps it.
    #[must_use]
    pub fn durable(self) -> Self {
        self.set("appendonly", "yes").set("appendfsync", "always")
    }

    /// One more line of the configuration.
    #[must_use]
    pub fn set(mut self, word: &str, value: &str) -> Self {
        self.settings.push((word.to_owned(), value.to_owned()));
        self
    }

    /// A node of a cluster, which takes a second port. It has no slots of its own yet.
    #[must_use]
    pub fn clustered(mut self) -> Self {
        self.bus = true;
        self.set("cluster-enabled", "yes")
            .set("cluster-node-timeout", "1000")
    }

    /// No store but one that watches over others.
    pub(super) fn sentinel(mut self) -> Self {
        self.sentinel = true;
        self
    }

    fn start_once(&self) -> Result<Redis> {
        let dir = Dir::new(if self.sentinel { "sentinel" } else { "redis" });
        let port = if self.bus {
            Port::with_bus()
        } else {
            Port::new()
        };
        let client = Client {
            address: (self.place.ip(), port.number()).into(),
            tls: self.tls,
            password: self.acl.as_ref().map(|_| ROOT_PASSWORD),
        };
        let data = dir.folder("data");
        let config = dir.write("redis.conf", &self.config(&client, &data));
        let mut recipe = Recipe::new("redis-server", &self.place).args([config]);
        if self.sentinel {
            recipe = recipe.args(["--sentinel"]);
        }
        let clock = self
            .clock
            .then(|| Clock::give(&mut recipe, &dir))
            .transpose()?;
        let probe = Box::new({
            let client = client.clone();
            move || client.probe()
        });
        let server = Server::start(recipe, dir, vec![port], probe)?;
        Ok(Redis {
            server,
            client,
            data,
            clock,
        })
    }

    fn config(&self, client: &Client, data: &std::path::Path) -> String {
        let port = client.address.port().to_string();
        let mut lines = vec![
            format!("bind {}", client.address.ip()),
            format!("dir {}", data.display()),
        ];
        // Reachable from our own private network only.
        lines.push("protected-mode no".into());
        if !self.sentinel {
            lines.push("save \"\"".into());
            lines.push("repl-diskless-sync-delay 0".into());
        }
        if self.tls {
            let certs = certs();
            lines.push(format!(
                "port 0\ntls-port {port}\ntls-auth-clients optional"
            ));
            lines.push(format!(
                "tls-cert-file {}\ntls-key-file {}",
                certs.server.display(),
                certs.server_key.display()
            ));
            lines.push(format!("tls-ca-cert-file {}", certs.ca.display()));
        } else {
            lines.push(format!("port {port}"));
        }
        if let Some(user) = &self.acl {
            lines.push(format!("requirepass {ROOT_PASSWORD}\nuser {user}"));
        }
        lines.extend(
            self.settings
                .iter()
                .map(|(word, value)| format!("{word} {value}")),
        );
        lines.push(String::new());
        lines.join("\n")
    }
}

/// One Redis server. [`Server`] has the faults.
#[derive(Debug)]
pub struct Redis {
    server: Server,
    client: Client,
    data: PathBuf,
    clock: Option<Clock>,
}

server!(Redis, clock);

impl Redis {
    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.client.address
    }

    /// The same as a URL, with the password of `default` if it has one. TLS also needs the
    /// authority: [`crate::certs()`].
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.client.tls { "rediss" } else { "redis" };
        let user = self
            .client
            .password
            .map(|password| format!(":{password}@"))
            .unwrap_or_default();
        format!("{scheme}://{user}{}", self.address())
    }

    /// Sends a command, as the user `default`. An error of the server is a reply too.
    ///
    /// # Panics
    ///
    /// When no reply comes.
    #[track_caller]
    pub fn call(&self, words: &[&str]) -> Reply {
        self.try_call(words).or_panic()
    }

    /// As [`Redis::call`], for a server that may be down: says why no reply came.
    pub fn try_call(&self, words: &[&str]) -> Result<Reply, String> {
        self.client
            .call(words, Duration::from_secs(5))
            .map_err(|failure| failure.to_string())
    }

    /// Kills it and starts it without its data, as a node that lost its disk.
    pub fn restart_empty(&self) {
        self.kill();
        fs::remove_dir_all(&self.data)
            .and_then(|()| fs::create_dir(&self.data))
            .map_err(Failure::from)
            .or_panic();
        self.restart();
    }
}

/// How to talk to it.
#[derive(Clone, Debug)]
struct Client {
    address: SocketAddr,
    tls: bool,
    password: Option<&'static str>,
}

impl Client {
    fn probe(&self) -> Result<(), String> {
        match self.call(&["PING"], PROBE_LIMIT) {
            Ok(Reply::Text(text)) if text == "PONG" => Ok(()),
            Ok(other) => Err(other.text()),
            Err(failure) => Err(failure.to_string()),
        }
    }

    fn call(&self, words: &[&str], limit: Duration) -> Result<Reply> {
        if self.tls {
            return self.cli(words);
        }
        let mut connection = Connection::open(self.address, limit)?;
        if let Some(password) = self.password {
            connection.call(&["AUTH", password])?;
        }
        Ok(connection.call(words)?)
    }

    /// Redis' own tool knows TLS. It gives lists as lines, which is text enough for a test.
    fn cli(&self, words: &[&str]) -> Result<Reply> {
        let mut cli = command::command("redis-cli")?;
        cli.args([
            "-h",
            &self.address.ip().to_string(),
            "-p",
            &self.address.port().to_string(),
            "--no-auth-warning",
        ]);
        cli.args(["--tls", "--cacert"]).arg(&certs().ca);
        if let Some(password) = self.password {
            cli.args(["-a", password]);
        }
        cli.args(words);
        command::run(cli, TOOL_LIMIT).map(|said| Reply::Text(said.trim_end().to_owned()))
    }
}
