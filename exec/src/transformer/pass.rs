//! What a device holds of one microbatch on its way through a stage.
//!
//! One law: a tensor is dropped by the last operation that reads it.

use crate::kernels::rope::Rotation;
use crate::positions::{self, Runs};
use crate::stage_module::Feed;
use burn::tensor::Tensor;
use std::collections::BTreeMap;

/// A norm's input `[N, H]`, its statistics and its output.
#[derive(Debug, Default)]
pub(super) struct NormKept {
    pub(super) input: Option<Tensor<2>>,
    pub(super) statistics: Option<Tensor<2>>,
    /// Of this device's shard of the sequence where there are shards, until it is gathered.
    pub(super) output: Option<Tensor<2>>,
}

/// Keys and values `[N, G D]` of some tokens, or their gradients.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    pub(super) keys: Tensor<2>,
    pub(super) values: Tensor<2>,
}

impl Pair {
    /// Side by side `[N, 2 G D]`.
    pub(super) fn joined(self) -> Tensor<2> {
        Tensor::cat(vec![self.keys, self.values], 1)
    }

    /// The two halves of the columns from `start` on.
    pub(super) fn of(tensor: &Tensor<2>, start: usize, width: usize) -> Self {
        let [rows, _] = tensor.dims();
        let part = |from: usize| tensor.clone().slice([0..rows, from..from + width]);
        Self { keys: part(start), values: part(start + width) }
    }

    /// The sum of two.
    pub(super) fn plus(self, other: Pair) -> Self {
        Self { keys: self.keys + other.keys, values: self.values + other.values }
    }
}

/// Attention of one layer.
#[derive(Debug, Default)]
pub(super) struct AttentionKept {
    /// Queries `[N, A D]` and keys and values as they go into the core.
    pub(super) queries: Option<Tensor<2>>,
    pub(super) pair: Option<Pair>,
    /// The same before the all-to-all of Ulysses, where the core is computed again.
    pub(super) local: Option<(Tensor<2>, Pair)>,
    /// The output of the core and its log-sum-exp.
    pub(super) output: Option<(Tensor<2>, Tensor<3>)>,
    /// Standard attention: its probabilities.
    pub(super) probabilities: Option<Tensor<4>>,
    /// The output of the core as the next matrix takes it.
    pub(super) attended: Option<Tensor<2>>,
    /// Round the ring: the block at hand and the one that came.
    pub(super) block: Option<Pair>,
    pub(super) next: Option<Pair>,
    /// Gradients: of the own block, of the block of the last step, and what came for it.
    pub(super) home: Option<Pair>,
    pub(super) travelling: Option<Pair>,
    pub(super) incoming: Option<Pair>,
    /// The gradient of the core's output, then of queries.
    pub(super) gradient: Option<Tensor<2>>,
    pub(super) queries_gradient: Option<Tensor<2>>,
    pub(super) projected_gradient: Option<Tensor<2>>,
    /// The gradient at the output projection's end.
    pub(super) output_gradient: Option<Tensor<2>>,
}

/// What a layer keeps.
#[derive(Debug, Default)]
pub(super) struct LayerKept {
    pub(super) norms: [NormKept; 2],
    pub(super) attention: AttentionKept,
    /// The MLP before and behind its activation.
    pub(super) inner: Option<Tensor<2>>,
    pub(super) activated: Option<Tensor<2>>,
    /// Their gradients, and that of the MLP's output.
    pub(super) inner_gradient: Option<Tensor<2>>,
    pub(super) activated_gradient: Option<Tensor<2>>,
    pub(super) down_gradient: Option<Tensor<2>>,
}

/// What the head keeps.
#[derive(Debug, Default)]
pub(super) struct HeadKept {
    pub(super) norm: NormKept,
    /// Logits `[N, V]`, then their gradient.
    pub(super) logits: Option<Tensor<2>>,
    /// Of each token the maximum, the sum of exponentials and the target's logit.
    pub(super) statistics: Option<Tensor<2>>,
}

/// Gradients of vectors that I has made and W adds.
#[derive(Debug)]
pub(super) struct VectorGradient {
    pub(super) block: usize,
    pub(super) parameter: usize,
    pub(super) gradient: Tensor<1>,
}

