use std::ffi::OsString;
use std::fmt::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use super::hijack;
use crate::certs::certs;
use crate::dir::Dir;
use crate::error::{Failure, OrPanic, Result};
use crate::lan::{Host, Place};
use crate::port::Port;
use crate::process::{Recipe, Server, TOOL_LIMIT};
use crate::spec::server;
use crate::{command, probe};

/// The first names the rest of ZooKeeper's own needs, but for what TLS needs; without the second it
/// logs nothing.
const JARS: [&str; 5] = [
    "/usr/share/java/zookeeper.jar",
    "/usr/share/java/slf4j-simple.jar",
    "/usr/share/java/netty-codec.jar",
    "/usr/share/java/netty-resolver.jar",
    "/usr/share/java/netty-transport-native-unix-common.jar",
];

/// Names a folder of jars that are used in place of the system's: another version of ZooKeeper, as
/// `scripts/zookeeper` brings it.
const OTHER_VERSION: &str = "PALISADE_ZOOKEEPER";

/// How a ZooKeeper is to be. Plain, unless something is said.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    place: Place,
    tls: Option<&'static str>,
    users: Vec<(String, String)>,
    for_production: bool,
    settings: Vec<(String, String)>,
    properties: Vec<(String, String)>,
}

impl Setup {
    /// One more line of the configuration.
    #[must_use]
    pub fn set(mut self, word: &str, value: &str) -> Self {
        self.settings.push((word.to_owned(), value.to_owned()));
        self
    }

    /// One more of the properties that are not in the configuration, such as
    /// `znode.container.checkIntervalMs`.
    #[must_use]
    pub fn property(mut self, word: &str, value: &str) -> Self {
        self.properties.push((word.to_owned(), value.to_owned()));
        self
    }

    /// Grants sessions of every length from a second to a day.
    #[must_use]
    pub fn long_sessions(self) -> Self {
        self.set("minSessionTimeout", "1000")
            .set("maxSessionTimeout", "86400000")
    }

    /// Speaks TLS as well, on a port of its own. A client certificate is accepted and not asked
    /// for.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = Some("want");
        self
    }

    /// As [`Setup::tls`], and a client certificate is asked for.
    #[must_use]
    pub fn mutual_tls(mut self) -> Self {
        self.tls = Some("need");
        self
    }

    /// Knows one more user, who can log in by SASL.
    #[must_use]
    pub fn user(mut self, name: &str, password: &str) -> Self {
        self.users.push((name.to_owned(), password.to_owned()));
        self
    }

    /// Runs as in production, where Java compiles what is hot as well as it can: slow for a while,
    /// and then fast. For measurements; tests want a quick start.
    #[must_use]
    pub fn as_in_production(mut self) -> Self {
        self.for_production = true;
        self
    }

    fn start_once(&self) -> Result<ZooKeeper> {
        let zookeeper = Node::new(&self.place).launch(None, self)?;
        zookeeper.wait_ready()?;
        Ok(zookeeper)
    }
}

/// One ZooKeeper server. [`Server`] has the faults. Sessions last 1 to 10 seconds, whatever a
/// client asks for, unless its [`Setup`] says otherwise.
#[derive(Debug)]
pub struct ZooKeeper {
    server: Server,
    address: SocketAddr,
    tls_address: SocketAddr,
}

server!(ZooKeeper);

impl ZooKeeper {
    /// As [`ZooKeeper::start`], on a host of a [`crate::lan::Lan`].
    ///
    /// # Panics
    ///
    /// When it does not start.
    #[must_use]
    pub fn start_on(host: &Host) -> Self {
        Self::with().on(host).start()
    }

    /// Where it listens for clients.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it listens for clients with TLS, if its [`Setup`] says so.
    #[must_use]
    pub fn tls_address(&self) -> SocketAddr {
        self.tls_address
    }

