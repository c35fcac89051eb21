//! A GPT in parts: learned positions, pre-LayerNorm, causal attention, GELU MLP, as GPT-2.
//!
//! One law: a part's parameters, names and first values are those of the whole model, whatever the split; so any two
//! splits compute the same function.
//!
//! Shapes: `B` sequences, `S` tokens, `H` hidden size, `F` inner size of the MLP, `V` vocabulary, `P` positions.

mod check;

pub use check::{GptError, check_data, check_shape};

use crate::autodiff::AutodiffError;
use crate::init::{Fill, parameter};
use crate::ops::{self, KeyValueCache, attention, attention_slice, causal_mask, cross_entropy_sum, gelu, layer_norm};
use crate::parameters::TOKEN_EMBEDDING;
use crate::stage_module::StageModule;
use burn::module::{Module, Param, ParamId};
use burn::tensor::{Device, Int, Tensor};
use pipewright_ir::model::{ModelShape, StagePart};

/// Added to the variance in every LayerNorm, as GPT-2.
const EPSILON: f64 = 1e-5;
/// Spread of the first weights, as GPT-2.
const STD: f32 = 0.02;

/// The part of a GPT that one stage holds.
#[derive(Module, Debug)]
pub struct GptStage {
    /// Token embedding `[V, H]`; the head too where it is tied and on this stage.
    wte: Option<Param<Tensor<2>>>,
    /// Position embedding `[P, H]`.
    wpe: Option<Param<Tensor<2>>>,
    layers: Vec<Layer>,
    final_norm: Option<Norm>,
    /// Head `[V, H]` where it is not the `wte` above.
    head: Option<Param<Tensor<2>>>,
    heads: usize,
    first_layer: usize,
    tied: bool,
}

#[derive(Module, Debug)]
struct Layer {
    ln_1: Norm,
    c_attn: Linear,
    attn_c_proj: Linear,
    ln_2: Norm,
    c_fc: Linear,
    mlp_c_proj: Linear,
}

/// Scale and shift `[H]`.
#[derive(Module, Debug)]
struct Norm {
    weight: Param<Tensor<1>>,
    bias: Param<Tensor<1>>,
}

/// Weight `[in, out]` (GPT-2's layout) and bias `[out]`.
#[derive(Module, Debug)]
struct Linear {
    weight: Param<Tensor<2>>,
    bias: Param<Tensor<1>>,
}

/// What every parameter of a part is made from.
struct Maker<'a> {
    shape: &'a ModelShape,
    seed: u64,
    device: &'a Device,
}

impl Maker<'_> {
    fn hidden(&self) -> usize {
        self.shape.hidden_size as usize
    }

    fn matrix(&self, name: &str, shape: [usize; 2], std: f32) -> Result<Param<Tensor<2>>, GptError> {
        Ok(parameter(self.seed, name, shape, Fill::Normal(std), self.device)?)
    }

    fn vector(&self, name: &str, len: usize, value: f32) -> Result<Param<Tensor<1>>, GptError> {
        Ok(parameter(self.seed, name, [len], Fill::Constant(value), self.device)?)
    }

    fn norm(&self, name: &str) -> Result<Norm, GptError> {
        let h = self.hidden();
        Ok(Norm {
            weight: self.vector(&format!("{name}.weight"), h, 1.0)?,
            bias: self.vector(&format!("{name}.bias"), h, 0.0)?,
        })
    }

    fn linear(&self, name: &str, shape: [usize; 2], std: f32) -> Result<Linear, GptError> {
        Ok(Linear {
            weight: self.matrix(&format!("{name}.weight"), shape, std)?,
            bias: self.vector(&format!("{name}.bias"), shape[1], 0.0)?,
        })
    }

    fn layer(&self, index: u32) -> Result<Layer, GptError> {
        let (h, f) = (self.hidden(), self.shape.ffn_hidden_size as usize);
        // Two projections a layer add to the residual stream: their spread keeps its variance from growing with depth.
        let residual = STD / (2.0 * self.shape.num_layers as f32).sqrt();
        let name = |rest: &str| format!("transformer.h.{index}.{rest}");
        Ok(Layer {
            ln_1: self.norm(&name("ln_1"))?,
            c_attn: self.linear(&name("attn.c_attn"), [h, 3 * h], STD)?,
            attn_c_proj: self.linear(&name("attn.c_proj"), [h, h], residual)?,
            ln_2: self.norm(&name("ln_2"))?,
            c_fc: self.linear(&name("mlp.c_fc"), [h, f], STD)?,
            mlp_c_proj: self.linear(&name("mlp.c_proj"), [f, h], residual)?,
        })
    }
}

