//! How much each task computes.
//!
//! One law: tasks of one kind share one entry, so that a schedule of a million tasks does not repeat it a million times.

use crate::action::Op;
use crate::segments::Programs;
use crate::task::{Task, Work};

/// Work by stage, and by step where actions are cut into steps.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorkTable {
    /// Stage -> floating-point operations of its forward of one microbatch.
    forward_flops: Vec<f64>,
    /// Entry of the programs' table of steps -> its work.
    steps: Vec<Work>,
}

impl WorkTable {
    /// The work of whole actions, from the FLOPs of the forward of each stage.
    pub(crate) fn of_stages(forward_flops: Vec<f64>) -> Self {
        Self { forward_flops, steps: Vec::new() }
    }

    /// The same, and the work of steps.
    pub(crate) fn with_steps(&self, programs: &Programs) -> Self {
        let steps = (0u32..).take(programs.steps.len()).map(|step| programs.work(step)).collect();
        Self { forward_flops: self.forward_flops.clone(), steps }
    }

    /// The work of one task. A backward of inputs or of weights does as many operations as the forward.
    pub(crate) fn of(&self, task: &Task) -> Work {
        if let Some(step) = task.step.program() {
            return self.steps.get(step as usize).copied().unwrap_or_default();
        }
        let passes = match task.action.op {
            Op::Forward | Op::BackwardInput | Op::BackwardWeight => 1.0,
            Op::FullBackward => 2.0,
            _ => 0.0,
        };
        let forward = self.forward_flops.get(task.action.stage.index()).copied().unwrap_or(0.0);
        Work { flops: passes * forward, bytes: 0.0 }
    }
}
