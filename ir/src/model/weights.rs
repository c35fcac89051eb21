//! The weights of a model, tensor by tensor: how large each is and how tensor and expert parallelism split it.
//!
//! One law: parameters and FLOPs are sums over these lists and nothing else, so what is counted is what is listed.

use super::{LatentAttention, MixtureOfExperts, ModelShape, Normalization, PositionEmbedding};

/// How a weight lies on the ranks of a tensor-parallel group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Every rank has all of it.
    Replicated,
    /// Its units are divided: columns of a column-parallel, rows of a row-parallel layer, tokens of the vocabulary.
    Tensor,
}

/// What a tensor-parallel rank's copy of a weight meets in a microbatch. Where that is a part, the gradients of the copies
/// are parts of a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meets {
    /// All tokens.
    Everything,
    /// The tokens of the rank's shard of the sequence under Megatron's sequence parallelism, all of them without it.
    SequenceShard,
    /// What the rank's own heads make of them.
    OwnHeads,
}

/// One weight, or one like it for every expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight {
    /// Its name, as Megatron calls the module.
    pub name: &'static str,
    /// How many experts have one each; `None` for a weight that every token goes through.
    pub experts: Option<u64>,
    /// Units that tensor parallelism divides: heads, inner size of the MLP, tokens.
    pub units: u64,
    /// Numbers of one unit.
    pub width: u64,
    /// How it lies on the ranks.
    pub split: Split,
    /// Whether tokens are multiplied with it: a matrix of `n` numbers costs `2 n` FLOPs a token.
    pub matrix: bool,
    /// What a rank's copy meets, where it has one.
    pub meets: Meets,
}

impl Weight {
    /// Numbers of it in the model.
    pub fn elements(&self) -> u64 {
        self.experts.unwrap_or(1).saturating_mul(self.units.saturating_mul(self.width))
    }

    /// Numbers of it that one token goes through, of `topk` experts.
    pub fn active_elements(&self, topk: u64) -> u64 {
        let copies = self.experts.map_or(1, |experts| experts.min(topk));
        copies.saturating_mul(self.units.saturating_mul(self.width))
    }

    /// Numbers of it on one rank of `tp x ep`, the most of any where they do not divide. A unit is never cut: fewer
    /// key-value heads than ranks stand on several of them.
    pub fn rank_elements(&self, tp: u32, ep: u32) -> u64 {
        let units = match self.split {
            Split::Replicated => self.units,
            Split::Tensor => self.units.div_ceil(u64::from(tp.max(1))),
        };
        let copies = self.experts.map_or(1, |experts| experts.div_ceil(u64::from(ep.max(1))));
        copies.saturating_mul(units.saturating_mul(self.width))
    }

    /// Numbers of it on one of `tp` ranks whose gradient is a part of a sum over ranks: norms where the ranks share out the
    /// sequence, as Megatron's sequence parallelism does (Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2); norms
    /// of queries and keys; key-value heads that several ranks hold, each with query heads of its own.
    pub fn partial_elements(&self, tp: u32, megatron_sequence_parallel: bool) -> u64 {
        let has_copies = match self.split {
            Split::Replicated => tp > 1,
            Split::Tensor => self.units < u64::from(tp),
        };
        let meets_a_part = match self.meets {
            Meets::Everything => false,
            Meets::SequenceShard => megatron_sequence_parallel,
            Meets::OwnHeads => true,
        };
        if has_copies && meets_a_part { self.rank_elements(tp, 1) } else { 0 }
    }
}

/// A column- or row-parallel matrix.
fn split(name: &'static str, units: u32, width: u64) -> Weight {
    Weight {
        name,
        experts: None,
        units: u64::from(units),
        width,
        split: Split::Tensor,
        matrix: true,
        meets: Meets::Everything,
    }
}

/// A matrix that every rank has.
fn replicated(name: &'static str, rows: u64, columns: u64) -> Weight {
    let (units, split, meets) = (rows, Split::Replicated, Meets::Everything);
    Weight { name, experts: None, units, width: columns, split, matrix: true, meets }
}

/// A vector that every rank has: a norm, or the bias of a row-parallel layer, which is added after the sum over ranks.
fn vector(name: &'static str, length: u64) -> Weight {
    Weight { matrix: false, ..replicated(name, 1, length) }
}

/// A bias that is split with its column-parallel matrix.
fn split_bias(name: &'static str, units: u32, width: u64) -> Weight {
    Weight { matrix: false, ..split(name, units, width) }
}

