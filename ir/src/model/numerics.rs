//! The numbers of a model that its forward needs and its counts do not: epsilon, rotary positions, activation, the spread
//! of its first weights.
//!
//! One law: nothing here changes a count, a size or a schedule.

use super::ModelShape;
use ordered_float::OrderedFloat;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::f64::consts::TAU;

/// Numbers of a model beside its shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numerics {
    /// What the norms add to the variance.
    pub layernorm_epsilon: OrderedFloat<f64>,
    /// Base of the rotary positions' wavelengths.
    pub rotary_base: OrderedFloat<f64>,
    /// Part of a head that rotary positions turn, above 0 and up to 1 (GPT-NeoX, Nemotron).
    pub rotary_percent: OrderedFloat<f64>,
    /// How rotary positions are stretched beyond the length they were first trained with.
    pub rope_scaling: Option<RopeScaling>,
    /// What the MLP applies between its linear layers; to the gate alone, where it has one.
    pub activation: ActivationFunction,
    /// Standard deviation of the first weights.
    pub initializer_range: OrderedFloat<f64>,
}

impl Default for Numerics {
    /// GPT-2's, with the exact GELU.
    fn default() -> Self {
        Self {
            layernorm_epsilon: OrderedFloat(1e-5),
            rotary_base: OrderedFloat(10_000.0),
            rotary_percent: OrderedFloat(1.0),
            rope_scaling: None,
            activation: ActivationFunction::Gelu,
            initializer_range: OrderedFloat(0.02),
        }
    }
}

/// How rotary positions are stretched, with Hugging Face's names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "rope_type", rename_all = "lowercase", deny_unknown_fields)]
pub enum RopeScaling {
    /// Every wavelength times `factor` (Chen et al. 2023, arXiv:2306.15595).
    Linear {
        /// Times as long.
        #[schemars(with = "f64")]
        factor: OrderedFloat<f64>,
    },
    /// Long wavelengths times `factor`, short ones as they are, a blend between (Llama 3.1).
    Llama3 {
        /// Times as long.
        #[schemars(with = "f64")]
        factor: OrderedFloat<f64>,
        /// Wavelengths above the original length divided by this are stretched whole.
        #[schemars(with = "f64")]
        low_freq_factor: OrderedFloat<f64>,
        /// Wavelengths below the original length divided by this stay as they are.
        #[schemars(with = "f64")]
        high_freq_factor: OrderedFloat<f64>,
        /// Length of the first training \[tokens\].
        original_max_position_embeddings: u32,
    },
    /// Any other way: known by name, counted, and not computed.
    Other {
        /// Its name.
        name: String,
    },
}

