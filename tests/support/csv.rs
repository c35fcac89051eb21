//! The text of an order from the tokens of a record.

/// The text of an order as CSV.
pub(crate) fn csv(ranks: &[Vec<&str>]) -> String {
    ranks.iter().map(|tokens| tokens.join(",") + "\n").collect()
}
