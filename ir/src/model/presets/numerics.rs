//! Numbers of the public releases beside their sizes, as their config.json says.
//!
//! One law: a preset that is not here has those of [`Numerics::default`](crate::model::Numerics).

use crate::model::{ActivationFunction, RopeScaling};
use crate::scenario::Model;
use ordered_float::OrderedFloat;

/// A row of the table: how the names start, epsilon of the norms, base of the rotary positions, activation.
type Row = (&'static str, f64, f64, ActivationFunction);

/// The first row that fits counts.
const RELEASES: [Row; 15] = [
    ("gpt2", 1e-5, 1e4, ActivationFunction::GeluTanh),
    ("bloom", 1e-5, 1e4, ActivationFunction::GeluTanh),
    ("gpt-neox", 1e-5, 1e4, ActivationFunction::GeluTanh),
    ("llama-2", 1e-5, 1e4, ActivationFunction::Silu),
    ("llama-3", 1e-5, 5e5, ActivationFunction::Silu),
    ("mistral", 1e-5, 1e4, ActivationFunction::Silu),
    ("mixtral", 1e-5, 1e6, ActivationFunction::Silu),
    ("qwen2.5-0.5b", 1e-6, 1e6, ActivationFunction::Silu),
    ("qwen2.5-1.5b", 1e-6, 1e6, ActivationFunction::Silu),
    ("qwen2.5-7b", 1e-6, 1e6, ActivationFunction::Silu),
    ("qwen2.5", 1e-5, 1e6, ActivationFunction::Silu),
    ("qwen3", 1e-6, 1e6, ActivationFunction::Silu),
    ("gemma", 1e-6, 1e4, ActivationFunction::GeluTanh),
    ("deepseek", 1e-6, 1e4, ActivationFunction::Silu),
    ("nemotron", 1e-5, 1e4, ActivationFunction::SquaredRelu),
];

/// The numbers of a preset; nothing else is set.
pub(super) fn numerics(name: &str) -> Model {
    let name = name.to_ascii_lowercase();
    let is = |start: &str| name.starts_with(start);
    let Some((_, epsilon, base, activation)) = RELEASES.iter().find(|(start, ..)| is(start)) else {
        return Model::default();
    };
    let rope_scaling = if is("llama-3.1") {
        Some(RopeScaling::Llama3 {
            factor: OrderedFloat(8.0),
            low_freq_factor: OrderedFloat(1.0),
            high_freq_factor: OrderedFloat(4.0),
            original_max_position_embeddings: 8192,
        })
    } else {
        is("deepseek").then(|| RopeScaling::Other { name: "yarn".to_owned() })
    };
    let parts = [("gpt-neox", 0.25), ("nemotron", 0.5)];
    let rotary_percent = parts.iter().find(|(start, _)| is(start)).map(|(_, part)| OrderedFloat(*part));
    Model {
        layernorm_epsilon: Some(OrderedFloat(*epsilon)),
        rotary_base: Some(OrderedFloat(*base)),
        rotary_percent,
        rope_scaling,
        activation_function: Some(activation.clone()),
        ..Model::default()
    }
}
