//! Durations as people write and read them.

use std::time::Duration;

use crate::error::{Error, Result};

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// The forms that [`parse_duration`] takes, for messages.
pub(crate) const FORMS: &str =
    "write 500ms, 30s, 5m, 1h or 2d (us too); 1.5s is fine, and a bare number is seconds";

/// Reads `500ms`, `30s`, `5m`, `1h`, `2d`, `250us`, with fractions (`1.5s`, `.5s`); a bare number
/// is seconds.
///
/// The result is exact: what cannot be told in whole nanoseconds is refused, not rounded.
///
/// # Errors
///
/// [`Config`](crate::ErrorKind::Config) for everything else: signs, spaces, exponents, other units,
/// and what no `Duration` can hold.
///
/// ```
/// # use std::time::Duration;
/// use palisade::parse_duration;
/// assert_eq!(parse_duration("1.5s").ok(), Some(Duration::from_millis(1500)));
/// assert_eq!(parse_duration("30").ok(), Some(Duration::from_secs(30)));
/// assert!(parse_duration("-1s").is_err());
/// ```
pub fn parse_duration(text: &str) -> Result<Duration> {
    exact(text)
        .map_err(|why| Error::config(format!("\"{}\" is not a duration: {why}", shortened(text))))
}

fn exact(text: &str) -> Result<Duration, &'static str> {
    const TOO_LONG: &str = "it is too long";
    let (whole, rest) = digits(text);
    let (fraction, unit) = match rest.strip_prefix('.').map(digits) {
        Some(("", _)) => return Err(FORMS),
        Some((fraction, unit)) => (fraction, unit),
        None if whole.is_empty() => return Err(FORMS),
        None => ("", rest),
    };
    let unit = nanos_in(unit).ok_or(FORMS)?;
    let whole = if whole.is_empty() {
        0
    } else {
        whole.parse::<u64>().map_err(|_| TOO_LONG)?
    };
    let nanos = u128::from(whole) * unit
        + fraction_of(unit, fraction).ok_or("it is finer than a nanosecond")?;
    let seconds = u64::try_from(nanos / NANOS_PER_SECOND).map_err(|_| TOO_LONG)?;
    let below = u32::try_from(nanos % NANOS_PER_SECOND).map_err(|_| TOO_LONG)?;
    Ok(Duration::new(seconds, below))
}

/// The ASCII digits that a text begins with, and the rest.
fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().take_while(u8::is_ascii_digit).count())
}

fn nanos_in(unit: &str) -> Option<u128> {
    Some(match unit {
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" | "" => NANOS_PER_SECOND,
        "m" => 60 * NANOS_PER_SECOND,
        "h" => 3_600 * NANOS_PER_SECOND,
        "d" => 86_400 * NANOS_PER_SECOND,
        _ => return None,
    })
}

/// `0.digits` of a unit, in nanoseconds; `None` when that is no whole number.
fn fraction_of(unit: u128, digits: &str) -> Option<u128> {
    // A day has 2^16 · 5^11 · 27 nanoseconds, so that past 16 digits no fraction is whole; and 18
    // cannot overflow below.
    const MOST_DIGITS: usize = 18;
    let digits = digits.trim_end_matches('0');
    if digits.is_empty() {
        return Some(0);
    }
    if digits.len() > MOST_DIGITS {
        return None;
    }
    let scaled = digits.parse::<u128>().ok()? * unit;
    let scale = 10_u128.pow(u32::try_from(digits.len()).ok()?);
    scaled.is_multiple_of(scale).then_some(scaled / scale)
}

/// The text as an error may show it: it came from outside, and may be long or move the cursor.
fn shortened(text: &str) -> String {
    const MOST_CHARS: usize = 40;
    let mut chars = text.chars();
    let mut shown: String = chars
        .by_ref()
        .take(MOST_CHARS)
        .flat_map(char::escape_debug)
        .collect();
    if chars.next().is_some() {
        shown.push('…');
    }
    shown
}

/// A duration for people: at most two units, cut off, never rounded up.
///
/// ```
/// # use std::time::Duration;
/// use palisade::show_duration;
/// assert_eq!(show_duration(Duration::from_millis(1_290)), "1.2s");
/// assert_eq!(show_duration(Duration::from_secs(200)), "3m 20s");
/// assert_eq!(show_duration(Duration::from_micros(450_900)), "450ms");
/// ```
pub fn show_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => below_a_second(duration),
        1..60 => match duration.subsec_millis() / 100 {
            0 => format!("{seconds}s"),
            tenths => format!("{seconds}.{tenths}s"),
        },
        60..3_600 => two_units(seconds / 60, "m", seconds % 60, "s"),
        3_600..86_400 => two_units(seconds / 3_600, "h", seconds / 60 % 60, "m"),
        _ => two_units(seconds / 86_400, "d", seconds / 3_600 % 24, "h"),
    }
}

