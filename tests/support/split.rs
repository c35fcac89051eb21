//! Orders with their backwards split.

use pipewright::ir::action::{Action, Op};
use pipewright::ir::order::PipelineOrder;
use std::collections::VecDeque;

/// The same program with every backward in two halves, each weight gradient `delay` places of its rank later.
pub(crate) fn split_backward(order: &PipelineOrder, delay: usize) -> PipelineOrder {
    let split = |actions: &Vec<Action>| {
        let mut halves = Vec::with_capacity(actions.len() * 2);
        let mut waiting: VecDeque<(usize, Action)> = VecDeque::new();
        for (i, action) in actions.iter().enumerate() {
            // Nothing comes between the parts of a compound action.
            while !action.joins_previous && waiting.front().is_some_and(|(due, _)| *due <= i) {
                halves.extend(waiting.pop_front().map(|(_, weight)| weight));
            }
            if action.op == Op::FullBackward {
                halves.push(Action { op: Op::BackwardInput, ..*action });
                let weight = Action { op: Op::BackwardWeight, joins_previous: false, ..*action };
                waiting.push_back((i + delay, weight));
            } else {
                halves.push(*action);
            }
        }
        halves.extend(waiting.into_iter().map(|(_, weight)| weight));
        halves
    };
    PipelineOrder { ranks: order.ranks.iter().map(split).collect(), ..order.clone() }
}
