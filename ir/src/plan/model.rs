//! From the model as written to its shape: preset or config.json below, explicit fields above, defaults, checks.
//!
//! One law: a shape that comes out of here has no size 0 and no sizes that contradict each other.

mod checks;

use crate::fault::{Fault, FilePlace};
use crate::model::{
    self, ActivationFunction, LatentAttention, MixtureOfExperts, ModelShape, Normalization, Numerics,
    PositionEmbedding, padded_vocab_size,
};
use crate::scenario::{Model, Scenario};

const HF_CONFIG: &str = "model.hf_config";
const PRESET: &str = "model.preset";

pub(super) fn resolve(
    written: &Model,
    scenario: &Scenario,
    read: &dyn Fn(&str) -> Result<String, String>,
    faults: &mut Vec<Fault>,
) -> Option<ModelShape> {
    let tensor = scenario.parallel.tensor_model_parallel_size.unwrap_or(1);
    let resolved = with_base(written, read).and_then(|model| model_shape(&model, tensor, scenario.training.seq_length));
    resolved.map_err(|found| faults.extend(found)).ok()
}

/// The shape of a model that names no preset and no config.json any more, for `tp` tensor-parallel ranks and sequences of
/// `seq_length` tokens.
///
/// # Errors
/// Every fault, at the field of `model`.
pub fn model_shape(written: &Model, tp: u32, seq_length: Option<u32>) -> Result<ModelShape, Vec<Fault>> {
    let mut faults = checks::missing(written);
    if !faults.is_empty() {
        return Err(faults);
    }
    let hidden_size = written.hidden_size.unwrap_or(0);
    let heads = written.num_attention_heads.unwrap_or(0);
    let mut model = written.clone();
    model.ffn_hidden_size.get_or_insert(hidden_size.saturating_mul(4));
    model.num_query_groups.get_or_insert(heads);
    model.vocab_size.get_or_insert(256);
    let positions = model.max_position_embeddings.or(seq_length).unwrap_or(1);
    checks::sizes(&model, seq_length, &mut faults);
    checks::heads(&model, &mut faults);
    checks::parts(&model, &mut faults);
    checks::numerics(&model, &mut faults);
    let position_embedding = model.position_embedding_type.unwrap_or(PositionEmbedding::Learned);
    let seq = seq_length.unwrap_or(0);
    if position_embedding == PositionEmbedding::Learned && positions < seq {
        let message = format!("sequences of {seq} tokens do not fit in {positions} learned positions");
        let help = format!("use training.seq_length = {positions}, or raise model.max_position_embeddings");
        faults.push(Fault::new("model.max_position_embeddings", "model::positions", message, help));
    }
    let vocab_size = vocabulary(&model, tp, &mut faults);
    if !faults.is_empty() {
        return Err(faults);
    }
    let gpt = ModelShape::gpt(model.num_layers.unwrap_or(1), hidden_size, heads, vocab_size, positions);
    let add_bias_linear = model.add_bias_linear.unwrap_or(gpt.add_bias_linear);
    Ok(ModelShape {
        ffn_hidden_size: model.ffn_hidden_size.unwrap_or(gpt.ffn_hidden_size),
        untie_embeddings_and_output_weights: model.untie_embeddings_and_output_weights.unwrap_or(false),
        num_query_groups: model.num_query_groups.unwrap_or(heads),
        kv_channels: model.kv_channels.unwrap_or(gpt.kv_channels),
        latent_attention: latent_attention(&model),
        gated_linear_unit: model.swiglu.unwrap_or(false),
        normalization: model.normalization.unwrap_or(Normalization::LayerNorm),
        position_embedding,
        add_bias_linear,
        // As in Megatron, biases of all linear layers include those of query, key and value.
        add_qkv_bias: add_bias_linear || model.add_qkv_bias.unwrap_or(false),
        qk_layernorm: model.qk_layernorm.unwrap_or(false),
        post_norms: model.post_norms.unwrap_or(false),
        shared_norm: model.shared_norm.unwrap_or(false),
        embedding_norm: model.embedding_norm.unwrap_or(false),
        mixture_of_experts: mixture_of_experts(&model),
        mtp_num_layers: model.mtp_num_layers.unwrap_or(0),
        numerics: numerics(&model),
        ..gpt
    })
}

/// The written fields over those of the preset or config.json that they name.
fn with_base(written: &Model, read: &dyn Fn(&str) -> Result<String, String>) -> Result<Model, Vec<Fault>> {
    let own = Model { preset: None, hf_config: None, ..written.clone() };
    match (&written.preset, &written.hf_config) {
        (None, None) => Ok(own),
        (Some(name), None) => model::preset(name).map(|base| own.or(base)).ok_or_else(|| vec![unknown_preset(name)]),
        (None, Some(file)) => read_config(file, read).map(|base| own.or(base)),
        (Some(name), Some(file)) => {
            let message = format!("the preset {name} and {file} both describe the model");
            Err(vec![Fault::new(
                HF_CONFIG,
                "model::two-bases",
                message,
                "keep one of model.preset and model.hf_config",
            )])
        }
    }
}

