//! DualPipeV: DualPipe cut in half. One pipe in a V, two stages a rank and each held once, with the same overlap.
//!
//! ```text
//! p = 2, m = 4; a lower-case letter is the second chunk, & joins what runs as one
//! rank 0  F0 F1 F2 f0 i0 w0 f1 F3&b1 b1 .  f2&B0 B0 b2 b2 .  f3&B1 B1 b3 b3 I2 W2 I3 W3
//! rank 1  .  F0 f0 F1 f1 F2 b0 b0 f2&B0 B0 F3&b1 b1 f3&B1 B1 b2 b2 B2 B2 .  i3 I3 w3 W3
//! ```
//! The second chunk stands in for the pipe of the other direction. In chunk times, with I = F and pairs that start and
//! end as one, `F&B = F + B`, the makespan is `2 m (F + B) + (p - 1)(F&B + B - 3 W)`. Parts that run one after another,
//! each as soon as it can, may do better: at p = 4 and unit times a rank then idles 3 instead of 6. `2 p + 1` chunks
//! alive, `4 m (p - 1)` messages. For I other than F there is no closed form. `m >= 2 p`, two stages a rank.
//! DeepSeek-AI's DualPipe (2025), DualPipeV, after "DualPipe could be better without the Dual" of Sea AI Lab.

use super::{Chunks, Family, Knobs, MICROBATCHES, ScheduleParams, dual};
use crate::fault::Fault;
use crate::ids::Stage;
use crate::order::PipelineOrder;
use crate::placement::Placement;

pub(super) const FAMILY: Family = Family {
    name: "dualpipe-v",
    aliases: &["DualPipeV", "ScheduleDualPipeV", "dual-pipe-v"],
    summary: "DualPipe in one V: forwards overlap backwards, parameters held once",
    paper: "DeepSeek-AI 2025, DualPipe repository, DualPipeV",
    makespan: "2 m (F + B) + (p - 1)(2 B + F - 3 W) at I = F, pairs as one",
    peak_activations: "2 p + 1",
    chunks: Chunks::Two,
    knobs: Knobs::NONE,
    constraints,
    order,
};

fn constraints(params: &ScheduleParams) -> Vec<Fault> {
    let ScheduleParams { ranks: p, microbatches: m, .. } = *params;
    let least = 2 * p;
    if m >= least {
        return Vec::new();
    }
    let message = format!("dualpipe-v needs m >= 2 p, as many microbatches as stages: {m} < 2 * {p} = {least}");
    vec![Fault::new(MICROBATCHES, "dualpipe::microbatches", message, format!("use m = {least}"))]
}

fn order(params: &ScheduleParams) -> PipelineOrder {
    let ScheduleParams { ranks: p, microbatches: m, .. } = *params;
    let rank = |r: u32| dual::program(p, r, m, Stage::new(r), Stage::new(2 * p - 1 - r));
    PipelineOrder::new(m, Placement::v_shaped(p), (0..p).map(rank).collect())
}
