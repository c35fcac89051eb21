//! The sum of gradients over the data-parallel replicas, and the gather of weights that ZeRO's shards make necessary.
//!
//! The replicas run one program, so a schedule shows one of them: `REDUCE_DATA` is an all-reduce of the stage's gradients,
//! or under ZeRO a reduce-scatter with `GATHER_PARAM` behind the optimizer (Rajbhandari et al. 2020, section 5).

use super::behind_backward::append;
use crate::action::{Action, Op};
use crate::ids::Rank;
use crate::order::PipelineOrder;

/// Appends `REDUCE_DATA` for each stage of each rank, the stage whose last backward comes first in the lead.
pub fn add_data_reduction(order: PipelineOrder) -> PipelineOrder {
    append(order, Op::ReduceData)
}

/// Appends `GATHER_PARAM` for each stage of each rank, behind its optimizer.
pub fn add_parameter_gather(mut order: PipelineOrder) -> PipelineOrder {
    for (r, actions) in order.ranks.iter_mut().enumerate() {
        let stages = order.placement.stages_of(Rank::at(r));
        actions.extend(stages.map(|stage| Action::whole_stage(stage, Op::GatherParam)));
    }
    order
}
