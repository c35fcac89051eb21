//! Measured costs: what `profile` wrote.

use super::CostModel;
use pipewright_ir::action::Op;
use pipewright_ir::cost_table::{CostTable, LayoutCosts, MessageCosts};
use pipewright_ir::ids::Stage;
use pipewright_ir::plan::Plan;
use pipewright_ir::task::Task;
use pipewright_ir::workload::{StageWorkload, Workload};

/// Measured costs of the stages of one plan.
#[derive(Clone, Debug)]
pub struct TableCost {
    layout: LayoutCosts,
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
        Ok(Self { layout, message: table.message })
    }
}

impl CostModel for TableCost {
    fn duration(&self, task: &Task) -> f64 {
        let Some(costs) = self.layout.stages.get(task.action.stage.index()) else { return 0.0 };
        match task.action.op {
            Op::Forward => costs.forward.median,
            // `profile` measures B whole; until W is run apart, I and W count as half of it each.
            Op::FullBackward => costs.backward.median,
            Op::BackwardInput | Op::BackwardWeight => costs.backward.median / 2.0,
            Op::OptimizerStep => costs.optimizer.median,
            Op::SendForward | Op::SendBackward => self.message.send.median,
            Op::RecvForward | Op::RecvBackward => self.message.receive.median,
            // Both copies travel at once; measured for a message of another size, so scaled.
            Op::ReduceGrad | Op::ReduceTied => {
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
    let stage = |(s, costs): (usize, &pipewright_ir::cost_table::StageCosts)| {
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
        StageWorkload {
            layers: plan.part(stage).layers,
            parameters: costs.parameters,
            gradients: costs.gradients,
            optimizer: costs.optimizer_state,
            activations: costs.activations,
            logits,
            output,
            forward_workspace: costs.forward_workspace,
            backward_workspace: costs.backward_workspace,
            optimizer_workspace: costs.optimizer_workspace,
            tied,
            forward_flops,
        }
    };
    let stages = layout.stages.iter().enumerate().map(stage).collect();
    Workload { rank_overhead: layout.rank_overhead, stages }
}

/// Bytes of an fp32 number \[B\].
const FP32: u64 = 4;
