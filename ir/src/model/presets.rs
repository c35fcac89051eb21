//! Models of papers and public releases by name.
//!
//! One law: a preset is only the fields that a scenario could have written itself; [`preset`] gives them for the scenario's
//! own to override.

mod numerics;

use super::{Normalization, PositionEmbedding};
use crate::scenario::Model;

/// What models of a kind have in common.
#[derive(Clone, Copy)]
enum Kind {
    /// GPT-2's: learned positions, LayerNorm, biases, tied head.
    Gpt,
    /// The same with a head of its own.
    GptUntied,
    /// MPT's as its benchmarks have it: GPT-2's, with as many positions as the sequences are long.
    Mpt,
    /// BLOOM's: ALiBi, a norm of the embedding, biases, tied head.
    Bloom,
    /// GPT-NeoX's: rotary positions, LayerNorm, biases, untied head.
    Neox,
    /// Nemotron's: rotary positions, LayerNorm, no biases, squared ReLU, untied head.
    Nemotron,
    /// Llama's: rotary positions, RMSNorm, SwiGLU, no biases, untied head.
    Llama,
    /// Qwen2's: Llama's with biases of query, key and value.
    Qwen2,
    /// Qwen2's small ones: with a tied head.
    Qwen2Tied,
    /// Qwen3's: Llama's with norms of queries and keys, heads of 128.
    Qwen3,
    /// Gemma's: Llama's with heads of 256, tied head.
    Gemma,
    /// Gemma 2's: Gemma's with norms behind attention and MLP.
    Gemma2,
    /// Mixtral's: Llama's with 8 experts of which a token goes through 2.
    Mixtral,
    /// Qwen3's with 128 experts of this inner size, of which a token goes through 8.
    Qwen3Moe(u32),
    /// DeepSeek-V2's and its smaller sibling's: latent attention, experts behind the first layer.
    DeepseekV2(Option<u32>, Experts),
    /// DeepSeek-V3's.
    DeepseekV3,
}

/// Experts of DeepSeek-V2: routed, of them for one token, inner size of one, shared.
type Experts = (u32, u32, u32, u32);

