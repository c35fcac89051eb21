//! Causal multi-head attention with grouped queries, whole or a block of keys at a time.
//!
//! - Lean: no matrix of scores is kept. Forward keeps the log-sum-exp of each row of scores, backward computes the
//!   probabilities again from it (Dao et al. 2022). Results of several blocks of keys are merged by it.
//! - Standard: the probabilities are kept.
//!
//! Rows stand at positions of their sequence that the caller gives as ascending runs; a query sees the keys at positions up
//! to its own. So what a query sees is always the first so many keys, and blocks in the future cost nothing.
//!
//! One law: an element drops out by its place in the whole model alone: sequence, head, query and key.
//!
//! Shapes: queries `[B Sq, A D]`, keys and values `[B Sk, G D]`, `A` a multiple of `G`.

mod cpu;
mod plain;

use super::dropout::Dropout;
use burn::tensor::Tensor;
use std::ops::Range;

/// The log-sum-exp of a row that sees nothing: small enough to weigh nothing, and finite.
pub(super) const NOTHING: f32 = -1e30;

/// Sizes of an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// Sequences `B`.
    pub batch: usize,
    /// Query heads `A`.
    pub heads: usize,
    /// Key-value heads `G`.
    pub groups: usize,
    /// Size of a head `D`.
    pub dim: usize,
}

/// What stands where, and what drops out.
#[derive(Clone, Copy, Debug)]
pub struct Sight<'a> {
    /// Positions of the queries of a sequence, ascending.
    pub queries: &'a [Range<usize>],
    /// Positions of its keys, ascending.
    pub keys: &'a [Range<usize>],
    /// Numbers of the sequences in the global batch.
    pub sequences: &'a [u64],
    /// Number, in the whole model, of the first head.
    pub first_head: usize,
    /// What of the probabilities drops out.
    pub dropout: Option<Dropout>,
}

/// What lean attention gives.
#[derive(Clone, Debug)]
pub struct Attended {
    /// The output `[B Sq, A D]`.
    pub output: Tensor<2>,
    /// The log-sum-exp of each row of scores `[B, A, Sq]`, fp32.
    pub lse: Tensor<3>,
}

/// The gradients of queries `[B Sq, A D]`, keys and values `[B Sk, G D]`.
#[derive(Clone, Debug)]
pub struct Gradients {
    /// Of the queries.
    pub queries: Tensor<2>,
    /// Of the keys.
    pub keys: Tensor<2>,
    /// Of the values.
    pub values: Tensor<2>,
}

impl AttentionShape {
    /// What scores are scaled by.
    fn scale(&self) -> f32 {
        (self.dim as f32).sqrt().recip()
    }

    /// Query heads that share a key-value head.
    fn sharing(&self) -> usize {
        (self.heads / self.groups.max(1)).max(1)
    }
}

impl Sight<'_> {
    fn query_positions(&self) -> Vec<usize> {
        self.queries.iter().cloned().flatten().collect()
    }

    fn key_positions(&self) -> Vec<usize> {
        self.keys.iter().cloned().flatten().collect()
    }

    /// How many of the keys each query sees: always the first ones.
    fn seen(&self) -> Vec<usize> {
        let keys = self.key_positions();
        self.query_positions().into_iter().map(|query| keys.partition_point(|key| *key <= query)).collect()
    }
}

/// What an attention reads: queries `[B Sq, A D]` and one block of keys and values `[B Sk, G D]`.
#[derive(Clone, Copy, Debug)]
pub struct Operands<'a> {
    /// Queries.
    pub queries: &'a Tensor<2>,
    /// Keys.
    pub keys: &'a Tensor<2>,
    /// Values.
    pub values: &'a Tensor<2>,
    /// Sizes.
    pub shape: AttentionShape,
    /// What stands where.
    pub sight: Sight<'a>,
}

/// Attention of the queries over the keys and values.
pub fn forward(operands: &Operands<'_>) -> Attended {
    cpu::forward(operands).unwrap_or_else(|| plain::forward(operands))
}

/// Attention over two sets of keys, from that over each (Liu et al. 2023).
pub fn merge(one: Attended, other: Attended, shape: &AttentionShape) -> Attended {
    plain::merge(one, other, shape)
}

/// The gradients, from that of the output. Right for one block of keys and values too, where `attended` is of all of them.
pub fn backward(operands: &Operands<'_>, attended: &Attended, gradient: &Tensor<2>) -> Gradients {
    cpu::backward(operands, attended, gradient).unwrap_or_else(|| plain::backward(operands, attended, gradient))
}

/// Standard attention: the output and the probabilities `[B, A, Sq, Sk]` before dropout.
pub fn forward_standard(operands: &Operands<'_>) -> (Tensor<2>, Tensor<4>) {
    cpu::forward_standard(operands).unwrap_or_else(|| plain::forward_standard(operands))
}

/// The gradients of standard attention, from its probabilities and the gradient of its output.
pub fn backward_standard(operands: &Operands<'_>, probabilities: &Tensor<4>, gradient: &Tensor<2>) -> Gradients {
    cpu::backward_standard(operands, probabilities, gradient)
        .unwrap_or_else(|| plain::backward_standard(operands, probabilities, gradient))
}

#[cfg(test)]
mod tests;
