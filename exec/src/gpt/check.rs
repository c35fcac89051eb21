//! Which GPTs can be built and trained.
//!
//! One law: what these checks let through, the forward computes without a panic.

use pipewright_ir::model::{ModelShape, StagePart};
use rand_distr::NormalError;

/// Why a part cannot be built.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GptError {
    /// A size is 0.
    #[error("{field} is 0: a model needs at least 1")]
    Zero {
        /// The name of the size.
        field: &'static str,
    },
    /// The heads do not share the hidden size evenly.
    #[error("hidden_size {hidden_size} is not divisible by num_attention_heads {heads}")]
    Heads {
        /// Hidden size.
        hidden_size: u32,
        /// Attention heads.
        heads: u32,
    },
    /// The model is not a GPT-2 in all that matters.
    #[error("the executor trains GPT-2's kind of model only, and this one has {what}")]
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

/// Checks that the sizes of a model fit together.
///
/// # Errors
/// [`GptError::Zero`], [`GptError::Heads`], [`GptError::Kind`].
pub fn check_shape(shape: &ModelShape) -> Result<(), GptError> {
    let sizes = [
        ("num_layers", shape.num_layers),
        ("hidden_size", shape.hidden_size),
        ("num_attention_heads", shape.num_attention_heads),
        ("ffn_hidden_size", shape.ffn_hidden_size),
        ("vocab_size", shape.vocab_size),
        ("max_position_embeddings", shape.max_position_embeddings),
    ];
    if let Some((field, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
        return Err(GptError::Zero { field });
    }
    if !shape.hidden_size.is_multiple_of(shape.num_attention_heads) {
        return Err(GptError::Heads { hidden_size: shape.hidden_size, heads: shape.num_attention_heads });
    }
    shape.unlike_gpt().map_or(Ok(()), |what| Err(GptError::Kind { what }))
}

/// Checks that a model can be trained on sequences of `seq_length` tokens out of `tokens` different ones. The forward
/// does not check again.
///
/// # Errors
/// [`GptError::Zero`], [`GptError::SequenceLength`], [`GptError::Vocabulary`].
pub fn check_data(shape: &ModelShape, seq_length: u32, tokens: u32) -> Result<(), GptError> {
    let positions = shape.max_position_embeddings;
    if seq_length == 0 {
        return Err(GptError::Zero { field: "seq_length" });
    }
    if seq_length > positions {
        return Err(GptError::SequenceLength { seq_length, positions });
    }
    if tokens > shape.vocab_size {
        return Err(GptError::Vocabulary { tokens, vocab_size: shape.vocab_size });
    }
    Ok(())
}

/// Checks that the model has the layers of a part.
///
/// # Errors
/// [`GptError::Layers`].
pub(super) fn check_part(shape: &ModelShape, part: StagePart) -> Result<(), GptError> {
    let (start, end) = (part.layers.start, part.layers.end);
    if start > end || end > shape.num_layers {
        return Err(GptError::Layers { start, end, num_layers: shape.num_layers });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pipewright_ir::ids::LayerRange;

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
        assert_eq!(error(odd), "hidden_size 16 is not divisible by num_attention_heads 3");
        let none = ModelShape { num_attention_heads: 0, ..shape() };
        assert_eq!(error(none), "num_attention_heads is 0: a model needs at least 1");
        assert!(error(ModelShape { vocab_size: 0, ..shape() }).contains("vocab_size is 0"));
        assert!(error(ModelShape { gated_linear_unit: true, ..shape() }).contains("a gated MLP (swiglu)"));
    }

    #[test]
    fn parts_must_lie_within_the_model() {
        let part = |start, end| StagePart { layers: LayerRange { start, end }, embedding: false, head: false };
        assert_eq!(check_part(&shape(), part(3, 4)), Ok(()));
        assert!(check_part(&shape(), part(3, 5)).unwrap_err().to_string().contains("layers 3 to 5"));
        assert!(check_part(&shape(), part(3, 2)).is_err());
    }

    #[test]
    fn data_must_fit_the_model() {
        assert_eq!(check_data(&shape(), 12, 32), Ok(()));
        assert!(check_data(&shape(), 13, 32).unwrap_err().to_string().contains("seq_length 13"));
        assert!(check_data(&shape(), 12, 256).unwrap_err().to_string().contains("vocab_size is 32"));
        assert!(check_data(&shape(), 0, 32).is_err());
    }
}
