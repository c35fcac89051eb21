//! One stage of the model and what it needs to train: forward, backward, optimizer.
//!
//! One law: plain tensors in, plain tensors out. Autodiff lives inside a stage, from a fresh leaf to the stage's own
//! output, and never sees a message.
//!
//! B adds a microbatch's weight gradients to the step's at once. I leaves them to W: what W computes them from waits in a
//! store of the stage, a microbatch (or slice) an entry. W runs what B would have run on the same tensors, so the sums
//! are the same bits wherever the W of a stage run in the order in which its B would.
//!
//! Shapes: `B` sequences, `S` tokens (of a slice, its tokens), `H` hidden size.

use crate::autodiff::{WeightGradients, backward_from, deferring};
use crate::error::TaskError;
use crate::optimizer::{Optimizer, OptimizerConfig};
use crate::parameters::{self, TOKEN_EMBEDDING};
use crate::stage_module::StageModule;
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::{Device, Int, Tensor};
use pipewright_ir::ids::Microbatch;
use std::collections::BTreeMap;

/// What a stage computes on.
pub(crate) enum Input {
    /// Tokens `[B, S]` and the position of the first of them, on the first stage.
    Tokens(Tensor<2, Int>, usize),
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
    kept: BTreeMap<Microbatch, Kept>,
    /// What I left for W: gradients of burn's own operations, and those still to be computed.
    deferred: BTreeMap<Microbatch, (GradientsParams, WeightGradients)>,
    /// What slices know of each other, by the number of their microbatch.
    caches: BTreeMap<u32, M::Cache>,
}

impl<M: StageModule> StageRunner<M> {
    pub(crate) fn new(module: M, optimizer: OptimizerConfig) -> Self {
        Self {
            module: Some(module),
            optimizer: Optimizer::new(optimizer),
            accumulator: GradientsAccumulator::new(),
            complete: None,
            kept: BTreeMap::new(),
            deferred: BTreeMap::new(),
            caches: BTreeMap::new(),
        }
    }

    pub(crate) fn module(&self) -> Result<&M, TaskError> {
        self.module.as_ref().ok_or(TaskError::Missing("the module"))
    }

    /// F of one microbatch or slice. With `targets` `[B, S]` this is the last stage, and the loss is the sum over its tokens
    /// divided by `tokens`, all tokens of the step.
    pub(crate) fn forward(
        &mut self,
        microbatch: Microbatch,
        input: Input,
        targets: Option<Tensor<2, Int>>,
        tokens: u64,
    ) -> Result<Output, TaskError> {
        let module = self.module.as_ref().ok_or(TaskError::Missing("the module"))?;
        let (leaf, hidden) = match input {
            Input::Tokens(tokens, start) => (None, module.embed(tokens, start)),
            Input::Hidden(plain) => {
                let leaf = plain.autodiff().require_grad();
                (Some(leaf.clone()), leaf)
            }
        };
        let hidden = match microbatch.slice() {
            None => module.forward(hidden),
            Some(_) => module.forward_slice(hidden, self.caches.entry(microbatch.number()).or_default())?,
        };
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

    /// B of one microbatch or slice: adds to the stage's gradients and gives the gradient of its input `[B, S, H]`, if
    /// it has one. `gradient` is that of its output; the last stage starts from its own loss.
    pub(crate) fn backward(
        &mut self,
        microbatch: Microbatch,
        gradient: Option<Tensor<3>>,
    ) -> Result<Option<Tensor<3>>, TaskError> {
        let (input, grads) = self.walk_back(microbatch, gradient)?;
        self.accumulate(grads)?;
        Ok(input)
    }

    /// I of one microbatch or slice: as [`StageRunner::backward`], but the weight gradients wait for W.
    pub(crate) fn backward_input(
        &mut self,
        microbatch: Microbatch,
        gradient: Option<Tensor<3>>,
    ) -> Result<Option<Tensor<3>>, TaskError> {
        let (walked, later) = deferring(|| self.walk_back(microbatch, gradient));
        let (input, grads) = walked?;
        self.deferred.insert(microbatch, (grads, later));
        Ok(input)
    }

    /// W of one microbatch or slice: computes the weight gradients that its I put off and adds them to the stage's.
    pub(crate) fn backward_weight(&mut self, microbatch: Microbatch) -> Result<(), TaskError> {
        let missing = TaskError::Missing("the input gradient of this microbatch");
        let (mut grads, later) = self.deferred.remove(&microbatch).ok_or(missing)?;
        later.compute(&mut grads);
        self.accumulate(grads)
    }

    /// The gradient of the input, and those of the weights as far as the tape gives them.
    fn walk_back(
        &mut self,
        microbatch: Microbatch,
        gradient: Option<Tensor<3>>,
    ) -> Result<(Option<Tensor<3>>, GradientsParams), TaskError> {
        let kept = self.kept.remove(&microbatch).ok_or(TaskError::Missing("the forward of this microbatch"))?;
        let mut grads = match kept.end {
            End::Loss(loss) => loss.backward(),
            End::Hidden(hidden) => {
                backward_from(hidden, gradient.ok_or(TaskError::Missing("the gradient of the output"))?)?
            }
        };
        let input = kept.leaf.and_then(|leaf| leaf.grad_remove(&mut grads));
        if microbatch.slice() == Some(0) {
            // The first slice is the last to come back.
            self.caches.remove(&microbatch.number());
        }
        Ok((input, GradientsParams::from_grads(grads, self.module()?)))
    }

    fn accumulate(&mut self, grads: GradientsParams) -> Result<(), TaskError> {
        let module = self.module.as_ref().ok_or(TaskError::Missing("the module"))?;
        self.accumulator.accumulate(module, grads);
        Ok(())
    }

    /// Every gradient of the step one behind the other, in the order of a module visit.
    pub(crate) fn flat_gradients(&mut self) -> Result<Vec<f32>, TaskError> {
        self.finish_gradients();
        let grads = self.complete.as_ref().ok_or(TaskError::Missing("the gradients of the step"))?;
        Ok(parameters::flat_gradients(self.module()?, grads))
    }

    /// Puts the sums over both copies of the stage in their places.
    pub(crate) fn set_flat_gradients(&mut self, sums: &[f32], device: &Device) -> Result<(), TaskError> {
        let grads = self.complete.as_mut().ok_or(TaskError::Missing("the gradients of the step"))?;
        let module = self.module.as_ref().ok_or(TaskError::Missing("the module"))?;
        Ok(parameters::set_flat_gradients(module, grads, sums, device)?)
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
