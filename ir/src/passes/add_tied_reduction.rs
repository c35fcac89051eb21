//! The reduction of a tied embedding: the first stage looks tokens up in it, the last multiplies by it, and both
//! copies must see the sum of both gradients.

use crate::action::{Action, Op};
use crate::ids::Stage;
use crate::order::PipelineOrder;

/// Appends `REDUCE_TIED` to the ranks of the first and the last stage. Nothing to do with one stage, which holds the
/// weight once; where both stages share a rank one local task stands for both.
pub fn add_tied_reduction(mut order: PipelineOrder) -> PipelineOrder {
    let (first, last) = (Stage(0), order.placement.last());
    if first == last {
        return order;
    }
    let ranks = (order.placement.rank_of(first), order.placement.rank_of(last));
    let mut append = |rank: Option<crate::ids::Rank>, stage| {
        if let Some(actions) = rank.and_then(|r| order.ranks.get_mut(r.index())) {
            actions.push(Action::whole_stage(stage, Op::ReduceTied));
        }
    };
    append(ranks.0, first);
    if ranks.0 != ranks.1 {
        append(ranks.1, last);
    }
    order
}
