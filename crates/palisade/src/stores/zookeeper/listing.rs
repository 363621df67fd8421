//! What people see of the lines.

use std::sync::Arc;

use super::failure::Failed;
use super::known::{LEASES, LOCKS};
use super::proto::{self, Code, Request, Stat};
use super::recipe::Recipe;
use super::session::{Sent, Session};
use super::settings::Format;
use super::shared::{Shared, fence_of};
use super::value::Value;
use crate::error::Result;
use crate::fence::Fence;
use crate::name::Name;
use crate::store::{Holder, Kind, LineView, Mode, Page, Query, Waiter};

/// How many names one page has, and how many are looked at in one go.
const NAMES: usize = 500;

/// One kind of line of a name.
pub(super) struct Line {
    kind: Kind,
    pub(super) entries: Vec<Entry>,
    /// How many of the entries hold, from the first on.
    pub(super) held: usize,
    waiters_known: bool,
}

/// One node of a line.
pub(super) struct Entry {
    pub(super) path: String,
    stat: Stat,
    value: Value,
    mode: Mode,
}

impl Entry {
    pub(super) fn fence(&self) -> Fence {
        fence_of(self.stat.czxid)
    }
}

impl Shared {
    pub(super) async fn inspect(self: &Arc<Self>, query: &Query) -> Result<Page> {
        let session = self.any_session().await?;
        let sync = session.send(Request::sync("/"));
        match query {
            Query::Show(name) => {
                sync.answer().await?;
                let lines = self.lines(&session, &self.settings.dir(name)?).await?;
                Ok(Page { lines: lines.iter().map(|line| view(name, line)).collect(), next: None })
            }
            Query::List { prefix, after } => {
                sync.answer().await?;
                Ok(self.list(&session, prefix, after.as_deref()).await?)
            }
        }
    }

    async fn list(self: &Arc<Self>, session: &Arc<Session>, prefix: &str, after: Option<&str>) -> Result<Page, Failed> {
        let children = match session.ask(Request::children(self.settings.root(), false)).await {
            Ok(body) => proto::children(&body)?,
            Err(failed) if failed.is(Code::NoNode) => Vec::new(),
            Err(failed) => return Err(failed),
        };
        let mut nodes: Vec<(String, Name)> = children
            .into_iter()
            .filter(|node| self.settings.root() != "/" || node != "zookeeper")
            .filter_map(|node| self.settings.name(&node).map(|name| (node, name)))
            .filter(|(node, name)| name.as_str().starts_with(prefix) && after.is_none_or(|after| node.as_str() > after))
            .collect();
        nodes.sort();
        let next = if nodes.len() > NAMES { nodes.get(NAMES - 1).map(|(node, _)| node.clone()) } else { None };
        nodes.truncate(NAMES);
        let mut page = Page { lines: Vec::new(), next };
        let looks: Vec<_> = nodes
            .iter()
            .map(|(node, _)| session.send(Request::children(&format!("{}/{node}", self.settings.chroot), false)))
            .collect();
        for ((node, name), look) in nodes.iter().zip(looks) {
            let base = format!("{}/{node}", self.settings.chroot);
            for line in self.lines_below(session, &base, look).await? {
                page.lines.push(view(name, &line));
            }
        }
        Ok(page)
    }

    /// The lines of one name: one for each kind that has somebody in it.
    pub(super) async fn lines(self: &Arc<Self>, session: &Arc<Session>, base: &str) -> Result<Vec<Line>, Failed> {
        let look = session.send(Request::children(base, false));
        self.lines_below(session, base, look).await
    }

    async fn lines_below(self: &Arc<Self>, session: &Arc<Session>, base: &str, look: Sent) -> Result<Vec<Line>, Failed> {
        let children = match look.answer().await {
            Ok(body) => proto::children(&body)?,
            Err(failed) if failed.is(Code::NoNode) => return Ok(Vec::new()),
            Err(failed) => return Err(failed),
        };
        if self.settings.format == Format::Plain {
            return self.plain_line(session, base).await;
        }
        let recipes = match self.settings.format {
            Format::Kazoo => [Some(Recipe::KazooWrite), None],
            _ => [Some(Recipe::Mutex), Some(Recipe::Write)],
        };
        let mut lines = Vec::new();
        for recipe in recipes.into_iter().flatten() {
            let (line, held) = recipe.line(&children);
            let line: Vec<&str> = line.into_iter().filter(|child| *child != LOCKS).collect();
            let is_shared = line.iter().any(|child| recipe.is_shared(child));
            let modes = line.iter().map(|child| if recipe.is_shared(child) { Mode::Shared } else { Mode::Exclusive });
            let paths: Vec<(String, Mode)> = line.iter().map(|child| format!("{base}/{child}")).zip(modes).collect();
            let kind = if recipe == Recipe::Write || is_shared { Kind::RwLock } else { Kind::Mutex };
            let entries = self.entries(session, paths).await?;
            if !entries.is_empty() {
                lines.push(Line { kind, held: held.min(entries.len()), entries, waiters_known: true });
            }
        }
        if children.iter().any(|child| child == LEASES) {
            lines.extend(self.permits_line(session, base).await?);
        }
        Ok(lines)
    }

