//! 1F1B (PipeDream-flush): after a short warm-up every forward is followed by a backward, so activations are freed as
//! early as the order allows.
//!
//! ```text
//! rank 0  F0 F1 F2 .  .  .  .  B0 B0 F3 B1 B1 .  B2 B2 .  B3 B3
//! rank 1  .  F0 F1 .  .  B0 B0 F2 B1 B1 F3 B2 B2 .  B3 B3 .  .
//! rank 2  .  .  F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 .  .  .  .
//! ```
//! Warm-up of rank `r`: `p - 1 - r` forwards. Makespan `(m + p - 1)(F + B)` as GPipe, but only `min(m, p - r)`
//! activations alive. With a hop `c` it pays the round trip again and again, where GPipe pays it once.
//! Narayanan et al. 2021 (arXiv 2104.04473), section 2.2.1; Fan et al. DAPPLE (arXiv 2007.01045).

use super::{Chunks, Family, Knobs, ScheduleParams, unconstrained, warmup};
use crate::order::PipelineOrder;
use crate::placement::Placement;

pub(super) const FAMILY: Family = Family {
    name: "1f1b",
    aliases: &["one-f-one-b", "pipedream-flush", "dapple", "Schedule1F1B"],
    summary: "one forward, one backward after a warm-up of p - 1 - r forwards",
    paper: "Narayanan et al. 2021, arXiv 2104.04473, section 2.2.1",
    makespan: "(m + p - 1)(F + B)",
    peak_activations: "min(m, p - r)",
    chunks: Chunks::One,
    knobs: Knobs::NONE,
    constraints: unconstrained,
    order,
};

fn order(params: &ScheduleParams) -> PipelineOrder {
    let rank = |r: u32| warmup::single_stage(r, params.microbatches, params.ranks - 1 - r);
    PipelineOrder::new(params.microbatches, Placement::looped(params.ranks, 1), (0..params.ranks).map(rank).collect())
}
