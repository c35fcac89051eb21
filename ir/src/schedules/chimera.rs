//! Chimera: two 1F1B pipes in opposite directions through the same ranks, each in the gaps of the other.
//!
//! ```text
//! p = 4, m = 4; a lower-case letter is the upward pipe
//! rank 0  F0 F1 .  f0 b0 b0 f1 b1 b1 .  B0 B0 .  .  B1 B1
//! rank 1  .  F0 f0 F1 f1 .  b0 b0 B0 B0 b1 b1 B1 B1 .  .
//! rank 2  .  f0 F0 f1 F1 .  B0 B0 b0 b0 B1 B1 b1 b1 .  .
//! rank 3  f0 f1 .  F0 B0 B0 F1 B1 B1 .  b0 b0 .  .  b1 b1
//! ```
//! Half of the microbatches go each way; every stage's parameters are held twice and their gradients summed over both
//! copies. The order is that of slots, one F or B each: stage `s` runs F of microbatch `k` in slot `s + 2 k` and B in
//! slot `2 p - 1 - s + 2 k`; with `p` even, `p` microbatches fill every rank's slots without a clash. They are a unit;
//! the next unit follows `2 p` slots later, its first forwards in the gaps of the last backwards. Until microbatches
//! arrive from the far side, those of the near side go in every slot instead of every second.
//!
//! At F = B the makespan is `m (F + B) + (2 p - 2 - q) F` with `q` microbatches in the last unit: idle `(p - 2) F` when
//! `p` divides `m`. At B = 2 F a step of `n` whole units idles `(n + 1)(p - 2) F`. Alive are at most
//! `min(m, min(m, p)/2 + 1 + min(r, p - 1 - r))` activations, both pipes together; `2 m (p - 1)` messages. There is no
//! closed form for other costs. `p` even, `m` even. Li and Hoefler 2021 (arXiv 2107.06925), section 3. Its ways to more
//! than one unit without waits between them (forward doubling, backward halving) change the work of a task and are not
//! here.

use super::dualpipe::{neighbours, odd_microbatches, odd_ranks, sides};
use super::{Chunks, Family, Knobs, MICROBATCHES, ScheduleParams};
use crate::action::{Action, Op};
use crate::fault::Fault;
use crate::ids::Microbatch;
use crate::order::PipelineOrder;
use crate::placement::Placement;

pub(super) const FAMILY: Family = Family {
    name: "chimera",
    aliases: &["Chimera", "bidirectional-1f1b"],
    summary: "two 1F1B pipes in opposite directions: about half the bubble, parameters held twice",
    paper: "Li and Hoefler 2021, arXiv 2107.06925, section 3",
    makespan: "m (F + B) + (p - 2) F at F = B and m mod p = 0",
    peak_activations: "min(m, min(m, p)/2 + 1 + min(r, p - 1 - r))",
    chunks: Chunks::One,
    knobs: Knobs::NONE,
    constraints,
    order,
};

/// `p` even, `m` even.
fn constraints(params: &ScheduleParams) -> Vec<Fault> {
    let ScheduleParams { ranks: p, microbatches: m, .. } = *params;
    let mut faults: Vec<Fault> = odd_ranks("chimera", p).into_iter().collect();
    if !m.is_multiple_of(2) {
        let message = odd_microbatches("chimera", m);
        faults.push(Fault::new(MICROBATCHES, "chimera::microbatches", message, neighbours("m", m)));
    }
    faults
}

fn order(params: &ScheduleParams) -> PipelineOrder {
    let ScheduleParams { ranks: p, microbatches: m, .. } = *params;
    PipelineOrder::new(m, Placement::bidirectional(p), (0..p).map(|r| rank(p, m, r)).collect())
}

fn rank(p: u32, m: u32, r: u32) -> Vec<Action> {
    let [near, far] = sides(p, r);
    let (s, far_s) = (near.number(), far.number());
    // Slots in which this rank has nothing from the far side yet.
    let alone = far_s - s;
    let mut slots = Vec::with_capacity(2 * m as usize);
    for k in 0..m / 2 {
        let turn = 2 * p * (k / (p / 2)) + 2 * (k % (p / 2));
        let near_forward = match k {
            _ if k >= p / 2 => s + turn,
            _ if k < alone => s + k,
            _ => far_s + 1 + 2 * (k - alone),
        };
        for (slot, stage, op) in [
            (near_forward, near, Op::Forward),
            (far_s + turn, far, Op::Forward),
            (2 * p - 1 - far_s + turn, far, Op::FullBackward),
            (2 * p - 1 - s + turn, near, Op::FullBackward),
        ] {
            slots.push((slot, Action::new(stage, op, Microbatch::new(k))));
        }
    }
    slots.sort_unstable_by_key(|(slot, _)| *slot);
    slots.into_iter().map(|(_, action)| action).collect()
}
