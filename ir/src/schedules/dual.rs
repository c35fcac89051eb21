//! The pattern that DualPipe and DualPipeV share: microbatches come to a rank from two sides, and the forward of one
//! runs as one with the backward of the other.

use crate::action::{Action, Op};
use crate::ids::{Microbatch, Stage};
use std::collections::VecDeque;

/// A rank's side: `NEAR` is the stage whose microbatches begin closer to this rank, `FAR` the other.
const NEAR: usize = 0;
const FAR: usize = 1;

/// What a rank has written so far.
struct Program {
    stages: [Stage; 2],
    /// The next forward and backward of each side.
    forwards: [u32; 2],
    backwards: [u32; 2],
    /// The W that wait for a moment in which the rank would be idle, first in first out.
    put_off: VecDeque<Action>,
    actions: Vec<Action>,
}

/// The program of rank `h` (from 0) of the `half` ranks that a microbatch passes before it meets those from the other
/// side, for `n >= 2 half` microbatches of each side.
pub(super) fn program(half: u32, h: u32, n: u32, near: Stage, far: Stage) -> Vec<Action> {
    let (put_off, actions) = (VecDeque::new(), Vec::with_capacity(4 * n as usize));
    let mut program = Program { stages: [near, far], forwards: [0; 2], backwards: [0; 2], put_off, actions };
    // Ranks between this one and the middle.
    let inner = half - 1 - h;
    for _ in 0..2 * inner {
        program.forward(NEAR);
    }
    for _ in 0..=h {
        program.forward(NEAR);
        program.forward(FAR);
    }
    for _ in 0..inner {
        program.split_backward(FAR);
        program.weight();
        program.forward(FAR);
    }
    for i in 0..n - 2 * half + h + 1 {
        if i == 0 && inner == 0 {
            // In the middle the first backward waits for the forward beside it to go round, so they do not overlap.
            program.forward(NEAR);
            program.backward(FAR);
        } else {
            program.overlap(NEAR, FAR);
        }
        program.overlap(FAR, NEAR);
    }
    for _ in 0..inner {
        program.backward(FAR);
        program.overlap(FAR, NEAR);
    }
    // One backward of each side in turn; the second half is split, for the ranks behind wait for I.
    for i in 0..2 * (h + 1) {
        let side = if i % 2 == 0 { FAR } else { NEAR };
        if i <= h { program.backward(side) } else { program.split_backward(side) }
    }
    for _ in 0..inner {
        program.weight();
        program.split_backward(NEAR);
    }
    while !program.put_off.is_empty() {
        program.weight();
    }
    program.actions
}

impl Program {
    fn forward(&mut self, side: usize) {
        self.actions.push(take(self.stages[side], Op::Forward, &mut self.forwards[side]));
    }

    fn backward(&mut self, side: usize) {
        self.actions.push(take(self.stages[side], Op::FullBackward, &mut self.backwards[side]));
    }

    /// The forward of one side as one with the backward of the other.
    fn overlap(&mut self, forward: usize, backward: usize) {
        self.forward(forward);
        self.backward(backward);
        if let Some(action) = self.actions.last_mut() {
            *action = action.joined();
        }
    }

    /// I now, W put off.
    fn split_backward(&mut self, side: usize) {
        let input = take(self.stages[side], Op::BackwardInput, &mut self.backwards[side]);
        self.actions.push(input);
        self.put_off.push_back(Action { op: Op::BackwardWeight, ..input });
    }

    /// The W that has waited longest.
    fn weight(&mut self) {
        self.actions.extend(self.put_off.pop_front());
    }
}

fn take(stage: Stage, op: Op, next: &mut u32) -> Action {
    let action = Action::new(stage, op, Microbatch::new(*next));
    *next += 1;
    action
}
