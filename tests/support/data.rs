//! Reads the tables of `tests/oracle_data/`: one record a line, fields between blanks, groups between bars.

/// The lines of a table without its comments, each cut at its bars into fields.
pub(crate) fn records(table: &str) -> impl Iterator<Item = Vec<Vec<&str>>> {
    let lines = table.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(|line| line.split(" | ").map(|group| group.split_whitespace().collect()).collect())
}

/// A field that must be a number.
pub(crate) fn number(field: &str) -> u32 {
    field.parse().unwrap_or_else(|error| panic!("{field}: {error}"))
}

/// A group of numbers.
pub(crate) fn numbers(group: &[&str]) -> Vec<u32> {
    group.iter().map(|field| number(field)).collect()
}
