//! From text to [`StoreUrl`]: scheme, login, hosts, path, and the words after `?`.

use percent_encoding::percent_decode_str;

use super::query::{Common, Words};
use super::secret::Secret;
use super::{StoreUrl, bad, host};
use crate::error::Result;

/// A URL cut into its parts, nothing decoded yet.
struct Parts<'a> {
    scheme: &'a str,
    /// The part between `//` and the path; empty where there is no `//`.
    authority: &'a str,
    path: &'a str,
    query: &'a str,
}

pub(super) fn store_url(text: &str) -> Result<StoreUrl> {
    let parts = split(text)?;
    refuse_stray_at(&parts)?;
    let (user_info, hosts) = match parts.authority.split_once('@') {
        Some((user_info, hosts)) => (Some(user_info), hosts),
        None => (None, parts.authority),
    };
    let (user, password) = logins(user_info.unwrap_or_default())?;
    let hosts = match (user_info, hosts) {
        (None, "") => Vec::new(),
        _ => host::parse_list(hosts)?,
    };
    let path = decoded(parts.path, "path")?;
    let mut words = Words::parse(parts.query)?;
    let common = Common::take_from(&mut words)?;
    Ok(StoreUrl {
        scheme: parts.scheme.to_ascii_lowercase(),
        user,
        password,
        hosts,
        path,
        words,
        common,
    })
}

fn split(text: &str) -> Result<Parts<'_>> {
    if text.chars().any(char::is_control) {
        return Err(bad(
            "it has a control character, perhaps the line end of the file it came from",
        ));
    }
    if text.contains('#') {
        return Err(bad(
            "it has a '#'; there are no fragments, and in a password, path or value it is written %23",
        ));
    }
    let (scheme, rest) = text
        .split_once(':')
        .filter(|(scheme, _)| is_scheme(scheme))
        .ok_or_else(no_scheme)?;
    let (before_query, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = match before_query.strip_prefix("//") {
        Some(hosts) => hosts.split_at(hosts.find('/').unwrap_or(hosts.len())),
        None => ("", before_query),
    };
    Ok(Parts {
        scheme,
        authority,
        path,
        query,
    })
}

fn no_scheme() -> crate::Error {
    bad(
        "it does not begin with a scheme; write for example redis://host:6379, sqlite:/path or memory:",
    )
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

/// Refuses an `@` that may end a password with a bare `/`, `?` or `@` in it, or a login without its
/// `//`.
///
/// This comes first, so that no later message can name a part of that password. A path that cannot
/// be a login, because it has no hosts before it and begins as a path does, may have one:
/// `/var/lib/worker@1/locks.db`. `Display` hides it all the same.
fn refuse_stray_at(parts: &Parts<'_>) -> Result<()> {
    let local = parts.authority.is_empty() && parts.path.starts_with(['/', '.']);
    let stray = parts.query.contains('@')
        || parts.path.contains('@') && !local
        || parts.authority.bytes().filter(|&byte| byte == b'@').count() > 1;
    match stray {
        true => Err(bad(
            "an '@' stands once, between login and hosts: scheme://user:password@host. Write any other one as %40; \
             in a password also '/' as %2F, '?' as %3F and '%' as %25",
        )),
        false => Ok(()),
    }
}

fn logins(user_info: &str) -> Result<(Option<Secret>, Option<Secret>)> {
    let (user, password) = match user_info.split_once(':') {
        Some((user, password)) => (user, Some(password)),
        None => (user_info, None),
    };
    let user = Some(user)
        .filter(|user| !user.is_empty())
        .map(|user| decoded(user, "user"))
        .transpose()?;
    let password = password
        .map(|password| decoded(password, "password"))
        .transpose()?;
    Ok((user.map(Secret::new), password.map(Secret::new)))
}

/// Decodes `%xx`. `part` names the part for the message.
pub(super) fn decoded(text: &str, part: &str) -> Result<String> {
    if text.split('%').skip(1).any(|after| {
        !after
            .as_bytes()
            .get(..2)
            .is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit))
    }) {
        return Err(bad(format!(
            "the {part} has a '%' without two hex digits after it; write %25 for the '%' itself"
        )));
    }
    let decoded = percent_decode_str(text)
        .decode_utf8()
        .map_err(|_| bad(format!("the {part} is not UTF-8 when decoded")))?;
    match decoded.chars().any(char::is_control) {
        true => Err(bad(format!("the {part} has a control character"))),
        false => Ok(decoded.into_owned()),
    }
}
