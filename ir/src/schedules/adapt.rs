//! What the families that adapt share: the limit in force, its fault, and the search.

use super::{LIMIT, ScheduleParams};
use crate::action::{Action, Op};
use crate::fault::Fault;
use crate::ids::{Microbatch, Stage};
use crate::order::PipelineOrder;
use crate::placement::Placement;
use crate::search::{Effort, Shop, best_order};

/// A limit below one microbatch fits nothing: its F of every chunk of the rank come before any of its W.
pub(super) fn limit_faults(params: &ScheduleParams) -> Vec<Fault> {
    let limits = params.max_activations.iter().flatten();
    let low = limits.enumerate().find(|(_, limit)| **limit < 1.0 - 1e-9);
    let fault = |(rank, limit): (usize, &f64)| {
        let message = format!(
            "{LIMIT} of rank {rank} is {limit}, less than one microbatch: every order must hold the activations of all \
             chunks of a microbatch before it can free any"
        );
        Fault::new(
            LIMIT,
            "schedule::limit",
            message,
            "use 1 or more: 1 is the smallest peak of any order, on every rank",
        )
    };
    low.map(fault).into_iter().collect()
}

/// The best order found for the costs, under the limit of `params`, or else `default` microbatches a rank. No worse than
/// each of `candidates` that fits, and one of them unless something is strictly better.
pub(super) fn search(
    params: &ScheduleParams,
    placement: &Placement,
    default: Option<u32>,
    candidates: &[PipelineOrder],
    effort: Effort,
) -> PipelineOrder {
    let limit = |rank: usize| match &params.max_activations {
        Some(limits) => limits.get(rank).copied(),
        None => default.map(f64::from),
    };
    let shop = Shop::new(placement, &params.times, params.microbatches, limit);
    let candidates = candidates.iter().filter_map(|order| shop.program(order)).collect();
    let program = best_order(&shop, candidates, effort).map_or_else(|| shop.one_at_a_time(), |(program, _)| program);
    shop.order(&program)
}

/// One stage a rank: `warmup(r)` forwards, then F and I in turn with W `delay(r)` microbatches behind its I.
pub(super) fn delayed(p: u32, m: u32, warmup: impl Fn(u32) -> u32, delay: impl Fn(u32) -> u32) -> PipelineOrder {
    let rank = |r: u32| {
        let action = |op, k| Action::new(Stage::new(r), op, Microbatch::new(k));
        let (warmup, delay) = (warmup(r).min(m), delay(r));
        let mut actions = Vec::with_capacity(3 * m as usize);
        actions.extend((0..warmup).map(|k| action(Op::Forward, k)));
        for k in 0..m {
            if warmup + k < m {
                actions.push(action(Op::Forward, warmup + k));
            }
            actions.push(action(Op::BackwardInput, k));
            if k >= delay {
                actions.push(action(Op::BackwardWeight, k - delay));
            }
        }
        actions.extend((m.saturating_sub(delay)..m).map(|k| action(Op::BackwardWeight, k)));
        actions
    };
    PipelineOrder::new(m, Placement::looped(p, 1), (0..p).map(rank).collect())
}
