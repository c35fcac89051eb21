//! Which models can be built and trained, and how they may be split.
//!
//! One law: what these checks let through, the forward computes without a panic.

use super::spec::StageSpec;
use crate::kernels::activation::Activation;
use pipewright_ir::model::{ActivationFunction, ModelShape, Normalization, PositionEmbedding, RopeScaling};
use rand_distr::NormalError;

/// Why a part cannot be built.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// A size is 0.
    #[error("{field} is 0: a model needs at least 1")]
    Zero {
        /// The name of the size.
        field: &'static str,
    },
    /// The heads do not share the hidden size evenly.
    #[error("{what} {whole} is not divisible by {field} {parts}")]
    Divisible {
        /// What is divided.
        what: &'static str,
        /// How much there is of it.
        whole: u32,
        /// What it is divided by.
        field: &'static str,
        /// How many parts.
        parts: u32,
    },
    /// The model has something that the executor does not compute.
    #[error("the executor trains models like GPT-2 and Llama, and this one has {what}")]
    Kind {
        /// What it has differently.
        what: &'static str,
    },
    /// The part holds layers the model does not have.
    #[error("a stage holds layers {start} to {end} (exclusive), but the model has num_layers {num_layers}")]
    Layers {
        /// First layer of the part.
        start: u32,
        /// One past its last layer.
        end: u32,
        /// Layers of the model.
        num_layers: u32,
    },
    /// Sequences longer than the learned positions.
    #[error("seq_length {seq_length} is larger than max_position_embeddings {positions}")]
    SequenceLength {
        /// Tokens of a sequence.
        seq_length: u32,
        /// Learned positions.
        positions: u32,
    },
    /// Tokens the model has no embedding for.
    #[error("the data has {tokens} different tokens, but the model's vocab_size is {vocab_size}")]
    Vocabulary {
        /// Tokens of the data.
        tokens: u32,
        /// Vocabulary of the model.
        vocab_size: u32,
    },
    /// The random numbers could not be drawn.
    #[error("cannot draw first values: {0}")]
    Init(#[from] NormalError),
}

/// What the executor does not compute of a model, in words.
fn unlike(shape: &ModelShape) -> Option<&'static str> {
    let rotary = shape.position_embedding == PositionEmbedding::Rope;
    let rms = shape.normalization == Normalization::RmsNorm;
    let found = [
        (shape.latent_attention.is_some(), "multi-head latent attention"),
        (shape.mixture_of_experts.is_some(), "a mixture of experts"),
        (shape.position_embedding == PositionEmbedding::Alibi, "ALiBi positions"),
        (shape.qk_layernorm, "normalised queries and keys"),
        (shape.post_norms, "norms behind attention and MLP"),
        (shape.shared_norm, "attention and MLP side by side"),
        (shape.embedding_norm, "a norm behind the embedding"),
        (shape.position_embedding == PositionEmbedding::Learned && rms, "learned positions beside RMSNorm"),
        (shape.gated_linear_unit && !rms, "a gated MLP beside LayerNorm"),
        (rotary && shape.rotary_dim() != shape.kv_channels, "rotary positions for a part of each head"),
        (
            matches!(shape.numerics.rope_scaling, Some(RopeScaling::Other { .. })),
            "a scaling of rotary positions that is not known",
        ),
    ];
    found.into_iter().find(|(there, _)| *there).map(|(_, what)| what)
}

/// The activation of a model's MLP.
///
/// # Errors
/// [`ModelError::Kind`] for one that is not computed.
pub(super) fn activation(shape: &ModelShape) -> Result<Activation, ModelError> {
    match (&shape.numerics.activation, shape.gated_linear_unit) {
        (ActivationFunction::Gelu, false) => Ok(Activation::Gelu),
        (ActivationFunction::GeluTanh, false) => Ok(Activation::GeluTanh),
        (ActivationFunction::Silu, true) => Ok(Activation::SwiGlu),
        _ => Err(ModelError::Kind { what: "an activation other than GELU, or SiLU in a gated MLP" }),
    }
}

