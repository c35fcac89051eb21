//! Measured costs: what `profile` wrote.

use super::CostModel;
use pipewright_ir::action::Op;
use pipewright_ir::cost_table::{CostTable, LayoutCosts, Measured, MessageCosts, StageCosts};
use pipewright_ir::ids::{Microbatch, Stage};
use pipewright_ir::plan::Plan;
use pipewright_ir::task::Task;
use pipewright_ir::workload::{SplitWorkload, StageWorkload, Workload};

/// Measured costs of the stages of one plan.
#[derive(Clone, Debug)]
pub struct TableCost {
    layout: LayoutCosts,
    slices: u16,
    message: MessageCosts,
}

/// Why a cost table does not serve a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// It was measured for another model, microbatch or sequence.
    #[error("the cost table is for {table}, but this plan is {plan}")]
    Job {
        /// The table's job.
        table: String,
        /// The plan's job.
        plan: String,
    },
    /// The way the plan cuts the model was not measured.
    #[error("the cost table has no costs for stages of {0:?} layers; measure them with `pipewright profile`")]
    Layout(Vec<u32>),
}

impl TableCost {
    /// The costs of `plan`.
    ///
    /// # Errors
    /// The table is for another job, or lacks the plan's stages.
    pub fn new(table: &CostTable, plan: &Plan) -> Result<Self, TableError> {
        if table.job != plan.job {
            return Err(TableError::Job { table: table.job.clone(), plan: plan.job.clone() });
        }
        let missing = || TableError::Layout(plan.layers.iter().map(|l| l.len()).collect());
        let layout = table.layout(&plan.layers).ok_or_else(missing)?.clone();
        Ok(Self { layout, slices: plan.order.slices, message: table.message })
    }
}

impl TableCost {
    /// F and B of one slice: as measured; where slices were not, an equal share of the whole.
    fn slice(&self, costs: &StageCosts, slice: u16) -> [f64; 2] {
        let measured = costs.in_slices(self.slices).and_then(|sliced| {
            let of = |times: &[Measured]| times.get(usize::from(slice)).map(|time| time.median);
            Some([of(&sliced.forward)?, of(&sliced.backward)?])
        });
        measured.unwrap_or_else(|| [costs.forward, costs.backward].map(|t| t.median / f64::from(self.slices.max(1))))
    }
}

impl CostModel for TableCost {
    fn duration(&self, task: &Task) -> f64 {
        let Some(costs) = self.layout.stages.get(task.action.stage.index()) else { return 0.0 };
        let slice = task.action.microbatch.and_then(Microbatch::slice);
        match task.action.op {
            Op::Forward => slice.map_or(costs.forward.median, |k| self.slice(costs, k)[0]),
            Op::FullBackward => slice.map_or(costs.backward.median, |k| self.slice(costs, k)[1]),
            // The parts of a slice share its B as those of the whole microbatch share theirs.
            Op::BackwardInput | Op::BackwardWeight => {
                let [input, weight] = costs.input_and_weight();
                let whole = if task.action.op == Op::BackwardInput { input } else { weight };
                slice.map_or(whole, |k| self.slice(costs, k)[1] * whole / (input + weight).max(f64::MIN_POSITIVE))
            }
            Op::OptimizerStep => costs.optimizer.median,
            Op::SendForward | Op::SendBackward => self.message.send.median,
            Op::RecvForward | Op::RecvBackward => self.message.receive.median,
            Op::ClipGrad => 0.0,
            // Both copies travel at once; measured for a message of another size, so scaled.
            Op::ReduceGrad | Op::ReduceTied | Op::ReduceData | Op::ReduceTensor | Op::GatherParam => {
                let scale = task.payload as f64 / self.message.bytes.max(1) as f64;
                (self.message.send.median + self.message.receive.median) * scale
            }
        }
    }

    fn latency(&self, _: &Task) -> f64 {
        self.message.hop.median
    }
}

/// The sizes of `plan` \[B\] as measured: a plan's schedule is lowered with them, so that its memory can be replayed.
/// Without measured costs for it, an empty workload.
pub fn workload_of(table: &CostTable, plan: &Plan) -> Workload {
    let Some(layout) = table.layout(&plan.layers) else {
        return Workload::abstract_stages(plan.placement().stages());
    };
    let tokens = plan.batch.microbatch_tokens();
    let stage = |(s, costs): (usize, &StageCosts)| {
        let stage = Stage::at(s);
        let (mut output, mut tied, mut logits, mut forward_flops) = (0, 0, 0, 0.0);
        if let Some(model) = &plan.model {
            let last = plan.placement().is_last(stage);
            output = if last { 0 } else { tokens.saturating_mul(u64::from(model.hidden_size) * FP32) };
            let shares = plan.reduces_tied_embedding() && (last || s == 0);
            tied = if shares { model.token_embedding_parameters() * FP32 } else { 0 };
            logits = if last { costs.logits } else { 0 };
            forward_flops = model.forward_flops(plan.part(stage), tokens, u64::from(plan.batch.seq_length)) as f64;
        }
        let sliced = costs.in_slices(plan.order.slices).filter(|_| plan.order.slices > 1);
        StageWorkload {
            layers: plan.part(stage).layers,
            parameters: costs.parameters,
            gradients: costs.gradients,
            optimizer: costs.optimizer_state,
            activations: sliced.map_or(costs.activations, |s| s.activations),
            logits,
            output,
            forward_workspace: sliced.map_or(costs.forward_workspace, |s| s.forward_workspace),
            backward_workspace: sliced.map_or(costs.backward_workspace, |s| s.backward_workspace),
            optimizer_workspace: costs.optimizer_workspace,
            reduced: 0,
            tensor_reduced: 0,
            gathered: 0,
            tied,
            forward_flops,
            split: costs.split.as_ref().map(|split| SplitWorkload {
                kept: split.kept,
                input_workspace: split.input_workspace,
                weight_workspace: split.weight_workspace,
            }),
        }
    };
    let stages = layout.stages.iter().enumerate().map(stage).collect();
    Workload { rank_overhead: layout.rank_overhead, stages, ..Workload::default() }
}

/// Bytes of an fp32 number \[B\].
const FP32: u64 = 4;
