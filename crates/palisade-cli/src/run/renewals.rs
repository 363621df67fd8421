//! Renewals that fail: each is told under `-v`; without it once, when less than half of the lease
//! is left.

use std::time::Instant;

use palisade::show_duration;

use crate::held::Held;
use crate::notice::Notices;

/// What was said about the renewals of one run.
pub(super) struct Renewals {
    notices: Notices,
    /// The failure that lasts, from its first sight.
    failing: Option<Failing>,
}

struct Failing {
    name: String,
    since: Instant,
    error: String,
    is_told: bool,
}

impl Renewals {
    pub(super) fn new(notices: Notices) -> Renewals {
        Renewals {
            notices,
            failing: None,
        }
    }

    /// Says what is new, and answers when to look again without a change.
    pub(super) fn look(&mut self, held: &Held) -> Option<tokio::time::Instant> {
        let Some((name, error)) = held.trouble() else {
            if let Some(failing) = self.failing.take() {
                self.mended(&failing);
            }
            return None;
        };
        let (left, error) = (held.remaining(), error.to_string());
        let failing = self.failing.get_or_insert_with(|| Failing {
            name: name.to_owned(),
            since: Instant::now(),
            error: String::new(),
            is_told: false,
        });
        if failing.error != error {
            self.notices.explain(&format!(
                "{name}: a renewal failed: {error}; {} of the lease left",
                show_duration(left)
            ));
            failing.error = error;
        }
        let half = held.lease() / 2;
        if left >= half {
            return Some(tokio::time::Instant::now() + (left - half));
        }
        if !std::mem::replace(&mut failing.is_told, true) && !self.notices.is_verbose() {
            self.notices.notice(&format!(
                "{name}: cannot be renewed: {}; {} of the lease left",
                failing.error,
                show_duration(left)
            ));
        }
        None
    }

    fn mended(&self, failing: &Failing) {
        let text = format!(
            "{}: renewed again after {}",
            failing.name,
            show_duration(failing.since.elapsed())
        );
        if failing.is_told {
            self.notices.notice(&text);
        } else {
            self.notices.explain(&text);
        }
    }
}
