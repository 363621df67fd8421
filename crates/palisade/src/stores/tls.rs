//! The files that the TLS words of a store URL name: the authority to trust, and the client's own
//! certificate.

#[cfg(any(feature = "redis", feature = "zookeeper-tls", feature = "postgres"))]
mod connector;

use std::path::Path;

use crate::error::{Error, Result};
use crate::url::Common;

/// The contents of the files of `ca=`, `cert=` and `key=`.
pub(super) struct Pems {
    pub(super) ca: Option<Vec<u8>>,
    /// Our own certificate, and its key.
    pub(super) own: Option<(Vec<u8>, Vec<u8>)>,
}

impl Pems {
    pub(super) fn read(common: &Common) -> Result<Pems> {
        let ca = common
            .ca
            .as_deref()
            .map(|path| read("ca", path))
            .transpose()?;
        let own = match (&common.cert, &common.key) {
            (Some(cert), Some(key)) => Some((read("cert", cert)?, read("key", key)?)),
            (None, None) => None,
            _ => return Err(Error::bad_url("bad store URL: cert= and key= go together")),
        };
        Ok(Pems { ca, own })
    }
}

fn read(word: &str, path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|cause| {
        Error::bad_url(format!("{word}= cannot be read: {cause}")).with_source(cause)
    })
}
