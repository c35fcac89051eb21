//! What a stage computes and sends for one microbatch: kernels and collectives, in order.
//!
//! A *segment* is the largest run of kernels between two communications. With tensor parallelism a layer is
//! `attention | all-reduce | mlp | all-reduce`, and backward has the conjugate of each. The list of a stage
//! ([`StageProgram`]) is made of the lists of its blocks ([`Block`]): embedding, transformer layers, head.
//!
//! One law: every byte that crosses to another rank of the tensor, context, expert or data axis is a step of its own, and
//! the FLOPs of the steps of a forward are those of [`ModelShape::forward_flops`](crate::model::ModelShape::forward_flops).

mod accumulate;
mod attention;
mod ends;
mod kernel;
mod layer;
mod mlp;
mod operation;
mod program;
mod runs;
#[cfg(test)]
mod tests;
mod writer;

pub use kernel::{AttentionKernel, Collective, CollectiveKind, Kernel};
pub use operation::{BlockKind, Operand, Operation, Site};
pub use program::{Bucket, LayerSteps, Placed, Programs, StageProgram};

use crate::mesh::Mesh;
use crate::model::{ModelShape, Weight};
use crate::scenario::Recompute;
use crate::setup::Setup;
use crate::task::Work;

/// Which part of a microbatch's work a step belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// F.
    Forward,
    /// Forward again, in backward.
    Recompute,
    /// I: the gradient of the input.
    Input,
    /// W: the gradients of the weights.
    Weight,
}

/// What a step does.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// Kernels, one after another.
    Compute(Vec<Kernel>),
    /// Other steps of the table, one after another: a segment that goes over the borders of layers.
    Run(Vec<RunPart>),
    /// A message over an axis of the mesh. It starts when the compute step before it has ended.
    Communicate {
        /// How it is sent, and how much.
        collective: Collective,
        /// What is sent.
        operand: Operand,
        /// How many steps behind it the first one stands that waits for it: 1 is the next, 2 leaves one to run beside it.
        joined_after: usize,
    },
}

/// A step of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunPart {
    /// Which of [`Programs::steps`].
    pub step: u32,
    /// How many layers behind that of the run's first step it is of; negative in backward.
    pub layers: i32,
}

/// One step of a block.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The part of the work that it belongs to.
    pub phase: Phase,
    /// Its name for people: `attention`, `mlp`, `all-reduce`.
    pub name: &'static str,
    /// What it does, by the kernels that do it.
    pub body: Body,
    /// What it computes; empty for a message and for a run.
    pub operations: Vec<Operation>,
}

impl Step {
    /// A message that the step `joined_after` behind it waits for.
    pub(crate) fn message(phase: Phase, collective: Collective, operand: Operand, joined_after: usize) -> Self {
        let body = Body::Communicate { collective, operand, joined_after };
        Self { phase, name: collective.kind.name(), body, operations: Vec::new() }
    }

    /// How much its own kernels compute: floating-point operations without regard to masks, and bytes of memory read and
    /// written. For a step of a table, a run of others included, ask [`Programs::work`].
    pub fn work(&self) -> Work {
        match &self.body {
            Body::Compute(kernels) => kernels.iter().fold(Work::default(), |sum, kernel| Work {
                flops: sum.flops + kernel.flops(),
                bytes: sum.bytes + kernel.bytes(),
            }),
            Body::Run(_) | Body::Communicate { .. } => Work::default(),
        }
    }

    /// The message, if it is one.
    pub fn collective(&self) -> Option<Collective> {
        match &self.body {
            Body::Compute(_) | Body::Run(_) => None,
            Body::Communicate { collective, .. } => Some(*collective),
        }
    }
}

/// A part of the model that is computed as one: the embedding, one transformer layer, or the head with the loss.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Block {
    /// Its forward.
    pub forward: Vec<Step>,
    /// Its backward, recomputation included: steps of [`Phase::Recompute`], [`Phase::Input`] and [`Phase::Weight`].
    pub backward: Vec<Step>,
    /// Its parameters on one rank, before ZeRO shards them.
    pub parameters: u64,
    /// Of them those of experts, which fewer ranks hold copies of.
    pub expert_parameters: u64,
    /// Of its parameters those whose gradients are parts of a sum over the tensor-parallel ranks
    /// ([`Weight::partial_elements`]).
    pub partial_parameters: u64,
}

/// What the blocks of a plan are cut from.
#[derive(Clone, Copy, Debug)]
pub struct Cut<'a> {
    /// The model.
    pub model: &'a ModelShape,
    /// The mesh.
    pub mesh: &'a Mesh,
    /// Numbers and switches.
    pub setup: &'a Setup,
    /// Sequences of a microbatch `B`.
    pub micro_batch_size: u64,
    /// Tokens of a sequence `S`, over all context-parallel ranks.
    pub seq_length: u64,
}

impl Cut<'_> {
    pub(crate) fn tensor(&self) -> u64 {
        u64::from(self.mesh.tensor.max(1))
    }

    pub(crate) fn context(&self) -> u64 {
        u64::from(self.mesh.context.max(1))
    }

    pub(crate) fn hidden(&self) -> u64 {
        u64::from(self.model.hidden_size)
    }

    /// Bytes of one number of an activation \[B\].
    pub(crate) fn width(&self) -> u64 {
        self.setup.dtype.bytes()
    }

    /// Tokens that a rank's matrices multiply: `B S / context`.
    pub(crate) fn tokens(&self) -> u64 {
        self.micro_batch_size * self.seq_length.div_ceil(self.context())
    }

    /// Rows of the vocabulary on one rank.
    pub(crate) fn vocabulary(&self) -> u64 {
        u64::from(self.model.vocab_size).div_ceil(self.tensor())
    }

    /// Tokens between the tensor-parallel regions: sharded under Megatron's sequence parallelism.
    pub(crate) fn shard_tokens(&self) -> u64 {
        if self.shards_sequence() { self.tokens().div_ceil(self.tensor()) } else { self.tokens() }
    }

    pub(crate) fn shards_sequence(&self) -> bool {
        self.setup.megatron_sequence_parallel && self.tensor() > 1
    }

    /// The block of a transformer layer: `experts` for a layer with a mixture of experts.
    pub fn layer(&self, recompute: Recompute, experts: bool) -> Block {
        accumulate::unfused(self, layer::block(self, recompute, experts))
    }

    /// The block of the embedding.
    pub fn embedding(&self) -> Block {
        ends::embedding(self)
    }

    /// The block of the head and the loss; `own_weight` is false where the head shares the embedding's on its stage.
    pub fn head(&self, own_weight: bool) -> Block {
        accumulate::unfused(self, ends::head(self, own_weight))
    }

    /// Of the parameters of weights on one rank those whose gradients are parts of a sum over the tensor-parallel ranks.
    pub(crate) fn partial(&self, weights: &[Weight]) -> u64 {
        let partial = |w: &Weight| w.partial_elements(self.mesh.tensor, self.setup.megatron_sequence_parallel);
        weights.iter().map(partial).fold(0, u64::saturating_add)
    }

    /// Parameters of weights on one rank.
    pub(crate) fn sum(&self, weights: &[Weight]) -> u64 {
        weights.iter().map(|w| w.rank_elements(self.mesh.tensor, self.mesh.expert)).fold(0, u64::saturating_add)
    }
}
