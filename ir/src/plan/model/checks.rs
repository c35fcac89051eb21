//! What can be wrong with the fields of a model.
//!
//! One law: a check adds faults and changes nothing.

use super::super::nearest_divisors;
use crate::fault::Fault;
use crate::model::RopeScaling;
use crate::scenario::Model;

/// The fields that have no default.
pub(super) fn missing(model: &Model) -> Vec<Fault> {
    let needed = [
        (model.num_layers, "num_layers"),
        (model.hidden_size, "hidden_size"),
        (model.num_attention_heads, "num_attention_heads"),
    ];
    let fault = |(_, key): (Option<u32>, &str)| {
        let help = format!("write model.{key}, or name a model.preset or a model.hf_config");
        Fault::new("model", "model::missing", format!("the model has no {key}"), help)
    };
    needed.into_iter().filter(|(value, _)| value.is_none()).map(fault).collect()
}

/// Sizes that are 0, or so large that they are a slip.
pub(super) fn sizes(model: &Model, seq_length: Option<u32>, faults: &mut Vec<Fault>) {
    for (value, key) in [
        (model.num_layers, "num_layers"),
        (model.hidden_size, "hidden_size"),
        (model.num_attention_heads, "num_attention_heads"),
        (model.num_query_groups.filter(|_| model.num_attention_heads != Some(0)), "num_query_groups"),
        (model.kv_channels, "kv_channels"),
        (model.ffn_hidden_size.filter(|_| model.hidden_size != Some(0)), "ffn_hidden_size"),
        (model.vocab_size, "vocab_size"),
        (model.make_vocab_size_divisible_by, "make_vocab_size_divisible_by"),
        (model.max_position_embeddings, "max_position_embeddings"),
        (model.moe_router_topk, "moe_router_topk"),
        (model.moe_ffn_hidden_size, "moe_ffn_hidden_size"),
        (model.q_lora_rank, "q_lora_rank"),
        (model.kv_lora_rank, "kv_lora_rank"),
        (model.qk_head_dim, "qk_head_dim"),
        (model.v_head_dim, "v_head_dim"),
    ] {
        if value == Some(0) {
            let path = format!("model.{key}");
            faults.push(Fault::new(&path, "model::zero", format!("{path} is 0"), "use 1 or more"));
        }
    }
    for (value, most, path) in [
        (model.num_layers, 100_000, "model.num_layers"),
        (model.hidden_size, 1 << 20, "model.hidden_size"),
        (model.num_attention_heads, 1 << 20, "model.num_attention_heads"),
        (model.kv_channels, 1 << 16, "model.kv_channels"),
        (model.ffn_hidden_size, 1 << 23, "model.ffn_hidden_size"),
        (model.vocab_size, 1 << 24, "model.vocab_size"),
        (model.max_position_embeddings, 1 << 28, "model.max_position_embeddings"),
        (model.num_experts, 1 << 16, "model.num_experts"),
        (model.moe_ffn_hidden_size, 1 << 23, "model.moe_ffn_hidden_size"),
        (model.moe_shared_expert_intermediate_size, 1 << 23, "model.moe_shared_expert_intermediate_size"),
        (model.q_lora_rank, 1 << 20, "model.q_lora_rank"),
        (model.kv_lora_rank, 1 << 20, "model.kv_lora_rank"),
        (model.qk_head_dim, 1 << 16, "model.qk_head_dim"),
        (model.qk_pos_emb_head_dim, 1 << 16, "model.qk_pos_emb_head_dim"),
        (model.v_head_dim, 1 << 16, "model.v_head_dim"),
        (model.mtp_num_layers, 1000, "model.mtp_num_layers"),
        (seq_length, 1 << 26, "training.seq_length"),
    ] {
        if let Some(value) = value.filter(|value| *value > most) {
            let message = format!("{path} is {value}; more than {most} is taken for a slip");
            faults.push(Fault::new(path, "model::size", message, format!("use {most} or less")));
        }
    }
}

/// Heads that do not share the hidden size, groups that do not share the heads.
pub(super) fn heads(model: &Model, faults: &mut Vec<Fault>) {
    let (Some(hidden), Some(heads)) = (model.hidden_size, model.num_attention_heads) else { return };
    let own_size = model.kv_channels.is_some() || model.kv_lora_rank.is_some();
    if let Some(rest) = hidden.checked_rem(heads).filter(|rest| *rest != 0 && !own_size) {
        let message = format!("{heads} attention heads do not divide the hidden size: {hidden} % {heads} = {rest}");
        let help = format!("use {} heads", nearest(hidden, heads));
        faults.push(Fault::new("model.num_attention_heads", "model::heads", message, help));
    }
    let Some(groups) = model.num_query_groups.filter(|groups| *groups > 0) else { return };
    if heads > 0 && !heads.is_multiple_of(groups) {
        let message = format!(
            "{groups} key-value heads do not share {heads} attention heads: {heads} % {groups} = {}",
            heads % groups
        );
        let help = format!("use {} query groups", nearest(heads, groups));
        faults.push(Fault::new("model.num_query_groups", "model::groups", message, help));
    }
}

