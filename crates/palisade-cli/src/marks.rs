//! What `--min-hold`, `--once-per` and `once` leave of a name, in words and in JSON.

use std::time::{Duration, SystemTime};

use palisade::show_duration;
use palisade::store::{Holder, LineView, Marks};
use serde_json::Value;

use crate::rfc3339;

/// The line without the holders that have gone and only keep it closed by their min-hold.
pub(crate) fn without_ghosts(mut line: LineView) -> LineView {
    if line.marks.closed_for.is_some() {
        let is_live = |holder: &Holder| holder.lease_left != Some(Duration::ZERO);
        line.holders.retain(is_live);
    }
    line
}

/// One sentence for each mark.
pub(crate) fn in_words(marks: &Marks) -> Vec<String> {
    let mut words = Vec::new();
    if let Some(left) = marks.closed_for {
        words.push(format!("closed until {}", in_future(left)));
    }
    if let Some(ago) = marks.ran_ago {
        let due = marks
            .due_in
            .map(|left| format!(", due again {}", in_future(left)));
        words.push(format!(
            "ran at {}{}",
            in_past(ago),
            due.unwrap_or_default()
        ));
    }
    if let Some(left) = marks.done_for {
        words.push(format!("done, and remembered until {}", in_future(left)));
    }
    words
}

/// A time to come, and how long that is.
pub(crate) fn in_future(left: Duration) -> String {
    let at = SystemTime::now().checked_add(left);
    let at = at.map_or_else(|| "the end of time".to_owned(), rfc3339::to_second);
    format!("{at} (in {})", show_duration(left))
}

/// A time that has passed, and how long ago.
pub(crate) fn in_past(ago: Duration) -> String {
    let at = SystemTime::now()
        .checked_sub(ago)
        .unwrap_or(SystemTime::UNIX_EPOCH);
    format!("{} ({} ago)", rfc3339::to_second(at), show_duration(ago))
}

/// Adds a field for each mark.
pub(crate) fn add_to(object: &mut Value, marks: &Marks) {
    let now = SystemTime::now();
    let coming = |left: Option<Duration>| left.and_then(|left| now.checked_add(left));
    let times = [
        ("closed_until", coming(marks.closed_for)),
        ("ran_at", marks.ran_ago.and_then(|ago| now.checked_sub(ago))),
        ("due_at", coming(marks.due_in)),
        ("done_until", coming(marks.done_for)),
    ];
    for (field, time) in times {
        if let Some(time) = time {
            object[field] = rfc3339::of(time).into();
        }
    }
}
