//! What a stage of a transformer is on one device: its part of the model and its place in the mesh.
//!
//! One law: everything that differs between two devices of a stage is here.

use pipewright_ir::mesh::{Axis, Mesh};
use pipewright_ir::model::{ModelShape, Normalization, PositionEmbedding, StagePart};
use pipewright_ir::scenario::{Attention, Recompute, SequenceParallel};
use pipewright_ir::setup::Setup;

/// A rank of an axis, and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which one.
    pub rank: usize,
    /// Of how many.
    pub of: usize,
}

impl Place {
    /// The only one.
    pub const ALONE: Place = Place { rank: 0, of: 1 };

    /// Where a device of a mesh stands on an axis.
    pub fn of(mesh: &Mesh, axis: Axis, device: u64) -> Self {
        Self { rank: mesh.coordinate(device, axis) as usize, of: mesh.size(axis).max(1) as usize }
    }

    /// This rank's share of `n` units: even, and the last ranks have fewer or none where they do not divide.
    pub fn share(self, n: usize) -> std::ops::Range<usize> {
        let each = n.div_ceil(self.of);
        (each * self.rank).min(n)..(each * (self.rank + 1)).min(n)
    }
}

/// A stage on one device.
#[derive(Clone, Debug)]
pub struct StageSpec {
    /// The whole model.
    pub shape: ModelShape,
    /// The part of it that the stage holds.
    pub part: StagePart,
    /// Place among the tensor-parallel ranks.
    pub tensor: Place,
    /// Place among the context-parallel ranks.
    pub context: Place,
    /// How these share the sequence.
    pub sequence_parallel: SequenceParallel,
    /// Whether norms and the residual stream are on sequence shards of the tensor-parallel ranks (Megatron).
    pub shards_sequence: bool,
    /// What backward computes again.
    pub recompute: Recompute,
    /// How attention is computed.
    pub attention: Attention,
    /// Share of the residual stream's additions that drop out.
    pub hidden_dropout: f64,
    /// Share of the attention probabilities that drop out.
    pub attention_dropout: f64,
    /// Seed of first values and of dropout.
    pub seed: u64,
    /// Sequences of a microbatch `B`.
    pub batch: usize,
    /// Tokens of a sequence `S`, over all context-parallel ranks.
    pub seq_length: usize,
}

impl StageSpec {
    /// The whole model on one device.
    pub fn whole(shape: &ModelShape, setup: &Setup, seed: u64, batch: usize, seq_length: usize) -> Self {
        Self::of(shape, shape.whole(), 0, setup, &Mesh::default(), 0, [seed, batch as u64, seq_length as u64])
    }

    /// The part of stage `stage` that device `device` of a mesh holds. `numbers` are the seed, sequences of a microbatch and
    /// tokens of a sequence.
    pub fn of(
        shape: &ModelShape,
        part: StagePart,
        stage: usize,
        setup: &Setup,
        mesh: &Mesh,
        device: u64,
        numbers: [u64; 3],
    ) -> Self {
        let tensor = Place::of(mesh, Axis::Tensor, device);
        let [seed, batch, seq_length] = numbers;
        Self {
            shape: shape.clone(),
            part,
            tensor,
            context: Place::of(mesh, Axis::Context, device),
            sequence_parallel: setup.sequence_parallel,
            shards_sequence: setup.megatron_sequence_parallel && tensor.of > 1,
            recompute: setup.recompute_of(stage),
            attention: setup.attention,
            hidden_dropout: setup.hidden_dropout,
            attention_dropout: setup.attention_dropout,
            seed,
            batch: usize::try_from(batch).unwrap_or(usize::MAX),
            seq_length: usize::try_from(seq_length).unwrap_or(usize::MAX),
        }
    }

    /// Hidden size `H`.
    pub(crate) fn hidden(&self) -> usize {
        self.shape.hidden_size as usize
    }

    /// Size of a head `D`.
    pub(crate) fn head_dim(&self) -> usize {
        self.shape.kv_channels as usize
    }

    /// The query heads of this device.
    pub(crate) fn heads(&self) -> std::ops::Range<usize> {
        self.tensor.share(self.shape.num_attention_heads as usize)
    }

    /// The key-value heads of this device: those of its query heads, which neighbours share where there are fewer than
    /// ranks.
    pub(crate) fn groups(&self) -> std::ops::Range<usize> {
        let (heads, groups) = (self.shape.num_attention_heads as usize, self.shape.num_query_groups as usize);
        let per_group = (heads / groups.max(1)).max(1);
        let own = self.heads();
        own.start / per_group..own.end.div_ceil(per_group)
    }

    /// How many neighbouring tensor-parallel ranks share a key-value head.
    pub(crate) fn ranks_per_group(&self) -> usize {
        (self.tensor.of / (self.shape.num_query_groups as usize).max(1)).max(1)
    }

    /// The rows of the vocabulary of this device.
    pub(crate) fn vocabulary(&self) -> std::ops::Range<usize> {
        self.tensor.share(self.shape.vocab_size as usize)
    }

    /// GPT-2's weights have the shape `[in, out]` and its names; all others those of Llama.
    pub(crate) fn is_gpt2(&self) -> bool {
        self.shape.position_embedding == PositionEmbedding::Learned
            && self.shape.normalization == Normalization::LayerNorm
            && !self.shape.gated_linear_unit
    }

    /// Whether the head shares the embedding's weight.
    pub(crate) fn is_tied(&self) -> bool {
        !self.shape.untie_embeddings_and_output_weights
    }
}
