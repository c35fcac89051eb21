//! A decoder-only transformer in parts: GPT-2's kind (learned positions, LayerNorm, GELU) and Llama's (rotary positions,
//! RMSNorm, SwiGLU, grouped queries), each part on one device of the mesh.
//!
//! ```text
//! spec (which part) -> weights (its parameters) -> forward, backward, attention (the operations) <-> messages
//! ```
//!
//! One law: a part's parameters, names and first values are those of the whole model, whatever the split; so any two
//! splits compute the same function.

mod attention;
mod backward;
mod check;
mod forward;
mod messages;
mod pass;
mod spec;
mod weights;

pub use check::{ModelError, check_data, check_shape};
pub use spec::{Place, StageSpec};

use crate::error::TaskError;
use crate::kernels::activation::Activation;
use crate::kernels::dropout::Dropout;
use crate::kernels::linear::Layout;
use crate::parameter::{Block, Parameter};
use crate::positions::{self, Runs};
use crate::stage_module::{At, Feed, Output, StageModule};
use burn::tensor::{Device, Tensor};
use pass::{LayerKept, Pass, SliceCache};
use pipewright_ir::ids::Microbatch;
use pipewright_ir::mesh::Mesh;
use pipewright_ir::model::ModelShape;
use pipewright_ir::scenario::{Recompute, SequenceParallel};
use pipewright_ir::segments::{BlockKind, Cut, Operand, Operation, Phase, Programs};
use pipewright_ir::setup::Setup;
use std::collections::BTreeMap;
use weights::{EmbeddingPlaces, LayerPlaces, LinearPlaces, Maker, NormPlaces};

/// The part of a transformer that one stage holds, on one device.
#[derive(Debug)]
pub struct Transformer {
    spec: StageSpec,
    blocks: Vec<Block>,
    embedding: EmbeddingPlaces,
    layers: Vec<LayerPlaces>,
    head_norm: NormPlaces,
    /// Block and parameter of the head's matrix.
    head: Option<(usize, usize)>,
    inverse_frequencies: Vec<f32>,
    activation: Activation,
    passes: BTreeMap<Microbatch, Pass>,
    /// By the number of a microbatch and the layer.
    slices: BTreeMap<(u32, u32), SliceCache>,
}

/// The whole model on one device, and what it computes there: nothing is split, computed again or sent. `sizes` are the
/// sequences of a microbatch and the tokens of a sequence.
///
/// # Errors
/// As [`Transformer::new`].
pub fn on_one_device(
    shape: &ModelShape,
    setup: &Setup,
    seed: u64,
    sizes: [usize; 2],
    device: &Device,
) -> Result<(Transformer, Programs), ModelError> {
    let alone = Setup {
        recompute: vec![Recompute::None],
        sequence_parallel: SequenceParallel::None,
        megatron_sequence_parallel: false,
        zero_stage: 0,
        ..setup.clone()
    };
    let [batch, seq_length] = sizes;
    let (micro_batch_size, mesh) = (batch as u64, Mesh::default());
    let cut = Cut { model: shape, mesh: &mesh, setup: &alone, micro_batch_size, seq_length: seq_length as u64 };
    let programs = Programs::new(&cut, &[shape.whole()], false);
    Ok((Transformer::new(StageSpec::whole(shape, &alone, seed, batch, seq_length), device)?, programs))
}

/// What must be there.
fn need<T>(there: Option<T>, what: &'static str) -> Result<T, TaskError> {
    there.ok_or(TaskError::Missing(what))
}