    /// The sessions that are connected to it.
    ///
    /// # Panics
    ///
    /// When it does not say.
    #[track_caller]
    #[must_use]
    pub fn sessions(&self) -> Vec<i64> {
        let said = self.ask("cons");
        let ids = said
            .split("sid=0x")
            .skip(1)
            .filter_map(|rest| rest.split([',', ')']).next());
        ids.filter_map(|hex| u64::from_str_radix(hex, 16).ok())
            .filter(|id| *id != 0)
            .map(u64::cast_signed)
            .collect()
    }

    /// Ends the session of another client, as every client of the server can: the password follows
    /// from the session's number.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    #[track_caller]
    pub fn end_session(&self, session: i64) {
        hijack::end_session(self.address, session)
            .map_err(|error| error.to_string())
            .or_panic();
    }

    /// A counter by its name in `mntr`, such as `zk_packets_received`.
    ///
    /// # Panics
    ///
    /// When it does not count that.
    #[track_caller]
    #[must_use]
    pub fn count(&self, what: &str) -> u64 {
        let said = self.ask("mntr");
        let value = said.lines().find_map(|line| {
            line.strip_prefix(what)?
                .strip_prefix('\t')?
                .parse::<f64>()
                .ok()
        });
        value.unwrap_or_else(|| panic!("{what} is not counted: {said}")) as u64
    }

    /// Sends one of the four-letter words, such as `srvr` or `cons`, and returns the answer.
    ///
    /// # Panics
    ///
    /// When there is none.
    #[track_caller]
    #[must_use]
    pub fn ask(&self, word: &str) -> String {
        ask(self.address, word).or_panic()
    }

    /// Runs ZooKeeper's own tool, and returns what it says. Takes a second.
    ///
    /// # Panics
    ///
    /// When it fails.
    #[track_caller]
    pub fn cli(&self, words: &[&str]) -> String {
        let run = || {
            let mut cli = command::command("java")?;
            cli.args(["-Xmx64m".into(), "-cp".into(), classpath()?])
                .arg("org.apache.zookeeper.ZooKeeperMain");
            cli.args(["-server", &self.address.to_string()]).args(words);
            command::run(cli, TOOL_LIMIT)
        };
        run().or_panic()
    }

    /// Its role: `standalone`, `leader` or `follower`. Nothing while it has no quorum.
    #[must_use]
    pub fn mode(&self) -> Option<String> {
        mode(self.address).ok()
    }

    pub(super) fn wait_ready(&self) -> Result<()> {
        self.server.wait_ready()
    }
}

/// The addresses of all servers, which must be known before the first is started.
pub(super) struct Node {
    place: Place,
    ports: [Port; 4],
}

impl Node {
    pub(super) fn new(place: &Place) -> Self {
        Self {
            place: place.clone(),
            ports: [Port::new(), Port::new(), Port::new(), Port::new()],
        }
    }

    /// Its line in the configuration of an ensemble.
    pub(super) fn member(&self, id: usize) -> String {
        let [_, quorum, election, _] = &self.ports;
        format!("server.{id}={}:{quorum}:{election}", self.place.ip())
    }

