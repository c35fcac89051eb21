//! Abstract costs: F, I, W and hop as numbers.

use super::CostModel;
use pipewright_ir::action::Op;
use pipewright_ir::placement::Placement;
use pipewright_ir::plan::UnitCosts;
use pipewright_ir::task::Task;

/// Costs of each stage: the cost of a rank's whole share / `v` x the stage's scale. Exact in f64 for small integers.
#[derive(Clone, Debug)]
pub struct UnitCost {
    stages: Vec<[f64; 4]>,
    hop: f64,
}

impl UnitCost {
    /// Unit costs over a placement; `v` is stages / ranks.
    pub fn new(costs: &UnitCosts, placement: &Placement) -> Self {
        let chunks = placement.chunks();
        let stage = |s: u32| {
            let scale = costs.stage_scale.get(s as usize).copied().unwrap_or(1.0);
            [costs.forward, costs.backward_input, costs.backward_weight, costs.optimizer].map(|c| c / chunks * scale)
        };
        Self { stages: (0..placement.stages()).map(stage).collect(), hop: costs.hop }
    }
}

impl CostModel for UnitCost {
    fn duration(&self, task: &Task) -> f64 {
        let Some([forward, input, weight, optimizer]) = self.stages.get(task.action.stage.index()) else { return 0.0 };
        match task.action.op {
            Op::Forward => *forward,
            Op::FullBackward => input + weight,
            Op::BackwardInput => *input,
            Op::BackwardWeight => *weight,
            Op::OptimizerStep => *optimizer,
            Op::SendForward | Op::RecvForward | Op::SendBackward | Op::RecvBackward | Op::ReduceTied => 0.0,
        }
    }

    fn latency(&self, _: &Task) -> f64 {
        self.hop
    }
}
