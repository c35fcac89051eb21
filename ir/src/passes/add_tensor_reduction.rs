use super::behind_backward::append;
use crate::action::Op;
use crate::order::PipelineOrder;

/// Appends `REDUCE_TENSOR` for each stage of each rank, the stage whose last backward comes first in the lead.
pub fn add_tensor_reduction(order: PipelineOrder) -> PipelineOrder {
    append(order, Op::ReduceTensor)
}
