//! `PipelineOrder`: rank -> actions.
//!
//! One law: an order is only what was written; whether it makes sense is for [`spec`](crate::spec) to say.

use crate::action::{Action, Op};
use crate::cells::Cells;
use crate::placement::Placement;
use crate::schedules::{MAX_STAGE_MICROBATCHES, stage_microbatches};

/// The program of every rank for one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineOrder {
    /// Microbatches of the step, `m` (times the accumulation rounds), all pipes together.
    pub microbatches: u32,
    /// Sequence slices of each microbatch; 1 where microbatches are whole.
    pub slices: u16,
    /// Which rank holds which stage.
    pub placement: Placement,
    /// Rank -> its actions in program order.
    pub ranks: Vec<Vec<Action>>,
}

impl PipelineOrder {
    /// An order of whole microbatches.
    pub fn new(microbatches: u32, placement: Placement, ranks: Vec<Vec<Action>>) -> Self {
        Self { microbatches, slices: 1, placement, ranks }
    }

    /// The numbering of its (stage, microbatch) pairs. An order of more than [`MAX_STAGE_MICROBATCHES`] has none, so that
    /// no table of absurd size is made for it; its actions are then all out of range (R01).
    pub fn cells(&self) -> Cells {
        let (stages, pipes) = (self.placement.stages(), self.placement.pipes());
        let legal = stage_microbatches(stages, self.microbatches, self.slices) <= MAX_STAGE_MICROBATCHES;
        let microbatches = if legal { self.microbatches / u32::try_from(pipes.len()).unwrap_or(1) } else { 0 };
        Cells { stages, pipes, microbatches, slices: self.slices }
    }

    /// Whether any action has an operation like this.
    pub fn has(&self, like: impl Fn(Op) -> bool) -> bool {
        self.ranks.iter().flatten().any(|action| like(action.op))
    }

    /// Actions of all ranks together.
    pub fn len(&self) -> usize {
        self.ranks.iter().map(Vec::len).sum()
    }

    /// Whether no rank does anything.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
