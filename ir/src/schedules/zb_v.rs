//! ZB-V: two chunks a rank, down the ranks and back up, with split backwards. Its memory is that of 1F1B and, at
//! F = I = W, no rank waits between its first and its last task.
//!
//! ```text
//! p = 2, m = 4; a lower-case letter is the second chunk
//! rank 0  F0 F1 F2 f0 i0 w0 f1 i1 w1 F3 I0 W0 f2 i2 w2 I1 W1 f3 i3 w3 I2 W2 I3 W3 .
//! rank 1  .  F0 f0 F1 f1 i0 w0 F2 I0 W0 f2 i1 w1 F3 I1 W1 f3 i2 w2 I2 i3 I3 W2 w3 W3
//! ```
//! A microbatch turns on the last rank, without a hop, and comes back to rank 0, which can so begin its backward early.
//! Rank `r` runs `2 (p - r) - 1` forwards down, then forwards in pairs, then F I W of each chunk in turn; at the end
//! come the I that others wait for, and the W that were put off. At F = I = W = 1 a chunk and `m >= 2 p - 1` the makespan
//! is `6 m + p - 1`, and a rank is busy for `6 m` without a break. At most `2 p` chunks alive, `p` whole shares, as in
//! 1F1B. `4 m (p - 1)` messages. For other proportions of F, I and W,
//! for a hop, or under a limit that is given, the order is searched for, never worse than this one where it fits; there
//! is no closed form.
//! Any `m`; fewer than `2 p - 1` leave their places in the pattern empty. Two stages a rank.
//! Qi et al. 2023 (arXiv 2401.10241), section 6.

use super::{Chunks, Family, Knobs, ScheduleParams, adapt};
use crate::action::{Action, Op};
use crate::ids::{Microbatch, Stage};
use crate::order::PipelineOrder;
use crate::placement::Placement;
use crate::search::Effort;
use crate::unit_costs::ChunkTimes;

pub(super) const FAMILY: Family = Family {
    name: "zb-v",
    aliases: &["ZBV", "ZBVZeroBubble", "ScheduleZBVZeroBubble"],
    summary: "two chunks a rank in a V, split backwards: no wait inside a rank's span at F = I = W",
    paper: "Qi et al. 2023, arXiv 2401.10241, section 6",
    makespan: "6 m + p - 1 at F = I = W = 1 and m >= 2 p - 1",
    peak_activations: "at most min(2 m, 2 p)",
    chunks: Chunks::Two,
    knobs: Knobs { limit: true, ..Knobs::NONE },
    constraints: adapt::limit_faults,
    order,
};

fn order(params: &ScheduleParams) -> PipelineOrder {
    let ScheduleParams { ranks: p, microbatches: m, times, .. } = params;
    let canonical = canonical(*p, *m);
    let first = times.stages.first();
    let same = |t: &ChunkTimes| t.forward == t.backward_input && t.forward == t.backward_weight && Some(t) == first;
    if params.max_activations.is_none() && times.hop == 0.0 && times.stages.iter().all(same) {
        return canonical;
    }
    adapt::search(params, &Placement::v_shaped(*p), Some(*p), &[canonical], Effort::NAMED)
}

/// The published pattern, which suits F = I = W.
fn canonical(p: u32, m: u32) -> PipelineOrder {
    PipelineOrder::new(m, Placement::v_shaped(p), (0..p).map(|r| rank(p, m, r)).collect())
}

/// A chunk, 0 on the way down and 1 on the way up, and what it does.
type Turn = (usize, &'static [Op]);

fn rank(p: u32, m: u32, r: u32) -> Vec<Action> {
    const FORWARD: &[Op] = &[Op::Forward];
    const ALL: &[Op] = &[Op::Forward, Op::BackwardInput, Op::BackwardWeight];
    const BACKWARD: &[Op] = &[Op::BackwardInput, Op::BackwardWeight];
    const INPUT: &[Op] = &[Op::BackwardInput];
    const WEIGHT: &[Op] = &[Op::BackwardWeight];
    // Microbatches of the pattern.
    let full = m.max(2 * p - 1);
    // How often, and the turns.
    let phases: [(u32, &[Turn]); 8] = [
        (2 * (p - r) - 1, &[(0, FORWARD)]),
        (r, &[(1, FORWARD), (0, FORWARD)]),
        (p - r, &[(1, ALL)]),
        (full - p, &[(0, ALL), (1, ALL)]),
        (r, &[(0, INPUT), (1, INPUT)]),
        (p - r, &[(0, BACKWARD)]),
        (r, &[(1, WEIGHT)]),
        (r, &[(0, WEIGHT)]),
    ];
    let stages = [Stage::new(r), Stage::new(2 * p - 1 - r)];
    // The next microbatch of each chunk for F, I and W. Forwards down run ahead, so the pattern asks for some too many.
    let mut next = [[0; 3]; 2];
    let mut actions = Vec::with_capacity(6 * m as usize);
    for (times, turn) in phases {
        let once = || turn.iter().flat_map(|(chunk, ops)| ops.iter().map(|op| (*chunk, *op)));
        for (chunk, op) in (0..times).flat_map(|_| once()) {
            let column = ALL.iter().position(|o| *o == op).unwrap_or_default();
            let k = next[chunk][column];
            next[chunk][column] += 1;
            if k < m {
                actions.push(Action::new(stages[chunk], op, Microbatch::new(k)));
            }
        }
    }
    actions
}
