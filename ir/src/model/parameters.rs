//! Counts of parameters: of the model, of a token, of a stage, of a rank.
//!
//! One law: every count is a sum over the listed [weights](super::weights); a norm's weights are parameters, buffers are
//! not, multi-token prediction is counted apart.

use super::{ModelShape, StagePart, Weight};

fn sum(weights: &[Weight], count: impl Fn(&Weight) -> u64) -> u64 {
    weights.iter().map(count).fold(0, u64::saturating_add)
}

impl ModelShape {
    /// Sums `count` over the weights of a part. A tied head that stands apart from the embedding is a copy and counted; on
    /// the embedding's own stage it is not.
    pub(crate) fn sum_part(&self, part: StagePart, count: impl Fn(&Weight) -> u64) -> u64 {
        let (dense, moe) = self.layers_of_each_kind(part);
        let mut total: u64 = 0;
        for (layers, moe_layer) in [(dense, false), (moe, true)] {
            if layers > 0 {
                total = total.saturating_add(layers.saturating_mul(sum(&self.layer_weights(moe_layer), &count)));
            }
        }
        if part.embedding {
            total = total.saturating_add(sum(&self.embedding_weights(), &count));
        }
        if part.head {
            total = total.saturating_add(sum(&self.final_norm_weights(), &count));
            if self.untie_embeddings_and_output_weights || !part.embedding {
                total = total.saturating_add(count(&self.output_weight()));
            }
        }
        total
    }

    /// Experts that a token goes through.
    pub(crate) fn topk(&self) -> u64 {
        self.mixture_of_experts.as_ref().map_or(1, |moe| u64::from(moe.moe_router_topk))
    }

    /// Parameters of one transformer layer. A GPT has `4 H^2 + 2 H F + 9 H + F` (with `F = 4 H`: `12 H^2 + 13 H`), a Llama
    /// `2 H A D + 2 H G D + 3 H F + 2 H`.
    pub fn layer_parameters(&self, layer: u32) -> u64 {
        sum(&self.layer_weights(self.is_moe_layer(layer)), Weight::elements)
    }

    /// Parameters of the token embedding: `V H`.
    pub fn token_embedding_parameters(&self) -> u64 {
        self.output_weight().elements()
    }

    /// Parameters of the whole model, a tied weight counted once, multi-token prediction not counted.
    pub fn parameters(&self) -> u64 {
        self.part_parameters(self.whole())
    }

    /// Parameters that one token goes through: all but those of the experts that it is not sent to.
    pub fn active_parameters(&self) -> u64 {
        let topk = self.topk();
        self.sum_part(self.whole(), |weight| weight.active_elements(topk))
    }

    /// Parameters of multi-token prediction beside the model, without the embedding and head that it shares.
    pub fn mtp_parameters(&self) -> u64 {
        u64::from(self.mtp_num_layers).saturating_mul(sum(&self.mtp_weights(), Weight::elements))
    }

    /// Parameters of a part of the model. A tied head that stands apart from the embedding is a copy and counted; on
    /// the embedding's own stage it is not.
    pub fn part_parameters(&self, part: StagePart) -> u64 {
        self.sum_part(part, Weight::elements)
    }

    /// Parameters of a part on one of its `tp` tensor-parallel and `ep` expert-parallel ranks, the most of any where sizes
    /// do not divide. Split are the matrices and the biases of column-parallel layers; every rank has all norms, learned
    /// positions, routers, biases of row-parallel layers, and key-value heads that are fewer than the ranks
    /// (Shoeybi et al. 2019, arXiv:1909.08053, section 3). Tensor parallelism splits every expert too.
    pub fn rank_parameters(&self, part: StagePart, tp: u32, ep: u32) -> u64 {
        self.sum_part(part, |weight| weight.rank_elements(tp, ep))
    }

