//! Gradient accumulation: the same order several times before one optimizer step.

use crate::ids::Microbatch;
use crate::order::PipelineOrder;

/// Repeats `order` for `rounds` rounds; microbatch `k` of round `n` becomes `n m + k`. Every rank runs its rounds back
/// to back, so a round may start on an early rank while a late one still finishes the round before.
pub fn accumulate(order: &PipelineOrder, rounds: u32) -> PipelineOrder {
    let m = order.microbatches;
    let shifted = |actions: &Vec<crate::action::Action>| {
        (0..rounds)
            .flat_map(|round| {
                actions.iter().map(move |action| {
                    let microbatch = action.microbatch.map(|k| Microbatch(k.0.saturating_add(round * m)));
                    crate::action::Action { microbatch, ..*action }
                })
            })
            .collect()
    };
    PipelineOrder {
        microbatches: m * rounds,
        placement: order.placement.clone(),
        ranks: order.ranks.iter().map(shifted).collect(),
    }
}