impl GptStage {
    /// The part `part` of the model `shape` with its first values from `seed`, on `device` (an autodiff device for
    /// training). A head tied to the embedding is the very same parameter when both are on this stage; otherwise it
    /// is a parameter of its own with the same name and the same first values.
    ///
    /// # Errors
    /// Those of [`check_shape`]; [`GptError::Layers`] for layers the model does not have.
    pub fn new(shape: &ModelShape, part: StagePart, seed: u64, device: &Device) -> Result<Self, GptError> {
        check_shape(shape)?;
        check::check_part(shape, part)?;
        let make = Maker { shape, seed, device };
        let (h, v) = (make.hidden(), shape.vocab_size as usize);
        let tied = !shape.untie_embeddings_and_output_weights;
        let head_name = if tied { TOKEN_EMBEDDING } else { "lm_head.weight" };
        let wte = part.embedding.then(|| make.matrix(TOKEN_EMBEDDING, [v, h], STD)).transpose()?;
        let positions = [shape.max_position_embeddings as usize, h];
        let wpe = part.embedding.then(|| make.matrix("transformer.wpe.weight", positions, STD)).transpose()?;
        let own_head = part.head && !(tied && part.embedding);
        Ok(Self {
            wte,
            wpe,
            layers: (part.layers.start..part.layers.end).map(|i| make.layer(i)).collect::<Result<_, _>>()?,
            final_norm: part.head.then(|| make.norm("transformer.ln_f")).transpose()?,
            head: own_head.then(|| make.matrix(head_name, [v, h], STD)).transpose()?,
            heads: shape.num_attention_heads as usize,
            first_layer: part.layers.start as usize,
            tied,
        })
    }

    /// Logits `[B S, V]` of hidden states `[B, S, H]`; `None` on a stage without a head.
    pub fn logits(&self, hidden: Tensor<3>) -> Option<Tensor<2>> {
        let norm = self.final_norm.as_ref()?;
        let head = self.head.as_ref().or(self.wte.as_ref())?;
        let [b, s, h] = hidden.dims();
        Some(ops::head(norm.forward(hidden).reshape([b * s, h]), head.into()))
    }
}

impl Norm {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        layer_norm(x, (&self.weight).into(), (&self.bias).into(), EPSILON)
    }
}

impl Linear {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        ops::linear(x, (&self.weight).into(), (&self.bias).into())
    }
}

impl Layer {
    fn forward(&self, x: Tensor<3>, mask: &Tensor<2>, heads: usize) -> Tensor<3> {
        let attended = attention(self.c_attn.forward(self.ln_1.forward(x.clone())), mask, heads);
        self.behind_attention(x, attended)
    }

    fn forward_slice(
        &self,
        x: Tensor<3>,
        mask: &Tensor<2>,
        heads: usize,
        cache: &KeyValueCache,
    ) -> Result<Tensor<3>, AutodiffError> {
        let attended = attention_slice(self.c_attn.forward(self.ln_1.forward(x.clone())), mask, heads, cache)?;
        Ok(self.behind_attention(x, attended))
    }

    fn behind_attention(&self, x: Tensor<3>, attended: Tensor<3>) -> Tensor<3> {
        let x = x + self.attn_c_proj.forward(attended);
        let inner = gelu(self.c_fc.forward(self.ln_2.forward(x.clone())));
        x + self.mlp_c_proj.forward(inner)
    }