    /// Rows of the query-key-value projection on one of `tp` ranks: `(A / t + 2 ceil(G / t)) D`.
    pub fn rank_qkv_rows(&self, tp: u32) -> u64 {
        let tp = tp.max(1);
        let heads =
            u64::from(self.num_attention_heads.div_ceil(tp)) + 2 * u64::from(self.num_query_groups.div_ceil(tp));
        heads * u64::from(self.kv_channels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::LayerRange;
    use crate::model::preset;
    use crate::plan::model_shape;

    fn shape(name: &str) -> ModelShape {
        model_shape(&preset(name).unwrap(), 1, None).unwrap()
    }

    #[test]
    fn gpt2_has_its_published_size() {
        let gpt2 = ModelShape::gpt(12, 768, 12, 50257, 1024);
        assert_eq!(gpt2.parameters(), 124_439_808);
        let first = StagePart { layers: LayerRange { start: 0, end: 6 }, embedding: true, head: false };
        let last = StagePart { layers: LayerRange { start: 6, end: 12 }, embedding: false, head: true };
        let copies = gpt2.part_parameters(first) + gpt2.part_parameters(last);
        assert_eq!(copies, gpt2.parameters() + gpt2.token_embedding_parameters());
    }

    #[test]
    fn ranks_share_matrices_and_repeat_norms() {
        let gpt = ModelShape::gpt(1, 16, 4, 32, 8);
        let layer = StagePart { layers: LayerRange { start: 0, end: 1 }, embedding: false, head: false };
        // 12 H^2, 3 H + F of the column-parallel biases; 2 H of the row-parallel ones and 4 H of the norms.
        assert_eq!(gpt.part_parameters(layer), 12 * 256 + 7 * 16 + 6 * 16);
        assert_eq!(gpt.rank_parameters(layer, 4, 1), (12 * 256 + 7 * 16) / 4 + 6 * 16);
        // 512 of the tokens and 16 of the final norm's 32 and the positions' 128 are all that is left.
        assert_eq!(gpt.rank_parameters(gpt.whole(), 4, 1), gpt.rank_parameters(layer, 4, 1) + 512 / 4 + 128 + 32);
    }

    #[test]
    fn key_value_heads_fewer_than_ranks_are_repeated() {
        let llama = shape("llama-3-70b");
        assert_eq!(llama.rank_qkv_rows(8), 1280, "A12.5");
        assert_eq!(llama.rank_qkv_rows(16), (4 + 2) * 128, "one key-value head on two ranks");
        let layer = StagePart { layers: LayerRange { start: 0, end: 1 }, embedding: false, head: false };
        let (h, f, d) = (8192, 28672, 128);
        let at = |tp: u64| h * d * (64 / tp) * 2 + 2 * h * d * 8_u64.div_ceil(tp) + 3 * h * f / tp + 2 * h;
        assert_eq!(llama.rank_parameters(layer, 8, 1), at(8));
        assert_eq!(llama.rank_parameters(layer, 16, 1), at(16));
    }

    #[test]
    fn experts_lie_on_expert_ranks_and_all_else_on_each() {
        let mixtral = shape("mixtral-8x7b");
        let experts = 32 * 8 * 3 * 4096 * 14336_u64;
        assert_eq!(mixtral.rank_parameters(mixtral.whole(), 1, 8), mixtral.parameters() - experts / 8 * 7);
        assert_eq!(mixtral.active_parameters(), mixtral.parameters() - experts / 8 * 6);
    }

    #[test]
    fn layers_of_a_part_are_counted_by_their_kind() {
        let v3 = shape("deepseek-v3");
        let part = |start, end| StagePart { layers: LayerRange { start, end }, embedding: false, head: false };
        let sum: u64 = (0..61).map(|layer| v3.part_parameters(part(layer, layer + 1))).sum();
        assert_eq!(v3.part_parameters(part(0, 61)), sum);
        assert_eq!(v3.part_parameters(part(2, 4)), v3.layer_parameters(0) + v3.layer_parameters(60));
        assert!(v3.layer_parameters(2) < v3.layer_parameters(3));
    }
}
