//! The parameters of a stage on one device: which tensors of the model, and which part of each.
//!
//! One law: column-parallel matrices are cut by their outputs, row-parallel ones by their inputs, embeddings by the
//! vocabulary; a vector that every rank needs is whole on each (Narayanan et al. 2021, section 2.3).

use super::spec::StageSpec;
use crate::init::{self, Fill};
use crate::parameter::{Block, Copies, Held, Parameter};
use crate::shard::Shard;
use burn::tensor::Device;
use pipewright_ir::model::{Normalization, PositionEmbedding};
use pipewright_ir::segments::BlockKind;
use rand_distr::NormalError;
use std::ops::Range;

/// Spread of the first weights, as GPT-2.
pub(crate) const STD: f32 = 0.02;

/// Names of the tensors of a kind of model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    /// Token embedding.
    pub(crate) embedding: &'static str,
    /// Before the number of a layer.
    layers: &'static str,
    /// Norms of a layer.
    norms: [&'static str; 2],
    /// Queries, keys and values: one name where they are one tensor.
    projections: [&'static str; 3],
    output: &'static str,
    /// Gate and up where there are two.
    up: [&'static str; 2],
    down: &'static str,
    final_norm: &'static str,
}

/// Learned positions of GPT-2.
const POSITIONS: &str = "transformer.wpe.weight";
/// A head of its own.
pub(crate) const HEAD: &str = "lm_head.weight";

const GPT2: Names = Names {
    embedding: "transformer.wte.weight",
    layers: "transformer.h",
    norms: ["ln_1", "ln_2"],
    projections: ["attn.c_attn"; 3],
    output: "attn.c_proj",
    up: ["mlp.c_fc"; 2],
    down: "mlp.c_proj",
    final_norm: "transformer.ln_f",
};

const LLAMA: Names = Names {
    embedding: "model.embed_tokens.weight",
    layers: "model.layers",
    norms: ["input_layernorm", "post_attention_layernorm"],
    projections: ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    output: "self_attn.o_proj",
    up: ["mlp.gate_proj", "mlp.up_proj"],
    down: "mlp.down_proj",
    final_norm: "model.norm",
};

/// Where the parameters of a layer stand in its block.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LayerPlaces {
    pub(crate) norms: [NormPlaces; 2],
    pub(crate) projections: LinearPlaces,
    pub(crate) output: LinearPlaces,
    pub(crate) up: LinearPlaces,
    pub(crate) down: LinearPlaces,
}

/// A norm's parameters in their block.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NormPlaces {
    pub(crate) scale: usize,
    pub(crate) shift: Option<usize>,
}

/// A linear layer's parameters in their block.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LinearPlaces {
    pub(crate) weight: usize,
    pub(crate) bias: Option<usize>,
}

/// Where the parameters of the embedding stand.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EmbeddingPlaces {
    pub(crate) positions: Option<usize>,
}

/// Makes blocks.
pub(crate) struct Maker<'a> {
    pub(crate) spec: &'a StageSpec,
    pub(crate) device: &'a Device,
    names: Names,
    parameters: Vec<Parameter>,
}

/// What a linear layer is cut along.
enum Cut {
    /// Its outputs: one entry a named tensor, each with all its outputs and the ranges that this rank has.
    Columns(Vec<Columns>),
    /// Its inputs: all, and this rank's.
    Rows(usize, Range<usize>),
}

struct Columns {
    name: &'static str,
    outputs: usize,
    ranges: Vec<Range<usize>>,
    copies: Copies,
}

impl<'a> Maker<'a> {
    pub(crate) fn new(spec: &'a StageSpec, device: &'a Device) -> Self {
        let names = if spec.is_gpt2() { GPT2 } else { LLAMA };
        Self { spec, device, names, parameters: Vec::new() }
    }

    fn block(&mut self, kind: BlockKind, layer: u32) -> Block {
        Block { kind, layer, parameters: std::mem::take(&mut self.parameters) }
    }

    /// Adds a parameter of shape `dims` with its first values.
    fn add(&mut self, dims: Vec<usize>, held: Vec<Held>, fill: Fill) -> Result<usize, NormalError> {
        let mut values = Vec::with_capacity(dims.iter().product());
        for held in &held {
            let shard = &held.shard;
            values.extend(match fill {
                Fill::Constant(x) => vec![x; shard.len()],
                fill => shard.take(&init::values(self.spec.seed, &shard.name, shard.whole_len(), fill)?),
            });
        }
        self.parameters.push(Parameter::new(dims, held, values, self.device));
        Ok(self.parameters.len() - 1)
    }

