//! The model types: where each keeps its sizes, and what it takes for granted.
//!
//! One law: a default here is the default of the model type's configuration class in the transformers library, which is
//! what a config.json that leaves a field out was saved by.

use super::fields::Fields;
use crate::model::{Normalization, PositionEmbedding};
use crate::scenario::Model;

type Read = fn(&mut Fields<'_>) -> Model;

/// Every known model type and how to read it.
pub(super) const FAMILIES: [(&str, Read); 16] = [
    ("gpt2", gpt2),
    ("gpt_neox", gpt_neox),
    ("bloom", bloom),
    ("llama", llama),
    ("mistral", |f| llama_like(f, Some(8), None, false)),
    ("qwen2", |f| Model { add_qkv_bias: Some(true), ..llama_like(f, None, None, false) }),
    ("qwen3", qwen3),
    ("gemma", |f| gemma(f, None)),
    ("gemma2", |f| Model { post_norms: Some(true), ..gemma(f, Some(4)) }),
    ("gemma3", gemma3),
    ("gemma3_text", gemma3),
    ("mixtral", mixtral),
    ("qwen3_moe", qwen3_moe),
    ("deepseek_v2", |f| deepseek(f, false)),
    ("deepseek_v3", |f| deepseek(f, true)),
    ("nemotron", nemotron),
];

/// The sizes that newer model types all name alike.
fn common(f: &mut Fields<'_>, untied: bool) -> Model {
    Model {
        num_layers: f.needed(&["num_hidden_layers", "n_layer", "n_layers"]),
        hidden_size: f.needed(&["hidden_size", "n_embed", "n_embd"]),
        num_attention_heads: f.needed(&["num_attention_heads", "n_head"]),
        vocab_size: f.needed(&["vocab_size"]),
        max_position_embeddings: f.number(&["max_position_embeddings", "n_positions", "n_ctx", "seq_length"]),
        untie_embeddings_and_output_weights: Some(!f.flag("tie_word_embeddings", !untied)),
        ..Model::default()
    }
}

/// LayerNorm, GELU, biases, learned positions, tied head; `n_inner: null` is `4 H`.
fn gpt2(f: &mut Fields<'_>) -> Model {
    if f.flag("add_cross_attention", false) {
        f.refuse("add_cross_attention", "cross attention is not known here", "set it to false");
    }
    let model = Model { ffn_hidden_size: f.number(&["n_inner", "intermediate_size"]), ..common(f, false) };
    Model { max_position_embeddings: model.max_position_embeddings.or(Some(1024)), ..model }
}

/// LayerNorm, GELU, biases, rotary, untied head. Attention and MLP run side by side but have a norm each.
fn gpt_neox(f: &mut Fields<'_>) -> Model {
    if !f.flag("attention_bias", true) {
        f.refuse("attention_bias", "only the MLP would have biases", "set it to true");
    }
    Model {
        ffn_hidden_size: f.number(&["intermediate_size"]),
        position_embedding_type: Some(PositionEmbedding::Rope),
        ..common(f, true)
    }
}

/// LayerNorm, GELU of `4 H`, biases, ALiBi, a norm of the embedding, tied head.
fn bloom(f: &mut Fields<'_>) -> Model {
    Model { position_embedding_type: Some(PositionEmbedding::Alibi), embedding_norm: Some(true), ..common(f, false) }
}

/// RMSNorm, SwiGLU, rotary, no biases. Where `num_key_value_heads` is null, or left out by a type without a default of
/// `groups`, every head has keys and values of its own; where `head_dim` is, a head is `H / A`.
fn llama_like(f: &mut Fields<'_>, groups: Option<u32>, head: Option<u32>, tied: bool) -> Model {
    let model = common(f, !tied);
    Model {
        num_query_groups: f.number_or("num_key_value_heads", groups).or(model.num_attention_heads),
        kv_channels: f.number_or("head_dim", head),
        ffn_hidden_size: f.needed(&["intermediate_size"]),
        swiglu: Some(true),
        normalization: Some(Normalization::RmsNorm),
        position_embedding_type: Some(PositionEmbedding::Rope),
        add_bias_linear: Some(false),
        ..model
    }
}

fn llama(f: &mut Fields<'_>) -> Model {
    let model = llama_like(f, None, None, false);
    attention_bias(f, true, model)
}

/// `attention_bias` puts biases on query, key, value and output alike, `mlp_bias` on the MLP: both or neither are known.
fn attention_bias(f: &mut Fields<'_>, has_mlp_bias: bool, model: Model) -> Model {
    let (attention, mlp) = (f.flag("attention_bias", false), has_mlp_bias && f.flag("mlp_bias", false));
    if attention != mlp {
        let (name, other) = if attention { ("attention_bias", "MLP") } else { ("mlp_bias", "attention") };
        let why = format!("biases everywhere but in the {other} are not known here");
        f.refuse(name, &why, "give the model by Megatron's fields, with add_qkv_bias for query, key and value alone");
    }
    Model { add_bias_linear: Some(attention && mlp), ..model }
}

/// Llama's kind with norms of queries and keys, and heads of 128 whatever the hidden size.
fn qwen3(f: &mut Fields<'_>) -> Model {
    let model = Model { qk_layernorm: Some(true), ..llama_like(f, None, Some(128), false) };
    attention_bias(f, false, model)
}

/// Llama's kind with GeGLU, heads of 256 and a tied head.
fn gemma(f: &mut Fields<'_>, groups: Option<u32>) -> Model {
    let model = llama_like(f, groups, Some(256), true);
    attention_bias(f, false, model)
}

/// Gemma 2's kind with norms of queries and keys; the text part of a model that sees. Its published files leave out what
/// the smallest model has.
fn gemma3(f: &mut Fields<'_>) -> Model {
    let model = Model {
        num_layers: f.needed(&["num_hidden_layers"]),
        hidden_size: f.needed(&["hidden_size"]),
        num_attention_heads: f.number_or("num_attention_heads", Some(8)),
        num_query_groups: f.number_or("num_key_value_heads", Some(4)),
        kv_channels: f.number_or("head_dim", Some(256)),
        ffn_hidden_size: f.needed(&["intermediate_size"]),
        vocab_size: f.number_or("vocab_size", Some(262_208)),
        max_position_embeddings: f.number(&["max_position_embeddings"]),
        untie_embeddings_and_output_weights: Some(!f.flag("tie_word_embeddings", true)),
        swiglu: Some(true),
        normalization: Some(Normalization::RmsNorm),
        position_embedding_type: Some(PositionEmbedding::Rope),
        add_bias_linear: Some(false),
        qk_layernorm: Some(true),
        post_norms: Some(true),
        ..Model::default()
    };
    attention_bias(f, false, model)
}

/// Mistral's kind with experts of `intermediate_size`.
fn mixtral(f: &mut Fields<'_>) -> Model {
    let model = llama_like(f, Some(8), None, false);
    Model {
        num_experts: f.number(&["num_local_experts"]).or(Some(8)),
        moe_router_topk: f.number(&["num_experts_per_tok"]).or(Some(2)),
        moe_ffn_hidden_size: model.ffn_hidden_size,
        ..model
    }
}

/// Qwen3 with experts in every layer.
fn qwen3_moe(f: &mut Fields<'_>) -> Model {
    if f.number(&["decoder_sparse_step"]).is_some_and(|step| step != 1) {
        f.refuse("decoder_sparse_step", "experts in some layers only are not known here", "set it to 1");
    }
    if f.has_entries("mlp_only_layers") {
        f.refuse("mlp_only_layers", "layers without experts are not known here", "leave the list empty");
    }
    Model {
        num_experts: f.needed(&["num_experts", "num_local_experts"]),
        moe_router_topk: f.number(&["num_experts_per_tok"]).or(Some(8)),
        moe_ffn_hidden_size: f.needed(&["moe_intermediate_size"]),
        ..qwen3(f)
    }
}

/// Latent attention and experts behind some dense layers; version 3 has a bias in the router and predicts more tokens.
fn deepseek(f: &mut Fields<'_>, router_bias: bool) -> Model {
    if f.number(&["moe_layer_freq"]).is_some_and(|freq| freq != 1) {
        f.refuse("moe_layer_freq", "experts in some layers only are not known here", "set it to 1");
    }
    let model = llama_like(f, None, None, false);
    let model = attention_bias(f, false, model);
    let model = Model {
        // Every head has keys and values of its own, made from the latent ones.
        num_query_groups: model.num_attention_heads,
        q_lora_rank: f.number(&["q_lora_rank"]),
        kv_lora_rank: f.needed(&["kv_lora_rank"]),
        qk_head_dim: f.needed(&["qk_nope_head_dim"]),
        qk_pos_emb_head_dim: f.needed(&["qk_rope_head_dim"]),
        v_head_dim: f.needed(&["v_head_dim"]),
        mtp_num_layers: f.number(&["num_nextn_predict_layers"]),
        ..model
    };
    let Some(experts) = f.number(&["n_routed_experts"]) else { return model };
    let inner = f.needed(&["moe_intermediate_size"]);
    let shared = f.number(&["n_shared_experts"]).unwrap_or(0);
    Model {
        num_experts: Some(experts),
        moe_router_topk: f.needed(&["num_experts_per_tok"]),
        moe_ffn_hidden_size: inner,
        moe_shared_expert_intermediate_size: inner.map(|inner| inner.saturating_mul(shared)),
        first_dense_layers: Some(f.number(&["first_k_dense_replace"]).unwrap_or(0)),
        moe_router_enable_expert_bias: Some(router_bias),
        ..model
    }
}

/// Llama's kind with LayerNorm and a squared ReLU instead of SwiGLU.
fn nemotron(f: &mut Fields<'_>) -> Model {
    let model = Model {
        swiglu: Some(false),
        normalization: Some(Normalization::LayerNorm),
        ..llama_like(f, None, None, false)
    };
    attention_bias(f, true, model)
}
