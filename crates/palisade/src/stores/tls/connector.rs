//! TLS for stores that open their connections themselves.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use super::Pems;
use crate::error::{Error, Result};

impl Pems {
    pub(in crate::stores) fn connector(&self) -> Result<TlsConnector> {
        let mut roots = RootCertStore::empty();
        match &self.ca {
            Some(ca) => {
                for certificate in certificates("ca", ca)? {
                    roots
                        .add(certificate)
                        .map_err(|cause| unusable("ca", cause))?;
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
        let config = match &self.own {
            None => config.with_no_client_auth(),
            Some((cert, key)) => {
                let key =
                    PrivateKeyDer::from_pem_slice(key).map_err(|cause| unusable("key", cause))?;
                config
                    .with_client_auth_cert(certificates("cert", cert)?, key)
                    .map_err(|cause| unusable("cert", cause))?
            }
        };
        Ok(TlsConnector::from(Arc::new(config)))
    }
}

fn certificates(word: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let read: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match read.map_err(|cause| unusable(word, cause))? {
        none if none.is_empty() => Err(Error::bad_url(format!(
            "{word}= has no certificate in it; it must be a PEM file"
        ))),
        certificates => Ok(certificates),
    }
}

fn unusable(word: &str, cause: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::bad_url(format!("{word}= cannot be used: {cause}")).with_source(cause)
}
