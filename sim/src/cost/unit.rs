//! Abstract costs: F, I, W and hop as numbers.

use super::CostModel;
use pipewright_ir::action::{Action, Op};
use pipewright_ir::schedule::Schedule;
use pipewright_ir::task::Task;
use pipewright_ir::unit_costs::{StageTimes, UnitCosts};

/// Costs of each stage: the cost of a rank's whole share / `v` x the stage's scale, and of a slice its share of that.
/// Exact in f64 for small integers.
#[derive(Clone, Debug)]
pub struct UnitCost {
    /// F, I, W and optimizer step of each stage.
    stages: Vec<[f64; 4]>,
    /// Overlapped F and B of each stage.
    overlapped: Option<Vec<f64>>,
    hop: f64,
}

impl UnitCost {
    /// Unit costs of a schedule; `v` is stages / ranks.
    pub fn new(costs: &UnitCosts, schedule: &Schedule) -> Self {
        let placement = schedule.placement();
        let (chunks, slices) = (placement.chunks(), f64::from(schedule.cells().slices()));
        let times = StageTimes::of(costs, placement.ranks(), placement.stages());
        let stages = times.stages.iter().enumerate().map(|(s, t)| {
            let optimizer = costs.optimizer / chunks * costs.scale(s);
            [t.forward / slices, t.backward_input / slices, t.backward_weight / slices, optimizer]
        });
        let overlapped = costs
            .overlapped_forward_backward
            .map(|both| (0..times.stages.len()).map(|s| both / chunks / slices * costs.scale(s)).collect());
        Self { stages: stages.collect(), overlapped, hop: costs.hop }
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
            _ => 0.0,
        }
    }

    /// The overlapped time of one forward and one backward, whole or in its two halves, and nothing else; the mean of what
    /// their stages take. Of other parts the sum.
    fn compound(&self, parts: &[&Task]) -> f64 {
        let sum = parts.iter().map(|task| self.duration(task)).sum();
        let Some(overlapped) = &self.overlapped else { return sum };
        let find = |op| parts.iter().map(|task| task.action).find(|action| action.op == op);
        let same = |a: &Action, b: &Action| (a.stage, a.microbatch) == (b.stage, b.microbatch);
        let backward = match parts.len() {
            2 => find(Op::FullBackward),
            3 => find(Op::BackwardInput).filter(|i| find(Op::BackwardWeight).is_some_and(|w| same(i, &w))),
            _ => None,
        };
        let of = |action: Action| overlapped.get(action.stage.index()).copied().unwrap_or(0.0);
        find(Op::Forward).zip(backward).map_or(sum, |(f, b)| f64::midpoint(of(f), of(b)))
    }

    fn latency(&self, _: &Task) -> f64 {
        self.hop
    }
}