impl Transformer {
    /// The part of a model with its first values from the seed, on `device`.
    ///
    /// # Errors
    /// Those of [`check_shape`]; a part that the model does not have.
    pub fn new(spec: StageSpec, device: &Device) -> Result<Self, ModelError> {
        check_shape(&spec.shape)?;
        check::check_part(&spec)?;
        let mut make = Maker::new(&spec, device);
        let (mut blocks, mut layers) = (Vec::new(), Vec::new());
        let mut embedding = EmbeddingPlaces::default();
        if spec.part.embedding {
            let (block, places) = make.embedding()?;
            (embedding, _) = (places, blocks.push(block));
        }
        for index in spec.part.layers.start..spec.part.layers.end {
            let (block, places) = make.layer(index)?;
            blocks.push(block);
            layers.push(places);
        }
        let (mut head_norm, mut head) = (NormPlaces::default(), None);
        if spec.part.head {
            let (block, norm, weight) = make.head()?;
            head_norm = norm;
            head = Some(weight.map_or((0, 0), |weight| (blocks.len(), weight)));
            blocks.push(block);
        }
        let inverse_frequencies = spec.shape.inverse_frequencies();
        let activation = check::activation(&spec.shape)?;
        let (passes, slices) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { spec, blocks, embedding, layers, head_norm, head, inverse_frequencies, activation, passes, slices })
    }

    /// What it is.
    pub fn spec(&self) -> &StageSpec {
        &self.spec
    }

    fn pass(&mut self, microbatch: Microbatch) -> Result<&mut Pass, TaskError> {
        need(self.passes.get_mut(&microbatch), "the forward of this microbatch")
    }

    fn kept(&mut self, at: At) -> Result<&mut LayerKept, TaskError> {
        Ok(self.pass(at.microbatch)?.layers.entry(at.layer).or_default())
    }

    fn places(&self, layer: u32) -> Result<LayerPlaces, TaskError> {
        let index = layer.checked_sub(self.spec.part.layers.start);
        need(index.and_then(|i| self.layers.get(i as usize)).copied(), "the layer")
    }

    /// The number of a block.
    fn block(&self, kind: BlockKind, layer: u32) -> usize {
        match kind {
            BlockKind::Embedding => 0,
            BlockKind::Layer => {
                usize::from(self.spec.part.embedding) + layer.saturating_sub(self.spec.part.layers.start) as usize
            }
            BlockKind::Head => self.blocks.len() - 1,
        }
    }

    fn parameter(&self, block: usize, parameter: usize) -> Result<&Parameter, TaskError> {
        need(self.blocks.get(block).and_then(|block| block.parameters.get(parameter)), "the parameter")
    }

    fn parameter_mut(&mut self, block: usize, parameter: usize) -> Result<&mut Parameter, TaskError> {
        need(self.blocks.get_mut(block).and_then(|block| block.parameters.get_mut(parameter)), "the parameter")
    }

    fn matrix(&self, block: usize, parameter: usize) -> Result<Tensor<2>, TaskError> {
        need(self.parameter(block, parameter)?.matrix(), "a weight that ZeRO-3 has released")
    }

    fn vector(&self, block: usize, parameter: usize) -> Result<Tensor<1>, TaskError> {
        need(self.parameter(block, parameter)?.value(), "a weight that ZeRO-3 has released")
    }

    fn bias(&self, block: usize, places: LinearPlaces) -> Result<Option<Tensor<1>>, TaskError> {
        places.bias.map(|bias| self.vector(block, bias)).transpose()
    }

    /// Scale and shift of a norm.
    fn norm_weights(&self, block: usize, places: NormPlaces) -> Result<(Tensor<1>, Option<Tensor<1>>), TaskError> {
        let shift = places.shift.map(|shift| self.vector(block, shift)).transpose()?;
        Ok((self.vector(block, places.scale)?, shift))
    }

    fn epsilon(&self) -> f64 {
        self.spec.shape.numerics.layernorm_epsilon.into_inner()
    }

    /// How this kind of model stores the weights of its linear layers.
    fn layout(&self) -> Layout {
        if self.spec.is_gpt2() { Layout::InOut } else { Layout::OutIn }
    }

    /// The positions of a microbatch's or slice's rows on this device, whole and as its shard of them.
    fn positions(&self, feed: &Feed) -> (Runs, Runs) {
        let (spec, context) = (&self.spec, self.spec.context);
        let own = if context.of > 1 {
            positions::of_rank(spec.seq_length, context.of, context.rank, spec.sequence_parallel)
        } else {
            vec![feed.slice.clone()]
        };
        let shard = if spec.shards_sequence { shard_of(&own, spec.tensor) } else { own.clone() };
        (own, shard)
    }

    /// What drops out at a place of the model in a step; `None` where nothing does.
    fn dropout(&self, rate: f64, step: u64, layer: u32, place: u64) -> Option<Dropout> {
        let words = [step, u64::from(layer) << 8 | place];
        (rate > 0.0).then(|| Dropout { key: crate::random::key(self.spec.seed, words), rate: rate as f32 })
    }
}

