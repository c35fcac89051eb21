//! What the stages of a plan do for a microbatch, and what they weigh.

use super::Plan;
use crate::ids::Stage;
use crate::model::StagePart;
use crate::segments::{Cut, Programs};

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

    /// What every stage does for a microbatch; `None` without a model or a sequence length.
    pub fn programs(&self) -> Option<Programs> {
        Some(Programs::new(&self.cut()?, &self.parts()))
    }
}
