//! TLS, for `zks:`. A cargo feature of its own: `zookeeper-tls`.

use tokio::net::TcpStream;

use super::connection::Stream;
use crate::error::{Error, Result};
use crate::url::{Host, StoreUrl};

#[cfg(feature = "zookeeper-tls")]
pub(super) use self::on::Tls;

/// Never made: this build has no TLS.
#[cfg(not(feature = "zookeeper-tls"))]
pub(super) enum Tls {}

#[cfg(not(feature = "zookeeper-tls"))]
impl Tls {
    pub(super) fn of(url: &StoreUrl) -> Result<Option<Tls>> {
        if url.scheme() == "zks" {
            return Err(Error::bad_url(
                "zks: is not compiled in; build with the feature zookeeper-tls",
            ));
        }
        refuse_words(url).map(|()| None)
    }

    pub(super) async fn wrap(&self, _: TcpStream, _: &Host) -> std::io::Result<Box<dyn Stream>> {
        match *self {}
    }
}

fn refuse_words(url: &StoreUrl) -> Result<()> {
    let common = url.common();
    match (&common.ca, &common.cert, &common.key) {
        (None, None, None) => Ok(()),
        _ => Err(Error::bad_url(
            "bad store URL: ca=, cert= and key= are for TLS; write zks: instead of zk:",
        )),
    }
}

#[cfg(feature = "zookeeper-tls")]
mod on {
    use rustls::pki_types::ServerName;
    use tokio_rustls::TlsConnector;

    use super::*;
    use crate::stores::tls::Pems;

    pub(in super::super) struct Tls(TlsConnector);

    impl Tls {
        pub(in super::super) fn of(url: &StoreUrl) -> Result<Option<Tls>> {
            if url.scheme() != "zks" {
                return refuse_words(url).map(|()| None);
            }
            Ok(Some(Tls(Pems::read(url.common())?.connector()?)))
        }

        pub(in super::super) async fn wrap(
            &self,
            stream: TcpStream,
            host: &Host,
        ) -> std::io::Result<Box<dyn Stream>> {
            let name = ServerName::try_from(host.name.clone()).map_err(std::io::Error::other)?;
            Ok(Box::new(self.0.connect(name, stream).await?))
        }
    }
}