/// A row of the table: name, kind, layers, hidden size, heads, key-value heads, inner size, vocabulary, positions.
type Row = (&'static str, Kind, [u32; 7]);

/// Narayanan et al. 2021 (arXiv:2104.04473), table 1; Korthikanti et al. 2022 (arXiv:2205.05198), table 3, has the last two
/// sizes and 22B; Brown et al. 2020 (arXiv:2005.14165), table 2.1, has GPT-3. Vocabulary of GPT-2, padded.
const MEGATRON: [Row; 17] = [
    ("gpt3-175b", Kind::Gpt, [96, 12288, 96, 96, 49152, 51200, 2048]),
    ("gpt3-5b", Kind::Gpt, [24, 4096, 32, 32, 16384, 51200, 2048]),
    ("gpt3-20b", Kind::Gpt, [44, 6144, 48, 48, 24576, 51200, 2048]),
    ("megatron-1.7b", Kind::Gpt, [24, 2304, 24, 24, 9216, 51200, 2048]),
    ("megatron-3.6b", Kind::Gpt, [30, 3072, 32, 32, 12288, 51200, 2048]),
    ("megatron-7.5b", Kind::Gpt, [36, 4096, 32, 32, 16384, 51200, 2048]),
    ("megatron-18.4b", Kind::Gpt, [40, 6144, 48, 48, 24576, 51200, 2048]),
    ("megatron-22b", Kind::Gpt, [48, 6144, 64, 64, 24576, 51200, 2048]),
    ("megatron-39.1b", Kind::Gpt, [48, 8192, 64, 64, 32768, 51200, 2048]),
    ("megatron-76.1b", Kind::Gpt, [60, 10240, 80, 80, 40960, 51200, 2048]),
    ("megatron-145.6b", Kind::Gpt, [80, 12288, 96, 96, 49152, 51200, 2048]),
    ("megatron-310.1b", Kind::Gpt, [96, 16384, 128, 128, 65536, 51200, 2048]),
    ("megatron-530b", Kind::Gpt, [105, 20480, 128, 128, 81920, 51200, 2048]),
    ("mt-nlg-530b", Kind::Gpt, [105, 20480, 128, 128, 81920, 51200, 2048]),
    ("megatron-1t", Kind::Gpt, [128, 25600, 160, 160, 102_400, 51200, 2048]),
    // MegaScale (arXiv:2402.15627), table 1.
    ("megascale-175b", Kind::Gpt, [96, 12288, 128, 128, 49152, 64000, 2048]),
    ("megascale-530b", Kind::Gpt, [105, 20480, 160, 160, 81920, 64000, 2048]),
];

/// Megatron-Core's benchmark on H100; zero bubble (arXiv:2401.10241), table 3, which gives no vocabulary: 32000 tokens give
/// the sizes in its names; llm-foundry's pretraining configurations.
const BENCHMARKS: [Row; 19] = [
    ("mcore-1.7b", Kind::GptUntied, [24, 2048, 16, 16, 8192, 131_072, 4096]),
    ("mcore-16b", Kind::GptUntied, [32, 6144, 48, 48, 24576, 131_072, 4096]),
    ("mcore-32b", Kind::GptUntied, [48, 7168, 56, 56, 28672, 131_072, 4096]),
    ("mcore-119b", Kind::GptUntied, [92, 10240, 80, 80, 40960, 131_072, 4096]),
    ("mcore-177b", Kind::GptUntied, [96, 12288, 96, 96, 49152, 131_072, 4096]),
    ("mcore-462b", Kind::GptUntied, [112, 18432, 144, 144, 73728, 131_072, 4096]),
    ("zero-bubble-1.5b", Kind::Gpt, [22, 2304, 24, 24, 9216, 32000, 1024]),
    ("zero-bubble-6.2b", Kind::Gpt, [30, 4096, 32, 32, 16384, 32000, 1024]),
    ("zero-bubble-14.6b", Kind::Gpt, [46, 5120, 40, 40, 20480, 32000, 1024]),
    ("zero-bubble-28.3b", Kind::Gpt, [62, 6144, 48, 48, 24576, 32000, 1024]),
    ("mpt-125m", Kind::Mpt, [12, 768, 12, 12, 3072, 50368, 0]),
    ("mpt-350m", Kind::Mpt, [24, 1024, 16, 16, 4096, 50368, 0]),
    ("mpt-760m", Kind::Mpt, [24, 1536, 12, 12, 6144, 50368, 0]),
    ("mpt-1b", Kind::Mpt, [24, 2048, 16, 16, 8192, 50368, 0]),
    ("mpt-3b", Kind::Mpt, [32, 2560, 20, 20, 10240, 50368, 0]),
    ("mpt-7b", Kind::Mpt, [32, 4096, 32, 32, 16384, 50368, 0]),
    ("mpt-13b", Kind::Mpt, [40, 5120, 40, 40, 20480, 50368, 0]),
    ("mpt-30b", Kind::Mpt, [48, 7168, 56, 56, 28672, 50368, 0]),
    ("mpt-70b", Kind::Mpt, [80, 8192, 64, 64, 32768, 50368, 0]),
];

/// Public releases, as their config.json says.
const RELEASES: [Row; 37] = [
    ("gpt2", Kind::Gpt, [12, 768, 12, 12, 3072, 50257, 1024]),
    ("gpt2-medium", Kind::Gpt, [24, 1024, 16, 16, 4096, 50257, 1024]),
    ("gpt2-large", Kind::Gpt, [36, 1280, 20, 20, 5120, 50257, 1024]),
    ("gpt2-xl", Kind::Gpt, [48, 1600, 25, 25, 6400, 50257, 1024]),
    ("bloom-176b", Kind::Bloom, [70, 14336, 112, 112, 57344, 250_880, 2048]),
    ("gpt-neox-20b", Kind::Neox, [44, 6144, 64, 64, 24576, 50432, 2048]),
    ("llama-2-7b", Kind::Llama, [32, 4096, 32, 32, 11008, 32000, 4096]),
    ("llama-2-13b", Kind::Llama, [40, 5120, 40, 40, 13824, 32000, 4096]),
    ("llama-2-70b", Kind::Llama, [80, 8192, 64, 8, 28672, 32000, 4096]),
    ("llama-3-8b", Kind::Llama, [32, 4096, 32, 8, 14336, 128_256, 8192]),
    ("llama-3-70b", Kind::Llama, [80, 8192, 64, 8, 28672, 128_256, 8192]),
    ("llama-3.1-8b", Kind::Llama, [32, 4096, 32, 8, 14336, 128_256, 131_072]),
    ("llama-3.1-70b", Kind::Llama, [80, 8192, 64, 8, 28672, 128_256, 131_072]),
    ("llama-3.1-405b", Kind::Llama, [126, 16384, 128, 8, 53248, 128_256, 131_072]),
    ("mistral-7b", Kind::Llama, [32, 4096, 32, 8, 14336, 32000, 32768]),
    ("qwen2.5-0.5b", Kind::Qwen2Tied, [24, 896, 14, 2, 4864, 151_936, 32768]),
    ("qwen2.5-1.5b", Kind::Qwen2Tied, [28, 1536, 12, 2, 8960, 151_936, 32768]),
    ("qwen2.5-7b", Kind::Qwen2, [28, 3584, 28, 4, 18944, 152_064, 131_072]),
    ("qwen2.5-14b", Kind::Qwen2, [48, 5120, 40, 8, 13824, 152_064, 131_072]),
    ("qwen2.5-32b", Kind::Qwen2, [64, 5120, 40, 8, 27648, 152_064, 131_072]),
    ("qwen2.5-72b", Kind::Qwen2, [80, 8192, 64, 8, 29568, 152_064, 131_072]),
    ("qwen3-8b", Kind::Qwen3, [36, 4096, 32, 8, 12288, 151_936, 40960]),
    ("qwen3-32b", Kind::Qwen3, [64, 5120, 64, 8, 25600, 151_936, 40960]),
    ("qwen3-30b-a3b", Kind::Qwen3Moe(768), [48, 2048, 32, 4, 6144, 151_936, 40960]),
    ("qwen3-235b-a22b", Kind::Qwen3Moe(1536), [94, 4096, 64, 4, 12288, 151_936, 40960]),
    ("gemma-2b", Kind::Gemma, [18, 2048, 8, 1, 16384, 256_000, 8192]),
    ("gemma-7b", Kind::Gemma, [28, 3072, 16, 16, 24576, 256_000, 8192]),
    ("gemma-2-9b", Kind::Gemma2, [42, 3584, 16, 8, 14336, 256_000, 8192]),
    ("mixtral-8x7b", Kind::Mixtral, [32, 4096, 32, 8, 14336, 32000, 32768]),
    ("mixtral-8x22b", Kind::Mixtral, [56, 6144, 48, 8, 16384, 32768, 65536]),
    ("deepseek-v2-lite", Kind::DeepseekV2(None, (64, 6, 1408, 2)), [27, 2048, 16, 16, 10944, 102_400, 163_840]),
    ("deepseek-v2", Kind::DeepseekV2(Some(1536), (160, 6, 1536, 2)), [60, 5120, 128, 128, 12288, 102_400, 163_840]),
    ("deepseek-v3", Kind::DeepseekV3, [61, 7168, 128, 128, 18432, 129_280, 163_840]),
    ("nemotron-3-8b", Kind::Nemotron, [32, 4096, 32, 32, 16384, 256_000, 4096]),
    ("nemotron-3-22b", Kind::Nemotron, [40, 6144, 48, 48, 24576, 256_000, 4096]),
    ("nemotron-4-15b", Kind::Nemotron, [32, 6144, 48, 8, 24576, 256_000, 4096]),
    ("nemotron-4-340b", Kind::Nemotron, [96, 18432, 96, 8, 73728, 256_000, 4096]),
];

fn rows() -> impl Iterator<Item = &'static Row> {
    RELEASES.iter().chain(&MEGATRON).chain(&BENCHMARKS)
}

