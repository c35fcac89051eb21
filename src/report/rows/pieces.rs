//! What one rank computes, piece by piece.

use crate::report::colour;
use crate::report::run::Run;
use pipewright_ir::action::Op;
use pipewright_ir::ids::Rank;
use pipewright_ir::task::Lane;
use plotters::style::RGBColor;

/// How a piece is filled: its operation and its chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::report) struct Fill {
    pub(in crate::report) op: Op,
    pub(in crate::report) chunk: usize,
    pub(in crate::report) chunks: usize,
}

impl Fill {
    pub(in crate::report) fn colour(self) -> RGBColor {
        colour::shade(colour::of_op(self.op), self.chunk, self.chunks)
    }
}

/// A box on a row; times count from the start of the picture.
#[derive(Clone, Copy, Debug)]
pub(in crate::report) struct Piece {
    pub(in crate::report) start: f64,
    pub(in crate::report) end: f64,
    pub(in crate::report) fill: Fill,
    /// Its microbatch, to be written in it.
    pub(in crate::report) label: Option<u32>,
}

/// The boxes of a rank's compute lane in order of time, those without a duration left out.
pub(super) fn of_rank(run: &Run<'_>, zero: f64, rank: Rank) -> Vec<Piece> {
    let chunks = super::shades(run);
    let stages: Vec<_> = run.schedule.placement().stages_of(rank).collect();
    let mut pieces = Vec::new();
    for step in 0..run.timeline.steps() {
        for (id, task) in run.schedule.program(rank).filter(|(_, task)| task.lane == Lane::Compute) {
            let span = run.timeline.span(step, id);
            if span.duration() <= 0.0 {
                continue;
            }
            let of_chunk = task.action.op.is_compute();
            let chunk = stages.iter().position(|s| *s == task.action.stage).filter(|_| of_chunk).unwrap_or(0);
            let fill = Fill { op: task.action.op, chunk, chunks: if of_chunk { chunks } else { 1 } };
            let label = task.action.microbatch.map(|m| m.number());
            pieces.push(Piece { start: span.start - zero, end: span.end - zero, fill, label });
        }
    }
    pieces
}
