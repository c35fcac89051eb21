//! An order as CSV, one line a rank, in PyTorch's notation: what `torch.distributed.pipelining` dumps and loads, compute
//! alone or with communication.
//!
//! One law: whatever can be read is read, and all that cannot is told at once, each at its cell.

use crate::action::{Action, ActionError, Op, parse_cell, write_cell};
use crate::ids::{Pipe, Rank, Stage};
use crate::order::PipelineOrder;
use crate::placement::Placement;
use std::collections::{BTreeMap, BTreeSet};

/// Where a cell stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellPlace {
    /// Line, from 1.
    pub line: usize,
    /// Cell in the line, from 1.
    pub cell: usize,
    /// Byte offset and length of the cell in the file.
    pub span: (usize, usize),
}

/// A cell of a CSV that is not an action.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {}, cell {}: {error}", place.line, place.cell)]
pub struct CellError {
    /// Where it stands.
    pub place: CellPlace,
    /// What is wrong with it.
    pub error: ActionError,
}

/// What a CSV says.
#[derive(Clone, Debug)]
pub struct Reading {
    /// The order, of every cell that could be read.
    pub order: PipelineOrder,
    /// Rank -> the place of the cell of each of its actions.
    pub places: Vec<Vec<CellPlace>>,
    /// Every cell that is not an action.
    pub errors: Vec<CellError>,
    /// Tokens of PyTorch that have no meaning in one pipeline, with how many of each were left out.
    pub skipped: BTreeMap<&'static str, usize>,
}

/// Tokens of PyTorch's programs about sharded data parallelism, and about waiting for what runs beside compute, which a
/// task graph has as edges.
const SKIPPED: [&str; 7] =
    ["UNSHARD", "RESHARD", "WAIT_SEND_F", "WAIT_SEND_B", "WAIT_RECV_F", "WAIT_RECV_B", "WAIT_REDUCE_GRAD"];

/// The name of a token like `3UNSHARD` or `0WAIT_SEND_F2`.
fn skipped(text: &str) -> Option<&'static str> {
    let digit = |c: char| c.is_ascii_digit();
    let name = text.strip_prefix(digit)?.trim_start_matches(digit).trim_end_matches(digit);
    SKIPPED.into_iter().find(|token| *token == name)
}

/// The cells of a CSV that hold something, with the rank of their line. Blank lines and lines that begin with `#` are no
/// rank; a cell that is empty or a dot (a printed bubble) holds nothing. A byte order mark is skipped.
fn cells(csv: &str) -> impl Iterator<Item = (usize, Option<(CellPlace, &str)>)> {
    let mark = if csv.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
    let mut offset = mark;
    let mut ranks = 0;
    csv[mark..].split('\n').enumerate().flat_map(move |(row, line)| {
        let mut at = offset;
        offset += line.len() + 1;
        let blank = line.trim().is_empty() || line.starts_with('#');
        let rank = ranks;
        ranks += usize::from(!blank);
        // The first item stands for the line itself, which may hold no action.
        let head = (!blank).then_some((rank, None));
        let cells = line.split(',').enumerate().filter(move |_| !blank).filter_map(move |(column, cell)| {
            let text = cell.trim();
            let span = (at + (cell.len() - cell.trim_start().len()), text.len());
            at += cell.len() + 1;
            let bare = text.strip_prefix('"').and_then(|t| t.strip_suffix('"')).unwrap_or(text).trim();
            let place = CellPlace { line: row + 1, cell: column + 1, span };
            (!bare.is_empty() && bare != ".").then_some((rank, Some((place, bare))))
        });
        head.into_iter().chain(cells)
    })
}

/// Reads the CSV of an order. A stage lives on the rank whose line names it most often. `REDUCE_GRAD` is an action where
/// there are two copies of each stage to sum the gradients of; in one pipe it is about data parallelism and skipped.
pub fn read(csv: &str, microbatches: u32) -> Reading {
    let mut ranks: Vec<Vec<Action>> = Vec::new();
    let mut places: Vec<Vec<CellPlace>> = Vec::new();
    let mut errors = Vec::new();
    let mut left_out = BTreeMap::new();
    for (rank, cell) in cells(csv) {
        if rank == ranks.len() {
            ranks.push(Vec::new());
            places.push(Vec::new());
        }
        let Some((place, text)) = cell else { continue };
        if let Some(name) = skipped(text) {
            *left_out.entry(name).or_default() += 1;
            continue;
        }
        match parse_cell(text) {
            Ok(parts) => {
                places[rank].extend(parts.iter().map(|_| place));
                ranks[rank].extend(parts);
            }
            Err(error) => errors.push(CellError { place, error }),
        }
    }
    let mut all = ranks.iter().flatten();
    if all.all(|action| action.stage.pipe() == Pipe::Only) {
        for (actions, places) in ranks.iter_mut().zip(&mut places) {
            let kept: Vec<bool> = actions.iter().map(|a| a.op != Op::ReduceGrad).collect();
            let dropped = kept.iter().filter(|kept| !**kept).count();
            if dropped > 0 {
                *left_out.entry(Op::ReduceGrad.code()).or_default() += dropped;
                let mut keep = kept.iter();
                actions.retain(|_| *keep.next().unwrap_or(&true));
                let mut keep = kept.iter();
                places.retain(|_| *keep.next().unwrap_or(&true));
            }
        }
    }
    let placement = placement_as_written(&ranks);
    let slices = slices_as_written(&ranks);
    let order = PipelineOrder { microbatches, slices, placement, ranks };
    Reading { order, places, errors, skipped: left_out }
}