/// Names of all presets.
pub fn preset_names() -> impl Iterator<Item = &'static str> {
    rows().map(|(name, ..)| *name)
}

/// The fields of a preset.
pub fn preset(name: &str) -> Option<Model> {
    let (_, kind, sizes) = rows().find(|(known, ..)| known.eq_ignore_ascii_case(name))?;
    let [layers, hidden, heads, groups, ffn, vocabulary, positions] = *sizes;
    let model = Model {
        num_layers: Some(layers),
        hidden_size: Some(hidden),
        num_attention_heads: Some(heads),
        ffn_hidden_size: Some(ffn),
        vocab_size: Some(vocabulary),
        max_position_embeddings: Some(positions).filter(|positions| *positions > 0),
        // Left out where every head has keys and values of its own, so that other heads can be asked for.
        num_query_groups: Some(groups).filter(|groups| *groups != heads),
        ..Model::default()
    };
    Some(kind.fields().or(model).or(numerics::numerics(name)))
}

impl Kind {
    /// What a model of this kind has beside its sizes.
    fn fields(self) -> Model {
        let untied = Model { untie_embeddings_and_output_weights: Some(true), ..Model::default() };
        let tied = Model { untie_embeddings_and_output_weights: Some(false), ..Model::default() };
        let rotary = |model| Model { position_embedding_type: Some(PositionEmbedding::Rope), ..model };
        let llama = |model| Model {
            normalization: Some(Normalization::RmsNorm),
            swiglu: Some(true),
            add_bias_linear: Some(false),
            ..rotary(model)
        };
        match self {
            Kind::Gpt | Kind::Mpt => tied,
            Kind::GptUntied => untied,
            Kind::Bloom => {
                Model { position_embedding_type: Some(PositionEmbedding::Alibi), embedding_norm: Some(true), ..tied }
            }
            Kind::Neox => rotary(untied),
            Kind::Nemotron => Model { add_bias_linear: Some(false), ..rotary(untied) },
            Kind::Llama => llama(untied),
            Kind::Qwen2 => Model { add_qkv_bias: Some(true), ..llama(untied) },
            Kind::Qwen2Tied => Model { add_qkv_bias: Some(true), ..llama(tied) },
            Kind::Qwen3 => Model { qk_layernorm: Some(true), kv_channels: Some(128), ..llama(untied) },
            Kind::Gemma => Model { kv_channels: Some(256), ..llama(tied) },
            Kind::Gemma2 => Model { post_norms: Some(true), ..Kind::Gemma.fields() },
            Kind::Mixtral => Model { num_experts: Some(8), moe_router_topk: Some(2), ..llama(untied) },
            Kind::Qwen3Moe(inner) => Model {
                num_experts: Some(128),
                moe_router_topk: Some(8),
                moe_ffn_hidden_size: Some(inner),
                ..Kind::Qwen3.fields()
            },
            Kind::DeepseekV2(q_lora_rank, experts) => {
                Model { q_lora_rank, first_dense_layers: Some(1), ..deepseek(llama(untied), experts) }
            }
            Kind::DeepseekV3 => Model {
                q_lora_rank: Some(1536),
                first_dense_layers: Some(3),
                moe_router_enable_expert_bias: Some(true),
                mtp_num_layers: Some(1),
                ..deepseek(llama(untied), (256, 8, 2048, 1))
            },
        }
    }
}

fn deepseek(model: Model, (routed, topk, inner, shared): Experts) -> Model {
    Model {
        kv_lora_rank: Some(512),
        qk_head_dim: Some(128),
        qk_pos_emb_head_dim: Some(64),
        v_head_dim: Some(128),
        num_experts: Some(routed),
        moe_router_topk: Some(topk),
        moe_ffn_hidden_size: Some(inner),
        moe_shared_expert_intermediate_size: Some(inner * shared),
        ..model
    }
}
