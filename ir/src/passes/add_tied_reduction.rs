//! The reduction of a tied embedding: the first stage looks tokens up in it, the last multiplies by it, and both
//! copies must see the sum of both gradients.

use crate::action::{Action, Op};
use crate::ids::{Rank, Stage};
use crate::order::PipelineOrder;

/// Appends `REDUCE_TIED` to the ranks of the first and the last stage. Nothing to do with one stage, which holds the
/// weight once; where both stages share a rank one local task stands for both.
pub fn add_tied_reduction(mut order: PipelineOrder) -> PipelineOrder {
    let mut done: Vec<Stage> = Vec::new();
    for stage in order.placement.all_stages() {
        let Some(partner) = order.placement.tied_partner(stage).filter(|_| !done.contains(&stage)) else { continue };
        let rank_of = |stage| order.placement.rank_of(stage).map(Rank::index);
        if rank_of(stage) == rank_of(partner) {
            done.push(partner);
        }
        if let Some(actions) = rank_of(stage).and_then(|r| order.ranks.get_mut(r)) {
            actions.push(Action::whole_stage(stage, Op::ReduceTied));
        }
    }
    order
}
