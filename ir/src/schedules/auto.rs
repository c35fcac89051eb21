//! `auto`: the best order that can be found for the costs and the memory limit at hand.
//!
//! ```text
//! named schedules that fit -> the best of them -> list schedules by many rules -> local improvement
//! ```
//! It starts from every named schedule of as many chunks that fits in the limit, so it is never worse than the best of
//! them. One chunk a rank is searched in the loop, two in the V and in the loop, more in the loop. Schedules of two pipes
//! (DualPipe, Chimera) are no candidates: they hold two copies of the parameters; nor are those that slice microbatches,
//! which change what a task is. Without a limit a rank may hold everything. There is no closed form: see
//! [`lower_bound`](crate::search::lower_bound) for how far from the best possible a makespan can be at most.

use super::{Chunks, FAMILIES, Family, Knobs, ScheduleParams, adapt};
use crate::order::PipelineOrder;
use crate::placement::Placement;
use crate::search::{Effort, Evaluation, evaluate, slots};

pub(super) const FAMILY: Family = Family {
    name: "auto",
    aliases: &["automatic", "search"],
    summary: "built for the costs and the memory limit: no worse than any named schedule that fits",
    paper: "none; list scheduling, patterns (arXiv 2405.15362) and late acceptance hill climbing",
    makespan: "no closed form",
    peak_activations: "at most the limit",
    chunks: Chunks::Any,
    knobs: Knobs { limit: true, ..Knobs::NONE },
    constraints: adapt::limit_faults,
    order,
};

fn order(params: &ScheduleParams) -> PipelineOrder {
    let (p, v) = (params.ranks, params.chunks);
    let named: Vec<PipelineOrder> = candidates(params);
    let looped = Placement::looped(p, v);
    let placements = if v == 2 { vec![Placement::v_shaped(p), looped.clone()] } else { vec![looped.clone()] };
    let mut best: Option<(Evaluation, PipelineOrder)> = None;
    for placement in &placements {
        let order = adapt::search(params, placement, None, &named, Effort::AUTO);
        let Some(evaluation) = evaluate(&order, &params.times) else { continue };
        if best.as_ref().is_none_or(|(other, _)| evaluation.beats(other)) {
            best = Some((evaluation, order));
        }
    }
    best.map_or_else(|| adapt::search(params, &looped, None, &[], Effort::NAMED), |(_, order)| order)
}

/// Every named schedule of one pipe and as many chunks, within the limit.
fn candidates(params: &ScheduleParams) -> Vec<PipelineOrder> {
    let build = |family: &Family| {
        let max_activations = params.max_activations.clone().filter(|_| family.knobs.limit);
        let order = family.order(&ScheduleParams { max_activations, ..params.clone() }).ok()?;
        let evaluation = evaluate(&order, &params.times)?;
        let chunks = params.chunks as usize;
        let fits = params.max_activations.as_ref().is_none_or(|limits| {
            evaluation.ranks.iter().zip(limits).all(|(rank, limit)| rank.peak as usize <= slots(*limit, chunks))
        });
        fits.then_some(order)
    };
    FAMILIES.iter().filter(|family| family.name != FAMILY.name).filter_map(build).collect()
}
