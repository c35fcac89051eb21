//! Where the reductions of a whole stage stand: behind everything that the rank computes.

use crate::action::{Action, Op};
use crate::ids::Rank;
use crate::order::PipelineOrder;

/// Appends an operation for each stage of each rank, the stage whose last backward comes first in the lead.
pub(super) fn append(mut order: PipelineOrder, op: Op) -> PipelineOrder {
    for (r, actions) in order.ranks.iter_mut().enumerate() {
        let last = |stage| actions.iter().rposition(|a| a.stage == stage && a.op.makes_weight_gradients());
        let mut stages: Vec<_> = order.placement.stages_of(Rank::at(r)).map(|stage| (last(stage), stage)).collect();
        stages.sort();
        actions.extend(stages.into_iter().map(|(_, stage)| Action::whole_stage(stage, op)));
    }
    order
}
