//! The model as the user wrote it: a preset, a Hugging Face config.json, or Megatron's fields.
//!
//! One law: every field may be left out; what stands here overrides the preset or config.json below it.

use crate::model::{ActivationFunction, Normalization, PositionEmbedding, RopeScaling};
use ordered_float::OrderedFloat;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The model, with Megatron's names. `preset` or `hf_config` give all that is not written beside them; without either the
/// model is a GPT-2 in all that is not written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Name of a published model, `gpt3-175b`.
    pub preset: Option<String>,
    /// Path of a Hugging Face config.json, relative to the scenario.
    pub hf_config: Option<String>,
    /// Transformer layers.
    pub num_layers: Option<u32>,
    /// Hidden size.
    pub hidden_size: Option<u32>,
    /// Attention heads; divides the hidden size unless `kv_channels` is given.
    pub num_attention_heads: Option<u32>,
    /// Key-value heads of grouped-query attention; divides the attention heads. Default: as many.
    pub num_query_groups: Option<u32>,
    /// Size of a head. Default: hidden size / attention heads.
    pub kv_channels: Option<u32>,
    /// Inner size of the MLP. Default 4 times the hidden size.
    pub ffn_hidden_size: Option<u32>,
    /// Vocabulary. Default 256: bytes.
    pub vocab_size: Option<u32>,
    /// Pads the vocabulary to a multiple of this times the tensor-parallel size. Default: no padding.
    pub make_vocab_size_divisible_by: Option<u32>,
    /// Longest sequence. Default: the sequence length of the training.
    pub max_position_embeddings: Option<u32>,
    /// Whether the output head has a weight of its own. Default false: it shares the token embedding.
    pub untie_embeddings_and_output_weights: Option<bool>,
    /// Whether the MLP multiplies two projections: three matrices instead of two. Default false.
    pub swiglu: Option<bool>,
    /// Kind of the norms. Default `LayerNorm`.
    pub normalization: Option<Normalization>,
    /// Kind of the positions. Default `learned_absolute`.
    pub position_embedding_type: Option<PositionEmbedding>,
    /// Whether the linear layers have a bias. Default true.
    pub add_bias_linear: Option<bool>,
    /// Whether query, key and value have a bias where the other linear layers have none. Default false.
    pub add_qkv_bias: Option<bool>,
    /// Whether queries and keys are normalised. Default false.
    pub qk_layernorm: Option<bool>,
    /// Whether attention and MLP are normalised on their way out too (Gemma 2). Default false.
    pub post_norms: Option<bool>,
    /// Whether one norm serves attention and MLP, which run side by side. Default false.
    pub shared_norm: Option<bool>,
    /// Whether the embedding is normalised (BLOOM). Default false.
    pub embedding_norm: Option<bool>,
    /// Experts in the place of the MLP; 0 for none.
    pub num_experts: Option<u32>,
    /// Experts: how many a token goes through. Default 2.
    pub moe_router_topk: Option<u32>,
    /// Experts: inner size of one. Default `ffn_hidden_size`.
    pub moe_ffn_hidden_size: Option<u32>,
    /// Experts: inner size of the shared ones together. Default 0.
    pub moe_shared_expert_intermediate_size: Option<u32>,
    /// Experts: first layers that have a plain MLP instead. Default 0.
    pub first_dense_layers: Option<u32>,
    /// Experts: whether the router has a bias of one number an expert (DeepSeek-V3). Default false.
    pub moe_router_enable_expert_bias: Option<bool>,
    /// Latent attention: rank of the compressed queries. Default: they are not compressed.
    pub q_lora_rank: Option<u32>,
    /// Latent attention (DeepSeek), in the place of query, key and value: rank of the compressed keys and values.
    pub kv_lora_rank: Option<u32>,
    /// Latent attention: part of a query or key head without positions. Default 128.
    pub qk_head_dim: Option<u32>,
    /// Latent attention: part of a query or key head with rotary positions. Default 64.
    pub qk_pos_emb_head_dim: Option<u32>,
    /// Latent attention: size of a value head. Default 128.
    pub v_head_dim: Option<u32>,
    /// Layers of multi-token prediction behind the model. Default 0.
    pub mtp_num_layers: Option<u32>,
    /// What the norms add to the variance. Default 1e-5.
    #[schemars(with = "Option<f64>")]
    pub layernorm_epsilon: Option<OrderedFloat<f64>>,
    /// Rotary positions: base of their wavelengths. Default 10000.
    #[schemars(with = "Option<f64>")]
    pub rotary_base: Option<OrderedFloat<f64>>,
    /// Rotary positions: the part of a head that they turn, above 0 and up to 1. Default 1.
    #[schemars(with = "Option<f64>")]
    pub rotary_percent: Option<OrderedFloat<f64>>,
    /// Rotary positions: how they are stretched beyond the length of the first training. Default: they are not.
    pub rope_scaling: Option<RopeScaling>,
    /// What the MLP applies between its linear layers. Default `gelu`, and `silu` with `swiglu`.
    pub activation_function: Option<ActivationFunction>,
    /// Standard deviation of the first weights. Default 0.02.
    #[schemars(with = "Option<f64>")]
    pub initializer_range: Option<OrderedFloat<f64>>,
}

