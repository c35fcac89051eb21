//! A shape in words, for titles and for telling jobs apart.
//!
//! One law: two shapes that differ in more than their numerics, which cost nothing, are described differently.

use super::{ModelShape, Normalization, PositionEmbedding};

impl ModelShape {
    /// The shape in words.
    pub fn describe(&self) -> String {
        let Self { num_layers, hidden_size, num_attention_heads, ffn_hidden_size, vocab_size, .. } = self;
        let kind = if self.is_gpt() { "GPT" } else { "transformer" };
        let mut text = format!("{kind} of {num_layers} layers, hidden {hidden_size}, {num_attention_heads} heads");
        if !self.is_gpt() {
            text.push_str(&self.unusual_attention());
        }
        text.push_str(&format!(", ffn {ffn_hidden_size}"));
        if self.gated_linear_unit {
            text.push_str(" gated");
        }
        if let Some(moe) = &self.mixture_of_experts {
            text.push_str(&format!(
                ", {} experts of {} from layer {} on, {} a token, shared {}",
                moe.num_experts,
                moe.moe_ffn_hidden_size,
                moe.first_dense_layers,
                moe.moe_router_topk,
                moe.moe_shared_expert_intermediate_size
            ));
            text.push_str(if moe.router_bias { ", router with bias" } else { "" });
        }
        let positions = match self.position_embedding {
            PositionEmbedding::Learned => "positions",
            PositionEmbedding::Rope => "rotary positions",
            PositionEmbedding::Alibi => "ALiBi positions",
        };
        text.push_str(&format!(", vocabulary {vocab_size}, {} {positions}", self.max_position_embeddings));
        for (is, what) in [
            (self.normalization == Normalization::RmsNorm, "RMSNorm"),
            (!self.add_bias_linear && !self.add_qkv_bias, "no biases"),
            (!self.add_bias_linear && self.add_qkv_bias, "biases of QKV only"),
            (self.qk_layernorm, "norms of queries and keys"),
            (self.post_norms, "norms behind attention and MLP"),
            (self.shared_norm, "one norm a layer"),
            (self.embedding_norm, "norm of the embedding"),
        ] {
            if is {
                text.push_str(", ");
                text.push_str(what);
            }
        }
        if self.mtp_num_layers > 0 {
            text.push_str(&format!(", {} layers of multi-token prediction", self.mtp_num_layers));
        }
        text.push_str(if self.untie_embeddings_and_output_weights { ", untied head" } else { ", tied head" });
        text
    }

    fn unusual_attention(&self) -> String {
        match &self.latent_attention {
            Some(latent) => {
                let queries = latent.q_lora_rank.map_or_else(|| "full".to_owned(), |rank| format!("rank {rank}"));
                format!(
                    " of {}+{} and {} (latent: queries {queries}, keys and values rank {})",
                    latent.qk_head_dim, latent.qk_pos_emb_head_dim, latent.v_head_dim, latent.kv_lora_rank
                )
            }
            None => format!(" of {} ({} for keys and values)", self.kv_channels, self.num_query_groups),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpt_is_described_as_ever() {
        let text = ModelShape::gpt(8, 256, 8, 256, 128).describe();
        let expected = "GPT of 8 layers, hidden 256, 8 heads, ffn 1024, vocabulary 256, 128 positions, tied head";
        assert_eq!(text, expected, "measured costs are found by this text");
    }

    #[test]
    fn what_differs_is_said() {
        let gpt = ModelShape::gpt(8, 256, 8, 256, 128);
        let others = [
            ModelShape { num_query_groups: 2, ..gpt.clone() },
            ModelShape { kv_channels: 64, ..gpt.clone() },
            ModelShape { gated_linear_unit: true, ..gpt.clone() },
            ModelShape { normalization: Normalization::RmsNorm, ..gpt.clone() },
            ModelShape { position_embedding: PositionEmbedding::Rope, ..gpt.clone() },
            ModelShape { position_embedding: PositionEmbedding::Alibi, ..gpt.clone() },
            ModelShape { add_bias_linear: false, ..gpt.clone() },
            ModelShape { add_bias_linear: false, add_qkv_bias: false, ..gpt.clone() },
            ModelShape { qk_layernorm: true, ..gpt.clone() },
            ModelShape { post_norms: true, ..gpt.clone() },
            ModelShape { shared_norm: true, ..gpt.clone() },
            ModelShape { embedding_norm: true, ..gpt.clone() },
            ModelShape { mtp_num_layers: 1, ..gpt.clone() },
            gpt,
        ];
        let mut texts: Vec<String> = others.iter().map(ModelShape::describe).collect();
        texts.sort();
        texts.dedup();
        assert_eq!(texts.len(), others.len());
    }
}