fn nearest(n: u32, near: u32) -> String {
    let legal: Vec<String> = nearest_divisors(n, near).iter().map(u32::to_string).collect();
    legal.join(" or ")
}

/// Fields of experts without experts, of latent attention without its rank, and experts that are too few.
pub(super) fn parts(model: &Model, faults: &mut Vec<Fault>) {
    let expert_fields = [
        (model.moe_router_topk.is_some(), "moe_router_topk"),
        (model.moe_ffn_hidden_size.is_some(), "moe_ffn_hidden_size"),
        (model.moe_shared_expert_intermediate_size.is_some(), "moe_shared_expert_intermediate_size"),
        (model.first_dense_layers.is_some(), "first_dense_layers"),
        (model.moe_router_enable_expert_bias.is_some(), "moe_router_enable_expert_bias"),
    ];
    let latent_fields = [
        (model.q_lora_rank.is_some(), "q_lora_rank"),
        (model.qk_head_dim.is_some(), "qk_head_dim"),
        (model.qk_pos_emb_head_dim.is_some(), "qk_pos_emb_head_dim"),
        (model.v_head_dim.is_some(), "v_head_dim"),
    ];
    // 0 experts switch those of a preset off, and all that belongs to them.
    let no_experts = model.num_experts.is_none();
    for (fields, absent, key, what) in [
        (&expert_fields[..], no_experts, "num_experts", "a mixture of experts"),
        (&latent_fields[..], model.kv_lora_rank.is_none(), "kv_lora_rank", "latent attention"),
    ] {
        for (_, field) in fields.iter().filter(|(set, _)| *set && absent) {
            let message = format!("model.{field} belongs to {what}, which this model does not have");
            let help = format!("set model.{key}, or take it out");
            faults.push(Fault::new(format!("model.{field}"), "model::part", message, help));
        }
    }
    if model.post_norms == Some(true) && model.shared_norm == Some(true) {
        let message = "one norm cannot serve attention and MLP and four stand around them";
        faults.push(Fault::new("model.shared_norm", "model::norms", message, "keep one of shared_norm and post_norms"));
    }
    if let Some(experts) = model.num_experts.filter(|experts| *experts > 0) {
        let topk = model.moe_router_topk.unwrap_or(2);
        if topk > experts {
            let message = format!("a token cannot go through {topk} of {experts} experts");
            let help = format!("use {experts} or less");
            faults.push(Fault::new("model.moe_router_topk", "model::topk", message, help));
        }
        let (dense, layers) = (model.first_dense_layers.unwrap_or(0), model.num_layers.unwrap_or(0));
        if dense > layers {
            let message = format!("the first {dense} layers cannot be dense: the model has {layers}");
            let help = format!("use {layers} or less");
            faults.push(Fault::new("model.first_dense_layers", "model::dense", message, help));
        }
    }
}

/// Numbers that no norm, rotary position or first weight can have.
pub(super) fn numerics(model: &Model, faults: &mut Vec<Fault>) {
    let mut within = |key: &str, value: Option<f64>, least: f64, most: f64, usual: &str| {
        let Some(value) = value.filter(|value| !(least..=most).contains(value)) else { return };
        let path = format!("model.{key}");
        let message = format!("{path} is {value}; it is from {least} to {most}");
        let nearest = if value < least { least } else { most };
        faults.push(Fault::new(&path, "model::number", message, format!("use {nearest}; {usual} is usual")));
    };
    let number = |value: Option<ordered_float::OrderedFloat<f64>>| value.map(|value| value.0);
    within("layernorm_epsilon", number(model.layernorm_epsilon), 0.0, 1.0, "1e-5");
    within("rotary_base", number(model.rotary_base), 1.0, 1e12, "10000");
    within("rotary_percent", number(model.rotary_percent), 1e-3, 1.0, "1");
    within("initializer_range", number(model.initializer_range), 0.0, 1e3, "0.02");
    let factor = match &model.rope_scaling {
        Some(RopeScaling::Linear { factor } | RopeScaling::Llama3 { factor, .. }) => Some(factor.0),
        Some(RopeScaling::Other { .. }) | None => None,
    };
    within("rope_scaling.factor", factor, 1.0, 1e6, "8");
    let Some(RopeScaling::Llama3 { low_freq_factor: low, high_freq_factor: high, .. }) = &model.rope_scaling else {
        return;
    };
    if !(low.0 > 0.0 && low < high) {
        let message =
            format!("low_freq_factor is {low} and high_freq_factor {high}; the low one is above 0 and below the high");
        let help = "use 1 and 4, as Llama 3.1 has";
        faults.push(Fault::new("model.rope_scaling.low_freq_factor", "model::rope-scaling", message, help));
    }
}
