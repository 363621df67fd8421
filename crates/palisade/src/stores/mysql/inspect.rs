//! Shows one line, or lists lines page by page.

use super::backend::Backend;
use super::client::How;
use super::table::{self, PAGE};
use crate::error::{Error, Result};
use crate::name::Name;
use crate::store::Page;

pub(super) async fn show(backend: &Backend, name: &Name, waiters: bool) -> Result<Page> {
    let statement = backend.texts.show(&backend.settings.key(name), waiters);
    let done = backend.run(&statement, How::URGENT).await?;
    let (lines, ..) = table::views(&done.rows, &backend.settings)?;
    Ok(Page { lines, next: None })
}

/// One page. `after` is the last key of the page before, in hex.
pub(super) async fn list(backend: &Backend, prefix: &str, after: Option<&str>) -> Result<Page> {
    let after = after.map(read_token).unwrap_or(Some(Vec::new()));
    let after = after
        .ok_or_else(|| Error::config("unknown page token; pass the `next` of the previous page"))?;
    let statement = backend.texts.list(&backend.settings.begin(prefix), &after);
    let done = backend.run(&statement, How::URGENT).await?;
    let (lines, last, keys) = table::views(&done.rows, &backend.settings)?;
    let next = last.filter(|_| keys == PAGE);
    let next = next.map(|key| key.iter().map(|byte| format!("{byte:02x}")).collect());
    Ok(Page { lines, next })
}

fn read_token(token: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u32>> = token.chars().map(|digit| digit.to_digit(16)).collect();
    let byte = |pair: &[u32]| u8::try_from(pair.first()? * 16 + pair.get(1)?).ok();
    digits?.chunks(2).map(byte).collect()
}
