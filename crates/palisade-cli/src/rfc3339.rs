//! Times as JSON has them: RFC 3339, in UTC.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A time, to the millisecond.
pub(crate) fn of(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let (seconds, millis) = (since.as_secs(), since.subsec_millis());
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// A time for people, to the second.
pub(crate) fn to_second(time: SystemTime) -> String {
    let text = of(time);
    let (second, _) = text.split_once('.').unwrap_or((&text, ""));
    format!("{second}Z")
}

/// The date of a day since 1970, by Howard Hinnant's `civil_from_days`: years begin in March, so
/// that the leap day is the last.
fn date(day: u64) -> (u64, u64, u64) {
    let day = day + 719_468;
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let (month, after) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    (era * 400 + year + after, month, date)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, "2000-02-28T23:59:59.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_709_164_800, "2024-02-29T00:00:00.000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(of(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
        let time = UNIX_EPOCH + Duration::from_millis(1_700_000_000_123);
        assert_eq!(of(time), "2023-11-14T22:13:20.123Z");
        assert_eq!(to_second(time), "2023-11-14T22:13:20Z");
    }
}
