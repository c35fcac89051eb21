//! Seq1F1B: 1F1B over sequence slices. Each microbatch is cut into `k` runs of tokens, so the pipe fills in `1/k` of the
//! time and a rank holds about `1/k` of the activations.
//!
//! ```text
//! p = 2, m = 2, k = 2; a lower-case letter is the second slice
//! rank 0  F0 f0 F1 .  .  b0 b0 f1 B0 B0 .  b1 b1 B1 B1
//! rank 1  .  F0 f0 b0 b0 F1 B0 B0 f1 b1 b1 B1 B1 .  .
//! ```
//! Slice `n` attends to the slices before it, so forwards go in the order of the text and backwards against it. Warm-up
//! of rank `r`: `p - 1 - r + k - 1` slices. With slices of equal time `F / k` and `B / k` the makespan is
//! `(m k + p - 1)(F + B) / k` and `min(m k, p - 1 - r + k)` slices are alive; `2 m k (p - 1)` messages, each `1/k` as
//! large. Equal times are an idealisation: causal attention makes later slices longer. Any `m` and any `k` from 1, where
//! it is 1F1B. Sun et al. 2024 (arXiv 2406.03488), section 3.

use super::{Chunks, Family, Knobs, MAX_STAGE_MICROBATCHES, SLICES, ScheduleParams, warmup};
use crate::action::{Action, Op};
use crate::fault::Fault;
use crate::ids::{Microbatch, Stage};
use crate::order::PipelineOrder;
use crate::placement::Placement;

pub(super) const FAMILY: Family = Family {
    name: "seq1f1b",
    aliases: &["Seq-1F1B", "sequence-1f1b"],
    summary: "1F1B over k slices of each sequence: 1/k of the bubble, about 1/k of the activations",
    paper: "Sun et al. 2024, arXiv 2406.03488, section 3",
    makespan: "(m k + p - 1)(F + B) / k",
    peak_activations: "min(m k, p - 1 - r + k) / k",
    chunks: Chunks::One,
    knobs: Knobs { slices: true, ..Knobs::NONE },
    constraints,
    order,
};

/// Slices a microbatch where no number is given.
const DEFAULT_SLICES: u16 = 2;

/// At least one slice, and no more slices in a step than a task graph can hold.
fn constraints(params: &ScheduleParams) -> Vec<Fault> {
    let k = params.num_seq_splits.unwrap_or(DEFAULT_SLICES);
    let pairs = u64::from(params.ranks) * u64::from(params.microbatches);
    let most = (MAX_STAGE_MICROBATCHES / pairs.max(1)).max(1);
    let (message, help) = if k == 0 {
        (format!("{SLICES} is 0; a microbatch has at least 1 slice"), "use 1 or more".to_owned())
    } else if u64::from(k) > most {
        let message = format!(
            "{SLICES} = {k} makes {pairs} (stage, microbatch) pairs x {k} = {} slices, more than {MAX_STAGE_MICROBATCHES}, \
             the most of one step",
            pairs * u64::from(k)
        );
        (message, format!("use {most} or fewer"))
    } else {
        return Vec::new();
    };
    vec![Fault::new(SLICES, "seq1f1b::slices", message, help)]
}

fn order(params: &ScheduleParams) -> PipelineOrder {
    let ScheduleParams { ranks: p, microbatches: m, .. } = *params;
    let k = params.num_seq_splits.unwrap_or(DEFAULT_SLICES);
    let slices = u32::from(k);
    let rank = |r: u32| {
        let action = |op, microbatch: u32, slice: u32| {
            let whole = Microbatch::new(microbatch);
            // Below k, so it fits.
            let slice = u16::try_from(slice).unwrap_or(u16::MAX);
            Action::new(Stage::new(r), op, if k == 1 { whole } else { whole.sliced(slice) })
        };
        let forward = |n| action(Op::Forward, n / slices, n % slices);
        let backward = |n| action(Op::FullBackward, n / slices, slices - 1 - n % slices);
        warmup::one_forward_one_backward(m * slices, p - 1 - r + slices - 1, forward, backward)
    };
    let ranks = (0..p).map(rank).collect();
    PipelineOrder { slices: k, ..PipelineOrder::new(m, Placement::looped(p, 1), ranks) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedules::find;

    fn params(k: Option<u16>) -> ScheduleParams {
        ScheduleParams { num_seq_splits: k, ..ScheduleParams::new(3, 5, 1) }
    }

    #[test]
    fn one_slice_is_1f1b_and_two_are_the_default() {
        assert_eq!(order(&params(Some(1))), find("1f1b").unwrap().order(&params(None)).unwrap());
        assert_eq!(order(&params(None)), order(&params(Some(2))));
    }

    #[test]
    fn slices_are_between_one_and_what_fits() {
        assert!(constraints(&params(Some(0)))[0].message.contains("num_seq_splits is 0"));
        let many = ScheduleParams { num_seq_splits: Some(300), ..ScheduleParams::new(8, 512, 1) };
        let fault = &constraints(&many)[0];
        assert!(fault.message.contains("4096") && fault.message.contains("1228800"), "{}", fault.message);
        assert_eq!(fault.help, "use 256 or fewer");
    }
}
