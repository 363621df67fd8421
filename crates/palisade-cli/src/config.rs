//! Which store: flag, file, profile, environment, or a file of the user's own.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use palisade::{Client, Error, ErrorKind, StoreUrl};
use serde::Deserialize;

use crate::args::Common;
use crate::exit::Failure;
use crate::notice::{Notices, copy_store_flags, quoted};

/// How long the end of the client may take: a withdrawal or a release is on its way.
const FAREWELL: Duration = Duration::from_secs(1);
/// The same, where the store has just left requests unanswered.
pub(crate) const SHORT_FAREWELL: Duration = Duration::from_millis(50);

/// A client, and its URL's scheme. Dropping it ends the client, so that it leaves nothing behind.
pub(crate) struct Store {
    locks: Option<Client>,
    pub(crate) scheme: String,
    farewell: Cell<Duration>,
}

impl Store {
    pub(crate) fn locks(&self) -> &Client {
        self.locks
            .as_ref()
            .expect("there until the store is dropped")
    }
}

impl Store {
    /// The failure that an error of this store makes.
    pub(crate) fn failed(&self, error: Error) -> Failure {
        if error.kind() == ErrorKind::Unavailable {
            self.is_silent();
        }
        error.into()
    }

    /// Where the store keeps a name, for people to find it there; `None` where it keeps it as it is.
    pub(crate) fn key_of(&self, name: &str) -> Option<String> {
        self.locks().key(name).ok()?
    }

    /// Says it, under `-v`.
    pub(crate) fn explain_key(&self, name: &str, notices: Notices) {
        if let Some(key) = self.key_of(name) {
            notices.explain(&format!("{name}: key {key}"));
        }
    }

    /// The store does not answer: there is no point in waiting for it when this ends.
    pub(crate) fn is_silent(&self) {
        self.farewell.set(SHORT_FAREWELL);
    }

    /// The end of the client may take until then, or a moment where that has passed.
    pub(crate) fn leave_by(&self, end: Instant) {
        let left = end.saturating_duration_since(Instant::now());
        self.farewell.set(left.max(SHORT_FAREWELL));
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Some(locks) = self.locks.take() {
            let _ = locks.close(self.farewell.get());
        }
    }
}

/// Connects to the store that the command line, the configuration or the environment names. Nothing
/// is asked yet.
pub(crate) fn connect(common: &Common, notices: Notices) -> Result<Store, Failure> {
    let url = url(common, notices)?;
    copy_store_flags(store_flags(common));
    let parsed = StoreUrl::parse(&url).map_err(|error| Failure::of_url(&error))?;
    let locks = Client::connect(&url).map_err(|error| Failure::of_url(&error))?;
    Ok(Store {
        locks: Some(locks),
        scheme: parsed.scheme().to_owned(),
        farewell: Cell::new(FAREWELL),
    })
}

/// The flags that have chosen the store. A URL that may hold a password is not repeated.
fn store_flags(common: &Common) -> String {
    let path = |path: &Path| quoted(&path.to_string_lossy());
    match (&common.url, &common.url_file, &common.profile) {
        (Some(url), ..) if url.contains('@') => "--url URL".to_owned(),
        (Some(url), ..) => format!("--url {}", quoted(url)),
        (_, Some(file), _) => format!("--url-file {}", path(file)),
        (.., Some(profile)) => format!("--profile {}", quoted(profile)),
        _ => String::new(),
    }
}

fn url(common: &Common, notices: Notices) -> Result<String, Failure> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    if let Some(url) = &common.url {
        return Ok(url.clone());
    }
    if let Some(path) = &common.url_file {
        return read_url(path);
    }
    if let Some(profile) = &common.profile {
        return of_profile(profile);
    }
    if let Some(url) = variable("PALISADE_URL") {
        return Ok(url);
    }
    if let Some(path) = variable("PALISADE_URL_FILE") {
        return read_url(Path::new(&path));
    }
    if let Some(profile) = variable("PALISADE_PROFILE") {
        return of_profile(&profile);
    }
    let path = own_file()?;
    notices.explain(&format!(
        "no store given: using your own file {}",
        path.display()
    ));
    Ok(format!("sqlite:{}", escaped(&path)))
}

fn read_url(path: &Path) -> Result<String, Failure> {
    let url = fs::read_to_string(path)
        .map_err(|error| Failure::config(format!("{}: {error}", path.display())))?;
    Ok(url.trim().to_owned())
}

/// The user's own file; its folder is made, for the user alone.
fn own_file() -> Result<PathBuf, Failure> {
    let folder = base_folder("XDG_STATE_HOME", ".local/state")?.join("palisade");
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder);
    made.map_err(|error| {
        Failure::config(format!(
            "{}: cannot be made: {error}; give --url",
            folder.display()
        ))
    })?;
    Ok(folder.join("locks.db"))
}

fn base_folder(variable: &str, below_home: &str) -> Result<PathBuf, Failure> {
    // A relative path is to be ignored, says the specification of these variables.
    if let Some(folder) = std::env::var_os(variable)
        .map(PathBuf::from)
        .filter(|folder| folder.is_absolute())
    {
        return Ok(folder);
    }
    let home = std::env::home_dir().filter(|home| home.is_absolute());
    home.map(|home| home.join(below_home))
        .ok_or_else(|| Failure::config("you have no home directory; give --url"))
}

/// A path as a part of a URL.
fn escaped(path: &Path) -> String {
    let text = path.to_string_lossy();
    text.replace('%', "%25")
        .replace('?', "%3F")
        .replace('#', "%23")
        .replace('@', "%40")
}

/// The configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    #[serde(default)]
    profiles: BTreeMap<String, Profile>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Profile {
    url: Option<String>,
    url_file: Option<PathBuf>,
}

fn of_profile(name: &str) -> Result<String, Failure> {
    let path = base_folder("XDG_CONFIG_HOME", ".config")?.join("palisade/config.toml");
    let shown = path.display();
    let text =
        fs::read_to_string(&path).map_err(|error| Failure::config(format!("{shown}: {error}")))?;
    // The parser's own message would quote the line, and the line may hold a password.
    let config: Config = toml::from_str(&text).map_err(|error| {
        let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].lines().count().max(1));
        Failure::config(format!(
            "{shown}: not understood near line {line}; it has tables [profiles.NAME] with url = \"…\" or url_file = \"…\""
        ))
    })?;
    let known: Vec<&str> = config.profiles.keys().map(String::as_str).collect();
    let Some(profile) = config.profiles.get(name) else {
        return Err(Failure::config(format!(
            "{shown}: has no profile {name}; it has: {}",
            known.join(", ")
        )));
    };
    match (&profile.url, &profile.url_file) {
        (Some(url), None) => Ok(url.clone()),
        (None, Some(file)) => read_url(file),
        _ => Err(Failure::config(format!(
            "{shown}: profile {name} needs either url or url_file"
        ))),
    }
}
