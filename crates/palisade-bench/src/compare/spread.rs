//! A figure of several rounds.

use crate::figure;

/// The median, the least and the greatest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) greatest: f64,
}

impl Spread {
    /// Of at least one value.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Spread {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        Spread {
            median: at(values.len() / 2),
            least: at(0),
            greatest: at(values.len().saturating_sub(1)),
        }
    }

    /// Prints it as one figure.
    pub(crate) fn print(self, what: &str, unit: &str) {
        figure(what, self.median, format!("{unit} {self}").trim_start());
    }
}

/// The least and the greatest, as they follow the median.
impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Decimals of large figures carry no information.
        let decimals = if self.greatest >= 1000.0 { 0 } else { 3 };
        write!(
            f,
            "({:.decimals$}..{:.decimals$})",
            self.least, self.greatest
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_the_middle_and_both_ends() {
        let spread = Spread::of([3.0, 1.0, 2.0, 9.0, 4.0]);
        assert_eq!(
            spread,
            Spread {
                median: 3.0,
                least: 1.0,
                greatest: 9.0
            }
        );
        assert_eq!(spread.to_string(), "(1.000..9.000)");
        assert_eq!(Spread::of([1000.0, 2000.4]).to_string(), "(1000..2000)");
    }
}