    /// Parameters in the order of a module visit.
    fn names(&self, index: usize) -> Vec<(ParamId, String)> {
        let modules = [
            ("ln_1", self.ln_1.ids()),
            ("attn.c_attn", self.c_attn.ids()),
            ("attn.c_proj", self.attn_c_proj.ids()),
            ("ln_2", self.ln_2.ids()),
            ("mlp.c_fc", self.c_fc.ids()),
            ("mlp.c_proj", self.mlp_c_proj.ids()),
        ];
        modules.into_iter().flat_map(|(name, ids)| named(&format!("transformer.h.{index}.{name}"), ids)).collect()
    }
}

impl Norm {
    fn ids(&self) -> [ParamId; 2] {
        [self.weight.id, self.bias.id]
    }
}

impl Linear {
    fn ids(&self) -> [ParamId; 2] {
        [self.weight.id, self.bias.id]
    }
}

fn named(module: &str, [weight, bias]: [ParamId; 2]) -> [(ParamId, String); 2] {
    [(weight, format!("{module}.weight")), (bias, format!("{module}.bias"))]
}

/// A stage that is asked for what it does not hold answers with its input, or zeros: a schedule never asks.
impl StageModule for GptStage {
    /// One entry a layer.
    type Cache = Vec<KeyValueCache>;

    fn embed(&self, tokens: Tensor<2, Int>, start: usize) -> Tensor<3> {
        let [b, s] = tokens.dims();
        let (Some(wte), Some(wpe)) = (&self.wte, &self.wpe) else {
            return Tensor::zeros([b, s, 0], &tokens.device());
        };
        ops::embedding(tokens, start, wte.into(), wpe.into())
    }

    fn forward(&self, mut hidden: Tensor<3>) -> Tensor<3> {
        if self.layers.is_empty() {
            return hidden;
        }
        let s = hidden.dims()[1];
        let mask = causal_mask(s, s, &hidden.device());
        for layer in &self.layers {
            hidden = layer.forward(hidden, &mask, self.heads);
        }
        hidden
    }

    fn forward_slice(&self, mut hidden: Tensor<3>, cache: &mut Vec<KeyValueCache>) -> Result<Tensor<3>, AutodiffError> {
        cache.resize_with(self.layers.len(), KeyValueCache::default);
        let Some(before) = cache.first().map(KeyValueCache::tokens) else { return Ok(hidden) };
        let s = hidden.dims()[1];
        let mask = causal_mask(s, before + s, &hidden.device());
        for (layer, cache) in self.layers.iter().zip(cache) {
            hidden = layer.forward_slice(hidden, &mask, self.heads, cache)?;
        }
        Ok(hidden)
    }

    fn loss(&self, hidden: Tensor<3>, targets: Tensor<2, Int>) -> Tensor<1> {
        let [b, s] = targets.dims();
        let device = hidden.device();
        match self.logits(hidden) {
            Some(logits) => cross_entropy_sum(logits, targets.reshape([b * s])),
            None => Tensor::zeros([1], &device),
        }
    }

    fn parameter_names(&self) -> Vec<(ParamId, String)> {
        let mut names = Vec::new();
        let one = |p: &Option<Param<Tensor<2>>>, name: &str| p.as_ref().map(|p| (p.id, name.to_owned()));
        names.extend(one(&self.wte, TOKEN_EMBEDDING));
        names.extend(one(&self.wpe, "transformer.wpe.weight"));
        names.extend(self.layers.iter().enumerate().flat_map(|(i, layer)| layer.names(self.first_layer + i)));
        names.extend(self.final_norm.iter().flat_map(|norm| named("transformer.ln_f", norm.ids())));
        names.extend(one(&self.head, if self.tied { TOKEN_EMBEDDING } else { "lm_head.weight" }));
        names
    }
}

#[cfg(test)]
mod tests;
