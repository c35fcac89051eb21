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
    /// Parameters after each of the steps that were kept.
    pub parameters: Vec<Named>,
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
    /// Gradients are kept of the first `keep` steps, and the parameters after each of them.
    pub keep: u64,
}

/// Trains the whole model `module`. `on_step` is told each finished step and its loss.
///
/// # Errors
/// A loss that is not finite.
pub fn train<M: StageModule>(
    module: M,
    device: &Device,
    batches: &(impl Batches + ?Sized),
    options: &Options,
    on_step: &mut dyn FnMut(u64, f64),
) -> Result<Reference, RunError> {
    follow(module, device, batches, options, &[], on_step)
}

/// As [`train`], but every step after the first starts from the parameters that a run had after the step before it,
/// `after`. So each step is compared from one and the same start, whatever the steps before it made of roundings: AdamW
/// divides a gradient by its size, and moves a parameter whose gradient is itself no larger than a rounding as far as any.
///
/// # Errors
/// A loss that is not finite.
pub fn follow<M: StageModule>(
    mut module: M,
    device: &Device,
    batches: &(impl Batches + ?Sized),
    options: &Options,
    after: &[Named],
    on_step: &mut dyn FnMut(u64, f64),
) -> Result<Reference, RunError> {
    // Data has no tape, as in a run.
    let device = device.clone().without_autodiff();
    let tokens = batches.step_tokens(options.microbatches);
    let mut optimizer = Optimizer::new(options.optimizer);
    let mut reference = Reference::default();
    for step in 0..options.steps {
        let before = step.checked_sub(1).and_then(|step| usize::try_from(step).ok());
        if let Some(named) = before.and_then(|step| after.get(step)) {
            module = parameters::with_parameters(module, named);
        }
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
        if step < options.keep {
            reference.parameters.push(parameters::parameters_by_name(&module));
        }
        on_step(step, total);
    }
    Ok(reference)
}
