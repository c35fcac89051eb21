//! Floating-point operations of matrix multiplications: what the model asks for, and what the hardware does when it
//! recomputes.
//!
//! One law: a matrix of `n` numbers costs `2 n` a token forward and twice that backward; attention is not halved for the
//! causal mask; nothing else is counted. (Narayanan et al. 2021, arXiv:2104.04473, appendix; Korthikanti et al. 2022,
//! arXiv:2205.05198, appendix A.) For a GPT a step is `72 B L s h^2 (1 + s / (6 h) + V / (12 h L))`, with whole layers
//! recomputed `96 B L s h^2 (1 + s / (6 h) + V / (16 h L))`.

use super::{ModelShape, StagePart};
use crate::scenario::Recompute;

impl ModelShape {
    /// FLOPs of a token forward in the matrices of one layer, with or without experts: those of the experts it goes to.
    pub fn layer_matrix_flops(&self, moe_layer: bool) -> u64 {
        let topk = self.topk();
        let weights = self.layer_weights(moe_layer);
        let elements = weights.iter().filter(|w| w.matrix).map(|w| w.active_elements(topk));
        elements.fold(0, u64::saturating_add).saturating_mul(2)
    }

    /// FLOPs of a token forward in the core attention of one layer: scores and their product with the values,
    /// `2 s A (D_qk + D_v)`; for a GPT `4 s h`.
    pub fn core_attention_flops(&self, seq: u64) -> u64 {
        let d = u64::from(self.kv_channels);
        let widths = self.latent_attention.as_ref().map_or(2 * d, |latent| {
            [latent.qk_head_dim, latent.qk_pos_emb_head_dim, latent.v_head_dim].map(u64::from).iter().sum()
        });
        (2 * u64::from(self.num_attention_heads) * widths).saturating_mul(seq)
    }

    /// FLOPs of a token forward in the head: `2 h V`.
    pub fn head_flops(&self) -> u64 {
        self.token_embedding_parameters().saturating_mul(2)
    }

    /// FLOPs of a token forward in the layers of a part.
    fn layers_flops(&self, part: StagePart, seq: u64) -> u64 {
        let (dense, moe) = self.layers_of_each_kind(part);
        let attention = self.core_attention_flops(seq);
        let each = |layers: u64, moe_layer| match layers {
            0 => 0,
            _ => layers.saturating_mul(self.layer_matrix_flops(moe_layer).saturating_add(attention)),
        };
        each(dense, false).saturating_add(each(moe, true))
    }

    /// FLOPs of a token forward in a part.
    fn token_flops(&self, part: StagePart, seq: u64) -> u64 {
        let head = if part.head { self.head_flops() } else { 0 };
        self.layers_flops(part, seq).saturating_add(head)
    }

    /// FLOPs of one forward pass of a part over `tokens = B S` tokens of sequences of length `seq`, at most `u64::MAX`: of a
    /// microbatch, as a step of a large model has more. Multi-token prediction is not in it
    /// ([`ModelShape::mtp_forward_flops`]).
    pub fn forward_flops(&self, part: StagePart, tokens: u64, seq: u64) -> u64 {
        tokens.saturating_mul(self.token_flops(part, seq))
    }

    /// FLOPs of one forward pass of multi-token prediction, at most `u64::MAX`: each of its layers is a projection, a layer
    /// and the head.
    pub fn mtp_forward_flops(&self, tokens: u64, seq: u64) -> u64 {
        let topk = self.topk();
        let matrices = self.mtp_weights().into_iter().filter(|w| w.matrix).map(|w| w.active_elements(topk));
        let matrices = matrices.fold(0, u64::saturating_add).saturating_mul(2);
        let token = matrices.saturating_add(self.core_attention_flops(seq)).saturating_add(self.head_flops());
        tokens.saturating_mul(token).saturating_mul(u64::from(self.mtp_num_layers))
    }

    /// Model FLOPs of forward and backward of a part: three times the forward, whatever is recomputed. MFU counts these.
    pub fn model_flops(&self, part: StagePart, tokens: u64, seq: u64) -> u128 {
        (u128::from(tokens) * u128::from(self.token_flops(part, seq))).saturating_mul(3)
    }

    /// FLOPs that are done again for the backward of a part: the core attention of its layers, or its layers whole; never
    /// the head.
    pub fn recompute_flops(&self, part: StagePart, tokens: u64, seq: u64, recompute: Recompute) -> u128 {
        let token = match recompute {
            Recompute::None => 0,
            Recompute::Selective => self.core_attention_flops(seq).saturating_mul(u64::from(part.layers.len())),
            Recompute::Full => self.layers_flops(part, seq),
        };
        u128::from(tokens) * u128::from(token)
    }

