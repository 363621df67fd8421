use std::ffi::OsString;
use std::fmt::Write;
use std::net::SocketAddr;
use std::ops::Deref;
use std::time::Duration;

use crate::dir::Dir;
use crate::error::{OrPanic, Result};
use crate::lan::{Host, Place};
use crate::port::Port;
use crate::process::{Recipe, Server, TOOL_LIMIT, with_free_ports};
use crate::{command, probe};

/// The first names the rest of ZooKeeper's own needs; without the second it logs nothing.
const JARS: [&str; 2] = ["/usr/share/java/zookeeper.jar", "/usr/share/java/slf4j-simple.jar"];

/// One ZooKeeper server. [`Server`] has the faults. Sessions last 1 to 10 seconds, whatever a client asks for.
#[derive(Debug)]
pub struct ZooKeeper {
    server: Server,
    address: SocketAddr,
}

impl ZooKeeper {
    /// Starts one that stands alone. Takes a second.
    ///
    /// # Panics
    ///
    /// When it does not start.
    #[must_use]
    pub fn start() -> Self {
        Self::on_place(&Place::default())
    }

    /// As [`ZooKeeper::start`], on a host of a [`crate::lan::Lan`].
    ///
    /// # Panics
    ///
    /// When it does not start.
    #[must_use]
    pub fn start_on(host: &Host) -> Self {
        Self::on_place(&Place::on(host))
    }

    fn on_place(place: &Place) -> Self {
        with_free_ports(|| {
            let zookeeper = Node::new(place).launch(None)?;
            zookeeper.wait_ready()?;
            Ok(zookeeper)
        })
        .or_panic()
    }

    /// Where it listens for clients.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
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
            cli.args(["-Xmx64m".into(), "-cp".into(), classpath()?]).arg("org.apache.zookeeper.ZooKeeperMain");
            cli.args(["-server", &self.address.to_string()]).args(words);
            command::run(cli, TOOL_LIMIT)
        };
        run().or_panic()
    }

    /// What it is: `standalone`, `leader` or `follower`. Nothing while it has no quorum.
    #[must_use]
    pub fn mode(&self) -> Option<String> {
        mode(self.address).ok()
    }

    pub(super) fn wait_ready(&self) -> Result<()> {
        self.server.wait_ready()
    }
}

impl Deref for ZooKeeper {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

/// What must be known of all servers before the first can be started.
pub(super) struct Node {
    place: Place,
    ports: [Port; 3],
}

impl Node {
    pub(super) fn new(place: &Place) -> Self {
        Self { place: place.clone(), ports: [Port::new(), Port::new(), Port::new()] }
    }

    /// Its line in the configuration of an ensemble.
    pub(super) fn member(&self, id: usize) -> String {
        let [_, quorum, election] = &self.ports;
        format!("server.{id}={}:{quorum}:{election}", self.place.ip())
    }

    /// As a member of an ensemble, its number and the lines of all, or alone.
    pub(super) fn launch(self, member: Option<(usize, &str)>) -> Result<ZooKeeper> {
        let dir = Dir::new("zookeeper");
        let data = dir.folder("data");
        let address: SocketAddr = (self.place.ip(), self.ports[0].number()).into();
        let mut config = format!("tickTime=500\ndataDir={}\nmaxClientCnxns=0\n", data.display());
        // Its own web server would take port 8080.
        config.push_str("admin.enableServer=false\n4lw.commands.whitelist=*\n");
        writeln!(config, "clientPort={}\nclientPortAddress={}", address.port(), address.ip()).expect("a string");
        if let Some((id, members)) = member {
            writeln!(config, "initLimit=10\nsyncLimit=4\n{members}").expect("a string");
            dir.write("data/myid", &format!("{id}\n"));
        }
        let config = dir.write("zoo.cfg", &config);
        let recipe = Recipe::new("java", &self.place)
            .args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"])
            .args([classpath()?])
            .args(["org.apache.zookeeper.server.quorum.QuorumPeerMain"])
            .args([config]);
        // Not "ruok": it answers before requests are.
        let probe = Box::new(move || mode(address).map(drop));
        let server = Server::launch(recipe, dir, self.ports.into(), probe)?;
        Ok(ZooKeeper { server, address })
    }
}

fn classpath() -> Result<OsString> {
    let jars = JARS.iter().map(|jar| command::installed(jar)).collect::<Result<Vec<_>>>()?;
    Ok(std::env::join_paths(jars).expect("fixed paths"))
}

fn ask(address: SocketAddr, word: &str) -> Result<String, String> {
    probe::ask(address, word, Duration::from_secs(2)).map_err(|error| error.to_string())
}

fn mode(address: SocketAddr) -> Result<String, String> {
    let said = ask(address, "srvr")?;
    let mode = said.lines().find_map(|line| line.strip_prefix("Mode: ").map(str::to_owned));
    mode.ok_or(said)
}
