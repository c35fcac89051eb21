//! The shape of a model: which weights it has, and how many parameters and floating-point operations follow from them.
//!
//! One law: every count here is exact integer arithmetic over the shape, so that real tensors can be checked against it.

mod describe;
mod flops;
mod hugging_face;
mod numerics;
mod padding;
mod parameters;
mod presets;
mod weights;

pub use hugging_face::import;
pub use numerics::{ActivationFunction, Numerics, RopeScaling};
pub use padding::padded_vocab_size;
pub use presets::{preset, preset_names};
pub use weights::{Meets, Split, Weight};

use crate::ids::LayerRange;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A decoder-only transformer, with Megatron's names. [`ModelShape::gpt`] is the GPT that the executor trains; what
/// other models have differently are the fields behind `untie_embeddings_and_output_weights`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelShape {
    /// Transformer layers.
    pub num_layers: u32,
    /// Hidden size `H`.
    pub hidden_size: u32,
    /// Attention heads `A`.
    pub num_attention_heads: u32,
    /// Inner size of the MLP `F`, usually `4 H`.
    pub ffn_hidden_size: u32,
    /// Vocabulary size `V`.
    pub vocab_size: u32,
    /// Longest sequence the learned positions cover.
    pub max_position_embeddings: u32,
    /// True when the output head has a weight of its own, false when it shares the token embedding (Megatron's name).
    pub untie_embeddings_and_output_weights: bool,
    /// Key-value heads `G`; equal to `A` without grouped-query attention.
    pub num_query_groups: u32,
    /// Size of a head `D`, usually `H / A`.
    pub kv_channels: u32,
    /// Multi-head latent attention (DeepSeek), in the place of the query, key and value projections.
    pub latent_attention: Option<LatentAttention>,
    /// Whether the MLP multiplies two projections (SwiGLU, GeGLU): three matrices instead of two.
    pub gated_linear_unit: bool,
    /// Kind of the norms.
    pub normalization: Normalization,
    /// Kind of the positions.
    pub position_embedding: PositionEmbedding,
    /// Whether the linear layers have a bias (never the head).
    pub add_bias_linear: bool,
    /// Whether query, key and value have a bias, where the linear layers have none (Qwen2).
    pub add_qkv_bias: bool,
    /// Whether queries and keys are normalised, with a weight of `D` each (Qwen3).
    pub qk_layernorm: bool,
    /// Whether attention and MLP are normalised on their way out too: four norms a layer (Gemma 2).
    pub post_norms: bool,
    /// Whether one norm serves attention and MLP, which run side by side.
    pub shared_norm: bool,
    /// Whether the embedding is normalised (BLOOM).
    pub embedding_norm: bool,
    /// Experts in the place of the MLP.
    pub mixture_of_experts: Option<MixtureOfExperts>,
    /// Layers of multi-token prediction behind the model (DeepSeek-V3), counted apart.
    pub mtp_num_layers: u32,
    /// What a forward needs beside the shape; no count depends on it.
    pub numerics: Numerics,
}

/// Kinds of norms, with Megatron's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Normalization {
    /// A weight and a bias of `H`.
    LayerNorm,
    /// A weight of `H`.
    #[serde(rename = "RMSNorm")]
    RmsNorm,
}

/// Kinds of positions, with Megatron's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PositionEmbedding {
    /// A weight `[P, H]`.
    #[serde(rename = "learned_absolute")]
    Learned,
    /// Rotary: no weight.
    Rope,
    /// A bias on the scores: no weight.
    Alibi,
}

/// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentAttention {
    /// Rank of the compressed queries; `None` where queries are not compressed.
    pub q_lora_rank: Option<u32>,
    /// Rank of the compressed keys and values.
    pub kv_lora_rank: u32,
    /// Part of a query or key head without positions.
    pub qk_head_dim: u32,
    /// Part of a query or key head with rotary positions.
    pub qk_pos_emb_head_dim: u32,
    /// Size of a value head.
    pub v_head_dim: u32,
}

/// A mixture of experts (Megatron's names).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MixtureOfExperts {
    /// Experts of a layer.
    pub num_experts: u32,
    /// Experts that a token goes through.
    pub moe_router_topk: u32,
    /// Inner size of an expert.
    pub moe_ffn_hidden_size: u32,
    /// Inner size of the shared experts together; 0 without them.
    pub moe_shared_expert_intermediate_size: u32,
    /// First layers that have a plain MLP of `F` instead.
    pub first_dense_layers: u32,
    /// Whether the router has a bias of `num_experts` (DeepSeek-V3).
    pub router_bias: bool,
}

/// Which part of the model a stage holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagePart {
    /// Transformer layers of the stage.
    pub layers: LayerRange,
    /// Whether the token and position embeddings are here (the first stage).
    pub embedding: bool,
    /// Whether the final LayerNorm, the head and the loss are here (the last stage).
    pub head: bool,
}