fn below_a_second(duration: Duration) -> String {
    match duration.subsec_nanos() {
        0 => "0s".to_owned(),
        nanos @ 1..1_000 => format!("{nanos}ns"),
        nanos @ 1_000..1_000_000 => format!("{}us", nanos / 1_000),
        nanos => format!("{}ms", nanos / 1_000_000),
    }
}

fn two_units(big: u64, big_unit: &str, small: u64, small_unit: &str) -> String {
    match small {
        0 => format!("{big}{big_unit}"),
        _ => format!("{big}{big_unit} {small}{small_unit}"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ErrorKind;

    #[test]
    fn accepted() {
        let nanos = |text: &str| parse_duration(text).unwrap().as_nanos();
        let cases = [
            ("500ms", 500_000_000),
            ("30s", 30_000_000_000),
            ("5m", 300_000_000_000),
            ("1h", 3_600_000_000_000),
            ("2d", 172_800_000_000_000),
            ("250us", 250_000),
            ("0", 0),
            ("0.0ms", 0),
            ("30", 30_000_000_000),
            ("007s", 7_000_000_000),
            ("1.5s", 1_500_000_000),
            (".5s", 500_000_000),
            (".5", 500_000_000),
            ("1.1s", 1_100_000_000),
            ("0.3ms", 300_000),
            ("1.000000001s", 1_000_000_001),
            ("0.001us", 1),
            ("1.50000000000000000000000000000s", 1_500_000_000),
            ("0.0000152587890625d", 1_318_359_375),
            (
                "18446744073709551615.999999999s",
                u128::from(u64::MAX) * NANOS_PER_SECOND + 999_999_999,
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(nanos(text), expected, "{text}");
        }
    }

    #[test]
    fn refused() {
        let huge = "9".repeat(400);
        let fine = format!("0.{}d", "1".repeat(35));
        let refused = [
            "",
            " ",
            ".",
            ".s",
            "s",
            "ms",
            "1.",
            "1.s",
            "-1s",
            "+1s",
            "-0",
            "1e3s",
            "1e3",
            "nan",
            "NaN",
            "inf",
            "infinity",
            " 1s",
            "1s ",
            "1 s",
            "1s\n",
            "1S",
            "1ns",
            "1sec",
            "1m30s",
            "1,5s",
            "1..5s",
            "1.5.5s",
            "١s",
            "1_000s",
            "0x10s",
            "0.0001us",
            "0.0000000001s",
            "0.00000000000000000001d",
            "18446744073709551616s",
            "18446744073709551615m",
            "213503982334602d",
            &huge,
            &fine,
        ];
        for text in refused {
            let error = parse_duration(text).expect_err(text);
            assert_eq!(error.kind(), ErrorKind::Config, "{text}");
        }
    }

    #[test]
    fn the_message_is_short_and_has_no_control_characters() {
        let error = parse_duration(&format!("\x1b[31m\u{202e}{}", "9".repeat(900)))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("…") && !error.contains(&"9".repeat(40)),
            "{error}"
        );
        assert!(
            !error.contains('\x1b') && !error.contains('\u{202e}'),
            "{error:?}"
        );
        assert!(
            parse_duration("1 s")
                .unwrap_err()
                .to_string()
                .contains(FORMS)
        );
    }

    #[test]
    fn shown() {
        let cases = [
            (0, "0s"),
            (999, "999ns"),
            (1_999, "1us"),
            (999_999_999, "999ms"),
            (1_000_000_000, "1s"),
            (59_999_999_999, "59.9s"),
            (60_000_000_000, "1m"),
            (3_599_999_999_999, "59m 59s"),
            (3_600_000_000_000, "1h"),
            (86_399_000_000_000, "23h 59m"),
            (90_000_000_000_000, "1d 1h"),
        ];
        for (nanos, expected) in cases {
            assert_eq!(show_duration(Duration::from_nanos(nanos)), expected);
        }
        assert_eq!(show_duration(Duration::MAX), "213503982334601d 7h");
    }

    proptest! {
        #[test]
        fn no_text_panics(text in prop_oneof![any::<String>(), "[0-9]{0,22}(\\.[0-9]{0,45})?(us|ms|s|m|h|d)?"]) {
            let _ = parse_duration(&text);
        }

        #[test]
        fn decimal_seconds_are_exact(seconds in any::<u64>(), nanos in 0..1_000_000_000_u32) {
            let text = format!("{seconds}.{nanos:09}s");
            prop_assert_eq!(parse_duration(&text).unwrap(), Duration::new(seconds, nanos));
        }

        #[test]
        fn what_is_shown_is_never_more_than_it_is(seconds in prop_oneof![0..90_u64, 0..200_000_u64], nanos in 0..1_000_000_000_u32) {
            let duration = Duration::new(seconds, nanos);
            let shown = show_duration(duration);
            let read: Duration = shown.split(' ').filter_map(|part| parse_duration(part).ok()).sum();
            prop_assert!(read <= duration && duration - read <= duration / 10 + Duration::from_micros(1), "{shown}");
        }
    }
}