/// Why an order has no form that PyTorch reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TorchError {
    /// A bidirectional order.
    #[error("PyTorch has one pipeline; this order runs two through the same ranks")]
    TwoPipes,
    /// A sliced order.
    #[error("PyTorch has no slices of microbatches; this order cuts each into {0}")]
    Slices(u16),
}

impl PipelineOrder {
    /// The CSV form: one line a rank, cells separated by commas, a rank that does nothing a dot. `all` writes every
    /// action, else compute alone.
    pub fn to_csv(&self, all: bool) -> String {
        let mut csv = String::new();
        for actions in &self.ranks {
            let cells = actions.chunk_by(|_, next| next.joins_previous);
            let cells = cells.filter(|cell| all || cell.iter().all(|a| a.op.is_compute()));
            let cells: Vec<String> = cells.map(write_cell).collect();
            // A blank line would be no rank.
            csv.push_str(if cells.is_empty() { "." } else { "" });
            csv.push_str(&cells.join(","));
            csv.push('\n');
        }
        csv
    }

    /// The CSV form that PyTorch's `_load_csv` reads: with format `compute_only`, or with `comms` and `compute_comms`.
    ///
    /// PyTorch knows neither our `OPTIMIZER_STEP` and `REDUCE_TIED` (its optimizer is not part of a schedule) nor `FUSED`,
    /// whose parts become cells of their own. With `comms` each stage gets the `REDUCE_GRAD` behind its last gradient in
    /// which PyTorch divides gradients by the number of microbatches.
    ///
    /// # Errors
    /// What PyTorch has no words for.
    pub fn to_torch_csv(&self, comms: bool) -> Result<String, TorchError> {
        if self.placement.pipes().len() > 1 {
            return Err(TorchError::TwoPipes);
        }
        if self.slices > 1 {
            return Err(TorchError::Slices(self.slices));
        }
        let mut csv = String::new();
        for actions in &self.ranks {
            let last: BTreeMap<Stage, usize> = actions
                .iter()
                .enumerate()
                .filter(|(_, a)| a.op.makes_weight_gradients())
                .map(|(i, a)| (a.stage, i))
                .collect();
            let mut cells = Vec::new();
            let mut at = 0;
            for cell in actions.chunk_by(|_, next| next.joins_previous) {
                let ours = |op: Op| !op.has_microbatch();
                let known = cell.iter().all(|a| a.op.is_compute() || (comms && !ours(a.op)));
                if known && is_overlapped_pair(cell) {
                    cells.push(write_cell(cell));
                } else if known {
                    cells.extend(cell.iter().map(Action::to_string));
                }
                for (i, action) in cell.iter().enumerate().filter(|_| comms) {
                    if last.get(&action.stage) == Some(&(at + i)) {
                        cells.push(Action::whole_stage(action.stage, Op::ReduceGrad).to_string());
                    }
                }
                at += cell.len();
            }
            csv.push_str(&cells.join(","));
            csv.push('\n');
        }
        Ok(csv)
    }

    /// Reads the CSV form; see [`read`], which also says where each action stands.
    ///
    /// # Errors
    /// Every cell that is not an action, not only the first.
    pub fn from_csv(csv: &str, microbatches: u32) -> Result<Self, Vec<CellError>> {
        let reading = read(csv, microbatches);
        if reading.errors.is_empty() { Ok(reading.order) } else { Err(reading.errors) }
    }
}

/// What PyTorch writes as `(2F3;5B1)OVERLAP_F_B`.
fn is_overlapped_pair(cell: &[Action]) -> bool {
    matches!(cell, [f, b] if f.op == Op::Forward && b.op == Op::FullBackward)
}

