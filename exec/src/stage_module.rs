//! What the executor needs to know of a model: the part of it that one stage holds.
//!
//! One law: a stage's forward is a chain `embed -> forward -> loss` over plain data; whatever runs between two stages
//! (sends, receives, collectives) is not the model's business.
//!
//! A microbatch comes whole or in slices of its sequences. Slices go through a stage in order, and back in the opposite
//! order; what they know of each other is in a [`StageModule::Cache`], one for each microbatch.
//!
//! Shapes: `B` sequences, `S` tokens each (of a slice, its tokens), `H` hidden size.

use crate::autodiff::AutodiffError;
use burn::module::{Module, ParamId};
use burn::tensor::{Int, Tensor};

/// The part of a model that one stage holds.
pub trait StageModule: Module + Sync + 'static {
    /// What the stage keeps of the slices of one microbatch that went forward: keys and values in attention. `()` where
    /// the tokens of a sequence do not see each other.
    type Cache: Default;

    /// Tokens `[B, S]`, the first of them at position `start` of the sequence, to hidden states `[B, S, H]`; called on
    /// the first stage only.
    fn embed(&self, tokens: Tensor<2, Int>, start: usize) -> Tensor<3>;

    /// Hidden states `[B, S, H]` to hidden states `[B, S, H]` through the stage's layers; the final norm and the head
    /// are not among them.
    fn forward(&self, hidden: Tensor<3>) -> Tensor<3>;

    /// As [`StageModule::forward`], for the next slice of the microbatch whose earlier slices are in `cache`. The tape
    /// of the answer goes from `hidden` to the answer; what the backward of a slice puts on earlier ones goes through
    /// the cache.
    ///
    /// # Errors
    /// When a slice cannot be put on a tape.
    fn forward_slice(&self, hidden: Tensor<3>, cache: &mut Self::Cache) -> Result<Tensor<3>, AutodiffError>;

    /// Hidden states `[B, S, H]` and targets `[B, S]` to the sum of the token losses, `[1]`; called on the last stage
    /// only. A sum and not a mean, so that the cut into microbatches does not matter; the step divides by its tokens.
    fn loss(&self, hidden: Tensor<3>, targets: Tensor<2, Int>) -> Tensor<1>;

    /// Every parameter of the part, once, with its Hugging Face name, in the fixed order of a module visit. A weight
    /// that stands on two stages (a tied embedding) has one name and two ids.
    fn parameter_names(&self) -> Vec<(ParamId, String)>;
}
