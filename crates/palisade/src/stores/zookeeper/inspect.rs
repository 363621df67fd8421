//! The lines as people see them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::backend::Backend;
use super::claims::{LEASES, LOCKS, fence_of};
use super::client::proto::{Request, Stat};
use super::client::{Failed, OrMissing, Sent, Session};
use super::queue_rules::Recipe;
use super::settings::{Format, Settings};
use super::value::Value;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::name::Name;
use crate::store::{Holder, Kind, LineView, Marks, Mode, Page, Query, Waiter};

/// How many names one page has, and how many are read in one go.
const NAMES: usize = 500;

/// How long the rest of a list is kept for the next page.
const KEPT: Duration = Duration::from_secs(60);

/// The rest of the list whose page was read last: all names are read once for a list, not once for
/// each page.
#[derive(Default)]
pub(super) struct Listing(Mutex<Option<Rest>>);

struct Rest {
    prefix: String,
    /// The token of the page that comes next.
    after: String,
    nodes: Vec<(String, Name)>,
    read: Instant,
}

impl Listing {
    /// The nodes behind `after`, if they are the rest of the list that was read last.
    fn take(&self, prefix: &str, after: Option<&str>) -> Option<Vec<(String, Name)>> {
        let rest = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()?;
        let is_it = rest.prefix == prefix
            && Some(rest.after.as_str()) == after
            && rest.read.elapsed() < KEPT;
        is_it.then_some(rest.nodes)
    }

    fn keep(&self, prefix: &str, after: &str, nodes: Vec<(String, Name)>) {
        let rest = Rest {
            prefix: prefix.to_owned(),
            after: after.to_owned(),
            nodes,
            read: Instant::now(),
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(rest);
    }
}

/// One kind of line of a name.
pub(super) struct Line {
    kind: Kind,
    pub(super) nodes: Vec<Node>,
    /// How many of the nodes hold, from the first on.
    pub(super) held: usize,
    waiters_known: bool,
}

/// One node of a line.
pub(super) struct Node {
    pub(super) path: String,
    stat: Stat,
    value: Value,
    mode: Mode,
}

impl Node {
    pub(super) fn fence(&self) -> Fence {
        fence_of(self.stat.czxid)
    }
}

impl Backend {
    pub(super) async fn inspect(&self, query: &Query) -> Result<Page> {
        let session = self.any_session().await?;
        let sync = session.send(Request::sync("/"));
        let reader = Reader {
            settings: &self.settings,
            session: &session,
            holders_only: matches!(query, Query::Leader(_)),
        };
        let page = match query {
            Query::Show(name) | Query::Leader(name) => {
                let lines = reader.lines(&self.settings.dir(name)?).await?;
                Page {
                    lines: lines.iter().map(|line| view(name, line)).collect(),
                    next: None,
                }
            }
            Query::List { prefix, after } => {
                reader.list(prefix, after.as_deref(), &self.listing).await?
            }
        };
        // Sent before the reads, and answered before them.
        sync.answer().await?;
        Ok(page)
    }
}

/// Reads lines by a session.
pub(super) struct Reader<'a> {
    pub(super) settings: &'a Settings,
    pub(super) session: &'a Arc<Session>,
    pub(super) holders_only: bool,
}

