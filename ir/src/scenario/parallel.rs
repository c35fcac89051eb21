//! The scenario's `parallel`: how the work is split.
//!
//! One law: Megatron's names; nothing is decided here.

use super::{Layout, OneOrMany};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The kinds of sequence parallelism.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SequenceParallel {
    /// None.
    #[default]
    None,
    /// Megatron's, on the tensor-parallel ranks.
    Megatron,
    /// Ring self-attention on the context-parallel ranks, zigzag: each has one run of tokens from the front and one from
    /// the back, so that all have equal work under the causal mask.
    #[serde(alias = "zigzag")]
    Ring,
    /// Ring self-attention on the context-parallel ranks, each with one contiguous run of tokens.
    RingContiguous,
    /// DeepSpeed-Ulysses on the context-parallel ranks.
    Ulysses,
}

impl SequenceParallel {
    /// Its name in a scenario.
    pub fn name(self) -> &'static str {
        match self {
            SequenceParallel::None => "none",
            SequenceParallel::Megatron => "megatron",
            SequenceParallel::Ring => "ring",
            SequenceParallel::RingContiguous => "ring-contiguous",
            SequenceParallel::Ulysses => "ulysses",
        }
    }

    /// Whether it works on the context-parallel ranks.
    pub fn is_over_context(self) -> bool {
        matches!(self, SequenceParallel::Ring | SequenceParallel::RingContiguous | SequenceParallel::Ulysses)
    }
}

/// How the work is split, with Megatron's names. What is left out is 1, or off.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Parallel {
    /// Tensor-parallel size.
    pub tensor_model_parallel_size: Option<u32>,
    /// Pipeline ranks `p`.
    pub pipeline_model_parallel_size: Option<u32>,
    /// Chunks a rank `v`, for the schedules that interleave.
    pub virtual_pipeline_model_parallel_size: Option<u32>,
    /// Data-parallel replicas. Default: what the other sizes leave of `world_size`, or of the GPUs of the cluster.
    pub data_parallel_size: Option<u32>,
    /// Context-parallel size.
    pub context_parallel_size: Option<u32>,
    /// Expert-parallel size; divides the context-parallel size times the replicas.
    pub expert_model_parallel_size: Option<u32>,
    /// All devices: the product of the tensor-, context-, pipeline- and data-parallel sizes. Default: that product.
    pub world_size: Option<u32>,
    /// Kind of sequence parallelism; Megatron's goes together with one over the context-parallel ranks, `["megatron",
    /// "ring"]`. Default with a context-parallel size above 1: `ring`.
    pub sequence_parallel: Option<OneOrMany<SequenceParallel>>,
    /// ZeRO stage, 0 to 3.
    pub zero_stage: Option<u32>,
    /// Layers of each stage, `[8, 8, 7, 7]`, which sum to the model's layers; `"balanced"`, which evens out the FLOPs of
    /// the stages; or Megatron's notation, `"Ettt|(tttt|)*2tttL"`. Default: as even as can be.
    pub layout: Option<Layout>,
    /// Whether the default layout counts the embedding as a layer of the first stage. Default false.
    pub account_for_embedding_in_pipeline_split: Option<bool>,
    /// Whether the default layout counts the head and its loss as a layer of the last stage. Default false.
    pub account_for_loss_in_pipeline_split: Option<bool>,
    /// Order of the mesh axes, innermost first. Default `tp-cp-dp-pp`.
    pub order: Option<String>,
}
