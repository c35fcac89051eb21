//! ZB-H1: 1F1B with the backward split in I and W. I goes out at once, W fills the waits at the end, within the memory
//! of 1F1B's rank 0.
//!
//! ```text
//! p = 3, m = 4
//! rank 0  F0 F1 F2 .  .  I0 W0 F3 I1 W1 I2 W2 I3 W3
//! rank 1  .  F0 F1 .  I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
//! rank 2  .  .  F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3
//! ```
//! Canonical form: warm-up of rank `r` is `p - 1 - r` forwards, W follows `r` microbatches behind its I. With `m >= p` its
//! makespan is `m (F + I + W) + (p - 1)(F + max(0, I - W))`, and every rank holds `min(m, p)` activations until W.
//! Idle inside the span of rank `r` at F = I = W = 1: `p - 1 - r`. Given costs where another order within the limit is
//! better (a hop, W shorter than I), the order is searched for; then there is no closed form.
//! Qi et al. 2023 (arXiv 2401.10241), section 2.

use super::{Chunks, Family, Knobs, ScheduleParams, adapt};
use crate::order::PipelineOrder;
use crate::placement::Placement;
use crate::search::Effort;

pub(super) const FAMILY: Family = Family {
    name: "zb-h1",
    aliases: &["ZBH1", "ZB1P", "zero-bubble", "ZeroBubble"],
    summary: "1F1B with split backwards within its memory; adapts to costs and limit",
    paper: "Qi et al. 2023, arXiv 2401.10241, section 2",
    makespan: "m (F + B) + (p - 1)(F + max(0, I - W))",
    peak_activations: "min(m, p)",
    chunks: Chunks::One,
    knobs: Knobs { limit: true, ..Knobs::NONE },
    constraints: adapt::limit_faults,
    order,
};

fn order(params: &ScheduleParams) -> PipelineOrder {
    let ScheduleParams { ranks: p, microbatches: m, .. } = *params;
    let canonical = adapt::delayed(p, m, |r| p - 1 - r, |r| r);
    adapt::search(params, &Placement::looped(p, 1), Some(p), &[canonical], Effort::NAMED)
}
