//! Finding the nodes of a claim that we do not know.

use std::sync::Arc;

use super::claims::{ClaimLocation, LEASES, LOCKS};
use super::client::proto::{Request, Stat};
use super::client::{Failed, OrMissing, Session};
use super::queue_rules::{Recipe, lease_prefix};
use super::value::Value;

/// A node of a claim.
pub(super) struct Found {
    pub(super) path: String,
    /// The line that it stands in; `None` for a permit.
    pub(super) recipe: Option<Recipe>,
    pub(super) stat: Stat,
    pub(super) value: Value,
}

const RECIPES: [Recipe; 5] = [
    Recipe::Mutex,
    Recipe::Write,
    Recipe::Read,
    Recipe::KazooLock,
    Recipe::KazooRead,
];

/// Every node of a claim, whatever it was made as. Only the name and the mark of the claim are
/// compared.
pub(super) async fn search(
    session: &Arc<Session>,
    ClaimLocation { base, guid, .. }: &ClaimLocation,
) -> Result<Vec<Found>, Failed> {
    let sync = session.send(Request::sync("/"));
    let dirs = [
        base.to_owned(),
        format!("{base}/{LOCKS}"),
        format!("{base}/{LEASES}"),
    ];
    let lists = dirs
        .each_ref()
        .map(|dir| session.send(Request::children(dir)));
    sync.answer().await?;
    let mut paths = Vec::new();
    for (dir, list) in dirs.iter().zip(lists) {
        for child in list.answer().await.or_missing()?.unwrap_or_default() {
            let recipe = RECIPES
                .into_iter()
                .find(|recipe| child.starts_with(&recipe.prefix(guid)));
            if recipe.is_some() || child.starts_with(&lease_prefix(guid)) {
                paths.push((format!("{dir}/{child}"), recipe));
            }
        }
    }
    let mut found = Vec::new();
    for (path, recipe) in paths {
        if let Some((data, stat)) = session.ask(Request::get_data(&path)).await.or_missing()? {
            found.push(Found {
                value: Value::read(&data, &path)?,
                path,
                recipe,
                stat,
            });
        }
    }
    Ok(found)
}
