//! Naive pipeline parallelism: one microbatch at a time goes all the way down and all the way back.
//!
//! ```text
//! rank 0  F0 .  .  .  .  .  .  B0 B0 F1 .  .  .  .  .  .  B1 B1
//! rank 1  .  F0 .  .  .  B0 B0 .  .  .  F1 .  .  .  B1 B1 .  .
//! rank 2  .  .  F0 B0 B0 .  .  .  .  .  .  F1 B1 B1 .  .  .  .
//! ```
//! Makespan `m p (F + B)`, idle `m (p - 1)(F + B)` a rank, at most 1 activation alive.
//! Huang et al., GPipe (arXiv 1811.06965), section 1, as the case to improve on.

use super::{Chunks, Family, Knobs, ScheduleParams, unconstrained};
use crate::action::{Action, Op};
use crate::ids::{Microbatch, Stage};
use crate::order::PipelineOrder;
use crate::placement::Placement;

pub(super) const FAMILY: Family = Family {
    name: "naive",
    aliases: &["naive-pp", "sequential"],
    summary: "one microbatch at a time, forward through every stage and back",
    paper: "Huang et al. 2019, arXiv 1811.06965, section 1 (the case to improve on)",
    makespan: "m p (F + B)",
    peak_activations: "1",
    chunks: Chunks::One,
    knobs: Knobs::NONE,
    constraints: unconstrained,
    order,
};

fn order(params: &ScheduleParams) -> PipelineOrder {
    let rank = |r: u32| {
        (0..params.microbatches)
            .flat_map(|m| [Op::Forward, Op::FullBackward].map(|op| Action::new(Stage::new(r), op, Microbatch::new(m))))
            .collect()
    };
    PipelineOrder::new(params.microbatches, Placement::looped(params.ranks, 1), (0..params.ranks).map(rank).collect())
}