impl Reader<'_> {
    /// One page. `after` is the last node of the page before.
    async fn list(&self, prefix: &str, after: Option<&str>, listing: &Listing) -> Result<Page> {
        let nodes = match listing.take(prefix, after) {
            Some(nodes) => nodes,
            None => self.named_nodes(prefix, after).await?,
        };
        let mut nodes = nodes.into_iter();
        let page_nodes: Vec<(String, Name)> = nodes.by_ref().take(NAMES).collect();
        let next = page_nodes
            .last()
            .filter(|_| nodes.len() > 0)
            .map(|(node, _)| node.clone());
        let Settings { chroot, .. } = self.settings;
        let bases = page_nodes
            .into_iter()
            .map(|(node, name)| (format!("{chroot}/{node}"), name));
        let asked: Vec<_> = bases
            .map(|(base, name)| (self.session.send(Request::children(&base)), base, name))
            .collect();
        let mut lines = Vec::new();
        for (children, base, name) in asked {
            let line = self.lines_below(&base, children).await.map_err(Error::from);
            let line = line.map(|lines| lines.iter().map(|line| view(&name, line)).collect());
            lines.extend(LineView::or_unreadable(&name, line)?);
        }
        if let Some(next) = &next {
            listing.keep(prefix, next, nodes.collect());
        }
        Ok(Page { lines, next })
    }

    /// The nodes of all names that begin so, behind a node, in their order.
    async fn named_nodes(
        &self,
        prefix: &str,
        after: Option<&str>,
    ) -> Result<Vec<(String, Name)>, Failed> {
        let children = self
            .session
            .ask(Request::children(self.settings.root()))
            .await
            .or_missing()?;
        let mut nodes: Vec<(String, Name)> = children
            .unwrap_or_default()
            .into_iter()
            .filter(|node| self.settings.root() != "/" || node != "zookeeper")
            .filter_map(|node| self.settings.name(&node).map(|name| (node, name)))
            .filter(|(node, name)| {
                name.as_str().starts_with(prefix) && after.is_none_or(|after| node.as_str() > after)
            })
            .collect();
        nodes.sort();
        Ok(nodes)
    }

    /// The lines of one name: one for each kind that is in use.
    pub(super) async fn lines(&self, base: &str) -> Result<Vec<Line>, Failed> {
        self.lines_below(base, self.session.send(Request::children(base)))
            .await
    }

    async fn lines_below(
        &self,
        base: &str,
        children: Sent<Vec<String>>,
    ) -> Result<Vec<Line>, Failed> {
        let Some(children) = children.answer().await.or_missing()? else {
            return Ok(Vec::new());
        };
        let recipes: &[Recipe] = match self.settings.format {
            Format::Plain => return self.plain_line(base).await,
            Format::Kazoo => &[Recipe::KazooWrite],
            Format::Curator => &[Recipe::Mutex, Recipe::Write],
        };
        let mut lines = Vec::new();
        for recipe in recipes {
            let (line, held) = recipe.line(&children);
            let most = if self.holders_only { held } else { line.len() };
            let line = line.into_iter().filter(|child| *child != LOCKS).take(most);
            let modes = line.map(|child| {
                (
                    child,
                    if recipe.is_shared(child) {
                        Mode::Shared
                    } else {
                        Mode::Exclusive
                    },
                )
            });
            let paths: Vec<(String, Mode)> = modes
                .map(|(child, mode)| (format!("{base}/{child}"), mode))
                .collect();
            let is_shared = paths.iter().any(|(_, mode)| *mode == Mode::Shared);
            let kind = if *recipe == Recipe::Write || is_shared {
                Kind::RwLock
            } else {
                Kind::Mutex
            };
            let nodes = self.nodes(paths).await?;
            if !nodes.is_empty() {
                lines.push(Line {
                    kind,
                    held: held.min(nodes.len()),
                    nodes,
                    waiters_known: true,
                });
            }
        }
        if children.iter().any(|child| child == LEASES) {
            lines.extend(self.permits_line(base).await?);
        }
        Ok(lines)
    }

    /// The holders of permits, and the waiters.
    async fn permits_line(&self, base: &str) -> Result<Option<Line>, Failed> {
        let (leases, locks) = (format!("{base}/{LEASES}"), format!("{base}/{LOCKS}"));
        let [held, waiting] =
            [&leases, &locks].map(|dir| self.session.send(Request::children(dir)));
        let limit = self.session.send(Request::get_data(&leases));
        let mut held = held.answer().await.or_missing()?.unwrap_or_default();
        let waiting = waiting.answer().await.or_missing()?.unwrap_or_default();
        let limit = match limit.answer().await {
            Ok((data, _)) => Value::read(&data, base)?.limit,
            Err(_) => None,
        };
        held.sort_by(|one, other| one.rsplit('-').next().cmp(&other.rsplit('-').next()));
        let path = |dir: &str, node: &str| (format!("{dir}/{node}"), Mode::Permits(1));
        let mut nodes = self
            .nodes(held.iter().map(|node| path(&leases, node)).collect())
            .await?;
        let held = nodes.len();
        let (line, _) = Recipe::Mutex.line(&waiting);
        let line = if self.holders_only { Vec::new() } else { line };
        nodes.extend(
            self.nodes(line.iter().map(|node| path(&locks, node)).collect())
                .await?,
        );
        let limit = limit
            .or_else(|| nodes.iter().find_map(|node| node.value.limit))
            .unwrap_or(0);
        let line = Line {
            kind: Kind::Semaphore { limit },
            held,
            nodes,
            waiters_known: true,
        };
        Ok((!line.nodes.is_empty()).then_some(line))
    }

    /// Reads nodes; without those that are gone meanwhile.
    async fn nodes(&self, paths: Vec<(String, Mode)>) -> Result<Vec<Node>, Failed> {
        let reads: Vec<_> = paths
            .iter()
            .map(|(path, _)| self.session.send(Request::get_data(path)))
            .collect();
        let mut nodes = Vec::new();
        for ((path, mode), read) in paths.into_iter().zip(reads) {
            if let Some((data, stat)) = read.answer().await.or_missing()? {
                let name = path.rsplit('/').next().unwrap_or_default();
                nodes.push(Node {
                    value: Value::read(&data, name)?,
                    path,
                    stat,
                    mode,
                });
            }
        }
        Ok(nodes)
    }

    /// The one node of the format plain.
    async fn plain_line(&self, base: &str) -> Result<Vec<Line>, Failed> {
        let mut nodes = self.nodes(vec![(base.to_owned(), Mode::Exclusive)]).await?;
        // A node that does not hang on a session is no lock.
        nodes.retain(|node| node.stat.owner != 0);
        let line = Line {
            kind: Kind::Mutex,
            held: 1,
            nodes,
            waiters_known: false,
        };
        Ok(if line.nodes.is_empty() {
            Vec::new()
        } else {
            vec![line]
        })
    }
}

/// A line as people see it. The permits of one claim were taken in one step, and are one holder.
fn view(name: &Name, line: &Line) -> LineView {
    let mut holders: Vec<Holder> = Vec::new();
    for node in line.nodes.iter().take(line.held) {
        match holders.last_mut() {
            Some(Holder {
                mode: Mode::Permits(count),
                fence,
                ..
            }) if *fence == node.fence() => *count += 1,
            _ => holders.push(Holder {
                owner: node.value.owner.clone(),
                reason: node.value.reason.clone(),
                fence: node.fence(),
                mode: node.mode,
                held: None,
                lease_left: None,
            }),
        }
    }
    let waiters = line.nodes.iter().skip(line.held).map(|node| Waiter {
        owner: node.value.owner.clone(),
        reason: node.value.reason.clone(),
        mode: node.mode,
        waited: None,
    });
    LineView {
        name: name.as_str().to_owned(),
        kind: line.kind,
        holders,
        waiters: waiters.collect(),
        waiters_known: line.waiters_known,
        marks: Marks::default(),
        error: None,
    }
}