/// Slices are counted up to the first number that no cell names, as stages are.
fn slices_as_written(ranks: &[Vec<Action>]) -> u16 {
    let named: BTreeSet<u16> = ranks.iter().flatten().filter_map(|a| a.microbatch?.slice()).collect();
    let count = (0..).zip(&named).take_while(|(expected, slice)| expected == *slice).count();
    u16::try_from(count.max(1)).unwrap_or(u16::MAX)
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
        let text = |(start, length)| &csv[start..start + length];
        let places: Vec<_> = errors.iter().map(|e| (e.place.line, e.place.cell, text(e.place.span))).collect();
        assert_eq!(places, [(1, 2, "x"), (2, 4, "1Q0")]);
    }

    #[test]
    fn what_is_no_action_is_skipped() {
        let order = PipelineOrder::from_csv("\u{feff}# mine\r\n0F0, 0B0\r\n\r\n\"1F0\",.,1B0\r\n\n", 1).unwrap();
        assert_eq!(order.to_csv(false), "0F0,0B0\n1F0,1B0\n");
    }

    #[test]
    fn a_rank_without_actions_is_a_dot() {
        let order = PipelineOrder::from_csv("0F0,0B0\n.\n", 1).unwrap();
        assert_eq!((order.ranks.len(), order.to_csv(true).as_str()), (2, "0F0,0B0\n.\n"));
    }

    #[test]
    fn tokens_of_sharded_data_parallelism_are_counted_and_left_out() {
        let csv = "0UNSHARD,0F0,0B0,0WAIT_SEND_F0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0RESHARD\n";
        let reading = read(csv, 1);
        assert_eq!(reading.order.to_csv(true), "0F0,0B0\n");
        let counts: Vec<_> = reading.skipped.into_iter().collect();
        let names = ["REDUCE_GRAD", "RESHARD", "UNSHARD", "WAIT_REDUCE_GRAD", "WAIT_SEND_F"];
        assert_eq!(counts, names.map(|name| (name, 1)));
        let cells: Vec<_> = reading.places[0].iter().map(|place| place.cell).collect();
        assert_eq!(cells, [2, 3]);
        let two = read("0dF0,0dB0,0uF0,0uB0,0dREDUCE_GRAD\n", 2);
        assert!(two.skipped.is_empty() && two.order.has(|op| op == Op::ReduceGrad));
    }

    #[test]
    fn places_point_at_the_cells() {
        let csv = "# first\n0F0 ,(0F1;0B0)OVERLAP_F_B, 0B1\n";
        let reading = read(csv, 2);
        let at: Vec<_> = reading.places[0].iter().map(|p| &csv[p.span.0..p.span.0 + p.span.1]).collect();
        assert_eq!(at, ["0F0", "(0F1;0B0)OVERLAP_F_B", "(0F1;0B0)OVERLAP_F_B", "0B1"]);
    }

    #[test]
    fn pytorch_gets_only_what_it_reads() {
        let csv = "0F0,(0F1;0B0)OVERLAP_F_B,(0I1;0W1)FUSED,0REDUCE_TIED,0OPTIMIZER_STEP\n";
        let order = PipelineOrder::from_csv(csv, 2).unwrap();
        assert_eq!(order.to_torch_csv(false).unwrap(), "0F0,(0F1;0B0)OVERLAP_F_B,0I1,0W1\n");
        assert_eq!(order.to_torch_csv(true).unwrap(), "0F0,(0F1;0B0)OVERLAP_F_B,0I1,0W1,0REDUCE_GRAD\n");
        let refused = |csv| PipelineOrder::from_csv(csv, 2).unwrap().to_torch_csv(false);
        assert_eq!(refused("0dF0,0uF0\n"), Err(TorchError::TwoPipes));
        assert_eq!(refused("0F0.0,0F0.1\n"), Err(TorchError::Slices(2)));
    }

    #[test]
    fn one_misplaced_cell_moves_no_stage() {
        let order = PipelineOrder::from_csv("1F0,0F0,0B0\n1B0,1F1,1B1\n", 2).unwrap();
        assert_eq!(order.placement, Placement::looped(2, 1));
        let order = PipelineOrder::from_csv("0F0,7F0,0B0\n1F0,1B0\n", 1).unwrap();
        assert_eq!(order.placement.stages(), 2, "stage 7 is out of range, not the last of eight");
    }

    #[test]
    fn one_slip_makes_no_more_slices() {
        assert_eq!(read("0F0.0,0F0.1,0F0.65535,0B0.1,0B0.0\n", 1).order.slices, 2);
        assert_eq!(read("0F0.7\n", 1).order.slices, 1);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(csv in "[0-9A-Z_,\\n .]{0,200}") {
            let _ = read(&csv, 3);
        }
    }
}
