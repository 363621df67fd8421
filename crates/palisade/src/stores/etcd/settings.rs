//! What the URL says: the format of the locks, and the settings of the client below them.

use super::client::names::Names;
use super::client::settings::Endpoints;
use crate::error::{Error, Result};
use crate::url::StoreUrl;

/// How locks are written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// As `concurrency.Mutex` of etcd's own Go client, and so `etcdctl lock`.
    Mutex,
    /// The same keys, created only while the name is free: without a queue.
    Plain,
}

pub(super) struct Settings {
    pub(super) format: Format,
    pub(super) endpoints: Endpoints,
    pub(super) names: Names,
}

impl Settings {
    pub(super) fn read(url: &StoreUrl) -> Result<Settings> {
        let format = match url.common().format.as_deref() {
            None | Some("mutex") => Format::Mutex,
            Some("plain") => Format::Plain,
            Some(_) => {
                return Err(Error::bad_url(
                    "bad store URL: format= of etcd: is mutex or plain",
                ));
            }
        };
        Ok(Settings {
            format,
            endpoints: Endpoints::read(url)?,
            names: Names::read(url)?,
        })
    }
}