fn unknown_preset(name: &str) -> Fault {
    // Those of its family, up to the first dash or digit, or else all.
    let family = |name: &str| {
        let end = name.find(|c: char| c == '-' || c.is_ascii_digit()).unwrap_or(name.len());
        name[..end].to_ascii_lowercase()
    };
    let all: Vec<&str> = model::preset_names().collect();
    let alike: Vec<&str> = all.iter().copied().filter(|known| family(known) == family(name)).collect();
    let known = if alike.is_empty() { all } else { alike };
    let help = format!("known are {}; any other model can be given by its fields or its config.json", known.join(", "));
    Fault::new(PRESET, "model::preset", format!("there is no preset `{name}`"), help)
}

fn read_config(file: &str, read: &dyn Fn(&str) -> Result<String, String>) -> Result<Model, Vec<Fault>> {
    let text = read(file).map_err(|reason| {
        let message = format!("cannot read {file}: {reason}");
        vec![Fault::new(HF_CONFIG, "model::read", message, "the path is relative to the scenario")]
    })?;
    let config: serde_json::Value = serde_json::from_str(&text).map_err(|reason| {
        let message = format!("{file} is not valid JSON: {reason}");
        vec![Fault::new(HF_CONFIG, "model::read", message, "name the config.json of a Hugging Face model")]
    })?;
    model::import(&config).map_err(|found| found.into_iter().map(|fault| in_file(fault, file, &text)).collect())
}

/// A fault of a config.json, at the place that names it and in the file itself.
fn in_file(mut fault: Fault, file: &str, text: &str) -> Fault {
    let key = fault.path.rsplit('.').next().unwrap_or_default();
    let quoted = format!("\"{key}\"");
    fault.file = text.find(&quoted).map(|start| FilePlace { file: file.to_owned(), span: (start, quoted.len()) });
    fault.message = format!("{file}: {}", fault.message);
    fault.path = HF_CONFIG.to_owned();
    fault
}

fn vocabulary(model: &Model, tp: u32, faults: &mut Vec<Fault>) -> u32 {
    let own = model.vocab_size.unwrap_or(1);
    let Some(divisible_by) = model.make_vocab_size_divisible_by else { return own };
    let padded = padded_vocab_size(own, divisible_by, tp);
    u32::try_from(padded).unwrap_or_else(|_| {
        let message = format!("a multiple of {divisible_by} x {tp} tokens is more than any vocabulary has");
        let path = "model.make_vocab_size_divisible_by";
        faults.push(Fault::new(path, "model::size", message, "128 is usual"));
        own
    })
}

fn latent_attention(model: &Model) -> Option<LatentAttention> {
    Some(LatentAttention {
        kv_lora_rank: model.kv_lora_rank?,
        q_lora_rank: model.q_lora_rank,
        qk_head_dim: model.qk_head_dim.unwrap_or(128),
        qk_pos_emb_head_dim: model.qk_pos_emb_head_dim.unwrap_or(64),
        v_head_dim: model.v_head_dim.unwrap_or(128),
    })
}

fn mixture_of_experts(model: &Model) -> Option<MixtureOfExperts> {
    Some(MixtureOfExperts {
        num_experts: model.num_experts.filter(|experts| *experts > 0)?,
        moe_router_topk: model.moe_router_topk.unwrap_or(2),
        moe_ffn_hidden_size: model.moe_ffn_hidden_size.or(model.ffn_hidden_size)?,
        moe_shared_expert_intermediate_size: model.moe_shared_expert_intermediate_size.unwrap_or(0),
        first_dense_layers: model.first_dense_layers.unwrap_or(0),
        router_bias: model.moe_router_enable_expert_bias.unwrap_or(false),
    })
}

fn numerics(model: &Model) -> Numerics {
    let default = Numerics::default();
    let gated = model.swiglu == Some(true);
    Numerics {
        layernorm_epsilon: model.layernorm_epsilon.unwrap_or(default.layernorm_epsilon),
        rotary_base: model.rotary_base.unwrap_or(default.rotary_base),
        rotary_percent: model.rotary_percent.unwrap_or(default.rotary_percent),
        rope_scaling: model.rope_scaling.clone(),
        activation: match &model.activation_function {
            Some(activation) => activation.clone(),
            None if gated => ActivationFunction::Silu,
            None => default.activation,
        },
        initializer_range: model.initializer_range.unwrap_or(default.initializer_range),
    }
}
