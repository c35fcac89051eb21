//! Tables for people: numbers right-aligned, one scale a column, the unit in the header.

use comfy_table::{CellAlignment, ContentArrangement, LineStyle, Table, TableStyle};

/// Lines above, below and under the headers, none between rows.
const STYLE: TableStyle = TableStyle::new()
    .top_border(LineStyle::none().fill('─').junction('─'))
    .header_separator(LineStyle::none().fill('─').junction('─'))
    .bottom_border(LineStyle::none().fill('─').junction('─'));

/// A table with these headers, fitted to the terminal; all columns but the first are numbers.
pub fn table(headers: &[String], rows: &[Vec<String>]) -> String {
    let mut table = Table::new();
    table.load_style(STYLE).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(headers);
    for row in rows {
        table.add_row(row);
    }
    for (i, column) in table.column_iter_mut().enumerate() {
        // Narrow margins, so that the usual tables fit 80 columns.
        column.set_padding((0, 1));
        if i > 0 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    format!("{table}\n")
}

/// A scale for a column of times: a factor and its unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimeScale {
    factor: f64,
    /// Name of the unit, empty for abstract units.
    pub unit: &'static str,
}

impl TimeScale {
    /// One scale that suits the largest of `times` \[s\]; abstract units keep theirs.
    pub fn of(times: impl IntoIterator<Item = f64>, in_seconds: bool) -> Self {
        let largest = times.into_iter().fold(0.0, f64::max);
        match (in_seconds, largest) {
            (false, _) => Self { factor: 1.0, unit: "" },
            (true, t) if t >= 1.0 => Self { factor: 1.0, unit: "s" },
            (true, t) if t >= 1e-3 => Self { factor: 1e3, unit: "ms" },
            (true, _) => Self { factor: 1e6, unit: "us" },
        }
    }

    /// A time in this scale: at most four decimals for abstract units, else three digits or so.
    pub fn show(&self, time: f64) -> String {
        let value = time * self.factor;
        if self.unit.is_empty() {
            let text = format!("{value:.4}");
            return text.trim_end_matches('0').trim_end_matches('.').to_owned();
        }
        if value.abs() < 10.0 { format!("{value:.3}") } else { format!("{value:.1}") }
    }

    /// `what` with `[ms]` under it, or `what` alone for abstract units.
    pub fn header(&self, what: &str) -> String {
        if self.unit.is_empty() { what.to_owned() } else { format!("{what}\n[{}]", self.unit) }
    }
}

/// A share as a percentage with one decimal; a dash where there is none.
pub fn percent(share: f64) -> String {
    if share.is_finite() { format!("{:.1} %", share * 100.0) } else { "-".to_owned() }
}

/// Bytes in MiB with one decimal.
pub fn mebibytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / (1024.0 * 1024.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_scale_a_column() {
        let scale = TimeScale::of([0.002, 0.5], true);
        assert_eq!(
            (scale.header("step"), scale.show(0.002), scale.show(0.5)),
            ("step\n[ms]".into(), "2.000".into(), "500.0".into())
        );
        let units = TimeScale::of([33.0], false);
        assert_eq!(
            (units.header("time"), units.show(28.5), units.show(33.0)),
            ("time".into(), "28.5".into(), "33".into())
        );
    }
}