impl Model {
    /// This model, and `base` where it says nothing.
    pub fn or(self, base: Model) -> Model {
        Model {
            preset: self.preset.or(base.preset),
            hf_config: self.hf_config.or(base.hf_config),
            num_layers: self.num_layers.or(base.num_layers),
            hidden_size: self.hidden_size.or(base.hidden_size),
            num_attention_heads: self.num_attention_heads.or(base.num_attention_heads),
            num_query_groups: self.num_query_groups.or(base.num_query_groups),
            kv_channels: self.kv_channels.or(base.kv_channels),
            ffn_hidden_size: self.ffn_hidden_size.or(base.ffn_hidden_size),
            vocab_size: self.vocab_size.or(base.vocab_size),
            make_vocab_size_divisible_by: self.make_vocab_size_divisible_by.or(base.make_vocab_size_divisible_by),
            max_position_embeddings: self.max_position_embeddings.or(base.max_position_embeddings),
            untie_embeddings_and_output_weights: self
                .untie_embeddings_and_output_weights
                .or(base.untie_embeddings_and_output_weights),
            swiglu: self.swiglu.or(base.swiglu),
            normalization: self.normalization.or(base.normalization),
            position_embedding_type: self.position_embedding_type.or(base.position_embedding_type),
            add_bias_linear: self.add_bias_linear.or(base.add_bias_linear),
            add_qkv_bias: self.add_qkv_bias.or(base.add_qkv_bias),
            qk_layernorm: self.qk_layernorm.or(base.qk_layernorm),
            post_norms: self.post_norms.or(base.post_norms),
            shared_norm: self.shared_norm.or(base.shared_norm),
            embedding_norm: self.embedding_norm.or(base.embedding_norm),
            num_experts: self.num_experts.or(base.num_experts),
            moe_router_topk: self.moe_router_topk.or(base.moe_router_topk),
            moe_ffn_hidden_size: self.moe_ffn_hidden_size.or(base.moe_ffn_hidden_size),
            moe_shared_expert_intermediate_size: self
                .moe_shared_expert_intermediate_size
                .or(base.moe_shared_expert_intermediate_size),
            first_dense_layers: self.first_dense_layers.or(base.first_dense_layers),
            moe_router_enable_expert_bias: self.moe_router_enable_expert_bias.or(base.moe_router_enable_expert_bias),
            q_lora_rank: self.q_lora_rank.or(base.q_lora_rank),
            kv_lora_rank: self.kv_lora_rank.or(base.kv_lora_rank),
            qk_head_dim: self.qk_head_dim.or(base.qk_head_dim),
            qk_pos_emb_head_dim: self.qk_pos_emb_head_dim.or(base.qk_pos_emb_head_dim),
            v_head_dim: self.v_head_dim.or(base.v_head_dim),
            mtp_num_layers: self.mtp_num_layers.or(base.mtp_num_layers),
            layernorm_epsilon: self.layernorm_epsilon.or(base.layernorm_epsilon),
            rotary_base: self.rotary_base.or(base.rotary_base),
            rotary_percent: self.rotary_percent.or(base.rotary_percent),
            rope_scaling: self.rope_scaling.or(base.rope_scaling),
            activation_function: self.activation_function.or(base.activation_function),
            initializer_range: self.initializer_range.or(base.initializer_range),
        }
    }
}
