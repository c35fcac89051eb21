//! What the executor needs to know of a model: the part of it that one stage holds, on one device.
//!
//! One law: a module computes and never sends. What its operations are and in which order they run is in the programs of
//! the schedule; what a message carries the module hands out and takes in as plain tensors.
//!
//! A microbatch comes whole or in slices of its sequences. Slices go through a stage in order, and back in the opposite
//! order.
//!
//! Shapes: `N` rows, a token each, sequence after sequence; `H` hidden size.

use crate::error::TaskError;
use crate::parameter::Block;
use burn::tensor::Tensor;
use pipewright_ir::ids::Microbatch;
use pipewright_ir::segments::{Operand, Operation, Phase, Programs};
use std::ops::Range;

/// What a forward starts from.
#[derive(Clone, Debug)]
pub struct Feed {
    /// The optimizer step.
    pub step: u64,
    /// The numbers of its sequences in the global batch of the step.
    pub sequences: Range<u64>,
    /// The tokens of a sequence that this slice has: all of them in a whole microbatch.
    pub slice: Range<usize>,
    /// Tokens `[B, S]` of the whole microbatch, flat, on the first stage.
    pub tokens: Option<Vec<u32>>,
    /// Targets `[B, S]` likewise, on the last stage.
    pub targets: Option<Vec<u32>>,
    /// The output of the stage before `[N, H]`, on all others.
    pub hidden: Option<Tensor<2>>,
    /// Tokens of the whole step, over which the loss is averaged.
    pub step_tokens: u64,
}

/// What a forward makes.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "lives on the stack for a moment; a box would be an allocation a task")]
pub enum Output {
    /// The input of the next stage `[N, H]`.
    Hidden(Tensor<2>),
    /// This device's share of the step's loss, on the last stage.
    Loss(f64),
}

/// Where an operation or a message belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// The microbatch, or slice of one.
    pub microbatch: Microbatch,
    /// The part of its work.
    pub phase: Phase,
    /// The layer.
    pub layer: u32,
}

/// The part of a model that one stage holds, on one device.
pub trait StageModule: Send {
    /// Begins the forward of a microbatch.
    ///
    /// # Errors
    /// When the feed lacks what the stage needs.
    fn begin_forward(&mut self, microbatch: Microbatch, feed: Feed) -> Result<(), TaskError>;

    /// Begins its backward, or with `split` its I alone, from the gradient of the stage's output `[N, H]`; the last stage
    /// starts from its loss.
    ///
    /// # Errors
    /// When there was no forward.
    fn begin_backward(
        &mut self,
        microbatch: Microbatch,
        gradient: Option<Tensor<2>>,
        split: bool,
    ) -> Result<(), TaskError>;

    /// One operation of a program.
    ///
    /// # Errors
    /// When what it needs is not there.
    fn compute(&mut self, at: At, operation: Operation) -> Result<(), TaskError>;

    /// What a message carries, as a matrix. What goes to or comes from the ranks of a group apart stands rank after rank in
    /// its rows.
    ///
    /// # Errors
    /// When it is not there.
    fn message(&mut self, at: At, operand: Operand) -> Result<Tensor<2>, TaskError>;

    /// Takes in what came of a message.
    ///
    /// # Errors
    /// When nothing waits for it.
    fn deliver(&mut self, at: At, operand: Operand, tensor: Tensor<2>) -> Result<(), TaskError>;

    /// Ends a forward.
    ///
    /// # Errors
    /// When it was not complete, or the loss is not finite.
    fn end_forward(&mut self, microbatch: Microbatch) -> Result<Output, TaskError>;

    /// Ends a backward, or with `split` its I alone, and gives the gradient of the stage's input `[N, H]`; none on the first.
    ///
    /// # Errors
    /// When it was not complete.
    fn end_backward(&mut self, microbatch: Microbatch, split: bool) -> Result<Option<Tensor<2>>, TaskError>;

    /// Ends the W of a backward.
    ///
    /// # Errors
    /// When there was no I.
    fn end_weight(&mut self, microbatch: Microbatch) -> Result<(), TaskError>;

    /// Its parameters.
    fn blocks(&self) -> &[Block];

    /// Its parameters, to be gathered, reduced and stepped.
    fn blocks_mut(&mut self) -> &mut [Block];

    /// Where the weight stands that the embedding and the head share, if this stage has it: which block, which parameter.
    fn tied(&self) -> Option<(usize, usize)>;
}

/// Computes step `index` of a table, all parts of a run; the first is of `layer`.
pub(crate) fn compute<M: StageModule>(
    module: &mut M,
    programs: &Programs,
    index: u32,
    layer: u32,
    microbatch: Microbatch,
) -> Result<(), TaskError> {
    programs.step(index).ok_or(TaskError::Missing("a step of a program"))?;
    for (step, layer) in programs.parts_of(index, layer) {
        for operation in &step.operations {
            module.compute(At { microbatch, phase: step.phase, layer }, *operation)?;
        }
    }
    Ok(())
}
