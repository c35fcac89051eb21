//! The norm of all gradients, which every rank must know before its optimizer may scale them.

use crate::action::{Action, Op};
use crate::ids::Rank;
use crate::order::PipelineOrder;

/// Appends `CLIP_GRAD` to every rank that holds a stage: no optimizer then starts before the last backward of all ranks.
pub fn add_gradient_clipping(mut order: PipelineOrder) -> PipelineOrder {
    for (r, actions) in order.ranks.iter_mut().enumerate() {
        let stage = order.placement.stages_of(Rank::at(r)).next();
        actions.extend(stage.map(|stage| Action::whole_stage(stage, Op::ClipGrad)));
    }
    order
}
