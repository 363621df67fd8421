//! Single nodes, read and written in the ZooKeeper of a URL: for data beside the locks.

use std::sync::Arc;
use std::time::Duration;

use super::failure::{Failed, OrMissing, client_ended};
use super::proto::{ANY, Code, Make, Request, Step, Undone};
use super::session::Session;
use super::settings::Settings;
use crate::error::{Error, Result};

/// A connection to ZooKeeper for reading and writing nodes, with whole paths: the path of its URL
/// is not put before them.
///
/// It is opened at first use, and again when it was lost. It must be used within a tokio runtime,
/// always the same one.
#[derive(Clone)]
pub struct Nodes {
    settings: Arc<Settings>,
    session: Arc<tokio::sync::Mutex<Option<Arc<Session>>>>,
}

/// One change of a write.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change<'a> {
    Create {
        path: &'a str,
        data: &'a [u8],
    },
    Set {
        path: &'a str,
        data: &'a [u8],
        version: Option<i32>,
    },
    Delete {
        path: &'a str,
        version: Option<i32>,
    },
}

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrote {
    Done,
    /// The node that was to be there is not.
    NotThere,
    /// This change could not be made, counted from 0: the node is there already, is not there, or
    /// has another version.
    Refused(usize),
}

/// Why a write has no good answer: it may have been made or not, or it was not.
#[derive(Debug)]
pub(crate) enum NodeError {
    Unanswered(Error),
    Failed(Error),
}

impl From<Failed> for NodeError {
    fn from(failed: Failed) -> NodeError {
        match failed {
            Failed::Unsure(error) => NodeError::Unanswered(error),
            other => NodeError::Failed(other.into()),
        }
    }
}

impl Nodes {
    /// A connection to the servers of this URL, which may be that of the locks. Parses and returns:
    /// the first use connects.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) for a URL that is not one of ZooKeeper, or cannot be
    /// used.
    pub fn at(url: &str) -> Result<Nodes> {
        let mut url: crate::url::StoreUrl = url.parse()?;
        if !matches!(url.scheme(), "zk" | "zks") {
            return Err(Error::bad_url(
                "nodes are in ZooKeeper; write zk://host or zks://host",
            ));
        }
        Ok(Nodes {
            settings: Arc::new(Settings::read(&mut url)?),
            session: Arc::default(),
        })
    }

    async fn session(&self) -> Result<Arc<Session>, Failed> {
        let (settings, kept) = (Arc::clone(&self.settings), Arc::clone(&self.session));
        // As a task: a caller that is not polled must not hold the lock.
        let opening = tokio::spawn(async move {
            let mut kept = kept.lock().await;
            if let Some(session) = kept.as_ref().filter(|session| !session.is_gone()) {
                return Ok(Arc::clone(session));
            }
            // Nothing hangs on it: its length does not matter.
            let session = Session::open(&settings, Duration::from_secs(10), None)
                .await
                .map_err(Failed::Never)?;
            *kept = Some(Arc::clone(&session));
            Ok(session)
        });
        opening.await.unwrap_or_else(|_| Err(client_ended().into()))
    }

    /// The data of a node and its version, as the leader knows it at this moment.
    pub(crate) async fn get(&self, path: &str) -> Result<Option<(Vec<u8>, i32)>, NodeError> {
        let mut again = true;
        loop {
            let session = self.session().await?;
            let sync = session.send(Request::sync("/"));
            let read = session.send(Request::get_data(path));
            match (sync.answer().await, read.answer().await.or_missing()) {
                (Ok(()), Ok(there)) => return Ok(there.map(|(data, stat)| (data, stat.version))),
                // It was idle for so long that the server has hung up.
                (Err(Failed::Unsure(_) | Failed::Ended), _) if again => again = false,
                (Err(failed), _) | (_, Err(failed)) => return Err(failed.into()),
            }
        }
    }

    /// Makes these changes, all or none, if the node `there` is there.
    pub(crate) async fn write(
        &self,
        there: Option<&str>,
        changes: &[Change<'_>],
    ) -> Result<Wrote, NodeError> {
        let mut steps: Vec<Step<'_>> = Vec::new();
        steps.extend(there.map(|path| Step::Check { path, version: ANY }));
        let first = steps.len();
        let acl = self.settings.acl();
        steps.extend(changes.iter().map(|change| match *change {
            Change::Create { path, data } => Step::Create {
                path,
                data,
                acl,
                make: Make::Persistent,
            },
            Change::Set {
                path,
                data,
                version,
            } => Step::SetData {
                path,
                data,
                version: version.unwrap_or(ANY),
            },
            Change::Delete { path, version } => Step::Delete {
                path,
                version: version.unwrap_or(ANY),
            },
        }));
        let session = self.session().await?;
        let Err(Undone { code, step }) = session.ask(Request::multi(&steps)).await? else {
            return Ok(Wrote::Done);
        };
        match (code, step.unwrap_or(0).checked_sub(first)) {
            (Code::NoNode, None) => Ok(Wrote::NotThere),
            (Code::NoNode | Code::NodeExists | Code::BadVersion | Code::NotEmpty, Some(at)) => {
                Ok(Wrote::Refused(at))
            }
            (other, _) => Err(Failed::Refused(other).into()),
        }
    }
}

/// Without the login.
impl std::fmt::Debug for Nodes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nodes")
            .field("hosts", &self.settings.hosts)
            .finish_non_exhaustive()
    }
}
