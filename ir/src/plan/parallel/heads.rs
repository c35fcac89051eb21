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
    if groups != heads && !shares(tensor, groups) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::Mesh;
    use crate::scenario::Scenario;
    use crate::setup::Setup;

    /// The one fault of a model with `heads` and `groups` on a mesh, as `message / help`.
    fn fault(heads: u32, groups: u32, mesh: Mesh, kind: SequenceParallel) -> Option<String> {
        let model = ModelShape { num_query_groups: groups, ..ModelShape::gpt(1, heads * 64, heads, 512, 64) };
        let scenario = Scenario::default();
        let setup = Setup { sequence_parallel: kind, ..Setup::default() };
        let facts = Facts { scenario: &scenario, mesh: &mesh, setup: &setup, cluster: None, model: Some(&model) };
        let mut found = Vec::new();
        faults(&facts, &model, &mut found);
        assert!(found.len() < 2, "{found:?}");
        found.first().map(|fault| format!("{}: {} / {}", fault.path, fault.message, fault.help))
    }

    fn tensor(tensor: u32) -> Mesh {
        Mesh { tensor, ..Mesh::default() }
    }

    #[test]
    fn a4d_28_heads_with_4_key_value_heads_do_not_go_over_8_ranks() {
        let text = fault(28, 4, tensor(8), SequenceParallel::None).unwrap();
        assert!(text.starts_with("parallel.tensor_model_parallel_size"), "{text}");
        assert!(
            text.contains("28 % 8 = 4") && text.contains("use 1, 2, 4;") && text.contains("28 with replication"),
            "{text}"
        );
        for legal in [1, 2, 4, 28] {
            assert_eq!(fault(28, 4, tensor(legal), SequenceParallel::None), None);
        }
        assert!(fault(28, 4, tensor(7), SequenceParallel::None).is_some(), "7 ranks cannot share 4 key-value heads");
    }

    #[test]
    fn a4e_40_heads_with_10_key_value_heads_do_not_go_over_4_ranks() {
        let text = fault(40, 10, tensor(4), SequenceParallel::None).unwrap();
        assert!(text.contains("10 key-value heads: 10 % 4 = 2"), "{text}");
        assert!(text.contains("use 1, 2, 5, 10;") && text.contains("20, 40 with replication"), "{text}");
    }

    #[test]
    fn a4k_ulysses_over_16_ranks_does_not_share_out_40_heads() {
        let mesh = |context, tensor| Mesh { context, tensor, ..Mesh::default() };
        let text = fault(40, 8, mesh(16, 1), SequenceParallel::Ulysses).unwrap();
        assert!(text.contains("40 % 16 = 8") && text.contains("context_parallel_size = 1, 2, 4, 8, 40;"), "{text}");
        for legal in [1, 2, 4, 8, 40] {
            assert_eq!(fault(40, 8, mesh(legal, 1), SequenceParallel::Ulysses), None);
        }
        assert_eq!(fault(40, 8, mesh(16, 1), SequenceParallel::Ring), None, "a ring shares out tokens only");
        let text = fault(64, 8, mesh(16, 8), SequenceParallel::Ulysses).unwrap();
        assert!(text.contains("8 heads and 1 key-value heads of each of 8"), "{text}");
    }
}
