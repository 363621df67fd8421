//! TLS, for `zks:`. A cargo feature of its own: `zookeeper-tls`.

use tokio::net::TcpStream;

use super::wire::Stream;
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
            return Err(Error::bad_url("zks: is not compiled in; build with the feature zookeeper-tls"));
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
        _ => Err(Error::bad_url("bad store URL: ca=, cert= and key= are for TLS; write zks: instead of zk:")),
    }
}

#[cfg(feature = "zookeeper-tls")]
mod on {
    use std::path::Path;
    use std::sync::Arc;

    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    use rustls::{ClientConfig, RootCertStore};
    use tokio_rustls::TlsConnector;

    use super::*;

    pub(in super::super) struct Tls(TlsConnector);

    impl Tls {
        pub(in super::super) fn of(url: &StoreUrl) -> Result<Option<Tls>> {
            if url.scheme() != "zks" {
                return refuse_words(url).map(|()| None);
            }
            let common = url.common();
            let mut roots = RootCertStore::empty();
            match &common.ca {
                Some(path) => {
                    for certificate in certificates("ca", path)? {
                        roots.add(certificate).map_err(|cause| unreadable("ca", cause))?;
                    }
                }
                None => {
                    let found = rustls_native_certs::load_native_certs();
                    roots.add_parsable_certificates(found.certs);
                }
            }
            // Chosen here: a program may have two providers in it, and then none is the default.
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let config = ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .map_err(|cause| Error::config("TLS cannot be set up").with_source(cause))?
                .with_root_certificates(roots);
            let config = match (&common.cert, &common.key) {
                (None, None) => config.with_no_client_auth(),
                (Some(cert), Some(key)) => {
                    let key = PrivateKeyDer::from_pem_file(key).map_err(|cause| unreadable("key", cause))?;
                    config.with_client_auth_cert(certificates("cert", cert)?, key).map_err(|cause| unreadable("cert", cause))?
                }
                _ => return Err(Error::bad_url("bad store URL: cert= and key= go together")),
            };
            Ok(Some(Tls(TlsConnector::from(Arc::new(config)))))
        }

        pub(in super::super) async fn wrap(&self, stream: TcpStream, host: &Host) -> std::io::Result<Box<dyn Stream>> {
            let name = ServerName::try_from(host.name.clone()).map_err(std::io::Error::other)?;
            Ok(Box::new(self.0.connect(name, stream).await?))
        }
    }

    fn certificates(word: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>> {
        let read = CertificateDer::pem_file_iter(path).map_err(|cause| unreadable(word, cause))?;
        read.collect::<std::result::Result<_, _>>().map_err(|cause| unreadable(word, cause))
    }

    fn unreadable(word: &str, cause: impl std::error::Error + Send + Sync + 'static) -> Error {
        Error::bad_url(format!("{word}= cannot be used: {cause}")).with_source(cause)
    }
}
