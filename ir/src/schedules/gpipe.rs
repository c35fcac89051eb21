//! GPipe: all forwards, then all backwards.
//!
//! ```text
//! rank 0  F0 F1 F2 F3 .  .  .  .  .  .  B0 B0 B1 B1 B2 B2 B3 B3
//! rank 1  .  F0 F1 F2 F3 .  .  .  B0 B0 B1 B1 B2 B2 B3 B3 .  .
//! rank 2  .  .  F0 F1 F2 F3 B0 B0 B1 B1 B2 B2 B3 B3 .  .  .  .
//! ```
//! Makespan `(m + p - 1)(F + B)`, idle `(p - 1)(F + B)` a rank, `m` activations alive on every rank; with a hop of `c`
//! the makespan grows by `2 (p - 1) c`. Huang et al., GPipe (arXiv 1811.06965), section 2.3.

use super::{Chunks, Family, Knobs, ScheduleParams, unconstrained};
use crate::action::{Action, Op};
use crate::ids::{Microbatch, Stage};
use crate::order::PipelineOrder;
use crate::placement::Placement;

pub(super) const FAMILY: Family = Family {
    name: "gpipe",
    aliases: &["fill-drain", "f-then-b"],
    summary: "all forwards, then all backwards",
    paper: "Huang et al. 2019, arXiv 1811.06965, section 2.3",
    makespan: "(m + p - 1)(F + B)",
    peak_activations: "m",
    chunks: Chunks::One,
    knobs: Knobs::NONE,
    constraints: unconstrained,
    order,
};

fn order(params: &ScheduleParams) -> PipelineOrder {
    let rank = |r: u32| {
        [Op::Forward, Op::FullBackward]
            .into_iter()
            .flat_map(|op| (0..params.microbatches).map(move |m| Action::new(Stage::new(r), op, Microbatch::new(m))))
            .collect()
    };
    PipelineOrder::new(params.microbatches, Placement::looped(params.ranks, 1), (0..params.ranks).map(rank).collect())
}
