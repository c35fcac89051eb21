//! The reference: the same job on one device, as a plain training loop.
//!
//! One law: it knows nothing of schedules, stages or messages, so that agreement with it means something.

use crate::error::{RunError, TaskError};
use crate::optimizer::{Optimizer, OptimizerConfig};
use crate::parameters;
use crate::run::Named;
use crate::stage_module::StageModule;
use crate::worker::Batches;
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::Device;
use pipewright_ir::ids::{Microbatch, Rank};

/// What the reference gave.
#[derive(Clone, Debug, Default)]
pub struct Reference {
    /// Loss of each step: mean over all its tokens.
    pub losses: Vec<f64>,
    /// Gradients of the steps that were kept, a tied embedding once.
    pub gradients: Vec<Named>,
    /// Parameters after the last step that was kept.
    pub parameters: Named,
    /// Wall time of each step, gradients not yet copied out \[s\].
    pub step_seconds: Vec<f64>,
}

/// How to train.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Microbatches of a step.
    pub microbatches: u32,
    /// Optimizer steps.
    pub steps: u64,
    /// The optimizer.
    pub optimizer: OptimizerConfig,
    /// Gradients are kept of the first `keep` steps, and the parameters after them.
    pub keep: u64,
}

/// Trains the whole model `module`. `on_step` is told each finished step and its loss.
///
/// # Errors
/// A loss that is not finite.
pub fn train<M: StageModule>(
    mut module: M,
    device: &Device,
    batches: &(impl Batches + ?Sized),
    options: &Options,
    on_step: &mut dyn FnMut(u64, f64),
) -> Result<Reference, RunError> {
    // Data has no tape, as in a run.
    let device = device.clone().without_autodiff();
    let tokens = batches.step_tokens(options.microbatches);
    let mut optimizer = Optimizer::new(options.optimizer);
    let mut reference = Reference::default();
    for step in 0..options.steps {
        let begin = std::time::Instant::now();
        let mut accumulator = GradientsAccumulator::new();
        let mut total = 0.0;
        for microbatch in 0..options.microbatches {
            let (x, y) = batches.microbatch(step, microbatch, &device);
            let loss = module.loss(module.forward(module.embed(x, 0)), y) / tokens as f32;
            let value = loss.clone().inner().into_scalar::<f32>();
            if !value.is_finite() {
                let reason = TaskError::NotFinite { microbatch: Microbatch::new(microbatch), loss: value };
                return Err(RunError::Task {
                    rank: Rank(0),
                    task: format!("F of microbatch {microbatch}"),
                    step,
                    reason,
                });
            }
            total += f64::from(value);
            accumulator.accumulate(&module, GradientsParams::from_grads(loss.backward(), &module));
        }
        let grads = accumulator.grads();
        let computed = begin.elapsed();
        if step < options.keep {
            reference.gradients.push(parameters::gradients_by_name(&module, &grads));
        }
        let begin = std::time::Instant::now();
        module = optimizer.step(module, grads);
        reference.step_seconds.push((computed + begin.elapsed()).as_secs_f64());
        reference.losses.push(total);
        if step + 1 == options.keep {
            reference.parameters = parameters::parameters_by_name(&module);
        }
        on_step(step, total);
    }
    Ok(reference)
}