/// One microbatch, or slice of one.
#[derive(Debug)]
pub(super) struct Pass {
    pub(super) step: u64,
    pub(super) sequences: Vec<u64>,
    /// Positions of its rows in each sequence.
    pub(super) positions: Runs,
    /// The same on this device's shard of the sequence (Megatron).
    pub(super) shard: Runs,
    pub(super) tokens: Vec<u32>,
    pub(super) targets: Option<Vec<u32>>,
    pub(super) step_tokens: u64,
    /// Rotary positions of its rows, once a layer has asked for them.
    pub(super) rotation: Option<Rotation>,
    /// The residual stream.
    pub(super) stream: Option<Tensor<2>>,
    /// The tensor at hand.
    pub(super) hand: Option<Tensor<2>>,
    /// The gradient of the residual stream.
    pub(super) gradient: Option<Tensor<2>>,
    pub(super) embedding_norm: NormKept,
    pub(super) layers: BTreeMap<u32, LayerKept>,
    pub(super) head: HeadKept,
    /// Whether W comes apart from I.
    pub(super) split: bool,
    pub(super) vectors: Vec<VectorGradient>,
}

impl Pass {
    /// The pass of a feed whose rows have these positions in a sequence of `seq_length` tokens.
    pub(super) fn new(feed: Feed, positions: Runs, shard: Runs, seq_length: usize) -> Self {
        let select = |values: &Vec<u32>| positions::select(values, seq_length, &positions);
        Self {
            step: feed.step,
            sequences: feed.sequences.collect(),
            tokens: feed.tokens.as_ref().map(select).unwrap_or_default(),
            targets: feed.targets.as_ref().map(select),
            step_tokens: feed.step_tokens,
            positions,
            shard,
            rotation: None,
            stream: feed.hidden,
            hand: None,
            gradient: None,
            embedding_norm: NormKept::default(),
            layers: BTreeMap::new(),
            head: HeadKept::default(),
            split: false,
            vectors: Vec::new(),
        }
    }

    /// The numbers, in the global batch, of the rows at `positions`.
    pub(super) fn row_ids(&self, positions: &Runs, seq_length: usize) -> Vec<u64> {
        let all = self.sequences.iter().map(|sequence| sequence * seq_length as u64);
        all.flat_map(|first| positions.iter().cloned().flatten().map(move |position| first + position as u64)).collect()
    }
}

/// Keys and values of the slices of a microbatch that went forward and are not yet back, and what later slices put on their
/// gradients.
#[derive(Debug, Default)]
pub(super) struct SliceCache {
    pub(super) slices: Vec<(Pair, Option<Pair>)>,
}

impl SliceCache {
    /// All keys and values side by side, of `batch` sequences.
    pub(super) fn all(&self, batch: usize) -> Pair {
        let join = |part: fn(&Pair) -> &Tensor<2>| {
            let parts = self.slices.iter().map(|(pair, _)| by_sequence(part(pair), batch)).collect();
            by_row(Tensor::cat(parts, 1))
        };
        Pair { keys: join(|pair| &pair.keys), values: join(|pair| &pair.values) }
    }

    /// Adds gradients of all keys and values `[B T, ..]` to those of the slices.
    pub(super) fn add(&mut self, gradients: &Pair, batch: usize) {
        let mut at = 0;
        for (pair, sum) in &mut self.slices {
            let len = pair.keys.dims()[0] / batch;
            let part = |all: &Tensor<2>| {
                let all = by_sequence(all, batch);
                let [b, _, w] = all.dims();
                by_row(all.slice([0..b, at..at + len, 0..w]))
            };
            let part = Pair { keys: part(&gradients.keys), values: part(&gradients.values) };
            *sum = Some(match sum.take() {
                Some(sum) => sum.plus(part),
                None => part,
            });
            at += len;
        }
    }
}

/// `[B S, W]` as `[B, S, W]`.
pub(super) fn by_sequence(x: &Tensor<2>, batch: usize) -> Tensor<3> {
    let [rows, width] = x.dims();
    x.clone().reshape([batch, rows / batch.max(1), width])
}

/// `[B, S, W]` as `[B S, W]`.
pub(super) fn by_row(x: Tensor<3>) -> Tensor<2> {
    let [b, s, w] = x.dims();
    x.reshape([b * s, w])
}