impl ModelShape {
    /// A norm over vectors of `length`, outside the tensor-parallel regions.
    fn norm(&self, name: &'static str, length: u64) -> Weight {
        let vectors = match self.normalization {
            Normalization::LayerNorm => 2,
            Normalization::RmsNorm => 1,
        };
        Weight { meets: Meets::SequenceShard, ..vector(name, vectors * length) }
    }

    /// A norm of the vectors of heads.
    fn norm_of_heads(&self, name: &'static str, length: u64) -> Weight {
        Weight { meets: Meets::OwnHeads, ..self.norm(name, length) }
    }

    /// The weights of one layer, in the order that tokens meet them. Layers differ only in having experts or not
    /// ([`ModelShape::is_moe_layer`]).
    pub fn layer_weights(&self, moe_layer: bool) -> Vec<Weight> {
        let h = u64::from(self.hidden_size);
        let mut weights = vec![self.norm("input_layernorm", h)];
        match &self.latent_attention {
            Some(latent) => self.push_latent_attention(latent, &mut weights),
            None => self.push_attention(&mut weights),
        }
        if self.post_norms {
            weights.push(self.norm("post_self_attn_layernorm", h));
        }
        if !self.shared_norm {
            weights.push(self.norm("pre_mlp_layernorm", h));
        }
        match self.mixture_of_experts.as_ref().filter(|_| moe_layer) {
            Some(moe) => self.push_experts(moe, &mut weights),
            None => self.push_mlp(self.ffn_hidden_size, None, &mut weights),
        }
        if self.post_norms {
            weights.push(self.norm("post_mlp_layernorm", h));
        }
        weights
    }

    /// Grouped-query attention: `A` query heads and `G` key-value heads of `D`.
    fn push_attention(&self, weights: &mut Vec<Weight>) {
        let (h, d) = (u64::from(self.hidden_size), u64::from(self.kv_channels));
        let (heads, groups) = (self.num_attention_heads, self.num_query_groups);
        let of_heads = |weight| Weight { meets: Meets::OwnHeads, ..weight };
        weights.push(split("linear_qkv (query)", heads, d * h));
        weights.push(of_heads(split("linear_qkv (key, value)", groups, 2 * d * h)));
        if self.add_qkv_bias || self.add_bias_linear {
            weights.push(split_bias("linear_qkv.bias (query)", heads, d));
            weights.push(of_heads(split_bias("linear_qkv.bias (key, value)", groups, 2 * d)));
        }
        if self.qk_layernorm {
            weights.push(self.norm_of_heads("q_layernorm", d));
            weights.push(self.norm_of_heads("k_layernorm", d));
        }
        weights.push(split("linear_proj", heads, d * h));
        if self.add_bias_linear {
            weights.push(vector("linear_proj.bias", h));
        }
    }

    /// Multi-head latent attention: the projections down are replicated, those up are split by heads.
    fn push_latent_attention(&self, latent: &LatentAttention, weights: &mut Vec<Weight>) {
        let h = u64::from(self.hidden_size);
        let heads = self.num_attention_heads;
        let [kv, nope, rope, value] =
            [latent.kv_lora_rank, latent.qk_head_dim, latent.qk_pos_emb_head_dim, latent.v_head_dim].map(u64::from);
        match latent.q_lora_rank.map(u64::from) {
            Some(q) => {
                weights.push(replicated("linear_q_down_proj", q, h));
                weights.push(self.norm("q_layernorm", q));
                weights.push(split("linear_q_up_proj", heads, (nope + rope) * q));
            }
            None => weights.push(split("linear_q_proj", heads, (nope + rope) * h)),
        }
        weights.push(replicated("linear_kv_down_proj", kv + rope, h));
        weights.push(self.norm("kv_layernorm", kv));
        weights.push(split("linear_kv_up_proj", heads, (nope + value) * kv));
        weights.push(split("linear_proj", heads, value * h));
        if self.add_bias_linear {
            weights.push(vector("linear_proj.bias", h));
        }
    }

    /// An MLP of inner size `inner`, or one for each of some experts.
    fn push_mlp(&self, inner: u32, experts: Option<u64>, weights: &mut Vec<Weight>) {
        let h = u64::from(self.hidden_size);
        let projections = if self.gated_linear_unit { 2 } else { 1 };
        let mut mlp = vec![split("linear_fc1", inner, projections * h), split("linear_fc2", inner, h)];
        if self.add_bias_linear {
            mlp.push(split_bias("linear_fc1.bias", inner, projections));
            mlp.push(vector("linear_fc2.bias", h));
        }
        weights.extend(mlp.into_iter().map(|weight| Weight { experts, ..weight }));
    }

