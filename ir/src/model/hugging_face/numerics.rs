//! Epsilon, rotary positions, activation and first weights of a config.json.
//!
//! One law: a default here is the default of the model type's configuration class in the transformers library.

use super::fields::Fields;
use crate::model::{ActivationFunction, RopeScaling};
use crate::scenario::Model;
use ordered_float::OrderedFloat;

/// What a model type takes for granted.
struct Defaults {
    layernorm_epsilon: f64,
    rotary_base: f64,
    rotary_percent: f64,
    /// Fields that may name the activation. Gemma's `hidden_act` says `gelu` in published files and never meant it.
    activation_fields: &'static [&'static str],
    activation: ActivationFunction,
    initializer_range: f64,
}

fn defaults(model_type: &str) -> Defaults {
    let llama = Defaults {
        layernorm_epsilon: 1e-6,
        rotary_base: 10_000.0,
        rotary_percent: 1.0,
        activation_fields: &["hidden_act"],
        activation: ActivationFunction::Silu,
        initializer_range: 0.02,
    };
    let gemma = |rotary_base| Defaults {
        rotary_base,
        activation_fields: &["hidden_activation"],
        activation: ActivationFunction::GeluTanh,
        ..defaults("llama")
    };
    match model_type {
        "gpt2" => Defaults {
            layernorm_epsilon: 1e-5,
            activation_fields: &["activation_function"],
            activation: ActivationFunction::GeluTanh,
            ..llama
        },
        "gpt_neox" => {
            Defaults { layernorm_epsilon: 1e-5, rotary_percent: 0.25, activation: ActivationFunction::Gelu, ..llama }
        }
        // Its code knows one activation and reads no name of it.
        "bloom" => Defaults {
            layernorm_epsilon: 1e-5,
            activation_fields: &[],
            activation: ActivationFunction::GeluTanh,
            ..llama
        },
        "gemma" | "gemma2" => gemma(10_000.0),
        "gemma3" | "gemma3_text" => gemma(1e6),
        "mixtral" => Defaults { layernorm_epsilon: 1e-5, rotary_base: 1e6, ..llama },
        "nemotron" => Defaults {
            layernorm_epsilon: 1e-5,
            rotary_percent: 0.5,
            activation: ActivationFunction::SquaredRelu,
            initializer_range: 0.0134,
            ..llama
        },
        _ => llama,
    }
}

/// The numbers of a config.json of this model type; nothing else is set.
pub(super) fn numerics(f: &mut Fields<'_>, model_type: &str) -> Model {
    let own = defaults(model_type);
    let epsilon = ["layer_norm_epsilon", "layer_norm_eps", "rms_norm_eps", "norm_eps"];
    let number = |read: Option<f64>, default: f64| Some(OrderedFloat(read.unwrap_or(default)));
    Model {
        layernorm_epsilon: number(f.decimal(&epsilon), own.layernorm_epsilon),
        rotary_base: number(f.decimal(&["rope_theta", "rotary_emb_base"]), own.rotary_base),
        rotary_percent: number(f.decimal(&["partial_rotary_factor", "rotary_pct"]), own.rotary_percent),
        rope_scaling: rope_scaling(f),
        activation_function: Some(f.text(own.activation_fields).map_or(own.activation, activation)),
        initializer_range: number(f.decimal(&["initializer_range"]), own.initializer_range),
        ..Model::default()
    }
}

fn activation(name: &str) -> ActivationFunction {
    let known = serde_json::from_value(name.into());
    known.unwrap_or_else(|_| ActivationFunction::Other(name.to_owned()))
}

/// The way of stretching that `rope_scaling` names, by its newer or its older key; `None` for `default`.
fn rope_scaling(f: &mut Fields<'_>) -> Option<RopeScaling> {
    let mut part = f.part("rope_scaling").or_else(|| f.part("rope_parameters"))?;
    let scaling = match part.text(&["rope_type", "type"]) {
        None | Some("default") => None,
        Some("linear") => {
            part.needed_decimal("factor").map(|factor| RopeScaling::Linear { factor: OrderedFloat(factor) })
        }
        Some("llama3") => llama3(&mut part),
        Some(other) => Some(RopeScaling::Other { name: other.to_owned() }),
    };
    f.absorb(part);
    scaling
}

fn llama3(part: &mut Fields<'_>) -> Option<RopeScaling> {
    let [factor, low, high] = ["factor", "low_freq_factor", "high_freq_factor"].map(|name| part.needed_decimal(name));
    let original = part.needed(&["original_max_position_embeddings"]);
    Some(RopeScaling::Llama3 {
        factor: OrderedFloat(factor?),
        low_freq_factor: OrderedFloat(low?),
        high_freq_factor: OrderedFloat(high?),
        original_max_position_embeddings: original?,
    })
}

#[cfg(test)]
mod tests {
    use super::super::import;
    use super::*;
    use crate::model::{Numerics, preset};
    use crate::plan::model_shape;
    use serde_json::{Value, json};