    /// A vector that every tensor-parallel rank has; `summed` where each sees a part of the tokens.
    fn vector(&mut self, name: String, len: usize, value: f32, summed: bool) -> Result<usize, NormalError> {
        let held = Held { shard: Shard::whole(name, [len]), copies: Copies::All, summed };
        self.add(vec![len], vec![held], Fill::Constant(value))
    }

    fn norm(&mut self, name: &str) -> Result<NormPlaces, NormalError> {
        let (h, summed) = (self.spec.hidden(), self.spec.shards_sequence);
        let scale = self.vector(format!("{name}.weight"), h, 1.0, summed)?;
        let shift = (self.spec.shape.normalization == Normalization::LayerNorm)
            .then(|| self.vector(format!("{name}.bias"), h, 0.0, summed))
            .transpose()?;
        Ok(NormPlaces { scale, shift })
    }

    /// A matrix that is split by the vocabulary.
    fn vocabulary(&mut self, name: &str) -> Result<usize, NormalError> {
        let (v, h) = (self.spec.shape.vocab_size as usize, self.spec.hidden());
        let rows = self.spec.vocabulary();
        let dims = vec![rows.len(), h];
        let shard = Shard::cut(name, [v, h], 0, [rows]);
        let held = Held { shard, copies: Copies::None, summed: false };
        self.add(dims, vec![held], Fill::Normal(STD))
    }

    /// A linear layer with its weight in the layout of the kind of model; `layer` is what stands before the names of its
    /// tensors, or the name itself of a row-parallel one.
    fn linear(
        &mut self,
        layer: &str,
        cut: Cut,
        other: usize,
        bias: bool,
        std: f32,
    ) -> Result<LinearPlaces, NormalError> {
        let in_out = self.spec.is_gpt2();
        let shape = |inputs: usize, outputs: usize| if in_out { [inputs, outputs] } else { [outputs, inputs] };
        let (inputs_dim, outputs_dim) = if in_out { (0, 1) } else { (1, 0) };
        let (mut weights, mut biases, mut dims) = (Vec::new(), Vec::new(), [0, 0]);
        match cut {
            Cut::Columns(tensors) => {
                dims[inputs_dim] = other;
                for Columns { name, outputs, ranges, copies } in tensors {
                    let own: usize = ranges.iter().map(ExactSizeIterator::len).sum();
                    dims[outputs_dim] += own;
                    let summed = matches!(copies, Copies::Neighbours(n) if n > 1);
                    let name = format!("{layer}.{name}");
                    let whole = shape(other, outputs);
                    let shard = Shard::cut(format!("{name}.weight"), whole, outputs_dim, ranges.clone());
                    weights.push(Held { shard, copies, summed });
                    let shard = Shard::cut(format!("{name}.bias"), [outputs], 0, ranges);
                    biases.push(Held { shard, copies, summed });
                }
            }
            Cut::Rows(inputs, own) => {
                dims[inputs_dim] = own.len();
                dims[outputs_dim] = other;
                let shard = Shard::cut(format!("{layer}.weight"), shape(inputs, other), inputs_dim, [own]);
                weights.push(Held { shard, copies: Copies::None, summed: false });
                // Added behind the sum over the ranks, of which every rank sees all.
                let shard = Shard::whole(format!("{layer}.bias"), [other]);
                biases.push(Held { shard, copies: Copies::All, summed: false });
            }
        }
        let bias_len: usize = biases.iter().map(|held| held.shard.len()).sum();
        let weight = self.add(dims.to_vec(), weights, Fill::Normal(std))?;
        let bias = bias.then(|| self.add(vec![bias_len], biases, Fill::Constant(0.0))).transpose()?;
        Ok(LinearPlaces { weight, bias })
    }

