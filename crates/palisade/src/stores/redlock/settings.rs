//! The words of the URL.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::stores::redis::Keys;
use crate::stores::redis::client::{Address, ClientSettings};
use crate::url::StoreUrl;

pub(super) struct Settings {
    pub(super) keys: Keys,
    pub(super) servers: Vec<(Address, ClientSettings)>,
    /// A server that has run for less does not vote: it may have lost a grant of this length.
    /// `None`: every server votes.
    pub(super) longest_lease: Option<Duration>,
}

/// The longest lease where the URL sets none: the age at which a server votes.
const LONGEST_LEASE: Duration = Duration::from_secs(60);
/// A server that leaves a request unanswered for so long is given up. The others decide without it.
const LONGEST_SILENCE: Duration = Duration::from_secs(1);
/// More servers cost each claim more, and survive nothing more that is likely.
const MOST_SERVERS: usize = 31;

const WORDS: [&str; 3] = ["unsafe-count", "young", "longest_lease"];

impl Settings {
    pub(super) fn read(mut url: StoreUrl) -> Result<Settings> {
        let any_count = is(&mut url, "unsafe-count", "yes")?;
        let young_vote = is(&mut url, "young", "vote")?;
        let longest = url.take_duration("longest_lease")?;
        url.finish(&WORDS)?;
        let common = url.common();
        if common
            .format
            .as_deref()
            .is_some_and(|format| format != "simple")
        {
            return Err(Error::bad_url(match common.format.as_deref() {
                Some("redisson") => {
                    "bad store URL: redlock: has no format=redisson: Redisson's RedLock counts no time against \
                     the lease, and may hold a lock that has ended; write redis: for one deployment with format=redisson"
                }
                _ => "bad store URL: format= of redlock: is simple",
            }));
        }
        let mut servers = ClientSettings::of_each(&url)?;
        for (_, settings) in &mut servers {
            settings.request_timeout = settings.request_timeout.min(LONGEST_SILENCE);
        }
        let count = servers.len();
        if count > MOST_SERVERS {
            return Err(Error::bad_url(format!(
                "bad store URL: redlock: takes at most {MOST_SERVERS} servers"
            )));
        }
        if !any_count && (count < 3 || count.is_multiple_of(2)) {
            return Err(Error::bad_url(format!(
                "bad store URL: {count} is no good number of servers: a majority must survive, and two \
                 halves must not; write 3, 5 or 7 independent servers, or ?unsafe-count=yes"
            )));
        }
        let longest_lease = match (young_vote, longest) {
            (true, Some(_)) => {
                return Err(Error::bad_url(
                    "bad store URL: longest_lease= is the age at which a server votes; with young=vote it has no meaning",
                ));
            }
            (true, None) => None,
            (false, Some(lease)) if lease < super::CAPABILITY.min_lease => {
                return Err(Error::bad_url(
                    "bad store URL: longest_lease= is shorter than the shortest lease",
                ));
            }
            (false, lease) => Some(lease.unwrap_or(LONGEST_LEASE)),
        };
        Ok(Settings {
            keys: Keys::of_simple(common)?,
            servers,
            longest_lease,
        })
    }
}

/// Whether a word is there, with the only value that it takes.
fn is(url: &mut StoreUrl, word: &str, value: &str) -> Result<bool> {
    match url.take(word).as_deref() {
        None => Ok(false),
        Some(given) if given == value => Ok(true),
        Some(_) => Err(Error::bad_url(format!(
            "bad store URL: write {word}={value}, or leave it out"
        ))),
    }
}
