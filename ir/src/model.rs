//! The shape of a GPT: how many parameters, floating-point operations and bytes a run of its layers has.
//!
//! One law: every count here is exact integer arithmetic over the shape, so that the executor's real tensors can be
//! checked against it.

use crate::ids::LayerRange;

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
}

/// Kinds of norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Normalization {
    /// A weight and a bias of `H`.
    LayerNorm,
    /// A weight of `H`.
    RmsNorm,
}

/// Kinds of positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PositionEmbedding {
    /// A weight `[P, H]`.
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
        }
    }

    /// Parameters of one transformer layer: `4 H^2 + 2 H F + 9 H + F` (with `F = 4 H`: `12 H^2 + 13 H`).
    pub fn layer_parameters(&self) -> u64 {
        let (h, f) = (u64::from(self.hidden_size), u64::from(self.ffn_hidden_size));
        let attention = 4 * h * h + 4 * h;
        let mlp = 2 * h * f + f + h;
        attention + mlp + 4 * h
    }

    /// Parameters of the token embedding: `V H`.
    pub fn token_embedding_parameters(&self) -> u64 {
        u64::from(self.vocab_size) * u64::from(self.hidden_size)
    }

    /// Parameters of the whole model, a tied weight counted once.
    pub fn parameters(&self) -> u64 {
        let whole = StagePart { layers: LayerRange { start: 0, end: self.num_layers }, embedding: true, head: true };
        self.part_parameters(whole)
    }

    /// Parameters of a part of the model. A tied head that stands apart from the embedding is a copy and counted; on
    /// the embedding's own stage it is not.
    pub fn part_parameters(&self, part: StagePart) -> u64 {
        let h = u64::from(self.hidden_size);
        let mut n = u64::from(part.layers.len()) * self.layer_parameters();
        if part.embedding {
            n += self.token_embedding_parameters() + u64::from(self.max_position_embeddings) * h;
        }
        if part.head {
            n += 2 * h;
            if self.untie_embeddings_and_output_weights || !part.embedding {
                n += self.token_embedding_parameters();
            }
        }
        n
    }

    /// Matrix-multiply FLOPs of one forward pass over `tokens = B S` tokens of sequences of length `seq`:
    /// `2 (4 H^2 + 2 H F)` a token and layer for the linear layers, `4 S H` for attention (not halved for the causal
    /// mask), `2 H V` for the head. At most `u64::MAX`. Backward is twice that (Narayanan et al. 2021, appendix).
    pub fn forward_flops(&self, part: StagePart, tokens: u64, seq: u64) -> u64 {
        let (h, f) = (u64::from(self.hidden_size), u64::from(self.ffn_hidden_size));
        let layer = 2 * (4 * h * h + 2 * h * f) + 4 * seq * h;
        let head = if part.head { 2 * self.token_embedding_parameters() } else { 0 };
        tokens.saturating_mul(u64::from(part.layers.len()).saturating_mul(layer).saturating_add(head))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpt2_has_its_published_size() {
        let gpt2 = ModelShape::gpt(12, 768, 12, 50257, 1024);
        assert_eq!(gpt2.parameters(), 124_439_808);
        let first = StagePart { layers: LayerRange { start: 0, end: 6 }, embedding: true, head: false };
        let last = StagePart { layers: LayerRange { start: 6, end: 12 }, embedding: false, head: true };
        let copies = gpt2.part_parameters(first) + gpt2.part_parameters(last);
        assert_eq!(copies, gpt2.parameters() + gpt2.token_embedding_parameters());
    }
}
