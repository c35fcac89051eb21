//! The shape that the 1F1B kin share: some forwards, then one forward one backward, then the remaining backwards.

use crate::action::{Action, Op};

/// `warmup` forwards, then F and B in turn, then backwards, over `total` of each. `forward(k)` and `backward(k)` name
/// the stage and microbatch of the k-th of its kind.
pub(super) fn one_forward_one_backward(
    total: u32,
    warmup: u32,
    forward: impl Fn(u32) -> Action,
    backward: impl Fn(u32) -> Action,
) -> Vec<Action> {
    debug_assert!(forward(0).op == Op::Forward && backward(0).op == Op::FullBackward);
    let warmup = warmup.min(total);
    let mut actions = Vec::with_capacity(2 * total as usize);
    actions.extend((0..warmup).map(&forward));
    for k in warmup..total {
        actions.push(forward(k));
        actions.push(backward(k - warmup));
    }
    actions.extend((total - warmup..total).map(&backward));
    actions
}

/// The same on a rank that holds one stage, microbatches in order.
pub(super) fn single_stage(rank: u32, microbatches: u32, warmup: u32) -> Vec<Action> {
    use crate::ids::{Microbatch, Stage};
    let action = |op| move |k| Action::new(Stage::new(rank), op, Microbatch::new(k));
    one_forward_one_backward(microbatches, warmup, action(Op::Forward), action(Op::FullBackward))
}
