//! What operators see of the lines.

use super::client::cluster::{Failed, Resend};
use super::client::proto::{KeyValue, RANGE, RangeRequest, RangeResponse, SortOrder, SortTarget};
use super::client::txn::{self, prefix_end};
use super::entry::{Entry, Purpose};
use super::lines::Lines;
use super::marks::leases_of;
use super::queue_rules::holders;
use crate::error::Result;
use crate::name::Name;
use crate::store::{Kind, LineView, Marks, Page, Query};

/// How many keys one page reads.
const KEYS: i64 = 1000;

impl Lines {
    pub(super) async fn inspect(&self, query: &Query) -> Result<Page> {
        match query {
            Query::Show(name) => {
                let line = self
                    .read_line(self.names.line(name).as_bytes())
                    .await?
                    .entries;
                let left = self.leases_left(leases_of(&line)).await?;
                let mut lines: Vec<LineView> =
                    view(name, &line, left.marks(&line)).into_iter().collect();
                let shown = line.iter().filter(|entry| entry.purpose != Purpose::Sealed);
                for (holder, entry) in lines
                    .iter_mut()
                    .flat_map(|view| &mut view.holders)
                    .zip(shown)
                {
                    holder.lease_left = self.cluster.lease_left(entry.lease).await?;
                }
                Ok(Page { lines, next: None })
            }
            Query::List { prefix, after } => Ok(self.list(prefix, after.as_deref()).await?),
            Query::Leader(name) => Ok(self.leader(name).await?),
        }
    }

    /// The first key of a line, unless that only keeps the name closed.
    async fn leader(&self, name: &Name) -> Result<Page, Failed> {
        let first = txn::read_first(self.names.line(name).as_bytes());
        let line = self.read(vec![first]).await?;
        let left = self.leases_left(leases_of(&line.entries)).await?;
        let mut view = view(name, &line.entries, left.marks(&line.entries));
        if let (Some(view), Some(first)) = (&mut view, line.first()) {
            view.holders
                .iter_mut()
                .for_each(|holder| holder.owner = first.leader().value);
            view.holders.retain(|_| first.purpose == Purpose::Claim);
        }
        Ok(Page {
            lines: view.into_iter().collect(),
            next: None,
        })
    }

    async fn range(&self, from: Vec<u8>, to: Vec<u8>, limit: i64) -> Result<RangeResponse, Failed> {
        let request = RangeRequest {
            key: from,
            range_end: to,
            limit,
            sort_order: SortOrder::Ascend.into(),
            sort_target: SortTarget::Key.into(),
            ..RangeRequest::default()
        };
        self.cluster.call(RANGE, request, Resend::IfUnsure).await
    }

    /// The first keys in a range that belong to names, by name; and whether there are more. Keys of
    /// other programs may fill more than one read.
    async fn named_keys(
        &self,
        mut from: Vec<u8>,
        to: Vec<u8>,
    ) -> Result<(Vec<(Name, Vec<KeyValue>)>, bool), Failed> {
        loop {
            let RangeResponse { kvs, more, .. } = self.range(from, to.clone(), KEYS).await?;
            from = kvs.last().map_or_else(Vec::new, |last| last.key.clone());
            let is_over = !more || from.is_empty();
            let mut lines: Vec<(Name, Vec<KeyValue>)> = Vec::new();
            for kv in kvs {
                let Some(name) = self.names.name(&kv.key) else {
                    continue;
                };
                match lines.last_mut() {
                    Some((last, kvs)) if *last == name => kvs.push(kv),
                    _ => lines.push((name, vec![kv])),
                }
            }
            if is_over || !lines.is_empty() {
                return Ok((lines, !is_over));
            }
            // The key behind the last one.
            from.push(0);
        }
    }

    /// One page, from the line whose keys begin with `after`.
    async fn list(&self, beginning: &str, after: Option<&str>) -> Result<Page, Failed> {
        let begins = self.names.names_from(beginning).into_bytes();
        let from = after.map_or_else(|| begins.clone(), |after| after.as_bytes().to_vec());
        // Without a prefix every key of the server is listed.
        let from = if from.is_empty() { vec![0] } else { from };
        let (mut lines, more) = self.named_keys(from, prefix_end(&begins)).await?;
        let mut page = Page::default();
        if more && let Some((last, kvs)) = lines.pop() {
            let line = self.names.line(&last);
            if lines.is_empty() {
                // One line fills the page: it is read as a whole, and the next page begins behind
                // it.
                let whole = self
                    .range(line.clone().into_bytes(), prefix_end(line.as_bytes()), 0)
                    .await?;
                page.next = String::from_utf8(prefix_end(line.as_bytes())).ok();
                lines.push((last, whole.kvs));
            } else {
                drop(kvs);
                page.next = Some(line);
            }
        }
        let lines: Vec<(Name, Result<Vec<Entry>>)> = lines
            .into_iter()
            .map(|(name, kvs)| (name, Entry::read_all(kvs)))
            .collect();
        let readable = lines.iter().filter_map(|(_, line)| line.as_ref().ok());
        let leases = leases_of(readable.flatten());
        let left = self.leases_left(leases).await?;
        for (name, line) in lines {
            let line = line.map(|line| {
                let marks = left.marks(&line);
                view(&name, &line, marks).into_iter().collect()
            });
            page.lines.extend(LineView::or_unreadable(&name, line)?);
        }
        Ok(page)
    }
}

/// A line for operators; `None` when it has neither holders nor waiters nor marks.
fn view(name: &Name, line: &[Entry], marks: Marks) -> Option<LineView> {
    let line: Vec<&Entry> = line
        .iter()
        .filter(|entry| entry.purpose != Purpose::Sealed)
        .collect();
    let Some(first) = line.first() else {
        let view = LineView {
            marks,
            ..LineView::free(name.as_str())
        };
        return (!view.is_free()).then_some(view);
    };
    let owned: Vec<Entry> = line.iter().map(|entry| (*entry).clone()).collect();
    let held = holders(&owned);
    let kinds = line.iter().any(|entry| entry.kind == Kind::RwLock);
    Some(LineView {
        name: name.as_str().to_owned(),
        kind: if kinds && first.kind == Kind::Mutex {
            Kind::RwLock
        } else {
            first.kind
        },
        holders: line.iter().take(held).map(|entry| entry.holder()).collect(),
        waiters: line.iter().skip(held).map(|entry| entry.waiter()).collect(),
        waiters_known: true,
        marks,
        error: None,
    })
}
