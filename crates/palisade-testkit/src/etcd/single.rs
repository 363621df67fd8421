use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::certs::certs;
use crate::dir::Dir;
use crate::error::{OrPanic, Result};
use crate::lan::Place;
use crate::port::Port;
use crate::process::{Recipe, Server, TOOL_LIMIT};
use crate::spec::server;
use crate::{command, probe};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Tls {
    #[default]
    None,
    Server,
    Mutual,
}

/// How an etcd is to be. Plain, unless something is said.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    tls: Tls,
    auth: bool,
    place: Place,
    args: Vec<std::ffi::OsString>,
}

impl Setup {
    /// Clients speak TLS, and know the server by its certificate.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = Tls::Server;
        self
    }

    /// As [`Setup::tls`], and the server knows clients by theirs.
    #[must_use]
    pub fn mutual_tls(mut self) -> Self {
        self.tls = Tls::Mutual;
        self
    }

    /// Adds the users `root:rootpw`, who may do everything, and `locker:lockpw`, who has the
    /// [documented rights](super::documented_rights) below `lock/`.
    #[must_use]
    pub fn auth(mut self) -> Self {
        self.auth = true;
        self
    }

    /// Lets a login end that was not used for so many seconds, and not for five minutes.
    #[must_use]
    pub fn login_lasts(mut self, seconds: u32) -> Self {
        self.args.push(format!("--auth-token-ttl={seconds}").into());
        self
    }

    /// How many operations it takes in one transaction.
    #[must_use]
    pub fn max_txn_ops(mut self, most: usize) -> Self {
        self.args.push(format!("--max-txn-ops={most}").into());
        self
    }

    fn start_once(&self) -> Result<Etcd> {
        let node = Node::new(&self.place);
        let members = node.member("s1");
        let etcd = node.launch("s1", &members, self.tls, &self.args)?;
        etcd.server.wait_ready()?;
        if self.auth {
            etcd.client.make_users()?;
        }
        Ok(etcd)
    }
}

/// The addresses of all members, which must be known before the first is started.
pub(super) struct Node {
    place: Place,
    client: Port,
    peer: Port,
}

impl Node {
    pub(super) fn new(place: &Place) -> Self {
        Self {
            place: place.clone(),
            client: Port::new(),
            peer: Port::new(),
        }
    }

    /// Its entry in the list of members.
    pub(super) fn member(&self, name: &str) -> String {
        format!("{name}=http://{}:{}", self.place.ip(), self.peer)
    }

    pub(super) fn launch(
        self,
        name: &str,
        members: &str,
        tls: Tls,
        args: &[std::ffi::OsString],
    ) -> Result<Etcd> {
        let dir = Dir::new("etcd");
        let client = Client {
            address: (self.place.ip(), self.client.number()).into(),
            tls,
            users: Arc::new(AtomicBool::new(false)),
        };
        let peer = format!("http://{}:{}", self.place.ip(), self.peer);
        let data = dir.path().join("data");
        let recipe = Recipe::new("etcd", &self.place)
            .args([
                "--name",
                name,
                "--initial-cluster-state",
                "new",
                "--initial-cluster",
                members,
            ])
            .args(["--data-dir".into(), data.into_os_string()])
            .args([
                "--listen-client-urls",
                &client.url(),
                "--advertise-client-urls",
                &client.url(),
            ])
            // Both, or it takes its well-known port as well.
            .args([
                "--listen-peer-urls",
                &peer,
                "--initial-advertise-peer-urls",
                &peer,
            ])
            .args(tls_args(tls))
            .args(args);
        let probe = Box::new({
            let client = client.clone();
            move || client.probe()
        });
        let server = Server::launch(recipe, dir, vec![self.client, self.peer], probe)?;
        let identity = Identity {
            name: name.to_owned(),
            members: members.to_owned(),
            peer,
        };
        Ok(Etcd {
            server,
            client,
            identity,
        })
    }
}

fn tls_args(tls: Tls) -> Vec<std::ffi::OsString> {
    let certs = certs_if(tls);
    let mut args = Vec::new();
    if let Some(certs) = certs {
        args.extend([
            "--cert-file".into(),
            certs.server.clone().into(),
            "--key-file".into(),
            certs.server_key.clone().into(),
        ]);
    }
    // An authority alone already makes client certificates a must.
    if let (Some(certs), Tls::Mutual) = (certs, tls) {
        args.extend([
            "--client-cert-auth".into(),
            "--trusted-ca-file".into(),
            certs.ca.clone().into(),
        ]);
    }
    args
}

fn certs_if(tls: Tls) -> Option<&'static crate::Certs> {
    (tls != Tls::None).then(certs)
}

/// One etcd server. [`Server`] has the faults.
#[derive(Debug)]
pub struct Etcd {
    server: Server,
    client: Client,
    identity: Identity,
}

server!(Etcd);

/// The settings that a member needs again when its data are restored.
#[derive(Debug)]
struct Identity {
    name: String,
    members: String,
    peer: String,
}

