//! What people see of the lines.

use super::client::cluster::{Again, Failed};
use super::client::proto::{RANGE, RangeRequest, RangeResponse, SortOrder, SortTarget};
use super::client::txn::prefix_end;
use super::entry::{Entry, Purpose};
use super::queue_rules::holders;
use super::shared::Shared;
use crate::error::Result;
use crate::name::Name;
use crate::store::{Kind, LineView, Page, Query};

/// How many keys one page reads.
const KEYS: i64 = 1000;

impl Shared {
    pub(super) async fn inspect(&self, query: &Query) -> Result<Page> {
        match query {
            Query::Show(name) => {
                let (line, _) = self.read_line(self.settings.names.line(name).as_bytes()).await?;
                let mut lines: Vec<LineView> = view(name, &line).into_iter().collect();
                let shown = line.iter().filter(|entry| entry.purpose != Purpose::Sealed);
                for (holder, entry) in lines.iter_mut().flat_map(|view| &mut view.holders).zip(shown) {
                    holder.lease_left = self.sessions.left(entry.lease).await?;
                }
                Ok(Page { lines, next: None })
            }
            Query::List { prefix, after } => Ok(self.list(prefix, after.as_deref()).await?),
        }
    }

    async fn range(&self, from: Vec<u8>, to: Vec<u8>, limit: i64) -> Result<RangeResponse, Failed> {
        let question = RangeRequest {
            key: from,
            range_end: to,
            limit,
            sort_order: SortOrder::Ascend.into(),
            sort_target: SortTarget::Key.into(),
            ..RangeRequest::default()
        };
        self.cluster.ask(RANGE, question, Again::Freely).await
    }

    /// One page, from the line on whose keys begin with `after`.
    async fn list(&self, beginning: &str, after: Option<&str>) -> Result<Page, Failed> {
        let begins = self.settings.names.names_from(beginning).into_bytes();
        let from = after.map_or_else(|| begins.clone(), |after| after.as_bytes().to_vec());
        // Without a prefix every key of the server is ours to look at.
        let from = if from.is_empty() { vec![0] } else { from };
        let response = self.range(from, prefix_end(&begins), KEYS).await?;
        let more = response.more;
        let mut lines: Vec<(Name, Vec<_>)> = Vec::new();
        for kv in response.kvs {
            let Some(name) = self.settings.names.name(&kv.key) else { continue };
            match lines.last_mut() {
                Some((last, kvs)) if *last == name => kvs.push(kv),
                _ => lines.push((name, vec![kv])),
            }
        }
        let mut page = Page::default();
        if more && let Some((last, kvs)) = lines.pop() {
            let line = self.settings.names.line(&last);
            if lines.is_empty() {
                // One line fills the page: it is read as a whole, and the next page begins behind it.
                let whole = self.range(line.clone().into_bytes(), prefix_end(line.as_bytes()), 0).await?;
                page.next = String::from_utf8(prefix_end(line.as_bytes())).ok();
                lines.push((last, whole.kvs));
            } else {
                drop(kvs);
                page.next = Some(line);
            }
        }
        for (name, kvs) in lines {
            page.lines.extend(view(&name, &Entry::read_all(kvs)?));
        }
        Ok(page)
    }
}

/// A line as people see it; `None` when nobody holds it or waits for it.
fn view(name: &Name, line: &[Entry]) -> Option<LineView> {
    let line: Vec<&Entry> = line.iter().filter(|entry| entry.purpose != Purpose::Sealed).collect();
    let first = line.first()?;
    let owned: Vec<Entry> = line.iter().map(|entry| (*entry).clone()).collect();
    let held = holders(&owned);
    let kinds = line.iter().any(|entry| entry.kind == Kind::RwLock);
    Some(LineView {
        name: name.as_str().to_owned(),
        kind: if kinds && first.kind == Kind::Mutex { Kind::RwLock } else { first.kind },
        holders: line.iter().take(held).map(|entry| entry.holder()).collect(),
        waiters: line.iter().skip(held).map(|entry| entry.waiter()).collect(),
        waiters_known: true,
    })
}
