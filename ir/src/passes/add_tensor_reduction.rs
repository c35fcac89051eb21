//! The sum of gradients over the tensor-parallel ranks, of weights that each of them holds a copy of and has seen another
//! part of: norms under Megatron's sequence parallelism, key-value heads that several ranks share.
//!
//! The tensor-parallel ranks run one program, so a schedule shows one of them. As in Megatron's `finalize_model_grads` it
//! comes behind the reduction over the replicas.

use crate::action::{Action, Op};
use crate::ids::Rank;
use crate::order::PipelineOrder;

/// Appends `REDUCE_TENSOR` for each stage of each rank, the stage whose last backward comes first in the lead.
pub fn add_tensor_reduction(mut order: PipelineOrder) -> PipelineOrder {
    for (r, actions) in order.ranks.iter_mut().enumerate() {
        let last = |stage| actions.iter().rposition(|a| a.stage == stage && a.op.makes_weight_gradients());
        let mut stages: Vec<_> = order.placement.stages_of(Rank::at(r)).map(|stage| (last(stage), stage)).collect();
        stages.sort();
        actions.extend(stages.into_iter().map(|(_, stage)| Action::whole_stage(stage, Op::ReduceTensor)));
    }
    order
}
