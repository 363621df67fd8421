//! `list` and `show`.

use std::io::ErrorKind;

use palisade::blocking::Wait;
use palisade::store::{Holder, Kind, LineView, Mode, Waiter};
use palisade::{Client, show_duration};
use serde_json::{Value, json};

use crate::args::{Common, ListArgs, ShowArgs};
use crate::config;
use crate::exit::{Exit, Failure};
use crate::marks;
use crate::notice::{Notices, print, printable, to_copy, write_out};

/// Prints page by page: a store may have very many names.
pub(crate) fn list(common: &Common, args: &ListArgs, notices: Notices) -> Result<Exit, Failure> {
    let store = config::connect(common, notices)?;
    let head = [
        "NAME",
        "KIND",
        "MODE",
        "HOLDER",
        "FENCE",
        "HELD",
        "LEASE-LEFT",
        "WAITERS",
        "REASON",
    ]
    .map(str::to_owned);
    let (mut rows, mut widths) = (vec![head], Widths::default());
    let mut after = None;
    loop {
        let page = store.locks().list_page(&args.prefix, after).wait()?;
        let lines: Vec<_> = page.lines.into_iter().map(marks::without_ghosts).collect();
        let text = if args.output.json {
            lines
                .iter()
                .map(|line| format!("{}\n", as_json(line, &store.scheme)))
                .collect()
        } else {
            rows.extend(lines.iter().flat_map(rows_of));
            widths.table(&std::mem::take(&mut rows))
        };
        match write_out(&text) {
            // A reader that has gone has seen enough.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(Exit::DONE),
            written => {
                written.map_err(|error| Failure::internal(format!("cannot write: {error}")))?
            }
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(Exit::DONE),
        }
    }
}

/// One row for each holder.
fn rows_of(line: &LineView) -> Vec<[String; 9]> {
    let none = || "-".to_owned();
    if let Some(error) = &line.error {
        let text = format!("error: {error}");
        return vec![[
            line.name.clone(),
            none(),
            none(),
            none(),
            none(),
            none(),
            none(),
            none(),
            text,
        ]];
    }
    let waiters = if line.waiters_known {
        line.waiters.len().to_string()
    } else {
        "?".to_owned()
    };
    let cells = |holder: Option<&Holder>| {
        [
            line.name.clone(),
            line.kind.to_string(),
            holder.map_or_else(none, |holder| holder.mode.to_string()),
            holder.map_or_else(none, |holder| holder.owner.clone()),
            holder.map_or_else(none, |holder| {
                fence(holder).unwrap_or_else(|| "none".to_owned())
            }),
            span(holder.and_then(|holder| holder.held)),
            span(holder.and_then(|holder| holder.lease_left)),
            waiters.clone(),
            holder
                .and_then(|holder| holder.reason.clone())
                .into_iter()
                .chain(marks::in_words(&line.marks))
                .collect::<Vec<_>>()
                .join("; "),
        ]
    };
    match line.holders.as_slice() {
        [] => vec![cells(None)],
        holders => holders.iter().map(|holder| cells(Some(holder))).collect(),
    }
}

pub(crate) fn show(common: &Common, args: &ShowArgs, notices: Notices) -> Result<Exit, Failure> {
    let store = config::connect(common, notices)?;
    let line = store.locks().show(&args.name).wait()?;
    let line = line.map(marks::without_ghosts);
    let line = line.unwrap_or_else(|| free(store.locks(), &args.name));
    let key = store.key_of(&args.name);
    if args.output.json {
        print(&format!("{}\n", as_json(&line, &store.scheme)))?;
        return Ok(Exit::DONE);
    }
    print(&as_text(&line, key))?;
    Ok(Exit::DONE)
}

/// A line without holders and waiters.
pub(crate) fn free(locks: &Client, name: &str) -> LineView {
    LineView {
        waiters_known: locks.capability().waiters_known,
        ..LineView::free(name)
    }
}