/// Activation functions, with PyTorch's names. Any other name is known by it, counted, and not computed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ActivationFunction {
    /// GELU by the error function.
    Gelu,
    /// GELU by its approximation with tanh (Hendrycks and Gimpel 2016, arXiv:1606.08415, section 2).
    #[serde(alias = "gelu_new", alias = "gelu_pytorch_tanh", alias = "gelu_fast", alias = "gelu_accurate")]
    GeluTanh,
    /// `x sigmoid(x)`.
    #[serde(alias = "swish")]
    Silu,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)^2` (Nemotron).
    #[serde(alias = "relu2")]
    SquaredRelu,
    /// Any other, by its name.
    #[serde(untagged)]
    Other(String),
}

impl ActivationFunction {
    /// Its name in a scenario.
    pub fn name(&self) -> &str {
        match self {
            ActivationFunction::Gelu => "gelu",
            ActivationFunction::GeluTanh => "gelu_tanh",
            ActivationFunction::Silu => "silu",
            ActivationFunction::Relu => "relu",
            ActivationFunction::SquaredRelu => "squared_relu",
            ActivationFunction::Other(name) => name,
        }
    }
}

impl RopeScaling {
    /// Its name in a scenario.
    pub fn name(&self) -> &str {
        match self {
            RopeScaling::Linear { .. } => "linear",
            RopeScaling::Llama3 { .. } => "llama3",
            RopeScaling::Other { name } => name,
        }
    }

    /// The angle a position turns by, stretched \[rad\].
    fn stretched(&self, frequency: f64) -> f64 {
        match self {
            RopeScaling::Linear { factor } => frequency / factor.0,
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings } => {
                let turns = f64::from(*original_max_position_embeddings) * frequency / TAU;
                // 0 where the wavelength is long, 1 where it is short.
                let kept = (turns - low_freq_factor.0) / (high_freq_factor.0 - low_freq_factor.0);
                let kept = kept.clamp(0.0, 1.0);
                (1.0 - kept) * frequency / factor.0 + kept * frequency
            }
            RopeScaling::Other { .. } => frequency,
        }
    }
}

impl ModelShape {
    /// Size of the part of a query or key head that rotary positions turn, even.
    pub fn rotary_dim(&self) -> u32 {
        match &self.latent_attention {
            Some(latent) => latent.qk_pos_emb_head_dim / 2 * 2,
            None => (f64::from(self.kv_channels) * self.numerics.rotary_percent.0) as u32 / 2 * 2,
        }
    }

    /// The angle that a position turns each pair of [`ModelShape::rotary_dim`] numbers by \[rad\]: `base^(-2 i / D)` (Su et
    /// al. 2021, arXiv:2104.09864, section 3.2.2), stretched as [`RopeScaling`] says. `D / 2` of them, `D` the whole head
    /// unless `rotary_percent` is below 1. A way of stretching that is not known leaves them as they are: who computes
    /// with them refuses it first.
    pub fn inverse_frequencies(&self) -> Vec<f32> {
        let dim = self.rotary_dim();
        let own = |pair: u32| self.numerics.rotary_base.0.powf(-f64::from(2 * pair) / f64::from(dim));
        // Rounded once, from more digits than are kept, so that no platform's power function shows.
        (0..dim / 2)
            .map(own)
            .map(|own| self.numerics.rope_scaling.as_ref().map_or(own, |scaling| scaling.stretched(own)) as f32)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Heads of 128.
    fn shape(rotary_base: f64, rope_scaling: Option<RopeScaling>) -> ModelShape {
        let numerics = Numerics { rotary_base: OrderedFloat(rotary_base), rope_scaling, ..Numerics::default() };
        ModelShape { numerics, ..ModelShape::gpt(1, 256, 2, 32, 8) }
    }

    fn close(is: &[f32], expected: &[(usize, f64)]) {
        for (pair, expected) in expected {
            let relative = f64::from(is[*pair]) / expected - 1.0;
            assert!(relative.abs() < 1e-7, "pair {pair}: {} is not {expected}", is[*pair]);
        }
    }

    #[test]
    fn plain_angles_are_powers_of_the_base() {
        let is = shape(1e4, None).inverse_frequencies();
        assert_eq!(is.len(), 64);
        close(&is, &[(0, 1.0), (1, 0.865_964_323_360_065_3), (32, 0.01), (63, 0.000_115_478_198_468_945_82)]);
    }

    #[test]
    fn linear_scaling_divides_every_angle() {
        let is = shape(1e4, Some(RopeScaling::Linear { factor: OrderedFloat(4.0) })).inverse_frequencies();
        close(&is, &[(0, 0.25), (32, 0.0025)]);
    }

    /// By the published recipe with wavelengths, in another language, with Llama 3.1's numbers.
    #[test]
    fn llama_3_1_keeps_short_waves_blends_middle_ones_and_stretches_long_ones() {
        let scaling = RopeScaling::Llama3 {
            factor: OrderedFloat(8.0),
            low_freq_factor: OrderedFloat(1.0),
            high_freq_factor: OrderedFloat(4.0),
            original_max_position_embeddings: 8192,
        };
        let is = shape(5e5, Some(scaling)).inverse_frequencies();
        let expected = [
            (0, 1.0),
            (16, 0.037_606_030_930_863_93),
            (28, 0.003_211_445_994_752_591),
            (29, 0.002_166_570_763_503_359),
            (30, 0.001_371_893_567_761_138_1),
            (32, 0.000_524_846_160_992_954_7),
            (34, 0.000_178_507_812_767_996_8),
            (35, 9.556_212_353_964_683e-5),
            (63, 3.068_925_988_914_511e-7),
        ];
        close(&is, &expected);
    }

    #[test]
    fn only_the_part_with_rotary_positions_turns() {
        let mut shape = shape(1e4, None);
        shape.numerics.rotary_percent = OrderedFloat(0.25);
        let is = shape.inverse_frequencies();
        assert_eq!((shape.rotary_dim(), is.len()), (32, 16));
        close(&is, &[(8, 0.01)]);
    }
}
