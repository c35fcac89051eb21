//! Analytic costs at the detail of segments.
//!
//! One law: the steps of an action take together what the action takes at the detail of stages, unless messages go on
//! beside the action behind it.

use super::{AnalyticCost, fold};
use crate::cost::CostModel;
use pipewright_ir::action::Op;
use pipewright_ir::segments::{Programs, StageProgram};
use pipewright_ir::task::{Lane, Task};

/// Costs of one plan whose schedule is cut into segments.
#[derive(Clone, Debug)]
pub struct SegmentCost<'a> {
    cost: &'a AnalyticCost,
    /// What the steps of F, B, I and W of each stage lose to the messages that they hide, by their place \[s\].
    losses: Vec<[Vec<f64>; 4]>,
}

impl<'a> SegmentCost<'a> {
    /// The costs of the steps of `programs`, for which `cost` was made.
    pub fn new(cost: &'a AnalyticCost, programs: &Programs) -> Self {
        let lists = |stage: &StageProgram| {
            let lists = [&stage.forward, &stage.backward, &stage.input, &stage.weight];
            lists.map(|list| fold::losses(programs, list, &cost.steps, cost.overlap_cost))
        };
        Self { cost, losses: programs.stages.iter().map(lists).collect() }
    }

    /// What a step loses to the messages that it hides, part of its duration \[s\].
    pub fn lost(&self, task: &Task) -> f64 {
        let list = match task.action.op {
            Op::Forward => 0,
            Op::FullBackward => 1,
            Op::BackwardInput => 2,
            Op::BackwardWeight => 3,
            _ => return 0.0,
        };
        let stage = self.losses.get(task.action.stage.index()).filter(|_| task.lane == Lane::Compute);
        stage.and_then(|lists| lists[list].get(task.step.place as usize)).copied().unwrap_or(0.0)
    }
}

impl CostModel for SegmentCost<'_> {
    fn duration(&self, task: &Task) -> f64 {
        self.cost.duration(task) + if task.step.program().is_some() { self.lost(task) } else { 0.0 }
    }

    fn latency(&self, receiver: &Task) -> f64 {
        self.cost.latency(receiver)
    }
}
