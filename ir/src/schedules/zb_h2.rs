//! ZB-H2: ZB-H1 with twice the warm-up, so that no rank waits between its first and its last task.
//!
//! ```text
//! p = 2, m = 4
//! rank 0  F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3 .
//! rank 1  .  F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3
//! ```
//! Canonical form: warm-up of rank `r` is `2 (p - 1 - r)` forwards, W follows `2 r` microbatches behind its I. At
//! F = I = W and `m >= 2 p - 1` no rank idles inside its span, and every rank holds `2 p - 1` activations until W. The
//! makespan of a single step, `3 m + p - 1`, is that of ZB-H1: the gain, `p - 1` a step, comes only where the next step may
//! begin before this one has ended on every rank. For other costs the order is searched for; no closed form.
//! Qi et al. 2023 (arXiv 2401.10241), section 2.

use super::{Chunks, Family, Knobs, ScheduleParams, adapt};
use crate::order::PipelineOrder;
use crate::placement::Placement;
use crate::search::Effort;

pub(super) const FAMILY: Family = Family {
    name: "zb-h2",
    aliases: &["ZBH2", "ZB2P"],
    summary: "ZB-H1 with twice the warm-up: no wait inside a rank's span; adapts to costs and limit",
    paper: "Qi et al. 2023, arXiv 2401.10241, section 2",
    makespan: "3 m + p - 1 at F = I = W = 1 and m >= 2 p - 1",
    peak_activations: "min(m, 2 p - 1)",
    chunks: Chunks::One,
    knobs: Knobs { limit: true, ..Knobs::NONE },
    constraints: adapt::limit_faults,
    order,
};

fn order(params: &ScheduleParams) -> PipelineOrder {
    let ScheduleParams { ranks: p, microbatches: m, .. } = *params;
    let canonical = adapt::delayed(p, m, |r| 2 * (p - 1 - r), |r| 2 * r);
    adapt::search(params, &Placement::looped(p, 1), Some(2 * p - 1), &[canonical], Effort::NAMED)
}
