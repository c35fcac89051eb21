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

use super::{Chunks, Family, GROUP, Knobs, MICROBATCHES, ScheduleParams, warmup};
use crate::action::{Action, Op};
use crate::fault::Fault;
use crate::ids::{Microbatch, Stage};
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

/// The group size in force: as given, else `p`.
fn group_size(params: &ScheduleParams) -> u32 {
    params.microbatch_group_size.unwrap_or(params.ranks)
}

/// Strict (no group size given): `m mod p = 0`. With one: `p <= g <= m` and `m mod g` is 0 or at least `p` (Megatron-LM),
/// or `g = m`, a single group, which is sound for every `m`.
fn constraints(params: &ScheduleParams) -> Vec<Fault> {
    let ScheduleParams { ranks: p, microbatches: m, .. } = *params;
    let Some(g) = params.microbatch_group_size else {
        return if m.is_multiple_of(p) { Vec::new() } else { vec![not_divisible(m, p)] };
    };
    if g == m || (g >= p && g < m && (m.is_multiple_of(g) || m % g >= p)) {
        return Vec::new();
    }
    let legal: Vec<String> = legal_groups(p, m).into_iter().map(|g| g.to_string()).collect();
    let message = format!(
        "{GROUP} = {g} does not suit p = {p} ranks and m = {m} microbatches: it must lie between p and m and leave a last \
         group of 0 or at least p microbatches ({m} % {g} = {})",
        m.checked_rem(g).unwrap_or(m)
    );
    vec![Fault::new(GROUP, "interleaved::group", message, format!("use one of {}", legal.join(", ")))]
}

fn not_divisible(m: u32, p: u32) -> Fault {
    let message = format!(
        "interleaved 1F1B needs the number of microbatches to be a multiple of the pipeline size: {m} % {p} = {} (m = {m} \
         is num_microbatches, or global_batch_size / (micro_batch_size * data_parallel_size))",
        m % p
    );
    let (below, above) = (m / p * p, (m / p + 1).saturating_mul(p));
    let nearest = if below == 0 { format!("m = {above}") } else { format!("m = {below} or {above}") };
    let group = legal_groups(p, m).first().copied().unwrap_or(m);
    let help = format!("use {nearest}, or allow uneven groups with \"{GROUP}\": {group} in this entry of schedules");
    Fault::new(MICROBATCHES, "interleaved::microbatches", message, help)
}

/// The group sizes that `m` microbatches on `p` ranks allow, at most eight of them, smallest first, `m` always among
/// them.
fn legal_groups(p: u32, m: u32) -> Vec<u32> {
    let mut legal: Vec<u32> = (p..m).filter(|g| m.is_multiple_of(*g) || m % g >= p).take(7).collect();
    legal.push(m);
    legal
}

fn order(params: &ScheduleParams) -> PipelineOrder {
    let ScheduleParams { ranks: p, microbatches: m, chunks: v, .. } = *params;
    let g = group_size(params);
    let rank = |r: u32| {
        // The k-th chunk action of a rank: group, then chunk, then microbatch in the group.
        let place = |k: u32| {
            let group = k / (g * v);
            let size = g.min(m - group * g);
            let within = k - group * g * v;
            (within / size, group * g + within % size)
        };
        let forward = |k| {
            let (chunk, microbatch) = place(k);
            Action::new(Stage::new(chunk * p + r), Op::Forward, Microbatch::new(microbatch))
        };
        let backward = |k| {
            let (chunk, microbatch) = place(k);
            Action::new(Stage::new((v - 1 - chunk) * p + r), Op::FullBackward, Microbatch::new(microbatch))
        };
        let warmup = (v - 1) * g + 2 * (p - 1 - r);
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
