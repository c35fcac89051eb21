//! The numbers and switches of training that decide what each rank computes, keeps and sends.
//!
//! One law: everything is resolved here; whoever reads a [`Setup`] knows no defaults.

use crate::scenario::{Attention, Dtype, Recompute, SequenceParallel};

/// How a model is trained, beside its shape and its batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// Format of weights and activations.
    pub dtype: Dtype,
    /// Format in which gradients are accumulated and reduced.
    pub gradient_dtype: Dtype,
    /// What backward computes again: one entry a stage, or one for all.
    pub recompute: Vec<Recompute>,
    /// How attention is computed.
    pub attention: Attention,
    /// Kind of sequence parallelism: over the context-parallel ranks where there are any, else Megatron's or none.
    pub sequence_parallel: SequenceParallel,
    /// Whether Megatron's sequence parallelism is on, over the tensor-parallel ranks; it goes together with any kind over
    /// the context-parallel ranks.
    pub megatron_sequence_parallel: bool,
    /// ZeRO stage, 0 to 3.
    pub zero_stage: u32,
    /// Part of the hidden states that drops out, behind the embedding, attention and MLP; from 0 to below 1.
    pub hidden_dropout: f64,
    /// Part of the attention probabilities that drops out; from 0 to below 1.
    pub attention_dropout: f64,
    /// Largest norm of the gradients, where they are clipped to one.
    pub clip_grad: Option<f64>,
    /// Whether gradients are reduced beside the backwards that make them.
    pub overlap_grad_reduce: bool,
    /// Whether parameters are gathered beside the forwards that use them.
    pub overlap_param_gather: bool,
    /// Whether tensor-parallel messages go beside the matrix multiplication next to them.
    pub tp_comm_overlap: bool,
    /// Whether messages between stages go beside compute.
    pub overlap_p2p: bool,
    /// Whether the loss is one kernel that keeps no fp32 copy of the logits.
    pub cross_entropy_fusion: bool,
    /// Whether scale, mask and softmax of unfused attention are one kernel.
    pub masked_softmax_fusion: bool,
    /// Whether the multiplications that make weights' gradients add them up.
    pub gradient_accumulation_fusion: bool,
    /// Whether the backward's tensor-parallel all-reduce goes beside the weights' gradients.
    pub async_tensor_model_parallel_allreduce: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            dtype: Dtype::Fp32,
            gradient_dtype: Dtype::Fp32,
            recompute: vec![Recompute::None],
            attention: Attention::Standard,
            sequence_parallel: SequenceParallel::None,
            megatron_sequence_parallel: false,
            zero_stage: 0,
            hidden_dropout: 0.0,
            attention_dropout: 0.0,
            clip_grad: None,
            overlap_grad_reduce: false,
            overlap_param_gather: false,
            tp_comm_overlap: false,
            overlap_p2p: true,
            cross_entropy_fusion: false,
            masked_softmax_fusion: true,
            gradient_accumulation_fusion: true,
            async_tensor_model_parallel_allreduce: true,
        }
    }
}

impl Setup {
    /// Whether anything drops out.
    pub fn dropout(&self) -> bool {
        self.drops_hidden() || self.drops_attention()
    }

    /// Whether hidden states drop out.
    pub fn drops_hidden(&self) -> bool {
        self.hidden_dropout > 0.0
    }

    /// Whether attention probabilities drop out.
    pub fn drops_attention(&self) -> bool {
        self.attention_dropout > 0.0
    }

    /// What backward of a stage computes again.
    pub fn recompute_of(&self, stage: usize) -> Recompute {
        let last = self.recompute.last().copied().unwrap_or(Recompute::None);
        self.recompute.get(stage).copied().unwrap_or(last)
    }
}

impl Dtype {
    /// Bytes of one number \[B\].
    pub fn bytes(self) -> u64 {
        match self {
            Dtype::Fp32 => 4,
            Dtype::Bf16 | Dtype::Fp16 => 2,
        }
    }
}