impl ModelShape {
    /// GPT-2's kind: learned positions, LayerNorm, GELU MLP of `4 H`, biases, tied head.
    pub fn gpt(num_layers: u32, hidden_size: u32, num_attention_heads: u32, vocab_size: u32, positions: u32) -> Self {
        Self {
            num_layers,
            hidden_size,
            num_attention_heads,
            ffn_hidden_size: hidden_size.saturating_mul(4),
            vocab_size,
            max_position_embeddings: positions,
            untie_embeddings_and_output_weights: false,
            num_query_groups: num_attention_heads,
            kv_channels: hidden_size / num_attention_heads.max(1),
            latent_attention: None,
            gated_linear_unit: false,
            normalization: Normalization::LayerNorm,
            position_embedding: PositionEmbedding::Learned,
            add_bias_linear: true,
            add_qkv_bias: true,
            qk_layernorm: false,
            post_norms: false,
            shared_norm: false,
            embedding_norm: false,
            mixture_of_experts: None,
            mtp_num_layers: 0,
            numerics: Numerics::default(),
        }
    }

    /// The part that is the whole model.
    pub fn whole(&self) -> StagePart {
        StagePart { layers: LayerRange { start: 0, end: self.num_layers }, embedding: true, head: true }
    }

    /// Whether a layer has experts in the place of its MLP.
    pub fn is_moe_layer(&self, layer: u32) -> bool {
        self.mixture_of_experts.as_ref().is_some_and(|moe| layer >= moe.first_dense_layers)
    }

    /// Of the layers of a part, how many have a plain MLP and how many have experts.
    pub(crate) fn layers_of_each_kind(&self, part: StagePart) -> (u64, u64) {
        let first_moe = self.mixture_of_experts.as_ref().map_or(u32::MAX, |moe| moe.first_dense_layers);
        let dense = part.layers.end.min(first_moe).saturating_sub(part.layers.start);
        (u64::from(dense), u64::from(part.layers.len().saturating_sub(dense)))
    }

    /// Whether this is [`ModelShape::gpt`] but for the inner size of the MLP, the tying of the head and its numerics.
    pub fn is_gpt(&self) -> bool {
        self.unlike_gpt().is_none()
    }

    /// The first thing that [`ModelShape::gpt`] has differently, in words; its MLP may have any inner size, its head may be
    /// tied or not, and its numerics are its own.
    pub fn unlike_gpt(&self) -> Option<&'static str> {
        let gpt = Self::gpt(
            self.num_layers,
            self.hidden_size,
            self.num_attention_heads,
            self.vocab_size,
            self.max_position_embeddings,
        );
        let differences = [
            (self.latent_attention != gpt.latent_attention, "multi-head latent attention"),
            (self.num_query_groups != gpt.num_query_groups, "grouped-query attention"),
            (self.kv_channels != gpt.kv_channels, "heads that are not hidden_size / num_attention_heads wide"),
            (self.mixture_of_experts != gpt.mixture_of_experts, "a mixture of experts"),
            (self.gated_linear_unit != gpt.gated_linear_unit, "a gated MLP (swiglu)"),
            (self.normalization != gpt.normalization, "RMSNorm"),
            (self.position_embedding != gpt.position_embedding, "positions that are not learned"),
            (self.add_bias_linear != gpt.add_bias_linear, "linear layers without a bias"),
            (self.add_qkv_bias != gpt.add_qkv_bias, "queries, keys and values without a bias"),
            (self.qk_layernorm != gpt.qk_layernorm, "norms of queries and keys"),
            (self.post_norms != gpt.post_norms, "norms behind attention and MLP"),
            (self.shared_norm != gpt.shared_norm, "one norm for attention and MLP"),
            (self.embedding_norm != gpt.embedding_norm, "a norm of the embedding"),
            (self.mtp_num_layers != gpt.mtp_num_layers, "multi-token prediction"),
        ];
        differences.into_iter().find(|(differs, _)| *differs).map(|(_, what)| what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpt_may_have_any_ffn_and_head_but_nothing_else() {
        let gpt = ModelShape::gpt(4, 16, 2, 32, 12);
        let free = ModelShape { ffn_hidden_size: 48, untie_embeddings_and_output_weights: true, ..gpt.clone() };
        assert!(gpt.is_gpt() && free.is_gpt());
        assert_eq!(ModelShape { num_query_groups: 1, ..gpt.clone() }.unlike_gpt(), Some("grouped-query attention"));
        let numerics = Numerics { activation: ActivationFunction::GeluTanh, ..Numerics::default() };
        assert!(ModelShape { numerics, ..gpt }.is_gpt());
        assert_eq!(ModelShape { normalization: Normalization::RmsNorm, ..gpt }.unlike_gpt(), Some("RMSNorm"));
    }
}
