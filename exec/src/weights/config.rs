//! The config.json of a model.
//!
//! One law: what is written is read back by our own importer to the same shape and numerics, or is not written.

use pipewright_ir::model::{self, ActivationFunction, ModelShape, RopeScaling};
use pipewright_ir::plan::model_shape;
use serde_json::{Value, json};

/// A model that no known model type has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no config.json can say what this model is: {model}; known are models of the kinds {}", KINDS.join(", "))]
pub struct ConfigError {
    /// The model in words.
    pub model: String,
}

/// Model types that are written, in the order in which they are tried.
const KINDS: [&str; 6] = ["gpt2", "llama", "qwen2", "qwen3", "mixtral", "qwen3_moe"];

/// The config.json of `shape`, of the first model type that has all that the model has. Weights of these types lie in
/// memory as this model type's code expects them; which token begins or ends a text is not known here and left out.
///
/// # Errors
/// [`ConfigError`] where no model type has it.
pub fn config(shape: &ModelShape) -> Result<Value, ConfigError> {
    let written = KINDS.into_iter().map(|kind| if kind == "gpt2" { gpt2(shape) } else { llama(shape, kind) });
    let mut same = written.filter(|config| reads_as(config, shape));
    same.next().ok_or_else(|| ConfigError { model: shape.describe() })
}

fn reads_as(config: &Value, shape: &ModelShape) -> bool {
    model::import(config).and_then(|read| model_shape(&read, 1, None)).is_ok_and(|read| read == *shape)
}

fn gpt2(shape: &ModelShape) -> Value {
    let numerics = &shape.numerics;
    let activation = match &numerics.activation {
        ActivationFunction::GeluTanh => "gelu_new",
        other => activation(other),
    };
    json!({
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": shape.vocab_size,
        "n_positions": shape.max_position_embeddings,
        "n_embd": shape.hidden_size,
        "n_layer": shape.num_layers,
        "n_head": shape.num_attention_heads,
        "n_inner": shape.ffn_hidden_size,
        "activation_function": activation,
        "layer_norm_epsilon": numerics.layernorm_epsilon.0,
        "initializer_range": numerics.initializer_range.0,
        "tie_word_embeddings": !shape.untie_embeddings_and_output_weights,
        "torch_dtype": "float32",
    })
}

/// Llama and what differs from it in biases, norms of queries and keys, or experts.
fn llama(shape: &ModelShape, kind: &str) -> Value {
    let numerics = &shape.numerics;
    let class = match kind {
        "qwen2" => "Qwen2ForCausalLM",
        "qwen3" => "Qwen3ForCausalLM",
        "mixtral" => "MixtralForCausalLM",
        "qwen3_moe" => "Qwen3MoeForCausalLM",
        _ => "LlamaForCausalLM",
    };
    let mut config = json!({
        "architectures": [class],
        "model_type": kind,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.max_position_embeddings,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.ffn_hidden_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_query_groups,
        "head_dim": shape.kv_channels,
        "hidden_act": activation(&numerics.activation),
        "rms_norm_eps": numerics.layernorm_epsilon.0,
        "rope_theta": numerics.rotary_base.0,
        "initializer_range": numerics.initializer_range.0,
        "tie_word_embeddings": !shape.untie_embeddings_and_output_weights,
        "torch_dtype": "float32",
    });
    let mut add = |name: &str, value: Value| {
        if let Value::Object(fields) = &mut config {
            fields.insert(name.to_owned(), value);
        }
    };
    if kind == "llama" || kind == "qwen3" || kind == "qwen3_moe" {
        add("attention_bias", json!(shape.add_bias_linear));
    }
    if kind == "llama" {
        add("mlp_bias", json!(shape.add_bias_linear));
    }
    match &numerics.rope_scaling {
        // A way of stretching that is only known by name has numbers that are not: left out, so the model is refused.
        None | Some(RopeScaling::Other { .. }) => {}
        Some(scaling) => add("rope_scaling", json!(scaling)),
    }
    if let Some(moe) = &shape.mixture_of_experts {
        add("num_experts_per_tok", json!(moe.moe_router_topk));
        if kind == "mixtral" {
            add("num_local_experts", json!(moe.num_experts));
            // The only MLPs that it has are experts.
            add("intermediate_size", json!(moe.moe_ffn_hidden_size));
        } else {
            add("num_experts", json!(moe.num_experts));
            add("moe_intermediate_size", json!(moe.moe_ffn_hidden_size));
        }
    }
    config
}

/// The activation's name in the transformers library.
fn activation(activation: &ActivationFunction) -> &str {
    match activation {
        ActivationFunction::GeluTanh => "gelu_pytorch_tanh",
        ActivationFunction::SquaredRelu => "relu2",
        other => other.name(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preset(name: &str) -> ModelShape {
        model_shape(&model::preset(name).unwrap(), 1, None).unwrap()
    }

    #[test]
    fn published_models_come_back_as_they_are() {
        let kinds = [
            ("gpt2-xl", "gpt2"),
            ("llama-2-7b", "llama"),
            ("llama-3.1-405b", "llama"),
            ("qwen2.5-0.5b", "qwen2"),
            ("qwen3-32b", "qwen3"),
            ("mixtral-8x7b", "mixtral"),
            ("qwen3-30b-a3b", "qwen3_moe"),
        ];
        for (name, kind) in kinds {
            let shape = preset(name);
            let config = config(&shape).unwrap();
            assert_eq!(config["model_type"], kind, "{name}");
            let again: Value = serde_json::from_str(&config.to_string()).unwrap();
            assert_eq!(model_shape(&model::import(&again).unwrap(), 1, None).unwrap(), shape, "{name}");
        }
    }

    #[test]
    fn a_gpt_and_a_llama_of_any_size_come_back() {
        let mut gpt = ModelShape::gpt(3, 48, 4, 101, 24);
        gpt.ffn_hidden_size = 100;
        gpt.untie_embeddings_and_output_weights = true;
        gpt.numerics.activation = ActivationFunction::Relu;
        assert_eq!(config(&gpt).unwrap()["n_inner"], 100);
        let mut llama = preset("llama-3.1-8b");
        (llama.num_layers, llama.hidden_size, llama.num_attention_heads, llama.num_query_groups) = (2, 64, 4, 2);
        (llama.kv_channels, llama.ffn_hidden_size, llama.vocab_size) = (24, 96, 300);
        assert_eq!(config(&llama).unwrap()["rope_scaling"]["rope_type"], "llama3");
    }

    #[test]
    fn what_no_model_type_has_is_refused() {
        for name in ["bloom-176b", "deepseek-v3", "gemma-2-9b", "gpt-neox-20b"] {
            let error = config(&preset(name)).unwrap_err().to_string();
            assert!(error.contains("known are models of the kinds gpt2, llama"), "{name}: {error}");
        }
        let mut other = preset("llama-2-7b");
        other.numerics.rope_scaling = Some(RopeScaling::Other { name: "yarn".to_owned() });
        assert!(config(&other).is_err());
    }
}