    /// Who holds permits, and who waits for some.
    async fn permits_line(&self, session: &Arc<Session>, base: &str) -> Result<Option<Line>, Failed> {
        let (leases, locks) = (format!("{base}/{LEASES}"), format!("{base}/{LOCKS}"));
        let asked = [&leases, &locks].map(|dir| session.send(Request::children(dir, false)));
        let limit = session.send(Request::get_data(&leases, false));
        let mut lists = Vec::new();
        for asked in asked {
            lists.push(match asked.answer().await {
                Ok(body) => proto::children(&body)?,
                Err(failed) if failed.is(Code::NoNode) => Vec::new(),
                Err(failed) => return Err(failed),
            });
        }
        let limit = match limit.answer().await {
            Ok(body) => Value::read(&proto::data(&body)?.0, base)?.limit,
            Err(_) => None,
        };
        let (mut held, waiting) = (lists.remove(0), lists.remove(0));
        held.sort_by(|one, other| one.rsplit('-').next().cmp(&other.rsplit('-').next()));
        let paths = |dir: &str, nodes: Vec<&str>| -> Vec<(String, Mode)> {
            nodes.iter().map(|node| (format!("{dir}/{node}"), Mode::Permits(1))).collect()
        };
        let mut entries = self.entries(session, paths(&leases, held.iter().map(String::as_str).collect())).await?;
        let held = entries.len();
        let (line, _) = Recipe::Mutex.line(&waiting);
        entries.extend(self.entries(session, paths(&locks, line)).await?);
        let limit = limit.or_else(|| entries.iter().find_map(|entry| entry.value.limit)).unwrap_or(0);
        let line = Line { kind: Kind::Semaphore { limit }, held, entries, waiters_known: true };
        Ok((!line.entries.is_empty()).then_some(line))
    }

    /// What the nodes say; without those that are gone meanwhile.
    async fn entries(&self, session: &Arc<Session>, paths: Vec<(String, Mode)>) -> Result<Vec<Entry>, Failed> {
        let reads: Vec<Sent> = paths.iter().map(|(path, _)| session.send(Request::get_data(path, false))).collect();
        let mut entries = Vec::new();
        for ((path, mode), read) in paths.into_iter().zip(reads) {
            match read.answer().await {
                Ok(body) => {
                    let (data, stat) = proto::data(&body)?;
                    let node = path.rsplit('/').next().unwrap_or_default();
                    entries.push(Entry { value: Value::read(&data, node)?, path, stat, mode });
                }
                Err(failed) if failed.is(Code::NoNode) => {}
                Err(failed) => return Err(failed),
            }
        }
        Ok(entries)
    }

    /// The one node of the format plain.
    async fn plain_line(&self, session: &Arc<Session>, base: &str) -> Result<Vec<Line>, Failed> {
        let mut entries = self.entries(session, vec![(base.to_owned(), Mode::Exclusive)]).await?;
        // A node that does not hang on a session is nobody's lock.
        entries.retain(|entry| entry.stat.owner != 0);
        let line = Line { kind: Kind::Mutex, held: 1, entries, waiters_known: false };
        Ok(if line.entries.is_empty() { Vec::new() } else { vec![line] })
    }
}

/// A line as people see it. The permits of one claim were taken in one step, and are one holder.
fn view(name: &Name, line: &Line) -> LineView {
    let mut holders: Vec<Holder> = Vec::new();
    for entry in line.entries.iter().take(line.held) {
        match holders.last_mut() {
            Some(Holder { mode: Mode::Permits(count), fence, .. }) if *fence == entry.fence() => *count += 1,
            _ => holders.push(Holder {
                owner: entry.value.owner.clone(),
                reason: entry.value.reason.clone(),
                fence: entry.fence(),
                mode: entry.mode,
                held: None,
                lease_left: None,
            }),
        }
    }
    let waiters = line.entries.iter().skip(line.held).map(|entry| Waiter {
        owner: entry.value.owner.clone(),
        reason: entry.value.reason.clone(),
        mode: entry.mode,
        waited: None,
    });
    LineView {
        name: name.as_str().to_owned(),
        kind: line.kind,
        holders,
        waiters: waiters.collect(),
        waiters_known: line.waiters_known,
    }
}