fn as_text(line: &LineView, key: Option<String>) -> String {
    let name = printable(&line.name);
    let mut text = Vec::new();
    let marks = marks::in_words(&line.marks);
    if line.holders.is_empty() {
        let state = if marks.is_empty() { "free" } else { "not held" };
        text.push(format!("{name} is {state}"));
    } else {
        text.push(format!("{name}: {}", line.kind));
    }
    if let Some(key) = key {
        text.push(format!("  key: {}", printable(&key)));
    }
    if !marks.is_empty() {
        text.extend(marks.iter().map(|mark| format!("  {mark}")));
        text.push(format!(
            "    clear it: {}",
            to_copy("release", &line.name, "--mark")
        ));
    }
    for holder in &line.holders {
        let fence = fence(holder).unwrap_or_else(|| "none".to_owned());
        let (held, left) = (span(holder.held), span(holder.lease_left));
        text.push(format!(
            "  held by {} ({}) for {held}, fence {fence}, lease left {left}",
            printable(&holder.owner),
            holder.mode
        ));
        if let Some(reason) = &holder.reason {
            text.push(format!("    reason: {}", printable(reason)));
        }
        text.push(format!(
            "    force it open: {}",
            to_copy("release", &line.name, &format!("--fence {fence}"))
        ));
    }
    if !line.waiters_known {
        text.push("  the waiters are not known in this store".to_owned());
    }
    for (place, waiter) in line.waiters.iter().enumerate() {
        text.push(format!(
            "  {}. {} ({}) waits for {}",
            place + 1,
            printable(&waiter.owner),
            waiter.mode,
            span(waiter.waited)
        ));
    }
    text.push(String::new());
    text.join("\n")
}

fn fence(holder: &Holder) -> Option<String> {
    (!holder.fence.is_none()).then(|| holder.fence.to_string())
}

fn span(span: Option<std::time::Duration>) -> String {
    span.map_or_else(|| "?".to_owned(), show_duration)
}

fn as_json(line: &LineView, scheme: &str) -> Value {
    let millis = |span: Option<std::time::Duration>| {
        span.map(|span| u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
    };
    let holder = |holder: &Holder| {
        json!({
            "owner": holder.owner,
            "reason": holder.reason,
            "fence": fence(holder),
            "permits": permits(holder.mode),
            "held_ms": millis(holder.held),
            "lease_left_ms": millis(holder.lease_left),
        })
    };
    let waiter = |waiter: &Waiter| {
        json!({
            "owner": waiter.owner,
            "reason": waiter.reason,
            "mode": mode(waiter.mode),
            "waited_ms": millis(waiter.waited),
        })
    };
    let (kind, limit) = match line.kind {
        Kind::Mutex => ("mutex", None),
        Kind::RwLock => ("rwlock", None),
        Kind::Semaphore { limit } => ("semaphore", Some(limit)),
    };
    let mut object = json!({
        "name": line.name,
        "store": scheme,
        "kind": line.error.is_none().then_some(kind),
        "mode": line.holders.first().map(|holder| mode(holder.mode)),
        "limit": limit,
        "holders": line.holders.iter().map(holder).collect::<Vec<_>>(),
        "waiters": line.waiters.iter().map(waiter).collect::<Vec<_>>(),
        "waiters_known": line.waiters_known,
    });
    marks::add_to(&mut object, &line.marks);
    if let Some(error) = &line.error {
        object["error"] = error.as_str().into();
    }
    object
}

fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => "exclusive",
        Mode::Shared => "shared",
        Mode::Permits(_) => "permits",
    }
}

fn permits(mode: Mode) -> Option<u32> {
    match mode {
        Mode::Permits(count) => Some(count),
        Mode::Exclusive | Mode::Shared => None,
    }
}

pub(crate) fn table<const N: usize>(rows: &[[String; N]]) -> String {
    Widths::default().table(rows)
}

/// The widths of a table's columns so far: they grow from page to page.
struct Widths<const N: usize>([usize; N]);

impl<const N: usize> Default for Widths<N> {
    fn default() -> Widths<N> {
        Widths([0; N])
    }
}

impl<const N: usize> Widths<N> {
    /// Columns as wide as their widest cell; the last is left as it is.
    fn table(&mut self, rows: &[[String; N]]) -> String {
        let rows: Vec<[String; N]> = rows
            .iter()
            .map(|row| row.each_ref().map(|cell| printable(cell)))
            .collect();
        for row in &rows {
            self.0
                .iter_mut()
                .zip(row)
                .for_each(|(width, cell)| *width = cell.chars().count().max(*width));
        }
        let line = |row: &[String; N]| {
            let cells: Vec<String> = row
                .iter()
                .zip(&self.0)
                .map(|(cell, width)| format!("{cell:<width$}"))
                .collect();
            format!("{}\n", cells.join("  ").trim_end())
        };
        rows.iter().map(line).collect()
    }
}
