//! The text of a statement in the words of a database.

use super::{Dialect, Driver, Param};

/// A statement, and which value stands at each of its places.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Statement {
    pub(crate) text: String,
    /// For each place, the number of its value, from 0 on.
    order: Vec<usize>,
}

impl Statement {
    /// From a text with `"name"` and `$1`. It has no strings in it, and no name has a quote or `$`.
    pub(crate) fn of<D: Driver>(standard: &str) -> Statement {
        match D::DIALECT {
            Dialect::Postgres => Statement {
                text: standard.to_owned(),
                order: (0..highest(standard)).collect(),
            },
            Dialect::Mysql => in_order(standard),
        }
    }

    /// The values, one for each place.
    pub(crate) fn places<'p, V>(&self, values: &[Param<'p, V>]) -> Vec<Param<'p, V>> {
        let at = |number: &usize| values.get(*number).copied();
        self.order.iter().filter_map(at).collect()
    }
}

/// The highest number of a place.
fn highest(standard: &str) -> usize {
    let numbers = standard.split('$').skip(1).filter_map(number);
    numbers.max().unwrap_or(0)
}

fn number(rest: &str) -> Option<usize> {
    let end = rest.find(|letter: char| !letter.is_ascii_digit());
    rest.get(..end.unwrap_or(rest.len()))?.parse().ok()
}

/// With `?` for each place, in the order of the text.
fn in_order(standard: &str) -> Statement {
    let mut parts = standard.split('$');
    let mut text = parts.next().unwrap_or_default().to_owned();
    let mut order = Vec::new();
    for part in parts {
        order.extend(number(part).and_then(|number| number.checked_sub(1)));
        text.push('?');
        text.push_str(part.trim_start_matches(|letter: char| letter.is_ascii_digit()));
    }
    Statement {
        text: text.replace('"', "`"),
        order,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_in_the_order_of_the_text() {
        let standard =
            r#"UPDATE "t" SET "f" = $2, "c" = $3, "d" = $12 WHERE "k" = $1 AND "f" < $2"#;
        let statement = in_order(standard);
        assert_eq!(
            statement.text,
            "UPDATE `t` SET `f` = ?, `c` = ?, `d` = ? WHERE `k` = ? AND `f` < ?"
        );
        assert_eq!(statement.order, [1, 2, 11, 0, 1]);
        assert_eq!(highest(standard), 12);
    }
}
