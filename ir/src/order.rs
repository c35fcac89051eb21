//! `PipelineOrder`: rank -> actions, and its CSV form (one line a rank, as PyTorch writes it).
//!
//! One law: an order is only what was written; whether it makes sense is for [`spec`](crate::spec) to say.

use crate::action::{Action, ActionError, Op, parse_cell, write_cell};
use crate::cells::Cells;
use crate::ids::{Pipe, Rank};
use crate::placement::Placement;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The program of every rank for one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineOrder {
    /// Microbatches of the step, `m` (times the accumulation rounds), all pipes together.
    pub microbatches: u32,
    /// Sequence slices of each microbatch; 1 where microbatches are whole.
    pub slices: u16,
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
    /// An order of whole microbatches.
    pub fn new(microbatches: u32, placement: Placement, ranks: Vec<Vec<Action>>) -> Self {
        Self { microbatches, slices: 1, placement, ranks }
    }

    /// The numbering of its (stage, microbatch) pairs.
    pub fn cells(&self) -> Cells {
        let pipes = self.placement.pipes();
        let microbatches = self.microbatches / u32::try_from(pipes.len()).unwrap_or(1);
        Cells { stages: self.placement.stages(), pipes, microbatches, slices: self.slices }
    }

    /// The CSV form: one line a rank, cells separated by commas. `all` writes every action, else compute alone.
    pub fn to_csv(&self, all: bool) -> String {
        let mut csv = String::new();
        for actions in &self.ranks {
            let mut separator = "";
            for cell in actions.chunk_by(|_, next| next.joins_previous) {
                if all || cell.iter().all(|a| a.op.is_compute()) {
                    // Writing to a String cannot fail.
                    let _ = write!(csv, "{separator}{}", write_cell(cell));
                    separator = ",";
                }
            }
            csv.push('\n');
        }
        csv
    }

    /// Reads the CSV form. A stage lives on the rank whose line names it most often; empty cells, `.` (a printed
    /// bubble), blank lines and lines that begin with `#` are skipped, and so is a byte order mark.
    ///
    /// # Errors
    /// Every cell that is not an action, not only the first.
    pub fn from_csv(csv: &str, microbatches: u32) -> Result<Self, Vec<CellError>> {
        let mut ranks = Vec::new();
        let mut errors = Vec::new();
        let mark = if csv.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
        let mut offset = mark;
        for (row, line) in csv[mark..].split('\n').enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                offset += line.len() + 1;
                continue;
            }
            let mut actions = Vec::new();
            let mut at = offset;
            for (column, cell) in line.split(',').enumerate() {
                let text = cell.trim();
                if !text.is_empty() && text != "." {
                    let start = at + (cell.len() - cell.trim_start().len());
                    match parse_cell(text) {
                        Ok(parts) => actions.extend(parts),
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
            let slices = ranks.iter().flatten().filter_map(|a: &Action| a.microbatch?.slice()).max();
            let slices = slices.map_or(1, |last| last.saturating_add(1));
            Ok(Self { microbatches, slices, placement, ranks })
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

/// A stage lives on the rank whose line names it most often, the first of several. Stages are counted up to the first
/// number that no line names; what lies beyond it is left for the law to refuse.
fn placement_as_written(ranks: &[Vec<Action>]) -> Placement {
    let mut cells: BTreeMap<(Pipe, u32), BTreeMap<Rank, usize>> = BTreeMap::new();
    for (r, actions) in ranks.iter().enumerate() {
        for stage in actions.iter().map(|action| action.stage) {
            *cells.entry((stage.pipe(), stage.number())).or_default().entry(Rank::at(r)).or_default() += 1;
        }
    }
    let home = |by_rank: &BTreeMap<Rank, usize>| {
        let most = by_rank.values().max();
        by_rank.iter().find(|(_, n)| Some(*n) == most).map_or(Rank(0), |(rank, _)| *rank)
    };
    let table = |pipe| (0..).map_while(|s| cells.get(&(pipe, s))).map(home).collect::<Vec<_>>();
    let p = Rank::at(ranks.len()).0;
    let (down, up) = (table(Pipe::Down), table(Pipe::Up));
    if down.is_empty() && up.is_empty() {
        Placement::table(p, table(Pipe::Only))
    } else {
        Placement::two_pipes(p, down, up)
    }
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

    #[test]
    fn what_is_no_action_is_skipped() {
        let order = PipelineOrder::from_csv("\u{feff}# mine\r\n0F0, 0B0\r\n\r\n1F0,.,1B0\r\n\n", 1).unwrap();
        assert_eq!(order.to_csv(false), "0F0,0B0\n1F0,1B0\n");
    }

    #[test]
    fn one_misplaced_cell_moves_no_stage() {
        let order = PipelineOrder::from_csv("1F0,0F0,0B0\n1B0,1F1,1B1\n", 2).unwrap();
        assert_eq!(order.placement, Placement::looped(2, 1));
        let order = PipelineOrder::from_csv("0F0,7F0,0B0\n1F0,1B0\n", 1).unwrap();
        assert_eq!(order.placement.stages(), 2, "stage 7 is out of range, not the last of eight");
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(csv in "[0-9A-Z_,\\n .]{0,200}") {
            let _ = PipelineOrder::from_csv(&csv, 3);
        }
    }
}