    /// As a member of an ensemble, its number and the lines of all, or alone.
    pub(super) fn launch(self, member: Option<(usize, &str)>, setup: &Setup) -> Result<ZooKeeper> {
        let dir = Dir::new("zookeeper");
        let data = dir.folder("data");
        let address: SocketAddr = (self.place.ip(), self.ports[0].number()).into();
        let mut config = format!(
            "tickTime=500\ndataDir={}\nmaxClientCnxns=0\n",
            data.display()
        );
        // Its own web server would take port 8080.
        config.push_str("admin.enableServer=false\n4lw.commands.whitelist=*\n");
        writeln!(
            config,
            "clientPort={}\nclientPortAddress={}",
            address.port(),
            address.ip()
        )
        .expect("a string");
        if let Some((id, members)) = member {
            writeln!(config, "initLimit=10\nsyncLimit=4\n{members}").expect("a string");
            dir.write("data/myid", &format!("{id}\n"));
        }
        let tls_address: SocketAddr = (self.place.ip(), self.ports[3].number()).into();
        if let Some(clients) = setup.tls {
            config.push_str(&tls_words(&dir, tls_address, clients));
        }
        let mut properties = setup.properties.clone();
        if !setup.users.is_empty() {
            config.push_str(
                "authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider\n",
            );
            let users = dir.write("jaas.conf", &jaas(&setup.users));
            properties.push((
                "java.security.auth.login.config".to_owned(),
                users.display().to_string(),
            ));
        }
        for (word, value) in &setup.settings {
            writeln!(config, "{word}={value}").expect("a string");
        }
        let config = dir.write("zoo.cfg", &config);
        let java: &[&str] = match setup.for_production {
            // As much as ZooKeeper's own script gives it.
            true => &["-Xmx1000m"],
            false => &["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"],
        };
        let recipe = Recipe::new("java", &self.place)
            .args(java)
            .args(["-cp"])
            .args([classpath()?])
            .args(
                properties
                    .iter()
                    .map(|(word, value)| format!("-D{word}={value}")),
            )
            .args(["org.apache.zookeeper.server.quorum.QuorumPeerMain"])
            .args([config]);
        // Not "ruok": it answers before requests are.
        let tls = setup.tls.map(|_| tls_address);
        let probe = Box::new(move || {
            mode(address)?;
            // Opened after the other.
            tls.map_or(Ok(()), |tls| {
                TcpStream::connect(tls)
                    .map(drop)
                    .map_err(|error| error.to_string())
            })
        });
        let server = Server::launch(recipe, dir, self.ports.into(), probe)?;
        Ok(ZooKeeper {
            server,
            address,
            tls_address,
        })
    }
}

/// The key and the certificates as ZooKeeper reads them.
fn tls_words(dir: &Dir, address: SocketAddr, clients: &str) -> String {
    let certs = certs();
    let read = |path: &std::path::Path| std::fs::read_to_string(path).expect("a file of ours");
    let own = dir.write(
        "server.pem",
        &(read(&certs.server_key) + &read(&certs.server)),
    );
    let ca = dir.write("ca.pem", &read(&certs.ca));
    let (port, ip) = (address.port(), address.ip());
    format!(
        "secureClientPort={port}\nsecureClientPortAddress={ip}\n\
         serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
         ssl.keyStore.location={}\nssl.keyStore.type=PEM\nssl.trustStore.location={}\nssl.trustStore.type=PEM\nssl.clientAuth={clients}\n",
        own.display(),
        ca.display()
    )
}

/// The users, as Java reads them.
fn jaas(users: &[(String, String)]) -> String {
    let users: String = users
        .iter()
        .map(|(name, password)| format!("  user_{name}=\"{password}\"\n"))
        .collect();
    format!(
        "Server {{\n  org.apache.zookeeper.server.auth.DigestLoginModule required\n{users};\n}};\n"
    )
    .replace("\n;", ";")
}

fn classpath() -> Result<OsString> {
    if let Some(folder) = std::env::var_os(OTHER_VERSION).map(PathBuf::from) {
        let is_there = folder.is_absolute() && folder.is_dir();
        let all = folder.join("*").into_os_string();
        return if is_there {
            Ok(all)
        } else {
            Err(Failure::new(format!(
                "{OTHER_VERSION} is no folder: {}",
                folder.display()
            )))
        };
    }
    let jars = JARS
        .iter()
        .map(|jar| command::installed(jar))
        .collect::<Result<Vec<_>>>()?;
    Ok(std::env::join_paths(jars).expect("fixed paths"))
}

fn ask(address: SocketAddr, word: &str) -> Result<String, String> {
    probe::ask(address, word, Duration::from_secs(2)).map_err(|error| error.to_string())
}

fn mode(address: SocketAddr) -> Result<String, String> {
    let said = ask(address, "srvr")?;
    let mode = said
        .lines()
        .find_map(|line| line.strip_prefix("Mode: ").map(str::to_owned));
    mode.ok_or(said)
}
