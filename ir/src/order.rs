//! `PipelineOrder`: rank -> actions, and its CSV form (one line a rank, as PyTorch writes it).
//!
//! One law: an order is only what was written; whether it makes sense is for [`spec`](crate::spec) to say.

use crate::action::{Action, ActionError, Op};
use crate::ids::{Rank, Stage};
use crate::placement::Placement;
use std::fmt::Write as _;

/// The program of every rank for one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineOrder {
    /// Microbatches of the step, `m` (times the accumulation rounds).
    pub microbatches: u32,
    /// Which rank holds which stage.
    pub placement: Placement,
    /// Rank -> its actions in program order.
    pub ranks: Vec<Vec<Action>>,
}

/// A cell of a CSV that is not an action.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, cell {cell}: {error}")]
pub struct CellError {
    /// Line, from 1.
    pub line: usize,
    /// Cell in the line, from 1.
    pub cell: usize,
    /// Byte offset and length of the cell in the file.
    pub span: (usize, usize),
    /// What is wrong with it.
    pub error: ActionError,
}

impl PipelineOrder {
    /// The CSV form: one line a rank, cells separated by commas. `all` writes every action, else compute alone.
    pub fn to_csv(&self, all: bool) -> String {
        let mut csv = String::new();
        for actions in &self.ranks {
            let mut separator = "";
            for action in actions.iter().filter(|a| all || a.op.is_compute()) {
                // Writing to a String cannot fail.
                let _ = write!(csv, "{separator}{action}");
                separator = ",";
            }
            csv.push('\n');
        }
        csv
    }

    /// Reads the CSV form. A stage lives on the rank whose line names it first; empty cells and `.` (a printed
    /// bubble) are skipped, blank lines at the end of the file too.
    ///
    /// # Errors
    /// Every cell that is not an action, not only the first.
    pub fn from_csv(csv: &str, microbatches: u32) -> Result<Self, Vec<CellError>> {
        let mut ranks = Vec::new();
        let mut errors = Vec::new();
        let mut offset = 0;
        for (row, line) in csv.trim_end().split('\n').enumerate() {
            let mut actions = Vec::new();
            let mut at = offset;
            for (column, cell) in line.split(',').enumerate() {
                let text = cell.trim();
                if !text.is_empty() && text != "." {
                    let start = at + (cell.len() - cell.trim_start().len());
                    match text.parse() {
                        Ok(action) => actions.push(action),
                        Err(error) => {
                            let span = (start, text.len());
                            errors.push(CellError { line: row + 1, cell: column + 1, span, error });
                        }
                    }
                }
                at += cell.len() + 1;
            }
            offset += line.len() + 1;
            ranks.push(actions);
        }
        if errors.is_empty() {
            let placement = placement_as_written(&ranks);
            Ok(Self { microbatches, placement, ranks })
        } else {
            Err(errors)
        }
    }

    /// Whether any action has an operation like this.
    pub fn has(&self, like: impl Fn(Op) -> bool) -> bool {
        self.ranks.iter().flatten().any(|action| like(action.op))
    }

    /// Actions of all ranks together.
    pub fn len(&self) -> usize {
        self.ranks.iter().map(Vec::len).sum()
    }

    /// Whether no rank does anything.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A stage lives on the rank whose line names it first; one that no line names falls to its looped place. A stage
/// number beyond what the file's cells could fill is left for the law to refuse.
fn placement_as_written(ranks: &[Vec<Action>]) -> Placement {
    let p = Rank::at(ranks.len()).0;
    let cells: usize = ranks.iter().map(Vec::len).sum();
    let stages = ranks.iter().flatten().map(|a| a.stage.index() + 1).filter(|s| *s <= cells).max().unwrap_or(0);
    let mut rank_of: Vec<Option<Rank>> = vec![None; stages];
    for (r, actions) in ranks.iter().enumerate() {
        for action in actions {
            if let Some(slot) = rank_of.get_mut(action.stage.index()) {
                slot.get_or_insert(Rank::at(r));
            }
        }
    }
    let looped = |s: usize| Rank(Stage::at(s).0 % p.max(1));
    let table = rank_of.into_iter().enumerate().map(|(s, r)| r.unwrap_or_else(|| looped(s))).collect();
    Placement::table(p, table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn csv_round_trips() {
        let csv = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n";
        let order = PipelineOrder::from_csv(csv, 2).unwrap();
        assert_eq!(order.to_csv(false), csv);
        assert_eq!(order.placement, Placement::looped(2, 1));
    }

    #[test]
    fn every_bad_cell_is_reported_with_its_place() {
        let csv = "0F0, x ,0B0\n1F0,,.,1Q0\n";
        let errors = PipelineOrder::from_csv(csv, 1).unwrap_err();
        let places: Vec<_> = errors.iter().map(|e| (e.line, e.cell, &csv[e.span.0..e.span.0 + e.span.1])).collect();
        assert_eq!(places, [(1, 2, "x"), (2, 4, "1Q0")]);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(csv in "[0-9A-Z_,\\n .]{0,200}") {
            let _ = PipelineOrder::from_csv(&csv, 3);
        }
    }
}
