//! The sum of gradients over the copies of a stage: the two pipes of a bidirectional order each see half the
//! microbatches.

use crate::action::{Action, Op};
use crate::ids::{Pipe, Rank};
use crate::order::PipelineOrder;

/// Appends `REDUCE_GRAD` for each stage that has a copy in another pipe, in the order of the stages' numbers on every
/// rank. Where both copies share a rank one local task stands for both.
pub fn add_gradient_reduction(mut order: PipelineOrder) -> PipelineOrder {
    let mut stages: Vec<_> = order.placement.all_stages().collect();
    stages.sort();
    stages.sort_by_key(|stage| stage.number());
    for stage in stages {
        let Some(copy) = order.placement.copy_of(stage) else { continue };
        let rank_of = |stage| order.placement.rank_of(stage).map(Rank::index);
        if stage.pipe() == Pipe::Up && rank_of(stage) == rank_of(copy) {
            continue;
        }
        if let Some(actions) = rank_of(stage).and_then(|r| order.ranks.get_mut(r)) {
            actions.push(Action::whole_stage(stage, Op::ReduceGrad));
        }
    }
    order
}
