//! Gradient accumulation: the same order several times before one optimizer step.

use crate::order::PipelineOrder;

/// Repeats `order` for `rounds` rounds; microbatch `k` of round `n` becomes `n m + k`, in each pipe. Every rank runs its rounds back
/// to back, so a round may start on an early rank while a late one still finishes the round before.
pub fn accumulate(order: &PipelineOrder, rounds: u32) -> PipelineOrder {
    let m = order.cells().microbatches;
    let shifted = |actions: &Vec<crate::action::Action>| {
        (0..rounds)
            .flat_map(|round| {
                actions.iter().map(move |action| {
                    let microbatch = action.microbatch.map(|k| k.later(round * m));
                    crate::action::Action { microbatch, ..*action }
                })
            })
            .collect()
    };
    PipelineOrder {
        microbatches: order.microbatches * rounds,
        slices: order.slices,
        placement: order.placement.clone(),
        ranks: order.ranks.iter().map(shifted).collect(),
    }
}
