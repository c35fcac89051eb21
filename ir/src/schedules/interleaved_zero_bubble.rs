//! Interleaved zero bubble: interleaved 1F1B with the backward split in I and W. I goes out as soon as it can, and W
//! fills the time in which a rank would wait.
//!
//! ```text
//! p = 2, v = 2, m = 4; a lower-case letter is the second chunk
//! rank 0  F0 F1 f0 f1 .  i0 w0 F2 i1 w1 F3 I0 W0 f2 I1 W1 f3 i2 w2 i3 w3 I2 W2 I3 W3
//! rank 1  .  F0 F1 f0 i0 f1 i1 w0 F2 I0 w1 F3 I1 W0 f2 i2 W1 f3 i3 w2 I2 w3 I3 W2 W3
//! ```
//! Warm-up of rank `r`: `(v - 1) g + p - 1 - r` chunk forwards, half as many beyond the groups as interleaved 1F1B; W
//! follows `r` turns behind its I. In chunk times, with `B = I + W`, the makespan is
//! `m v (F + B) + (p - 1)(F + max(0, I - W))` for `m >= p`: where `W <= I` the bubble is `2 (p - 1) W` less than that of
//! interleaved 1F1B. At most `min(m v, (v - 1) g + p)` chunks alive until W; `2 m (p v - 1)` messages. With `v = 1` it is
//! ZB-H1. Microbatches go in `m / p` rounds of equal size `g`, so `m mod max(1, m / p) = 0` (PyTorch's
//! `ScheduleInterleavedZeroBubble`), or in groups of a size that is given.
//! Qi et al. 2023 (arXiv 2401.10241), section 2 for the split and the handcrafted ZB-H1.

use super::groups::{self, Groups};
use super::{Chunks, Family, Knobs, MICROBATCHES, ScheduleParams};
use crate::action::{Action, Op};
use crate::fault::Fault;
use crate::order::PipelineOrder;
use crate::placement::Placement;

pub(super) const FAMILY: Family = Family {
    name: "interleaved-zb",
    aliases: &["InterleavedZeroBubble", "ScheduleInterleavedZeroBubble", "zb-interleaved"],
    summary: "interleaved 1F1B with split backwards: W fills the waits",
    paper: "Qi et al. 2023, arXiv 2401.10241, section 2; PyTorch ScheduleInterleavedZeroBubble",
    makespan: "m v (F + B) + (p - 1)(F + max(0, I - W))",
    peak_activations: "min(m v, (v - 1) g + p)",
    chunks: Chunks::Any,
    knobs: Knobs { group: true, ..Knobs::NONE },
    constraints,
    order,
};

/// Rounds of at least `p` microbatches, as many as there can be.
fn rounds(p: u32, m: u32) -> u32 {
    (m / p).max(1)
}

fn constraints(params: &ScheduleParams) -> Vec<Fault> {
    let ScheduleParams { ranks: p, microbatches: m, .. } = *params;
    let fault = match params.microbatch_group_size {
        Some(g) => groups::size_fault(p, m, g),
        None if m.is_multiple_of(rounds(p, m)) => None,
        None => Some(uneven(p, m)),
    };
    fault.into_iter().collect()
}

fn uneven(p: u32, m: u32) -> Fault {
    let n = rounds(p, m);
    let message = format!(
        "interleaved-zb takes its microbatches in m / p = {n} rounds of equal size: {m} % {n} = {} (m = {m} microbatches, \
         p = {p} ranks)",
        m % n
    );
    // Multiples of p are legal, so both searches are short.
    let even = |m: &u32| m.is_multiple_of(rounds(p, *m));
    let below = (0..m).rev().find(even).unwrap_or(0);
    let above = (m..=u32::MAX).skip(1).find(even).unwrap_or(m);
    Fault::new(MICROBATCHES, "interleaved::rounds", message, groups::help(p, m, below, above))
}

fn order(params: &ScheduleParams) -> PipelineOrder {
    let ScheduleParams { ranks: p, microbatches: m, chunks: v, .. } = *params;
    let groups = Groups::new(params, params.microbatch_group_size.unwrap_or(m / rounds(p, m)));
    let total = m * v;
    let rank = |r: u32| {
        let forward = |k| {
            let (stage, microbatch) = groups.forward(r, k);
            Action::new(stage, Op::Forward, microbatch)
        };
        let half = |op, k| {
            let (stage, microbatch) = groups.backward(r, k);
            Action::new(stage, op, microbatch)
        };
        let warmup = total.min((v - 1) * groups.size + p - 1 - r);
        let mut actions = Vec::with_capacity(3 * total as usize);
        actions.extend((0..warmup).map(forward));
        for k in 0..total {
            if warmup + k < total {
                actions.push(forward(warmup + k));
            }
            actions.push(half(Op::BackwardInput, k));
            if k >= r {
                actions.push(half(Op::BackwardWeight, k - r));
            }
        }
        actions.extend((total.saturating_sub(r)..total).map(|k| half(Op::BackwardWeight, k)));
        actions
    };
    PipelineOrder::new(m, Placement::looped(p, v), (0..p).map(rank).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uneven_rounds_are_refused_with_the_nearest_legal_numbers() {
        let fault =
            |m| constraints(&ScheduleParams::new(3, m, 2)).first().map(|f| format!("{} / {}", f.message, f.help));
        let text = fault(16).unwrap();
        assert!(text.contains("16 % 5 = 1") && text.contains("m = 15 or 18") && text.contains(": 4 in"), "{text}");
        assert_eq!([1, 2, 4, 5, 8].map(fault), [const { None }; 5], "one round of any size, two of four");
    }
}