    /// The block of a layer.
    pub(crate) fn layer(&mut self, index: u32) -> Result<(Block, LayerPlaces), NormalError> {
        let (spec, names) = (self.spec, self.names);
        let shape = &spec.shape;
        let (h, f, d) = (spec.hidden(), shape.ffn_hidden_size as usize, spec.head_dim());
        // Two projections a layer add to the residual stream: their spread keeps its variance from growing with depth.
        let residual = STD / (2.0 * shape.num_layers as f32).sqrt();
        let layer = format!("{}.{index}", names.layers);
        let [first, second] = names.norms.map(|norm| format!("{layer}.{norm}"));
        let norms_0 = self.norm(&first)?;
        let bias = shape.add_bias_linear;
        let projections = self.linear(&layer, self.projections(), h, bias || shape.add_qkv_bias, STD)?;
        let rows = |range: Range<usize>, width: usize| range.start * width..range.end * width;
        let output = format!("{layer}.{}", names.output);
        let heads = shape.num_attention_heads as usize * d;
        let output = self.linear(&output, Cut::Rows(heads, rows(spec.heads(), d)), h, bias, residual)?;
        let norms_1 = self.norm(&second)?;
        let inner = spec.tensor.share(f);
        let columns = |name| Columns { name, outputs: f, ranges: vec![inner.clone()], copies: Copies::None };
        let up = if shape.gated_linear_unit { names.up.map(columns).into() } else { vec![columns(names.up[1])] };
        let up = self.linear(&layer, Cut::Columns(up), h, bias, STD)?;
        let down = format!("{layer}.{}", names.down);
        let down = self.linear(&down, Cut::Rows(f, inner), h, bias, residual)?;
        let places = LayerPlaces { norms: [norms_0, norms_1], projections, output, up, down };
        Ok((self.block(BlockKind::Layer, index), places))
    }

    /// Queries, keys and values: the heads of this rank, of three tensors or of one with three parts.
    fn projections(&self) -> Cut {
        let (spec, d) = (self.spec, self.spec.head_dim());
        let [queries, keys] = [spec.shape.num_attention_heads, spec.shape.num_query_groups].map(|n| n as usize * d);
        let at = |from: usize, heads: Range<usize>| from + heads.start * d..from + heads.end * d;
        let (heads, groups) = (spec.heads(), spec.groups());
        let names = self.names.projections;
        if names[0] == names[1] {
            let ranges = vec![at(0, heads), at(queries, groups.clone()), at(queries + keys, groups)];
            return Cut::Columns(vec![Columns {
                name: names[0],
                outputs: queries + 2 * keys,
                ranges,
                copies: Copies::None,
            }]);
        }
        let sharing = match spec.ranks_per_group() {
            1 => Copies::None,
            ranks => Copies::Neighbours(u32::try_from(ranks).unwrap_or(u32::MAX)),
        };
        let columns =
            |name, outputs, range: Range<usize>, copies| Columns { name, outputs, ranges: vec![range], copies };
        Cut::Columns(vec![
            columns(names[0], queries, at(0, heads), Copies::None),
            columns(names[1], keys, at(0, groups.clone()), sharing),
            columns(names[2], keys, at(0, groups), sharing),
        ])
    }

    /// The block of the embedding; the token embedding is its first parameter.
    pub(crate) fn embedding(&mut self) -> Result<(Block, EmbeddingPlaces), NormalError> {
        self.vocabulary(self.names.embedding)?;
        let shape = [self.spec.shape.max_position_embeddings as usize, self.spec.hidden()];
        let positions = (self.spec.shape.position_embedding == PositionEmbedding::Learned)
            .then(|| {
                let held = Held { shard: Shard::whole(POSITIONS, shape), copies: Copies::All, summed: false };
                self.add(shape.to_vec(), vec![held], Fill::Normal(STD))
            })
            .transpose()?;
        Ok((self.block(BlockKind::Embedding, self.spec.part.layers.start), EmbeddingPlaces { positions }))
    }

    /// The block of the final norm and the head, and where its matrix stands: none where it is the embedding's, on this
    /// very stage.
    pub(crate) fn head(&mut self) -> Result<(Block, NormPlaces, Option<usize>), NormalError> {
        let norm = self.norm(self.names.final_norm)?;
        let own = !(self.spec.is_tied() && self.spec.part.embedding);
        // A tied head on another stage is a copy with the embedding's name and first values.
        let name = if self.spec.is_tied() { self.names.embedding } else { HEAD };
        let weight = own.then(|| self.vocabulary(name)).transpose()?;
        let last = self.spec.part.layers.end.saturating_sub(1);
        Ok((self.block(BlockKind::Head, last), norm, weight))
    }
}