    /// The numerics of a small model of this type with these fields.
    fn read(model_type: &str, more: Value) -> Result<Numerics, Vec<String>> {
        let mut config = json!({ "model_type": model_type, "hidden_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 96 });
        let (Value::Object(config_fields), Value::Object(more)) = (&mut config, more) else { unreachable!() };
        config_fields.extend(more);
        let paths = |faults: Vec<crate::fault::Fault>| faults.into_iter().map(|fault| fault.path).collect::<Vec<_>>();
        let model = import(&config).map_err(paths)?;
        Ok(model_shape(&model, 1, None).unwrap().numerics)
    }

    fn numerics(epsilon: f64, base: f64, activation: ActivationFunction) -> Numerics {
        let [layernorm_epsilon, rotary_base] = [epsilon, base].map(OrderedFloat);
        Numerics { layernorm_epsilon, rotary_base, activation, ..Numerics::default() }
    }

    fn llama31() -> Numerics {
        let rope_scaling = Some(RopeScaling::Llama3 {
            factor: OrderedFloat(8.0),
            low_freq_factor: OrderedFloat(1.0),
            high_freq_factor: OrderedFloat(4.0),
            original_max_position_embeddings: 8192,
        });
        Numerics { rope_scaling, ..numerics(1e-5, 5e5, ActivationFunction::Silu) }
    }

    #[test]
    fn published_configs_have_their_numbers_and_presets_the_same() {
        let named = |name: &str| model_shape(&preset(name).unwrap(), 1, Some(1)).unwrap().numerics;
        let gpt2 = json!({ "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "initializer_range": 0.02 });
        let llama2 = json!({ "rms_norm_eps": 1e-5, "rope_scaling": null, "hidden_act": "silu" });
        let llama3 = json!({ "rms_norm_eps": 1e-5, "rope_theta": 500_000.0, "hidden_act": "silu", "rope_scaling":
            { "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 8192 } });
        let qwen2 = json!({ "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0, "hidden_act": "silu" });
        for (model_type, name, config, expected) in [
            ("gpt2", "gpt2", gpt2, numerics(1e-5, 1e4, ActivationFunction::GeluTanh)),
            ("llama", "llama-2-7b", llama2, numerics(1e-5, 1e4, ActivationFunction::Silu)),
            ("llama", "llama-3.1-8b", llama3, llama31()),
            ("qwen2", "qwen2.5-7b", qwen2, numerics(1e-6, 1e6, ActivationFunction::Silu)),
        ] {
            assert_eq!(read(model_type, config).unwrap(), expected, "{name}");
            assert_eq!(named(name), expected, "the preset {name}");
        }
        assert_eq!(named("megatron-22b"), Numerics::default());
    }

    #[test]
    fn what_a_config_leaves_out_is_the_default_of_its_type() {
        let quarter = Numerics { rotary_percent: OrderedFloat(0.25), ..numerics(1e-5, 1e4, ActivationFunction::Gelu) };
        let nemotron = Numerics {
            rotary_percent: OrderedFloat(0.5),
            initializer_range: OrderedFloat(0.0134),
            ..numerics(1e-5, 1e4, ActivationFunction::SquaredRelu)
        };
        for (model_type, expected) in [
            ("gpt2", numerics(1e-5, 1e4, ActivationFunction::GeluTanh)),
            ("llama", numerics(1e-6, 1e4, ActivationFunction::Silu)),
            ("mixtral", numerics(1e-5, 1e6, ActivationFunction::Silu)),
            ("gemma", numerics(1e-6, 1e4, ActivationFunction::GeluTanh)),
            ("gpt_neox", quarter),
            ("nemotron", nemotron),
        ] {
            assert_eq!(read(model_type, json!({})).unwrap(), expected, "{model_type}");
        }
    }

    #[test]
    fn rotary_scaling_is_read_by_its_old_and_its_new_name() {
        let scaling = |more: Value| read("llama", more).unwrap().rope_scaling;
        let linear = RopeScaling::Linear { factor: OrderedFloat(2.0) };
        assert_eq!(scaling(json!({ "rope_scaling": { "type": "linear", "factor": 2.0 } })), Some(linear));
        let yarn = RopeScaling::Other { name: "yarn".to_owned() };
        assert_eq!(scaling(json!({ "rope_scaling": { "type": "yarn", "factor": 40 } })), Some(yarn));
        assert_eq!(scaling(json!({ "rope_scaling": { "rope_type": "default" } })), None);
        let newer = json!({ "rope_parameters": { "rope_type": "default", "rope_theta": 5e5 } });
        assert_eq!(read("llama", newer).unwrap().rotary_base, OrderedFloat(5e5));
    }

    #[test]
    fn wrong_numbers_are_refused_where_they_stand() {
        let paths = |more: Value| read("llama", more).unwrap_err();
        assert_eq!(paths(json!({ "rms_norm_eps": "small" })), ["rms_norm_eps"]);
        assert_eq!(paths(json!({ "hidden_act": 3 })), ["hidden_act"]);
        let llama3 = json!({ "rope_scaling": { "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0 } });
        let missing = ["rope_scaling.high_freq_factor", "rope_scaling.original_max_position_embeddings"];
        assert_eq!(paths(llama3), missing);
    }
}
