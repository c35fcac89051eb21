//! Shapes of the models that were measured.

use pipewright::ir::model::{LatentAttention, MixtureOfExperts, ModelShape, Normalization, PositionEmbedding};

/// A vocabulary padded as Megatron does, to a multiple of 128 rows a rank.
pub(crate) fn padded(vocabulary: u32, tensor: u32) -> u32 {
    vocabulary.next_multiple_of(128 * tensor)
}

/// Llama 3's kind of model.
fn llama(num_layers: u32, [hidden, heads, groups, ffn, vocabulary]: [u32; 5]) -> ModelShape {
    ModelShape {
        ffn_hidden_size: ffn,
        num_query_groups: groups,
        untie_embeddings_and_output_weights: true,
        gated_linear_unit: true,
        normalization: Normalization::RmsNorm,
        position_embedding: PositionEmbedding::Rope,
        add_bias_linear: false,
        add_qkv_bias: false,
        ..ModelShape::gpt(num_layers, hidden, heads, vocabulary, 1)
    }
}

/// DeepSeek's kind of model, with one dense layer, as the reduced models of SimuMax have it.
fn deepseek(layers: u32, [hidden, ffn, expert, shared, experts, topk, vocabulary]: [u32; 7]) -> ModelShape {
    ModelShape {
        latent_attention: Some(LatentAttention {
            q_lora_rank: Some(1536),
            kv_lora_rank: 512,
            qk_head_dim: 128,
            qk_pos_emb_head_dim: 64,
            v_head_dim: 128,
        }),
        mixture_of_experts: Some(MixtureOfExperts {
            num_experts: experts,
            moe_router_topk: topk,
            moe_ffn_hidden_size: expert,
            moe_shared_expert_intermediate_size: shared,
            first_dense_layers: 1,
            router_bias: false,
        }),
        ..llama(layers, [hidden, 128, 128, ffn, vocabulary])
    }
}

/// The shapes of SimuMax's public model files.
pub(crate) fn simumax_model(name: &str, layers: u32) -> ModelShape {
    match name {
        "llama3-70b" => llama(layers, [8192, 64, 8, 28672, 128_256]),
        "llama3-405b" => llama(layers, [16384, 128, 16, 53248, 128_256]),
        "deepseekv2" => deepseek(layers, [5120, 12288, 1536, 3072, 160, 6, 102_400]),
        "deepseekv3" => deepseek(layers, [7168, 18432, 2048, 2048, 256, 8, 129_280]),
        other => unreachable!("no shape of {other}"),
    }
}
