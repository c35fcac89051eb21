//! One stage of the model and what it needs to train: forward, backward, optimizer.
//!
//! One law: plain tensors in, plain tensors out. Autodiff lives inside a stage, from a fresh leaf to the stage's own
//! output, and never sees a message.
//!
//! Shapes: `B` sequences, `S` tokens, `H` hidden size.

use crate::autodiff::backward_from;
use crate::error::TaskError;
use crate::optimizer::{Optimizer, OptimizerConfig};
use crate::parameters::{self, TOKEN_EMBEDDING};
use crate::stage_module::StageModule;
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::{Int, Tensor};
use std::collections::BTreeMap;

/// What a stage computes on.
pub(crate) enum Input {
    /// Tokens `[B, S]`, on the first stage.
    Tokens(Tensor<2, Int>),
    /// The output of the stage before, `[B, S, H]`, plain.
    Hidden(Tensor<3>),
}

/// What a stage makes.
#[expect(clippy::large_enum_variant, reason = "lives on the stack for a moment; a box would be an allocation a task")]
pub(crate) enum Output {
    /// Its output `[B, S, H]`, plain, for the next stage.
    Hidden(Tensor<3>),
    /// Its share of the step's loss, on the last stage.
    Loss(f32),
}

/// What forward keeps for backward.
struct Kept {
    /// The leaf whose gradient goes to the stage before; none on the first stage.
    leaf: Option<Tensor<3>>,
    end: End,
}

enum End {
    Hidden(Tensor<3>),
    Loss(Tensor<1>),
}

/// One stage in training.
pub(crate) struct StageRunner<M: StageModule> {
    module: Option<M>,
    optimizer: Optimizer,
    accumulator: GradientsAccumulator<M>,
    /// Set when the step's gradients are complete.
    complete: Option<GradientsParams>,
    kept: BTreeMap<u32, Kept>,
}

impl<M: StageModule> StageRunner<M> {
    pub(crate) fn new(module: M, optimizer: OptimizerConfig) -> Self {
        Self {
            module: Some(module),
            optimizer: Optimizer::new(optimizer),
            accumulator: GradientsAccumulator::new(),
            complete: None,
            kept: BTreeMap::new(),
        }
    }

    pub(crate) fn module(&self) -> Result<&M, TaskError> {
        self.module.as_ref().ok_or(TaskError::Missing("the module"))
    }

    /// F of one microbatch. With `targets` `[B, S]` this is the last stage, and the loss is the sum over its tokens
    /// divided by `tokens`, all tokens of the step.
    pub(crate) fn forward(
        &mut self,
        microbatch: u32,
        input: Input,
        targets: Option<Tensor<2, Int>>,
        tokens: u64,
    ) -> Result<Output, TaskError> {
        let module = self.module()?;
        let (leaf, hidden) = match input {
            Input::Tokens(tokens) => (None, module.embed(tokens)),
            Input::Hidden(plain) => {
                let leaf = plain.autodiff().require_grad();
                (Some(leaf.clone()), leaf)
            }
        };
        let hidden = module.forward(hidden);
        let (end, output) = match targets {
            Some(targets) => {
                let loss = module.loss(hidden, targets) / tokens as f32;
                let value = loss.clone().inner().into_scalar::<f32>();
                if !value.is_finite() {
                    return Err(TaskError::NotFinite { microbatch, loss: value });
                }
                (End::Loss(loss), Output::Loss(value))
            }
            None => {
                let output = hidden.clone().inner();
                (End::Hidden(hidden), Output::Hidden(output))
            }
        };
        self.kept.insert(microbatch, Kept { leaf, end });
        Ok(output)
    }

    /// B of one microbatch: adds to the stage's gradients and gives the gradient of its input `[B, S, H]`, if it has
    /// one. `gradient` is that of its output; the last stage starts from its own loss.
    pub(crate) fn backward(
        &mut self,
        microbatch: u32,
        gradient: Option<Tensor<3>>,
    ) -> Result<Option<Tensor<3>>, TaskError> {
        let kept = self.kept.remove(&microbatch).ok_or(TaskError::Missing("the forward of this microbatch"))?;
        let mut grads = match kept.end {
            End::Loss(loss) => loss.backward(),
            End::Hidden(hidden) => {
                backward_from(hidden, gradient.ok_or(TaskError::Missing("the gradient of the output"))?)?
            }
        };
        let input = kept.leaf.and_then(|leaf| leaf.grad_remove(&mut grads));
        let module = self.module.as_ref().ok_or(TaskError::Missing("the module"))?;
        self.accumulator.accumulate(module, GradientsParams::from_grads(grads, module));
        Ok(input)
    }

    /// The gradient of the token embedding `[V, H]` of this step.
    pub(crate) fn tied_gradient(&mut self) -> Result<Tensor<2>, TaskError> {
        self.finish_gradients();
        let grads = self.complete.as_mut().ok_or(TaskError::Missing("the gradients of the step"))?;
        let module = self.module.as_ref().ok_or(TaskError::Missing("the module"))?;
        let gradient = parameters::take_gradient(module, grads, TOKEN_EMBEDDING)?;
        parameters::put_gradient(module, grads, TOKEN_EMBEDDING, gradient.clone())?;
        Ok(gradient)
    }

    /// Puts the sum over both copies in its place.
    pub(crate) fn set_tied_gradient(&mut self, sum: Tensor<2>) -> Result<(), TaskError> {
        let grads = self.complete.as_mut().ok_or(TaskError::Missing("the gradients of the step"))?;
        let module = self.module.as_ref().ok_or(TaskError::Missing("the module"))?;
        Ok(parameters::put_gradient(module, grads, TOKEN_EMBEDDING, sum)?)
    }

    /// Every gradient of the step by name.
    pub(crate) fn gradients(&mut self) -> Result<Vec<(String, Vec<f32>)>, TaskError> {
        self.finish_gradients();
        let grads = self.complete.as_ref().ok_or(TaskError::Missing("the gradients of the step"))?;
        Ok(parameters::gradients_by_name(self.module()?, grads))
    }

    /// The optimizer step; drops the gradients.
    pub(crate) fn step(&mut self) -> Result<(), TaskError> {
        self.finish_gradients();
        let grads = self.complete.take().ok_or(TaskError::Missing("the gradients of the step"))?;
        let module = self.module.take().ok_or(TaskError::Missing("the module"))?;
        self.module = Some(self.optimizer.step(module, grads));
        Ok(())
    }

    fn finish_gradients(&mut self) {
        if self.complete.is_none() {
            self.complete = Some(self.accumulator.grads());
        }
    }
}
