//! A server's own words about itself: its answer to the four-letter word `srvr`, which servers allow
//! unless they are configured otherwise.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::connection::Stream;
use super::settings::Settings;
use crate::store::ServerInfo;
use crate::url::Host;

/// No server says more.
const LONGEST: u64 = 16 << 10;

impl Settings {
    /// Asks the first server of the URL that answers. One that does not say what it is is shown
    /// without version and role.
    pub(crate) async fn server_info(&self) -> ServerInfo {
        for host in &self.hosts {
            let asking = tokio::time::timeout(self.connect_timeout, self.ask(host));
            if let Ok(Ok(answer)) = asking.await {
                return read(&answer, host);
            }
        }
        ServerInfo {
            product: PRODUCT.to_owned(),
            ..ServerInfo::default()
        }
    }

    async fn ask(&self, host: &Host) -> std::io::Result<String> {
        let address = (host.name.as_str(), host.port.unwrap_or_default());
        let stream = TcpStream::connect(address).await?;
        let mut stream: Box<dyn Stream> = match &self.tls {
            Some(tls) => tls.wrap(stream, host).await?,
            None => Box::new(stream),
        };
        stream.write_all(b"srvr").await?;
        stream.flush().await?;
        let mut answer = String::new();
        stream.take(LONGEST).read_to_string(&mut answer).await?;
        Ok(answer)
    }
}

const PRODUCT: &str = "zookeeper";

fn read(answer: &str, host: &Host) -> ServerInfo {
    let after = |word: &str| {
        let mut lines = answer.lines();
        lines.find_map(|line| line.strip_prefix(word)?.strip_prefix(": "))
    };
    // 3.8.4-9316c2a7…, built on …
    let version = after("Zookeeper version").and_then(|version| version.split(['-', ',']).next());
    ServerInfo {
        product: PRODUCT.to_owned(),
        version: version.map(str::to_owned),
        role: after("Mode").map(str::to_owned),
        address: Some(host.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_names_its_version_and_its_role() {
        let host = Host {
            name: "z1".to_owned(),
            port: Some(2181),
        };
        let said = "Zookeeper version: 3.8.4-9316c2a7, built on 2024-02-12\nMode: follower\n";
        let info = read(said, &host);
        assert_eq!(info.version.as_deref(), Some("3.8.4"));
        assert_eq!(info.role.as_deref(), Some("follower"));
        assert_eq!(info.address.as_deref(), Some("z1:2181"));
        let refused = read(
            "srvr is not executed because it is not in the whitelist.",
            &host,
        );
        assert_eq!((refused.version, refused.role), (None, None));
    }
}
