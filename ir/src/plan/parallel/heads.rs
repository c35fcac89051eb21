//! How attention heads are shared out: over tensor-parallel ranks, and by Ulysses over context-parallel ones.
//!
//! One law: a head is never cut. A key-value head may be held by several ranks when there are more ranks than heads.

use super::{CONTEXT, Facts, SEQUENCE_PARALLEL, TENSOR, divisors, list};
use crate::fault::Fault;
use crate::model::ModelShape;
use crate::scenario::SequenceParallel;

/// Whether `n` ranks can share out `heads` key-value heads, whole or replicated.
fn shares(n: u32, heads: u32) -> bool {
    heads.is_multiple_of(n) || n.is_multiple_of(heads.max(1))
}

pub(super) fn faults(facts: &Facts<'_>, model: &ModelShape, faults: &mut Vec<Fault>) {
    let heads = model.num_attention_heads;
    // Latent attention has no key-value heads of its own: every head is made from the compressed ones.
    let groups = if model.latent_attention.is_some() { heads } else { model.num_query_groups };
    let tensor = facts.mesh.tensor;
    if !(heads.is_multiple_of(tensor) && shares(tensor, groups)) {
        faults.push(tensor_fault(tensor, heads, groups));
    }
    let context = facts.mesh.context;
    if facts.setup.sequence_parallel == SequenceParallel::Ulysses && context > 1 && heads.is_multiple_of(tensor) {
        let (heads, groups) = (heads / tensor, (groups / tensor).max(1));
        if !(heads.is_multiple_of(context) && shares(context, groups)) {
            faults.push(ulysses_fault(context, heads, groups, tensor));
        }
    }
}

/// Column-parallel query, key and value give each rank whole heads (Shoeybi et al. 2019, section 3).
fn tensor_fault(tensor: u32, heads: u32, groups: u32) -> Fault {
    let mut wrong = Vec::new();
    if !heads.is_multiple_of(tensor) {
        wrong.push(format!("{heads} attention heads: {heads} % {tensor} = {}", heads % tensor));
    }
    if !shares(tensor, groups) {
        wrong.push(format!("{groups} key-value heads: {groups} % {tensor} = {}", groups % tensor));
    }
    let message = format!("tensor_model_parallel_size {tensor} does not share out {}", wrong.join(", and "));
    let (whole, replicated): (Vec<u32>, Vec<u32>) =
        divisors(heads).into_iter().filter(|t| shares(*t, groups)).partition(|t| groups.is_multiple_of(*t));
    let mut help = format!("use {}", list(whole.into_iter(), tensor));
    if !replicated.is_empty() {
        let more = list(replicated.into_iter(), tensor);
        help.push_str(&format!("; or {more} with replication, several ranks holding the same key-value head"));
    }
    Fault::new(TENSOR, "parallel::heads", message, help)
}

/// An all-to-all trades tokens for heads, so each rank needs whole ones (Jacobs et al. 2023, arXiv:2309.14509).
fn ulysses_fault(context: u32, heads: u32, groups: u32, tensor: u32) -> Fault {
    let mut wrong = Vec::new();
    if !heads.is_multiple_of(context) {
        wrong.push(format!("{heads} % {context} = {}", heads % context));
    }
    if !shares(context, groups) {
        wrong.push(format!("key-value heads {groups} % {context} = {}", groups % context));
    }
    let each = if tensor > 1 { format!(" of each of {tensor} tensor-parallel ranks") } else { String::new() };
    let message = format!(
        "Ulysses over {context} ranks does not share out {heads} heads and {groups} key-value heads{each}: {}",
        wrong.join(", ")
    );
    let legal = list(divisors(heads).into_iter().filter(|n| shares(*n, groups)), context);
    let help = format!("use {CONTEXT} = {legal}; or {SEQUENCE_PARALLEL} = \"ring\", which shares out tokens only");
    Fault::new(CONTEXT, "parallel::ulysses", message, help)
}