impl Etcd {
    /// Where it listens for clients.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.client.address
    }

    /// The same as a URL of etcd's own kind. TLS also needs the authority: [`crate::certs()`].
    #[must_use]
    pub fn url(&self) -> String {
        self.client.url()
    }

    /// Runs etcd's own tool as the first user, and returns what it says.
    ///
    /// # Panics
    ///
    /// When it fails.
    #[track_caller]
    pub fn etcdctl(&self, words: &[&str]) -> String {
        self.try_etcdctl(words).or_panic()
    }

    /// As [`Etcd::etcdctl`], for a server that may be down: says what the tool says of that.
    pub fn try_etcdctl(&self, words: &[&str]) -> Result<String, String> {
        self.client
            .etcdctl(words)
            .map_err(|failure| failure.to_string())
    }

    /// Saves a snapshot of its data, for [`Etcd::restore`].
    ///
    /// # Panics
    ///
    /// When it cannot be saved.
    #[must_use]
    #[track_caller]
    pub fn snapshot(&self) -> PathBuf {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let file = self.server.dir().join(format!(
            "snapshot-{}",
            NUMBER.fetch_add(1, Ordering::Relaxed)
        ));
        self.etcdctl(&["snapshot", "save", &file.display().to_string()]);
        file
    }

    /// Kills it, puts the data of a snapshot in the place of its own, and starts it again on the
    /// same port. `token` is that of the cluster: with `etcd-cluster`, the default, it is the same
    /// cluster as before, by its number; with any other it is not.
    ///
    /// For a server that is alone.
    ///
    /// # Panics
    ///
    /// When it does not start.
    #[track_caller]
    pub fn restore(&self, snapshot: &Path, token: &str) {
        self.restore_data(snapshot, token).or_panic();
        self.server.restart();
    }

    fn restore_data(&self, snapshot: &Path, token: &str) -> Result<()> {
        let data = self.server.dir().join("data");
        self.server.kill();
        std::fs::remove_dir_all(&data)?;
        let Identity {
            name,
            members,
            peer,
        } = &self.identity;
        // Since etcd 3.5 a tool of its own does it, and since 3.6 that alone.
        let mut restore = command::command("etcdutl").or_else(|_| command::command("etcdctl"))?;
        restore
            .env("ETCDCTL_API", "3")
            .args(["snapshot", "restore"])
            .arg(snapshot)
            .arg("--data-dir")
            .arg(&data);
        restore.args([
            "--name",
            name,
            "--initial-cluster",
            members,
            "--initial-advertise-peer-urls",
            peer,
        ]);
        restore.args(["--initial-cluster-token", token]);
        command::run(restore, TOOL_LIMIT).map(drop)
    }

    /// Whether it is the leader, by its own word.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        if self.client.tls != Tls::None {
            // The columns of the simple form are others in each version.
            let status = self
                .client
                .etcdctl(&["endpoint", "status", "-w", "json"])
                .unwrap_or_default();
            let id = |word: &str| {
                let after = status
                    .split(&format!("\"{word}\":"))
                    .nth(1)?
                    .trim_start_matches('"');
                after
                    .split(|other: char| !other.is_ascii_digit())
                    .next()?
                    .parse::<u64>()
                    .ok()
            };
            return id("leader").is_some_and(|leader| Some(leader) == id("member_id"));
        }
        probe::get(self.address(), "/metrics")
            .is_ok_and(|metrics| metrics.contains("\netcd_server_is_leader 1"))
    }

    /// Its own counters, from its page `/metrics`. Not with TLS.
    ///
    /// # Errors
    ///
    /// When it does not answer.
    pub fn metrics(&self) -> Result<String, String> {
        probe::get(self.address(), "/metrics")
    }

    pub(super) fn wait_ready(&self) -> Result<()> {
        self.server.wait_ready()
    }

    /// Makes the users of the whole cluster.
    pub(super) fn make_users(&self) -> Result<()> {
        self.client.make_users()
    }

    /// Another member has made the users.
    pub(super) fn has_users(&self) {
        self.client.users.store(true, Ordering::Relaxed);
    }
}

/// How to talk to it.
#[derive(Clone, Debug)]
struct Client {
    address: SocketAddr,
    tls: Tls,
    /// Set once the users exist, also for the probe.
    users: Arc<AtomicBool>,
}

impl Client {
    fn url(&self) -> String {
        let scheme = if self.tls == Tls::None {
            "http"
        } else {
            "https"
        };
        format!("{scheme}://{}", self.address)
    }

    fn probe(&self) -> Result<(), String> {
        if self.tls == Tls::None {
            return probe::get(self.address, "/health").map(drop);
        }
        self.etcdctl(&["endpoint", "health"])
            .map(drop)
            .map_err(|failure| failure.to_string())
    }

    fn etcdctl(&self, words: &[&str]) -> Result<String> {
        let mut etcdctl = command::command("etcdctl")?;
        etcdctl
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.url()]);
        if let Some(certs) = certs_if(self.tls) {
            etcdctl.arg("--cacert").arg(&certs.ca);
        }
        if self.tls == Tls::Mutual {
            etcdctl
                .arg("--cert")
                .arg(&certs().client)
                .arg("--key")
                .arg(&certs().client_key);
        }
        if self.users.load(Ordering::Relaxed) {
            etcdctl.args(["--user", "root:rootpw"]);
        }
        etcdctl.args(words);
        command::run(etcdctl, TOOL_LIMIT)
    }

    fn make_users(&self) -> Result<()> {
        let root = [
            "user add root:rootpw",
            "role add root",
            "user grant-role root root",
        ]
        .map(str::to_owned);
        let rights = super::documented_rights();
        for words in root
            .into_iter()
            .chain(rights)
            .chain(["auth enable".to_owned()])
        {
            self.etcdctl(&words.split(' ').collect::<Vec<_>>())?;
        }
        self.users.store(true, Ordering::Relaxed);
        Ok(())
    }
}
