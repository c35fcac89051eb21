//! Interleaved 1F1B: every rank holds `v` chunks of layers, so the pipe fills in `1/v` of the time.
//!
//! ```text
//! p = 2, v = 2, m = 4; a lower-case letter is the second chunk
//! rank 0  F0 F1 f0 f1 F2 .  b0 b0 F3 b1 b1 f2 B0 B0 f3 B1 B1 .  b2 b2 .  b3 b3 B2 B2 B3 B3
//! rank 1  .  F0 F1 f0 b0 b0 f1 b1 b1 F2 B0 B0 F3 B1 B1 f2 b2 b2 f3 b3 b3 B2 B2 B3 B3 .  .
//! ```
//! Microbatches go in groups of `g` (Megatron's `microbatch_group_size_per_vp_stage`): a chunk takes a group, then the
//! next chunk takes the same group. Warm-up of rank `r`: `(v - 1) g + 2 (p - 1 - r)` chunk forwards. In chunk times the
//! makespan is `(m v + p - 1)(F + B)` for `m >= p` (idle `(p - 1)(F + B)` chunk times, `1/v` of 1F1B's) and
//! `((v - 1) p + m + p - 1)(F + B)` for `g = m < p`; at most `min(m v, (v - 1) g + 2 (p - 1 - r) + 1)` chunks alive.
//! `2 m (p v - 1)` messages, a little more than `v` times those of 1F1B. Narayanan et al. 2021 (arXiv 2104.04473), section 2.2.2.

use super::groups::{self, Groups};
use super::{Chunks, Family, Knobs, MICROBATCHES, ScheduleParams, warmup};
use crate::action::{Action, Op};
use crate::fault::Fault;
use crate::order::PipelineOrder;
use crate::placement::Placement;

pub(super) const FAMILY: Family = Family {
    name: "interleaved-1f1b",
    aliases: &["interleaved", "1f1b-interleaved", "ScheduleInterleaved1F1B"],
    summary: "v chunks a rank: 1/v of the bubble, more than v times the messages",
    paper: "Narayanan et al. 2021, arXiv 2104.04473, section 2.2.2",
    makespan: "(m v + p - 1)(F + B)",
    peak_activations: "min(m v, (v - 1) g + 2 (p - 1 - r) + 1)",
    chunks: Chunks::Any,
    knobs: Knobs { group: true, ..Knobs::NONE },
    constraints,
    order,
};

/// Strict (no group size given): `m mod p = 0`. With one, whatever leaves no group too small, see [`groups`].
fn constraints(params: &ScheduleParams) -> Vec<Fault> {
    let ScheduleParams { ranks: p, microbatches: m, .. } = *params;
    let fault = match params.microbatch_group_size {
        Some(g) => groups::size_fault(p, m, g),
        None if m.is_multiple_of(p) => None,
        None => Some(not_divisible(m, p)),
    };
    fault.into_iter().collect()
}

fn not_divisible(m: u32, p: u32) -> Fault {
    let message = format!(
        "interleaved 1F1B needs the number of microbatches to be a multiple of the pipeline size: {m} % {p} = {} (m = {m} \
         is num_microbatches, or global_batch_size / (micro_batch_size * data_parallel_size))",
        m % p
    );
    let help = groups::help(p, m, m / p * p, (m / p + 1).saturating_mul(p));
    Fault::new(MICROBATCHES, "interleaved::microbatches", message, help)
}

fn order(params: &ScheduleParams) -> PipelineOrder {
    let ScheduleParams { ranks: p, microbatches: m, chunks: v, .. } = *params;
    let groups = Groups::new(params, params.microbatch_group_size.unwrap_or(p));
    let rank = |r: u32| {
        let action = |(stage, microbatch), op| Action::new(stage, op, microbatch);
        let forward = |k| action(groups.forward(r, k), Op::Forward);
        let backward = |k| action(groups.backward(r, k), Op::FullBackward);
        let warmup = (v - 1) * groups.size + 2 * (p - 1 - r);
        warmup::one_forward_one_backward(m * v, warmup, forward, backward)
    };
    PipelineOrder::new(m, Placement::looped(p, v), (0..p).map(rank).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(p: u32, m: u32, g: Option<u32>) -> Option<String> {
        let params = ScheduleParams { microbatch_group_size: g, ..ScheduleParams::new(p, m, 2) };
        constraints(&params).first().map(|f| format!("{} / {}", f.message, f.help))
    }

    #[test]
    fn ten_microbatches_on_four_ranks_are_refused_with_the_nearest_legal_numbers() {
        let text = fault(4, 10, None).unwrap();
        assert!(text.contains("10 % 4 = 2") && text.contains("m = 8 or 12"), "{text}");
        let text = fault(6, 3, None).unwrap();
        assert!(text.contains("3 % 6 = 3") && text.contains("m = 6,") && text.contains("global_batch_size"), "{text}");
    }

    #[test]
    fn group_sizes_follow_megatron() {
        assert_eq!(fault(4, 10, Some(5)), None);
        assert_eq!(fault(4, 10, Some(6)), None, "a ragged last group of 4 is allowed");
        assert!(fault(4, 10, Some(7)).is_some(), "a ragged last group of 3 is not");
        assert!(fault(4, 8, Some(2)).is_some());
        assert!(fault(4, 8, Some(0)).is_some());
        assert_eq!(fault(6, 3, Some(3)), None, "one group holds fewer microbatches than ranks");
    }
}