    fn push_experts(&self, moe: &MixtureOfExperts, weights: &mut Vec<Weight>) {
        let experts = u64::from(moe.num_experts);
        weights.push(replicated("router", experts, u64::from(self.hidden_size)));
        if moe.router_bias {
            weights.push(vector("router.expert_bias", experts));
        }
        self.push_mlp(moe.moe_ffn_hidden_size, Some(experts), weights);
        if moe.moe_shared_expert_intermediate_size > 0 {
            self.push_mlp(moe.moe_shared_expert_intermediate_size, None, weights);
        }
    }

    /// The weights in front of the layers.
    pub fn embedding_weights(&self) -> Vec<Weight> {
        let h = u64::from(self.hidden_size);
        // Looked up, not multiplied.
        let mut weights = vec![Weight { matrix: false, ..split("word_embeddings", self.vocab_size, h) }];
        if self.position_embedding == PositionEmbedding::Learned {
            let positions = u64::from(self.max_position_embeddings);
            weights.push(Weight { matrix: false, ..replicated("position_embeddings", positions, h) });
        }
        if self.embedding_norm {
            weights.push(self.norm("embedding_layernorm", h));
        }
        weights
    }

    /// The final norm.
    pub fn final_norm_weights(&self) -> Vec<Weight> {
        vec![self.norm("final_layernorm", u64::from(self.hidden_size))]
    }

    /// The matrix of the head `[V, H]`: of its own, or a copy of the token embedding.
    pub fn output_weight(&self) -> Weight {
        split("output_layer", self.vocab_size, u64::from(self.hidden_size))
    }

    /// The weights of every kind of block of the model, each kind once.
    pub(crate) fn all_weights(&self) -> Vec<Weight> {
        let kinds = [false, true].into_iter().filter(|experts| !experts || self.mixture_of_experts.is_some());
        let layers = kinds.flat_map(|experts| self.layer_weights(experts));
        self.embedding_weights().into_iter().chain(layers).chain(self.final_norm_weights()).collect()
    }

    /// The weights of one layer of multi-token prediction beside the embedding and head that it shares with the model: two
    /// norms, a projection of `2 H`, a layer of the last kind, a final norm (DeepSeek-V3, arXiv:2412.19437, section 2.2).
    pub fn mtp_weights(&self) -> Vec<Weight> {
        let h = u64::from(self.hidden_size);
        let mut weights = vec![self.norm("enorm", h), self.norm("hnorm", h), split("eh_proj", self.hidden_size, 2 * h)];
        weights.extend(self.layer_weights(self.mixture_of_experts.is_some()));
        weights.push(self.norm("final_layernorm", h));
        weights
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partial(shape: &ModelShape, tp: u32, sequence: bool) -> u64 {
        shape.layer_weights(false).iter().map(|weight| weight.partial_elements(tp, sequence)).sum()
    }

    /// Two LayerNorms of 2 H; a key-value head of 2 D rows of H numbers, with its bias.
    #[test]
    fn gradients_are_parts_for_norms_of_a_shared_sequence_and_for_shared_key_value_heads() {
        let gpt = ModelShape::gpt(2, 64, 8, 128, 32);
        assert_eq!([(1, true), (2, false), (2, true), (8, true)].map(|(t, s)| partial(&gpt, t, s)), [0, 0, 256, 256]);
        let grouped = ModelShape { num_query_groups: 2, ..gpt.clone() };
        let head = 2 * 8 * 64 + 2 * 8;
        assert_eq!([2, 4, 8].map(|t| partial(&grouped, t, false)), [0, head, head]);
        assert_eq!([2, 4, 8].map(|t| partial(&grouped, t, true)), [256, 256 + head, 256 + head]);
        let one =
            ModelShape { normalization: Normalization::RmsNorm, add_bias_linear: false, add_qkv_bias: false, ..gpt };
        assert_eq!(partial(&one, 4, true), 128);
        // Each rank's heads go through the norms of queries and keys, whatever it has of the sequence.
        let normed = ModelShape { qk_layernorm: true, ..one };
        assert_eq!([false, true].map(|s| partial(&normed, 4, s)), [16, 128 + 16]);
    }

    #[test]
    fn latent_attention_shares_no_key_value_heads() {
        let (kv_lora_rank, q_lora_rank) = (16, Some(24));
        let latent =
            LatentAttention { q_lora_rank, kv_lora_rank, qk_head_dim: 8, qk_pos_emb_head_dim: 4, v_head_dim: 8 };
        let shape = ModelShape {
            latent_attention: Some(latent),
            normalization: Normalization::RmsNorm,
            ..ModelShape::gpt(2, 64, 8, 128, 32)
        };
        assert_eq!(partial(&shape, 4, false), 0);
        assert_eq!(partial(&shape, 4, true), 64 + 64 + 24 + 16);
    }
}