/// Checks that the sizes of a model fit together, and that it is of a kind that the executor computes.
///
/// # Errors
/// [`ModelError::Zero`], [`ModelError::Divisible`], [`ModelError::Kind`].
pub fn check_shape(shape: &ModelShape) -> Result<(), ModelError> {
    let sizes = [
        ("num_layers", shape.num_layers),
        ("hidden_size", shape.hidden_size),
        ("num_attention_heads", shape.num_attention_heads),
        ("num_query_groups", shape.num_query_groups),
        ("kv_channels", shape.kv_channels),
        ("ffn_hidden_size", shape.ffn_hidden_size),
        ("vocab_size", shape.vocab_size),
    ];
    if let Some((field, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
        return Err(ModelError::Zero { field });
    }
    let learned = shape.position_embedding == PositionEmbedding::Learned;
    if learned && shape.max_position_embeddings == 0 {
        return Err(ModelError::Zero { field: "max_position_embeddings" });
    }
    divides("num_attention_heads", shape.num_attention_heads, "num_query_groups", shape.num_query_groups)?;
    if !learned && !shape.kv_channels.is_multiple_of(2) {
        return Err(ModelError::Divisible {
            what: "kv_channels",
            whole: shape.kv_channels,
            field: "rotary halves",
            parts: 2,
        });
    }
    if let Some(what) = unlike(shape) {
        return Err(ModelError::Kind { what });
    }
    activation(shape).map(|_| ())
}

fn divides(what: &'static str, whole: u32, field: &'static str, parts: u32) -> Result<(), ModelError> {
    if whole.is_multiple_of(parts.max(1)) { Ok(()) } else { Err(ModelError::Divisible { what, whole, field, parts }) }
}

/// Checks that a model can be trained on sequences of `seq_length` tokens out of `tokens` different ones. The forward
/// does not check again.
///
/// # Errors
/// [`ModelError::Zero`], [`ModelError::SequenceLength`], [`ModelError::Vocabulary`].
pub fn check_data(shape: &ModelShape, seq_length: u32, tokens: u32) -> Result<(), ModelError> {
    let positions = shape.max_position_embeddings;
    if seq_length == 0 {
        return Err(ModelError::Zero { field: "seq_length" });
    }
    if shape.position_embedding == PositionEmbedding::Learned && seq_length > positions {
        return Err(ModelError::SequenceLength { seq_length, positions });
    }
    if tokens > shape.vocab_size {
        return Err(ModelError::Vocabulary { tokens, vocab_size: shape.vocab_size });
    }
    Ok(())
}

/// Checks that the model has the layers of a part, and that its heads and sequences can be split as they are to be.
///
/// # Errors
/// [`ModelError::Layers`], [`ModelError::Divisible`].
pub(super) fn check_part(spec: &StageSpec) -> Result<(), ModelError> {
    let (shape, layers) = (&spec.shape, spec.part.layers);
    let (start, end, num_layers) = (layers.start, layers.end, shape.num_layers);
    if start > end || end > num_layers {
        return Err(ModelError::Layers { start, end, num_layers });
    }
    let small = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let (tensor, context) = (small(spec.tensor.of), small(spec.context.of));
    divides("num_attention_heads", shape.num_attention_heads, "tensor_model_parallel_size", tensor)?;
    divides("ffn_hidden_size", shape.ffn_hidden_size, "tensor_model_parallel_size", tensor)?;
    either_divides("num_query_groups", shape.num_query_groups, "tensor_model_parallel_size", tensor)?;
    let seq_length = small(spec.seq_length);
    if spec.context.of > 1 {
        if spec.sequence_parallel == pipewright_ir::scenario::SequenceParallel::Ulysses {
            let heads = shape.num_attention_heads / tensor.max(1);
            divides("attention heads of a tensor-parallel rank", heads, "context_parallel_size", context)?;
            let groups = small(spec.groups().len());
            either_divides("key-value heads of a tensor-parallel rank", groups, "context_parallel_size", context)?;
            divides("seq_length", seq_length, "context_parallel_size", context)?;
        } else {
            divides("seq_length", seq_length, "2 x context_parallel_size", context.saturating_mul(2))?;
        }
    }
    if spec.shards_sequence {
        divides(
            "seq_length",
            seq_length,
            "context_parallel_size x tensor_model_parallel_size",
            context.saturating_mul(tensor),
        )?;
    }
    if tensor > shape.vocab_size.div_ceil(shape.vocab_size.div_ceil(tensor.max(1)).max(1)) {
        return Err(ModelError::Divisible {
            what: "vocab_size",
            whole: shape.vocab_size,
            field: "tensor_model_parallel_size",
            parts: tensor,
        });
    }
    Ok(())
}

/// Heads that are shared by ranks, or ranks that share heads.
fn either_divides(what: &'static str, whole: u32, field: &'static str, parts: u32) -> Result<(), ModelError> {
    if parts.is_multiple_of(whole.max(1)) { Ok(()) } else { divides(what, whole, field, parts) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> ModelShape {
        ModelShape {
            ffn_hidden_size: 48,
            untie_embeddings_and_output_weights: true,
            ..ModelShape::gpt(4, 16, 2, 32, 12)
        }
    }

    #[test]
    fn impossible_shapes_are_named() {
        assert_eq!(check_shape(&shape()), Ok(()));
        let error = |shape: ModelShape| check_shape(&shape).unwrap_err().to_string();
        let odd = ModelShape { num_attention_heads: 3, ..shape() };
        assert_eq!(error(odd), "num_attention_heads 3 is not divisible by num_query_groups 2");
        let none = ModelShape { num_attention_heads: 0, ..shape() };
        assert_eq!(error(none), "num_attention_heads is 0: a model needs at least 1");
        assert!(error(ModelShape { vocab_size: 0, ..shape() }).contains("vocab_size is 0"));
        assert!(error(ModelShape { embedding_norm: true, ..shape() }).contains("a norm behind the embedding"));
        assert!(error(ModelShape { gated_linear_unit: true, ..shape() }).contains("a gated MLP beside LayerNorm"));
    }

    #[test]
    fn data_must_fit_the_model() {
        assert_eq!(check_data(&shape(), 12, 32), Ok(()));
        assert!(check_data(&shape(), 13, 32).unwrap_err().to_string().contains("seq_length 13"));
        assert!(check_data(&shape(), 12, 256).unwrap_err().to_string().contains("vocab_size is 32"));
        assert!(check_data(&shape(), 0, 32).is_err());
    }
}