/// A rank's share of the rows at some positions.
fn shard_of(runs: &Runs, place: Place) -> Runs {
    let share = place.share(positions::count(runs));
    let mut at = 0;
    let mut shard = Runs::new();
    for run in runs {
        let (from, to) = (share.start.max(at), share.end.min(at + run.len()));
        if from < to {
            shard.push(run.start + from - at..run.start + to - at);
        }
        at += run.len();
    }
    shard
}

impl StageModule for Transformer {
    fn begin_forward(&mut self, microbatch: Microbatch, feed: Feed) -> Result<(), TaskError> {
        let part = self.spec.part;
        let missing = part.embedding && feed.tokens.is_none()
            || part.head && feed.targets.is_none()
            || !part.embedding && feed.hidden.is_none();
        if missing {
            return Err(TaskError::Missing("the input of the stage"));
        }
        let (own, shard) = self.positions(&feed);
        self.passes.insert(microbatch, Pass::new(feed, own, shard, self.spec.seq_length));
        Ok(())
    }

    fn begin_backward(
        &mut self,
        microbatch: Microbatch,
        gradient: Option<Tensor<2>>,
        split: bool,
    ) -> Result<(), TaskError> {
        if !self.spec.part.head && gradient.is_none() {
            return Err(TaskError::Missing("the gradient of the output"));
        }
        let pass = self.pass(microbatch)?;
        pass.gradient = gradient;
        pass.split = split;
        pass.stream = None;
        Ok(())
    }

    fn compute(&mut self, at: At, operation: Operation) -> Result<(), TaskError> {
        match at.phase {
            Phase::Forward | Phase::Recompute => self.forward(at, operation),
            Phase::Input => self.backward_input(at, operation),
            Phase::Weight => self.backward_weight(at, operation),
        }
    }

    fn message(&mut self, at: At, operand: Operand) -> Result<Tensor<2>, TaskError> {
        self.outgoing(at, operand)
    }

    fn deliver(&mut self, at: At, operand: Operand, tensor: Tensor<2>) -> Result<(), TaskError> {
        self.incoming(at, operand, tensor)
    }

    fn end_forward(&mut self, microbatch: Microbatch) -> Result<Output, TaskError> {
        if self.spec.part.head {
            return Ok(Output::Loss(self.loss(microbatch)?));
        }
        let pass = self.pass(microbatch)?;
        let made = pass.stream.take().or_else(|| pass.hand.take());
        need(made, "the output of the stage").map(Output::Hidden)
    }

    fn end_backward(&mut self, microbatch: Microbatch, split: bool) -> Result<Option<Tensor<2>>, TaskError> {
        let first = self.spec.part.embedding;
        let pass = self.pass(microbatch)?;
        let gradient = if first { None } else { Some(need(pass.gradient.take(), "the gradient of the input")?) };
        if !split {
            self.end_weight(microbatch)?;
        }
        if microbatch.slice() == Some(0) {
            // The first slice is the last to come back.
            self.slices.retain(|(number, _), _| *number != microbatch.number());
        }
        Ok(gradient)
    }

    fn end_weight(&mut self, microbatch: Microbatch) -> Result<(), TaskError> {
        self.add_vectors(microbatch)?;
        self.passes.remove(&microbatch);
        Ok(())
    }

    fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    fn blocks_mut(&mut self) -> &mut [Block] {
        &mut self.blocks
    }

    fn tied(&self) -> Option<(usize, usize)> {
        if !self.spec.is_tied() {
            return None;
        }
        if self.spec.part.embedding { Some((0, 0)) } else { self.head }
    }
}
