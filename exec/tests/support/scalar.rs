//! A stage with one number, `y = w x`: small enough to know every answer.

use burn::tensor::{Device, Tensor};
use pipewright_exec::error::TaskError;
use pipewright_exec::parameter::{Block, Copies, Held, Parameter};
use pipewright_exec::shard::Shard;
use pipewright_exec::stage_module::{At, Feed, Output, StageModule};
use pipewright_ir::ids::Microbatch;
use pipewright_ir::segments::{BlockKind, Body, Operand, Operation, Phase, Placed, Programs, StageProgram, Step};
use std::collections::BTreeMap;

/// What each stage computes: one operation there, one back, one for the weight.
pub(crate) fn programs(stages: u32) -> Programs {
    let step =
        |phase| Step { phase, name: "scalar", body: Body::Compute(Vec::new()), operations: vec![Operation::MlpUp] };
    let placed = |step| Placed { step, layer: 0, joined_after: 0 };
    let stage = StageProgram {
        forward: vec![placed(0)],
        backward: vec![placed(1), placed(2)],
        input: vec![placed(1)],
        weight: vec![placed(2)],
        ..StageProgram::default()
    };
    Programs {
        steps: [Phase::Forward, Phase::Input, Phase::Weight].map(step).into(),
        stages: vec![stage; stages as usize],
        ..Programs::default()
    }
}

/// One of the numbers.
pub(crate) struct Scalar {
    blocks: Vec<Block>,
    last: bool,
    /// Both ends share one weight.
    pub(crate) tied: bool,
    /// The gradient that each microbatch makes, whatever its numbers.
    pub(crate) fixed: Option<f32>,
    /// Run before each forward.
    pub(crate) before: Box<dyn Fn() + Send>,
    /// What the loss is multiplied by.
    pub(crate) spoil: f64,
    passes: BTreeMap<Microbatch, Pass>,
}

struct Pass {
    x: Tensor<2>,
    y: Option<Tensor<2>>,
    gradient: Option<Tensor<2>>,
    tokens: u64,
}

impl Scalar {
    pub(crate) fn new(name: &str, value: f32, last: bool, device: &Device) -> Self {
        let held = Held { shard: Shard::whole(name, [1]), copies: Copies::All, summed: false };
        let parameter = Parameter::new(vec![1], vec![held], vec![value], device);
        let blocks = vec![Block { kind: BlockKind::Layer, layer: 0, parameters: vec![parameter] }];
        Self { blocks, last, tied: false, fixed: None, before: Box::new(|| {}), spoil: 1.0, passes: BTreeMap::new() }
    }

    fn w(&self) -> f64 {
        f64::from(self.blocks[0].parameters[0].values()[0])
    }

    fn pass(&mut self, microbatch: Microbatch) -> Result<&mut Pass, TaskError> {
        self.passes.get_mut(&microbatch).ok_or(TaskError::Missing("the forward"))
    }
}

impl StageModule for Scalar {
    fn begin_forward(&mut self, microbatch: Microbatch, feed: Feed) -> Result<(), TaskError> {
        (self.before)();
        let x = match (feed.hidden, feed.tokens) {
            (Some(hidden), _) => hidden,
            (None, Some(tokens)) => {
                let values: Vec<f32> = tokens.iter().map(|x| *x as f32).collect();
                Tensor::<1>::from_floats(values.as_slice(), &Device::flex()).reshape([values.len(), 1])
            }
            _ => return Err(TaskError::Missing("the input")),
        };
        self.passes.insert(microbatch, Pass { x, y: None, gradient: None, tokens: feed.step_tokens });
        Ok(())
    }

    fn begin_backward(
        &mut self,
        microbatch: Microbatch,
        gradient: Option<Tensor<2>>,
        _: bool,
    ) -> Result<(), TaskError> {
        let pass = self.pass(microbatch)?;
        let of_loss = pass.x.ones_like() / pass.tokens as f32;
        pass.gradient = Some(gradient.unwrap_or(of_loss));
        Ok(())
    }

    fn compute(&mut self, at: At, _: Operation) -> Result<(), TaskError> {
        let (w, fixed) = (self.w(), self.fixed);
        let pass = self.pass(at.microbatch)?;
        match at.phase {
            Phase::Weight => {
                let gradient = pass.gradient.clone().ok_or(TaskError::Missing("the gradient"))?;
                let made = (gradient * pass.x.clone()).sum();
                let made = fixed.map_or(made, |fixed| Tensor::from_floats([fixed], &Device::flex()));
                self.blocks[0].parameters[0].add_gradient(made);
            }
            Phase::Input => {}
            _ => pass.y = Some(pass.x.clone() * w),
        }
        Ok(())
    }

    fn message(&mut self, _: At, _: Operand) -> Result<Tensor<2>, TaskError> {
        Err(TaskError::Missing("a message"))
    }

    fn deliver(&mut self, _: At, _: Operand, _: Tensor<2>) -> Result<(), TaskError> {
        Err(TaskError::Missing("a message"))
    }

    fn end_forward(&mut self, microbatch: Microbatch) -> Result<Output, TaskError> {
        let (last, spoil) = (self.last, self.spoil);
        let pass = self.pass(microbatch)?;
        let y = pass.y.take().ok_or(TaskError::Missing("the output"))?;
        if !last {
            return Ok(Output::Hidden(y));
        }
        let loss = f64::from(y.sum().into_scalar::<f32>()) / pass.tokens as f64 * spoil;
        if loss.is_finite() {
            Ok(Output::Loss(loss))
        } else {
            Err(TaskError::NotFinite { microbatch, loss: loss as f32 })
        }
    }

    fn end_backward(&mut self, microbatch: Microbatch, split: bool) -> Result<Option<Tensor<2>>, TaskError> {
        let w = self.w();
        let gradient = self.pass(microbatch)?.gradient.clone().map(|gradient| gradient * w);
        if !split {
            self.end_weight(microbatch)?;
        }
        Ok(gradient)
    }

    fn end_weight(&mut self, microbatch: Microbatch) -> Result<(), TaskError> {
        self.passes.remove(&microbatch).map(|_| ()).ok_or(TaskError::Missing("the backward"))
    }

    fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    fn blocks_mut(&mut self) -> &mut [Block] {
        &mut self.blocks
    }

    fn tied(&self) -> Option<(usize, usize)> {
        self.tied.then_some((0, 0))
    }
}
