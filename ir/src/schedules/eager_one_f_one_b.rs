//! Eager 1F1B: 1F1B with twice the warm-up, which hides a hop of up to one forward for more memory.
//!
//! ```text
//! rank 0  F0 F1 F2 F3 F4 .  .  B0 B0 .  B1 B1 .  B2 B2 .  B3 B3 .  B4 B4
//! rank 1  .  F0 F1 F2 .  B0 B0 F3 B1 B1 F4 B2 B2 .  B3 B3 .  B4 B4 .  .
//! rank 2  .  .  F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 F4 B4 B4 .  .  .  .
//! ```
//! Warm-up of rank `r`: `2 (p - 1 - r)` forwards. Makespan `(m + p - 1)(F + B)`, `min(m, 2 (p - r) - 1)` activations
//! alive. Zhuang et al. (arXiv 2211.05322), section 4, "eager-1F1B".

use super::{Chunks, Family, Knobs, ScheduleParams, unconstrained, warmup};
use crate::order::PipelineOrder;
use crate::placement::Placement;

pub(super) const FAMILY: Family = Family {
    name: "eager-1f1b",
    aliases: &["Eager1F1B", "double-warmup-1f1b"],
    summary: "1F1B with twice the warm-up: hides hops, holds about twice the activations",
    paper: "Zhuang et al. 2023, arXiv 2211.05322, section 4",
    makespan: "(m + p - 1)(F + B)",
    peak_activations: "min(m, 2 (p - r) - 1)",
    chunks: Chunks::One,
    knobs: Knobs::NONE,
    constraints: unconstrained,
    order,
};

fn order(params: &ScheduleParams) -> PipelineOrder {
    let rank = |r: u32| warmup::single_stage(r, params.microbatches, (params.ranks - 1 - r).saturating_mul(2));
    PipelineOrder::new(params.microbatches, Placement::looped(params.ranks, 1), (0..params.ranks).map(rank).collect())
}
