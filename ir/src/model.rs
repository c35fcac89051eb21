//! The shape of a GPT: how many parameters, floating-point operations and bytes a run of its layers has.
//!
//! One law: every count here is exact integer arithmetic over the shape, so that the executor's real tensors can be
//! checked against it.

use crate::ids::LayerRange;

/// A decoder-only GPT: learned positions, pre-LayerNorm, causal attention, GELU MLP, biases on every linear layer
/// but the head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelShape {
    /// Transformer layers.
    pub num_layers: u32,
    /// Hidden size `H`.
    pub hidden_size: u32,
    /// Attention heads `A`; divides `H`.
    pub num_attention_heads: u32,
    /// Inner size of the MLP, usually `4 H`.
    pub ffn_hidden_size: u32,
    /// Vocabulary size `V`.
    pub vocab_size: u32,
    /// Longest sequence the learned positions cover.
    pub max_position_embeddings: u32,
    /// True when the output head has a weight of its own, false when it shares the token embedding (Megatron's name).
    pub untie_embeddings_and_output_weights: bool,
}

/// Which part of the model a stage holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagePart {
    /// Transformer layers of the stage.
    pub layers: LayerRange,
    /// Whether the token and position embeddings are here (the first stage).
    pub embedding: bool,
    /// Whether the final LayerNorm, the head and the loss are here (the last stage).
    pub head: bool,
}

impl ModelShape {
    /// Parameters of one transformer layer: `4 H^2 + 2 H F + 9 H + F` (with `F = 4 H`: `12 H^2 + 13 H`).
    pub fn layer_parameters(&self) -> u64 {
        let (h, f) = (u64::from(self.hidden_size), u64::from(self.ffn_hidden_size));
        let attention = 4 * h * h + 4 * h;
        let mlp = 2 * h * f + f + h;
        attention + mlp + 4 * h
    }

    /// Parameters of the token embedding: `V H`.
    pub fn token_embedding_parameters(&self) -> u64 {
        u64::from(self.vocab_size) * u64::from(self.hidden_size)
    }

    /// Parameters of the whole model, a tied weight counted once.
    pub fn parameters(&self) -> u64 {
        let whole = StagePart { layers: LayerRange { start: 0, end: self.num_layers }, embedding: true, head: true };
        self.part_parameters(whole)
    }

    /// Parameters of a part of the model. A tied head that stands apart from the embedding is a copy and counted; on
    /// the embedding's own stage it is not.
    pub fn part_parameters(&self, part: StagePart) -> u64 {
        let h = u64::from(self.hidden_size);
        let mut n = u64::from(part.layers.len()) * self.layer_parameters();
        if part.embedding {
            n += self.token_embedding_parameters() + u64::from(self.max_position_embeddings) * h;
        }
        if part.head {
            n += 2 * h;
            if self.untie_embeddings_and_output_weights || !part.embedding {
                n += self.token_embedding_parameters();
            }
        }
        n
    }

    /// Matrix-multiply FLOPs of one forward pass over `tokens = B S` tokens of sequences of length `seq`:
    /// `2 (4 H^2 + 2 H F)` a token and layer for the linear layers, `4 S H` for attention (not halved for the causal
    /// mask), `2 H V` for the head. At most `u64::MAX`. Backward is twice that (Narayanan et al. 2021, appendix).
    pub fn forward_flops(&self, part: StagePart, tokens: u64, seq: u64) -> u64 {
        let (h, f) = (u64::from(self.hidden_size), u64::from(self.ffn_hidden_size));
        let layer = 2 * (4 * h * h + 2 * h * f) + 4 * seq * h;
        let head = if part.head { 2 * self.token_embedding_parameters() } else { 0 };
        tokens.saturating_mul(u64::from(part.layers.len()).saturating_mul(layer).saturating_add(head))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpt2_has_its_published_size() {
        let gpt2 = ModelShape {
            num_layers: 12,
            hidden_size: 768,
            num_attention_heads: 12,
            ffn_hidden_size: 3072,
            vocab_size: 50257,
            max_position_embeddings: 1024,
            untie_embeddings_and_output_weights: false,
        };
        assert_eq!(gpt2.parameters(), 124_439_808);
        let first = StagePart { layers: LayerRange { start: 0, end: 6 }, embedding: true, head: false };
        let last = StagePart { layers: LayerRange { start: 6, end: 12 }, embedding: false, head: true };
        let copies = gpt2.part_parameters(first) + gpt2.part_parameters(last);
        assert_eq!(copies, gpt2.parameters() + gpt2.token_embedding_parameters());
    }
}
