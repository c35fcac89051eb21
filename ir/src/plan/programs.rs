//! What the stages of a plan do for a microbatch, and what they weigh.

use super::Plan;
use crate::action::Op;
use crate::footprint::{self, MemoryParameters};
use crate::ids::Stage;
use crate::model::StagePart;
use crate::segments::{Cut, Programs};
use crate::workload::Workload;

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

    /// What each stage holds, keeps and sends, under a software stack; `programs` are its own. Without a model or a sequence
    /// length, stages without sizes.
    pub fn workload(&self, programs: &Programs, stack: &MemoryParameters) -> Workload {
        match self.cut() {
            Some(cut) => footprint::workload(&cut, &self.parts(), programs, self.placement(), stack),
            None => Workload::abstract_stages(self.placement().stages()),
        }
    }

    /// The output of a stage, the message to the next one \[B\]; 0 without a model.
    pub fn message_bytes(&self) -> u64 {
        let hidden = self.model.as_ref().map_or(0, |model| u64::from(model.hidden_size));
        let tokens = self.batch.microbatch_tokens().div_ceil(u64::from(self.mesh.context.max(1)));
        let shards = if self.setup.megatron_sequence_parallel { u64::from(self.mesh.tensor.max(1)) } else { 1 };
        tokens.div_ceil(shards).saturating_mul(hidden).saturating_mul(self.setup.dtype.bytes())
    }

    /// What every stage does for a microbatch; `None` without a model or a sequence length.
    pub fn programs(&self) -> Option<Programs> {
        let split = self.order.has(|op| op == Op::BackwardWeight);
        Some(Programs::new(&self.cut()?, &self.parts(), split))
    }
}
