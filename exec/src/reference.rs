//! One device, no schedule: what every run is compared with.
//!
//! One law: the whole model is one stage, microbatches come one after another, and nothing is sent.

use crate::error::{RunError, TaskError};
use crate::optimizer::OptimizerConfig;
use crate::pieces;
use crate::run::Named;
use crate::stage_module::{Feed, Output, StageModule, compute};
use crate::update::{self, Standing};
use crate::worker::Batches;
use burn::tensor::Device;
use pipewright_ir::ids::{Microbatch, Rank};
use pipewright_ir::segments::{Placed, Programs};

/// What the reference gave.
#[derive(Clone, Debug, Default)]
pub struct Reference {
    /// Loss of each step: mean over all its tokens.
    pub losses: Vec<f64>,
    /// Norm of all gradients of each step, before they are clipped; empty where they are not.
    pub norms: Vec<f64>,
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
    /// Microbatches of a step, over all replicas.
    pub microbatches: u32,
    /// Optimizer steps.
    pub steps: u64,
    /// The optimizer.
    pub optimizer: OptimizerConfig,
    /// Largest norm of the gradients.
    pub clip_grad: Option<f64>,
    /// Gradients are kept of the first `keep` steps, and the parameters after each of them.
    pub keep: u64,
}

/// Trains the whole model `module`, whose operations are those of the only stage of `programs`. `on_step` is told each
/// finished step and its loss.
///
/// # Errors
/// A loss that is not finite.
pub fn train<M: StageModule>(
    module: M,
    programs: &Programs,
    device: &Device,
    batches: &(impl Batches + ?Sized),
    options: &Options,
    on_step: &mut dyn FnMut(u64, f64),
) -> Result<Reference, RunError> {
    follow(module, programs, device, batches, options, &[], on_step)
}

/// As [`train`], but every step after the first starts from the parameters that a run had after the step before it,
/// `after`. So each step is compared from one and the same start, whatever the steps before it made of roundings: AdamW
/// divides a gradient by its size, and moves a parameter whose gradient is itself no larger than a rounding as far as any.
///
/// # Errors
/// A loss that is not finite.
pub fn follow<M: StageModule>(
    mut module: M,
    programs: &Programs,
    device: &Device,
    batches: &(impl Batches + ?Sized),
    options: &Options,
    after: &[Named],
    on_step: &mut dyn FnMut(u64, f64),
) -> Result<Reference, RunError> {
    let mut reference = Reference::default();
    for step in 0..options.steps {
        let before = step.checked_sub(1).and_then(|step| usize::try_from(step).ok());
        if let Some(named) = before.and_then(|step| after.get(step)) {
            set_parameters(&mut module, named, device);
        }
        let begin = std::time::Instant::now();
        let mut total = 0.0;
        for microbatch in 0..options.microbatches {
            let failed =
                |reason| RunError::Task { rank: Rank(0), task: format!("microbatch {microbatch}"), step, reason };
            total += one(&mut module, programs, batches, options, step, microbatch).map_err(failed)?;
        }
        let standing = Standing { tensor_rank: 0, replica: 0, is_copy: false };
        if let Some(limit) = options.clip_grad {
            let norm = update::squares(module.blocks(), standing, None).sqrt();
            reference.norms.push(norm);
            let factor = update::clip_factor(norm, limit);
            if factor < 1.0 {
                update::scale(module.blocks_mut(), factor);
            }
        }
        let computed = begin.elapsed();
        if step < options.keep {
            reference.gradients.push(pieces::assemble(pieces::gradients(module.blocks()).iter()));
        }
        let begin = std::time::Instant::now();
        let failed = |reason| RunError::Task { rank: Rank(0), task: "the optimizer".to_owned(), step, reason };
        update::update(module.blocks_mut(), &options.optimizer, step + 1).map_err(failed)?;
        reference.step_seconds.push((computed + begin.elapsed()).as_secs_f64());
        reference.losses.push(total);
        if step < options.keep {
            reference.parameters.push(pieces::assemble(pieces::parameters(module.blocks()).iter()));
        }
        on_step(step, total);
    }
    Ok(reference)
}

/// One microbatch there and back; its share of the step's loss.
fn one<M: StageModule>(
    module: &mut M,
    programs: &Programs,
    batches: &(impl Batches + ?Sized),
    options: &Options,
    step: u64,
    microbatch: u32,
) -> Result<f64, TaskError> {
    let (tokens, targets) = batches.microbatch(step, u64::from(microbatch));
    let (sequences, seq_length) = (batches.sequences(), batches.seq_length());
    let number = u64::from(microbatch);
    let feed = Feed {
        step,
        sequences: number * sequences..(number + 1) * sequences,
        slice: 0..seq_length,
        tokens: Some(tokens),
        targets: Some(targets),
        hidden: None,
        step_tokens: batches.step_tokens(options.microbatches.into()),
    };
    let microbatch = Microbatch::new(microbatch);
    let stage = programs.stages.first().ok_or(TaskError::Missing("the program of the model"))?;
    module.begin_forward(microbatch, feed)?;
    walk(module, programs, &stage.forward, microbatch)?;
    let Output::Loss(loss) = module.end_forward(microbatch)? else { return Err(TaskError::Missing("the loss")) };
    module.begin_backward(microbatch, None, false)?;
    walk(module, programs, &stage.backward, microbatch)?;
    module.end_backward(microbatch, false)?;
    Ok(loss)
}

/// Every operation of a list of steps without messages.
pub(crate) fn walk<M: StageModule>(
    module: &mut M,
    programs: &Programs,
    list: &[Placed],
    microbatch: Microbatch,
) -> Result<(), TaskError> {
    list.iter().try_for_each(|placed| compute(module, programs, placed.step, placed.layer, microbatch))
}

/// Puts the numbers of `named` in the place of the parameters.
pub fn set_parameters<M: StageModule>(module: &mut M, named: &Named, device: &Device) {
    for parameter in module.blocks_mut().iter_mut().flat_map(|block| &mut block.parameters) {
        let of = |name: &str| named.iter().find(|(n, _)| n == name).map(|(_, values)| values.as_slice());
        let parts: Option<Vec<Vec<f32>>> =
            parameter.held().iter().map(|held| Some(held.shard.take(of(&held.shard.name)?))).collect();
        if let Some(parts) = parts {
            parameter.set_values(&parts.concat(), device);
        }
    }
}
