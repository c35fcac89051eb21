//! What the stages of a plan do for a microbatch, and what they weigh.

use super::Plan;
use crate::action::Op;
use crate::ids::Stage;
use crate::model::StagePart;
use crate::segments::{Cut, Programs, StageProgram};
use crate::workload::{StageWorkload, Workload};

impl Plan {
    /// What the programs of its stages are cut from; `None` without a model or a sequence length.
    pub fn cut(&self) -> Option<Cut<'_>> {
        let model = self.model.as_ref().filter(|_| self.batch.seq_length > 0)?;
        Some(Cut {
            model,
            mesh: &self.mesh,
            setup: &self.setup,
            micro_batch_size: u64::from(self.batch.micro_batch_size),
            seq_length: u64::from(self.batch.seq_length),
        })
    }

    /// The part of the model that each stage holds, by the stage's number.
    pub fn parts(&self) -> Vec<StagePart> {
        (0..self.placement().stages()).map(|s| self.part(Stage::new(s))).collect()
    }

    /// What each stage sends and computes, without what it keeps.
    pub fn workload(&self) -> Workload {
        let (Some(model), Some(programs)) = (&self.model, self.programs()) else {
            return Workload::abstract_stages(self.placement().stages());
        };
        let width = self.setup.dtype.bytes();
        let tokens = self.batch.microbatch_tokens().div_ceil(u64::from(self.mesh.context.max(1)));
        let shards = if self.setup.megatron_sequence_parallel { u64::from(self.mesh.tensor.max(1)) } else { 1 };
        let output = tokens.div_ceil(shards).saturating_mul(u64::from(model.hidden_size)).saturating_mul(width);
        let stage = |(s, program): (usize, &StageProgram)| {
            let (stage, part) = (Stage::at(s), self.part(Stage::at(s)));
            let last = self.placement().is_last(stage);
            let gradients = program.parameters.saturating_mul(self.setup.gradient_dtype.bytes());
            let shares = self.reduces_tied_embedding() && (part.embedding || part.head);
            let embedding = model.token_embedding_parameters() / u64::from(self.mesh.tensor.max(1));
            StageWorkload {
                layers: part.layers,
                output: if last { 0 } else { output },
                reduced: if self.mesh.data > 1 { gradients } else { 0 },
                gathered: if self.mesh.data > 1 { program.parameters.saturating_mul(width) } else { 0 },
                tied: if shares { embedding.saturating_mul(self.setup.gradient_dtype.bytes()) } else { 0 },
                ..StageWorkload::default()
            }
        };
        Workload { stages: programs.stages.iter().enumerate().map(stage).collect(), ..Workload::default() }
    }

    /// What every stage does for a microbatch; `None` without a model or a sequence length.
    pub fn programs(&self) -> Option<Programs> {
        let split = self.order.has(|op| op == Op::BackwardWeight);
        Some(Programs::new(&self.cut()?, &self.parts(), split))
    }
}
