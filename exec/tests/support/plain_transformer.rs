//! GPT-2 and Llama as their papers and Hugging Face define them, in burn's own operations under burn's autodiff.
//!
//! One law: it shares nothing with the executor but the shape of a model and the names of its tensors, and computes in
//! fp64, the whole batch at once; so what it and the executor agree on is not a slip of either.
//!
//! Sources: Radford et al. 2019 and `GPT2LMHeadModel`; Touvron et al. 2023 (arXiv:2302.13971) and `LlamaForCausalLM`;
//! `Qwen2ForCausalLM`; Ainslie et al. 2023 (arXiv:2305.13245) for grouped queries; Su et al. 2021 (arXiv:2104.09864).

use burn::tensor::activation::{log_softmax, sigmoid, softmax};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use pipewright_exec::run::Named;
use pipewright_ir::model::{ActivationFunction, ModelShape, RopeScaling};
use std::collections::BTreeMap;
use std::f64::consts::{FRAC_1_SQRT_2, PI};

/// Gradients by Hugging Face name, flat row major.
pub(crate) type Gradients = BTreeMap<String, Vec<f64>>;

/// Sequences and the tokens behind each of theirs, both `[B, S]`, flat.
pub(crate) struct Sequences<'a> {
    pub(crate) tokens: &'a [u32],
    pub(crate) targets: &'a [u32],
    pub(crate) seq_length: usize,
}

/// The mean loss over all tokens, and the gradient of every parameter.
pub(crate) fn loss_and_gradients(
    shape: &ModelShape,
    is_gpt2: bool,
    parameters: &Named,
    sequences: &Sequences<'_>,
) -> (f64, Gradients) {
    let leaf = |(name, values): &(String, Vec<f32>)| {
        let values = values.iter().map(|x| f64::from(*x)).collect();
        (name.clone(), constant(values, [0]).autodiff().require_grad())
    };
    let leaves: BTreeMap<String, Tensor<1>> = parameters.iter().map(leaf).collect();
    assert_eq!(leaves.len(), parameters.len(), "every name once");
    let s = sequences.seq_length;
    let model = Model { shape, leaves: &leaves, batch: sequences.tokens.len() / s, seq_length: s };
    let logits = if is_gpt2 { model.gpt2(sequences.tokens) } else { model.llama(sequences.tokens) };
    let targets = indices(sequences.targets).reshape([sequences.targets.len(), 1]);
    let loss = log_softmax(logits, 1).gather(1, targets).mean().neg();
    let gradients = loss.backward();
    let of = |(name, leaf): (&String, &Tensor<1>)| {
        let gradient = leaf.grad(&gradients).ok_or_else(|| format!("{name} is not used")).unwrap();
        (name.clone(), gradient.into_data().iter::<f64>().collect())
    };
    (loss.into_scalar::<f64>(), leaves.iter().map(of).collect())
}

/// An fp64 tensor without a gradient; a shape of `[0]` stands for all in one row.
fn constant<const D: usize>(values: Vec<f64>, mut shape: [usize; D]) -> Tensor<D> {
    if D == 1 {
        shape[0] = values.len();
    }
    Tensor::from_data(TensorData::new(values, shape), (&Device::flex(), DType::F64))
}

fn indices(values: &[u32]) -> Tensor<1, Int> {
    let values: Vec<i64> = values.iter().map(|x| i64::from(*x)).collect();
    Tensor::from_data(TensorData::new(values.clone(), [values.len()]), &Device::flex()).autodiff()
}

struct Model<'a> {
    shape: &'a ModelShape,
    leaves: &'a BTreeMap<String, Tensor<1>>,
    batch: usize,
    seq_length: usize,
}

