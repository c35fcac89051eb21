//! Looped BFS: GPipe over several chunks a rank. Every chunk takes all microbatches before the next chunk's turn.
//!
//! ```text
//! p = 2, v = 2, m = 4; a lower-case letter is the second chunk
//! rank 0  F0 F1 F2 F3 f0 f1 f2 f3 .  .  .  b3 b3 b2 b2 b1 b1 b0 b0 B3 B3 B2 B2 B1 B1 B0 B0
//! rank 1  .  F0 F1 F2 F3 f0 f1 f2 f3 b3 b3 b2 b2 b1 b1 b0 b0 B3 B3 B2 B2 B1 B1 B0 B0 .  .
//! ```
//! The gradients of a chunk are complete early and all at once, so that their reduction over data-parallel copies hides
//! behind the chunks that follow. In chunk times the makespan is `((v - 1) max(m, p) + m + p - 1)(F + B)`, which is
//! `(m v + p - 1)(F + B)` for `m >= p`: idle `(p - 1)(F + B)`, `1/v` of GPipe's. All `m v` activations are alive at the
//! turn; `2 m (p v - 1)` messages. Any `m` and `v`. Lamy-Poirier 2023 (arXiv 2211.05953), section 4; the
//! backwards take the microbatches in reverse, as PyTorch's `ScheduleLoopedBFS` does.

use super::{Chunks, Family, Knobs, ScheduleParams, unconstrained};
use crate::action::{Action, Op};
use crate::ids::{Microbatch, Stage};
use crate::order::PipelineOrder;
use crate::placement::Placement;

pub(super) const FAMILY: Family = Family {
    name: "looped-bfs",
    aliases: &["LoopedBFS", "ScheduleLoopedBFS", "breadth-first"],
    summary: "GPipe over v chunks a rank: 1/v of the bubble, all activations held",
    paper: "Lamy-Poirier 2023, arXiv 2211.05953, section 4",
    makespan: "((v - 1) max(m, p) + m + p - 1)(F + B)",
    peak_activations: "m v",
    chunks: Chunks::Any,
    knobs: Knobs::NONE,
    constraints: unconstrained,
    order,
};

fn order(params: &ScheduleParams) -> PipelineOrder {
    let ScheduleParams { ranks: p, microbatches: m, chunks: v, .. } = *params;
    let rank = |r: u32| {
        let action = move |chunk: u32, op, k| Action::new(Stage::new(chunk * p + r), op, Microbatch::new(k));
        let forwards = (0..v).flat_map(|chunk| (0..m).map(move |k| action(chunk, Op::Forward, k)));
        let backwards = (0..v).rev().flat_map(|chunk| (0..m).rev().map(move |k| action(chunk, Op::FullBackward, k)));
        forwards.chain(backwards).collect()
    };
    PipelineOrder::new(m, Placement::looped(p, v), (0..p).map(rank).collect())
}