    /// Hardware FLOPs of forward and backward of a part: model FLOPs and what is recomputed. HFU counts these. (The HFU of
    /// Korthikanti et al. counts `s / (3 h)` for selective recompute, three forwards of the core attention; one is done.)
    pub fn hardware_flops(&self, part: StagePart, tokens: u64, seq: u64, recompute: Recompute) -> u128 {
        self.model_flops(part, tokens, seq).saturating_add(self.recompute_flops(part, tokens, seq, recompute))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::preset;
    use crate::plan::model_shape;

    /// `72 B L s h^2 (1 + s / (6 h) + V / (12 h L))`, multiplied out: exact in integers.
    fn narayanan(b: u64, l: u64, s: u64, h: u64, v: u64, forwards: u64) -> u128 {
        let [b, l, s, h, v, forwards] = [b, l, s, h, v, forwards].map(u128::from);
        (2 + forwards) * (24 * b * l * s * h * h + 4 * b * l * s * s * h) + 6 * b * s * h * v
    }

    #[test]
    fn a_gpt_has_the_flops_of_the_papers() {
        for (l, h, a) in [(24, 2304, 24), (96, 12288, 96), (105, 20480, 128), (128, 25600, 160)] {
            let gpt = ModelShape::gpt(l, h, a, 51200, 2048);
            let (tokens, seq) = (1536 * 2048, 2048);
            let [l, h] = [l, h].map(u64::from);
            assert_eq!(gpt.model_flops(gpt.whole(), tokens, seq), narayanan(1536, l, 2048, h, 51200, 1));
            let full = gpt.hardware_flops(gpt.whole(), tokens, seq, Recompute::Full);
            assert_eq!(full, narayanan(1536, l, 2048, h, 51200, 2));
            let selective = gpt.recompute_flops(gpt.whole(), tokens, seq, Recompute::Selective);
            assert_eq!(selective, u128::from(4 * 1536 * l * 2048 * 2048 * h));
        }
    }

    #[test]
    fn a_token_of_gpt3_costs_some_six_times_its_parameters() {
        let gpt3 = ModelShape::gpt(96, 12288, 96, 51200, 2048);
        let per_parameter = gpt3.model_flops(gpt3.whole(), 1, 2048) as f64 / gpt3.parameters() as f64;
        assert!((per_parameter - 6.16).abs() < 0.02, "{per_parameter}");
    }

    #[test]
    fn grouped_gated_latent_and_expert_layers_are_sums_of_their_matrices() {
        let shape = |name: &str| model_shape(&preset(name).unwrap(), 1, None).unwrap();
        let llama = shape("llama-3-8b");
        let layer = 2 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 4 * 8192 * 4096;
        assert_eq!(llama.forward_flops(llama.whole(), 1, 8192), 32 * layer + 2 * 4096 * 128_256);
        let mixtral = shape("mixtral-8x7b");
        let layer = 2 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 2 * 3 * 4096 * 14336 + 8 * 4096) + 4 * 4096 * 4096;
        assert_eq!(mixtral.forward_flops(mixtral.whole(), 1, 4096), 32 * layer + 2 * 4096 * 32000);
        let v3 = shape("deepseek-v3");
        assert_eq!(v3.core_attention_flops(4096), 2 * 4096 * 128 * (192 + 128));
        let latent = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168;
        assert_eq!(v3.layer_matrix_flops(false), 2 * (latent + 3 * 7168 * 18432));
        assert_eq!(v3.layer_matrix_flops(true), 2 * (latent + 9 * 3 * 7168 * 2048 + 256 * 7168));
        assert_eq!(
            v3.mtp_forward_flops(1, 4096),
            v3.layer_matrix_flops(true) + v3.core_attention_flops(4096) + v3.head_flops() + 4 * 7168 * 7168
        );
    }

    #[test]
    fn parts_sum_to_the_whole() {
        let gpt = ModelShape::gpt(8, 64, 4, 256, 128);
        let part = |start, end, head: bool| StagePart {
            layers: crate::ids::LayerRange { start, end },
            embedding: !head,
            head,
        };
        let parts = gpt.forward_flops(part(0, 3, false), 128, 64) + gpt.forward_flops(part(3, 8, true), 128, 64);
        assert_eq!(parts, gpt.forward_flops(gpt.whole(), 128, 64));
    }
}