impl Model<'_> {
    fn vector(&self, name: &str) -> Tensor<1> {
        self.leaves.get(name).ok_or_else(|| format!("there is no {name}")).unwrap().clone()
    }

    /// A vector as one row.
    fn row(&self, name: &str) -> Tensor<2> {
        self.vector(name).unsqueeze()
    }

    fn matrix(&self, name: &str, shape: [usize; 2]) -> Tensor<2> {
        self.vector(name).reshape(shape)
    }

    /// Hidden size, inner size of the MLP, size of a head.
    fn sizes(&self) -> (usize, usize, usize) {
        (self.shape.hidden_size as usize, self.shape.ffn_hidden_size as usize, self.shape.kv_channels as usize)
    }

    fn epsilon(&self) -> f64 {
        self.shape.numerics.layernorm_epsilon.into_inner()
    }

    fn embed(&self, name: &str, tokens: &[u32]) -> Tensor<2> {
        let table = self.matrix(name, [self.shape.vocab_size as usize, self.shape.hidden_size as usize]);
        table.select(0, indices(tokens))
    }

    /// Logits `[B S, V]`; a tied head is the embedding.
    fn head(&self, x: Tensor<2>, embedding: &str) -> Tensor<2> {
        let own = self.shape.untie_embeddings_and_output_weights;
        let name = if own { "lm_head.weight" } else { embedding };
        assert_eq!(own, self.leaves.contains_key("lm_head.weight"), "a tied model has no head of its own");
        x.matmul(self.matrix(name, [self.shape.vocab_size as usize, self.shape.hidden_size as usize]).transpose())
    }

    // GPT-2.

    fn gpt2(&self, tokens: &[u32]) -> Tensor<2> {
        let (h, f, d) = self.sizes();
        let heads = self.shape.num_attention_heads as usize;
        let places: Vec<u32> = (0..self.batch).flat_map(|_| 0..self.seq_length as u32).collect();
        let table = self.matrix("transformer.wpe.weight", [self.shape.max_position_embeddings as usize, h]);
        let mut x = self.embed("transformer.wte.weight", tokens) + table.select(0, indices(&places));
        for layer in 0..self.shape.num_layers {
            let name = |part: &str| format!("transformer.h.{layer}.{part}");
            let qkv = self.conv1d(self.layer_norm(&x, &name("ln_1")), &name("attn.c_attn"), [h, 3 * h]);
            let [q, k, v] = [0, 1, 2].map(|i| self.by_head(qkv.clone().narrow(1, i * h, h), heads, d));
            x = x + self.conv1d(self.attention(q, k, v), &name("attn.c_proj"), [h, h]);
            let inner = self.gelu(self.conv1d(self.layer_norm(&x, &name("ln_2")), &name("mlp.c_fc"), [h, f]));
            x = x + self.conv1d(inner, &name("mlp.c_proj"), [f, h]);
        }
        self.head(self.layer_norm(&x, "transformer.ln_f"), "transformer.wte.weight")
    }

    /// `x W + b` with `W` `[in, out]`.
    fn conv1d(&self, x: Tensor<2>, name: &str, shape: [usize; 2]) -> Tensor<2> {
        x.matmul(self.matrix(&format!("{name}.weight"), shape)) + self.row(&format!("{name}.bias"))
    }

    fn layer_norm(&self, x: &Tensor<2>, name: &str) -> Tensor<2> {
        let centred = x.clone() - x.clone().mean_dim(1);
        let variance = (centred.clone() * centred.clone()).mean_dim(1);
        let normed = centred / (variance + self.epsilon()).sqrt();
        normed * self.row(&format!("{name}.weight")) + self.row(&format!("{name}.bias"))
    }

    fn gelu(&self, x: Tensor<2>) -> Tensor<2> {
        let distribution = match self.shape.numerics.activation {
            ActivationFunction::Gelu => (x.clone() * FRAC_1_SQRT_2).erf(),
            _ => {
                let cube = x.clone() * x.clone() * x.clone();
                ((x.clone() + cube * 0.044_715) * (2.0 / PI).sqrt()).tanh()
            }
        };
        x * (distribution + 1.0) * 0.5
    }

    // Llama and Qwen2.

    fn llama(&self, tokens: &[u32]) -> Tensor<2> {
        let (h, f, d) = self.sizes();
        let (heads, groups) = (self.shape.num_attention_heads as usize, self.shape.num_query_groups as usize);
        let mut x = self.embed("model.embed_tokens.weight", tokens);
        for layer in 0..self.shape.num_layers {
            let name = |part: &str| format!("model.layers.{layer}.{part}");
            let normed = self.rms_norm(&x, &name("input_layernorm"));
            let project = |part: &str, heads: usize| {
                let y = self.linear(normed.clone(), &name(part), [heads * d, h], self.shape.add_qkv_bias);
                self.by_head(y, heads, d)
            };
            let q = self.rotary(project("self_attn.q_proj", heads));
            let k = self.rotary(project("self_attn.k_proj", groups));
            let v = project("self_attn.v_proj", groups);
            let attended = self.attention(q, k, v);
            x = x + self.linear(attended, &name("self_attn.o_proj"), [h, heads * d], false);
            let normed = self.rms_norm(&x, &name("post_attention_layernorm"));
            let gate = self.linear(normed.clone(), &name("mlp.gate_proj"), [f, h], false);
            let up = self.linear(normed, &name("mlp.up_proj"), [f, h], false);
            let inner = gate.clone() * sigmoid(gate) * up;
            x = x + self.linear(inner, &name("mlp.down_proj"), [h, f], false);
        }
        self.head(self.rms_norm(&x, "model.norm"), "model.embed_tokens.weight")
    }

    /// `x W^T + b` with `W` `[out, in]`.
    fn linear(&self, x: Tensor<2>, name: &str, shape: [usize; 2], bias: bool) -> Tensor<2> {
        let y = x.matmul(self.matrix(&format!("{name}.weight"), shape).transpose());
        if bias { y + self.row(&format!("{name}.bias")) } else { y }
    }

    fn rms_norm(&self, x: &Tensor<2>, name: &str) -> Tensor<2> {
        let mean_square = (x.clone() * x.clone()).mean_dim(1);
        x.clone() / (mean_square + self.epsilon()).sqrt() * self.row(&format!("{name}.weight"))
    }

    /// `x cos + rotate_half(x) sin` of `[B, A, S, D]`, where `rotate_half` makes `(-right, left)` of a head's halves.
    fn rotary(&self, x: Tensor<4>) -> Tensor<4> {
        let d = x.dims()[3];
        let frequencies = self.frequencies(d);
        let angles = (0..self.seq_length).flat_map(|place| {
            let both = frequencies.iter().chain(&frequencies);
            both.map(move |frequency| place as f64 * frequency)
        });
        let (cos, sin): (Vec<f64>, Vec<f64>) = angles.map(|angle| (angle.cos(), angle.sin())).unzip();
        let table = |values| constant(values, [1, 1, self.seq_length, d]).autodiff();
        let (left, right) = (x.clone().narrow(3, 0, d / 2), x.clone().narrow(3, d / 2, d / 2));
        x * table(cos) + Tensor::cat(vec![right.neg(), left], 3) * table(sin)
    }

    /// `base^(-2 i / D)`; Llama 3.1 divides those of long wavelengths by a factor.
    fn frequencies(&self, d: usize) -> Vec<f64> {
        let base = self.shape.numerics.rotary_base.into_inner();
        let own = (0..d / 2).map(|i| 1.0 / base.powf((2 * i) as f64 / d as f64));
        own.map(|frequency| match &self.shape.numerics.rope_scaling {
            Some(RopeScaling::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings,
            }) => {
                let (wavelength, length) = (2.0 * PI / frequency, f64::from(*original_max_position_embeddings));
                if wavelength < length / high.into_inner() {
                    frequency
                } else if wavelength > length / low.into_inner() {
                    frequency / factor.into_inner()
                } else {
                    let smooth = (length / wavelength - low.into_inner()) / (high.into_inner() - low.into_inner());
                    (1.0 - smooth) * frequency / factor.into_inner() + smooth * frequency
                }
            }
            _ => frequency,
        })
        .collect()
    }

    // Both.

    /// `[B S, A D]` as `[B, A, S, D]`.
    fn by_head(&self, x: Tensor<2>, heads: usize, d: usize) -> Tensor<4> {
        x.reshape([self.batch, self.seq_length, heads, d]).swap_dims(1, 2)
    }

    /// `softmax(q k^T / sqrt(D)) v`, no token seeing a later one; neighbouring query heads share keys and values.
    fn attention(&self, q: Tensor<4>, k: Tensor<4>, v: Tensor<4>) -> Tensor<2> {
        let ([batch, heads, s, d], groups) = (q.dims(), k.dims()[1]);
        let share = |x: Tensor<4>| {
            let apart: Tensor<5> = x.reshape([batch, groups, 1, s, d]);
            apart.repeat_dim(2, heads / groups).reshape([batch, heads, s, d])
        };
        let (k, v) = (share(k), share(v));
        let later = (0..s).flat_map(|i| (0..s).map(move |j| if j > i { f64::NEG_INFINITY } else { 0.0 }));
        let mask = constant(later.collect(), [1, 1, s, s]).autodiff();
        let scores = q.matmul(k.swap_dims(2, 3)) / (d as f64).sqrt() + mask;
        softmax(scores, 3).matmul(v).swap_dims(1, 2).reshape([batch * s, heads * d])
    }
}
