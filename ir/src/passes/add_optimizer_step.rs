//! The optimizer step of every stage, last in its rank's program.

use crate::action::{Action, Op};
use crate::ids::Rank;
use crate::order::PipelineOrder;

/// Appends `OPTIMIZER_STEP` for each stage of each rank.
pub fn add_optimizer_step(mut order: PipelineOrder) -> PipelineOrder {
    for (r, actions) in order.ranks.iter_mut().enumerate() {
        let stages = order.placement.stages_of(Rank::at(r));
        actions.extend(stages.map(|stage| Action::whole_stage(stage, Op::OptimizerStep)));
    }
    order
}
