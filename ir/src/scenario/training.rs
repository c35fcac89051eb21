//! The scenario's `training`: the batch and its numbers.
//!
//! One law: nothing is decided here.

use super::OneOrMany;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Number formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Dtype {
    /// 32-bit floats.
    Fp32,
    /// 16-bit brain floats.
    Bf16,
    /// 16-bit floats.
    Fp16,
}

impl Dtype {
    /// Its name in a scenario.
    pub fn name(self) -> &'static str {
        match self {
            Dtype::Fp32 => "fp32",
            Dtype::Bf16 => "bf16",
            Dtype::Fp16 => "fp16",
        }
    }
}

/// What backward computes again instead of keeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Recompute {
    /// Nothing.
    None,
    /// Core attention.
    Selective,
    /// Whole layers.
    Full,
}

impl Recompute {
    /// Its name in a scenario.
    pub fn name(self) -> &'static str {
        match self {
            Recompute::None => "none",
            Recompute::Selective => "selective",
            Recompute::Full => "full",
        }
    }
}

/// How attention is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Attention {
    /// Block by block, without the `s x s` matrix.
    Flash,
    /// With the `s x s` matrix.
    Standard,
}

impl Attention {
    /// Its name in a scenario.
    pub fn name(self) -> &'static str {
        match self {
            Attention::Flash => "flash",
            Attention::Standard => "standard",
        }
    }
}

/// The batch and its numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Training {
    /// Sequences of one optimizer step over all replicas.
    pub global_batch_size: Option<u32>,
    /// Sequences of one microbatch. Default 1.
    pub micro_batch_size: Option<u32>,
    /// Microbatches `m` of one pass of the pipeline. Default: global batch / (microbatch, replicas). When the global
    /// batch holds a multiple of it, that many passes accumulate gradients before the optimizer step.
    pub num_microbatches: Option<u32>,
    /// Tokens of one sequence.
    pub seq_length: Option<u32>,
    /// Format of weights and activations. Default on a cluster `bf16`, or `fp16` where its GPUs have no bf16; `fp32`
    /// without one.
    pub dtype: Option<Dtype>,
    /// Format in which gradients are accumulated and reduced. Default: that of the weights, and `fp32` with `bf16`.
    pub gradient_dtype: Option<Dtype>,
    /// What backward computes again: one word for all stages, or a list with one a stage. Default `none`.
    pub recompute: Option<OneOrMany<Recompute>>,
    /// How attention is computed. Default on a cluster `flash`, where its GPUs can; `standard` without one.
    pub attention: Option<Attention>,
    /// Whether attention and layers drop out, a tenth unless told otherwise. Default false.
    pub dropout: Option<bool>,
    /// Part of the hidden states that drops out, from 0 to below 1. Default 0.1 with `dropout`, else 0.
    pub hidden_dropout: Option<f64>,
    /// Part of the attention probabilities that drops out, from 0 to below 1. Default 0.1 with `dropout`, else 0.
    pub attention_dropout: Option<f64>,
    /// Largest norm of the gradients, to which they are scaled down; 0 turns it off. Default on a cluster 1; off without
    /// one.
    pub clip_grad: Option<f64>,
    /// Whether gradients are reduced beside the backwards that make them. Default false.
    pub overlap_grad_reduce: Option<bool>,
    /// ZeRO: whether parameters are gathered beside the forwards that use them. Default false.
    pub overlap_param_gather: Option<bool>,
    /// Whether tensor-parallel messages go beside the matrix multiplication next to them. Default false.
    pub tp_comm_overlap: Option<bool>,
    /// Whether messages between stages go beside compute. Default true.
    pub overlap_p2p_comm: Option<bool>,
    /// Whether the loss is one kernel that keeps no fp32 copy of the logits. Default false.
    pub cross_entropy_fusion: Option<bool>,
    /// Unfused attention: whether scale, mask and softmax are one kernel (Megatron's switch of this name). Default true.
    pub masked_softmax_fusion: Option<bool>,
    /// Whether the multiplication that makes a weight's gradient adds it to that of the microbatches before (Megatron's
    /// switch of this name); otherwise a pass over it does. Default true.
    pub gradient_accumulation_fusion: Option<bool>,
    /// Without sequence parallelism: whether the backward's tensor-parallel all-reduce goes beside the weights' gradients
    /// (Megatron's switch of this name, since 2022). Default true.
    pub async_tensor_model_parallel_allreduce: Option<bool>,
}

impl Training {
    /// The same with what it leaves out taken from `base`.
    #[must_use]
    pub fn or(&self, base: &Self) -> Self {
        Self {
            global_batch_size: self.global_batch_size.or(base.global_batch_size),
            micro_batch_size: self.micro_batch_size.or(base.micro_batch_size),
            num_microbatches: self.num_microbatches.or(base.num_microbatches),
            seq_length: self.seq_length.or(base.seq_length),
            dtype: self.dtype.or(base.dtype),
            gradient_dtype: self.gradient_dtype.or(base.gradient_dtype),
            recompute: self.recompute.clone().or_else(|| base.recompute.clone()),
            attention: self.attention.or(base.attention),
            dropout: self.dropout.or(base.dropout),
            hidden_dropout: self.hidden_dropout.or(base.hidden_dropout),
            attention_dropout: self.attention_dropout.or(base.attention_dropout),
            clip_grad: self.clip_grad.or(base.clip_grad),
            overlap_grad_reduce: self.overlap_grad_reduce.or(base.overlap_grad_reduce),
            overlap_param_gather: self.overlap_param_gather.or(base.overlap_param_gather),
            tp_comm_overlap: self.tp_comm_overlap.or(base.tp_comm_overlap),
            overlap_p2p_comm: self.overlap_p2p_comm.or(base.overlap_p2p_comm),
            cross_entropy_fusion: self.cross_entropy_fusion.or(base.cross_entropy_fusion),
            masked_softmax_fusion: self.masked_softmax_fusion.or(base.masked_softmax_fusion),
            gradient_accumulation_fusion: self.gradient_accumulation_fusion.or(base.gradient_accumulation_fusion),
            async_tensor_model_parallel_allreduce: self
                .async_tensor_model_parallel_allreduce
                .or(base.async_tensor_model_parallel_allreduce),
        }
    }
}
