//! Which ways of splitting a model are legal, and which are worth a word.
//!
//! One law: a rule knows the knob that the user turned, says the division that fails, and the nearest values that are legal.

mod heads;
mod sequence;
mod warnings;

pub(super) use warnings::warnings;

use crate::cluster::Cluster;
use crate::fault::Fault;
use crate::mesh::Mesh;
use crate::model::ModelShape;
use crate::scenario::{Dtype, Scenario};
use crate::setup::Setup;

pub(super) const TENSOR: &str = "parallel.tensor_model_parallel_size";
pub(super) const CONTEXT: &str = "parallel.context_parallel_size";
const EXPERT: &str = "parallel.expert_model_parallel_size";
pub(super) const SEQUENCE_PARALLEL: &str = "parallel.sequence_parallel";

/// What the rules look at; the model where it has no faults of its own.
#[derive(Clone, Copy)]
pub(super) struct Facts<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) mesh: &'a Mesh,
    pub(super) setup: &'a Setup,
    pub(super) cluster: Option<&'a Cluster>,
    pub(super) model: Option<&'a ModelShape>,
}

/// Every fault of the split that does not depend on the schedule.
pub(super) fn faults(facts: &Facts<'_>) -> Vec<Fault> {
    let mut faults = Vec::new();
    if let Some(stage) = facts.scenario.parallel.zero_stage.filter(|stage| *stage > 3) {
        let message = format!("there is no ZeRO stage {stage}");
        faults.push(Fault::new("parallel.zero_stage", "parallel::zero-stage", message, "use 0, 1, 2 or 3"));
    }
    if let Some(model) = facts.model {
        heads::faults(facts, model, &mut faults);
        widths(facts, model, &mut faults);
        experts(facts, model, &mut faults);
    }
    sequence::faults(facts, &mut faults);
    formats(facts, &mut faults);
    faults
}

/// Tensor parallelism cuts the columns of a weight of `size`.
struct Width {
    size: u32,
    what: &'static str,
}

/// The sizes beside the heads that tensor parallelism cuts (Shoeybi et al. 2019, section 3).
fn widths(facts: &Facts<'_>, model: &ModelShape, faults: &mut Vec<Fault>) {
    let tensor = facts.mesh.tensor;
    let mut widths = vec![Width { size: model.ffn_hidden_size, what: "ffn_hidden_size" }];
    widths.push(Width { size: model.vocab_size, what: "vocab_size" });
    if let Some(experts) = model.mixture_of_experts {
        widths.push(Width { size: experts.moe_ffn_hidden_size, what: "moe_ffn_hidden_size" });
        let shared = experts.moe_shared_expert_intermediate_size;
        widths.push(Width { size: shared, what: "moe_shared_expert_intermediate_size" });
    }
    for Width { size, what } in widths {
        if size.is_multiple_of(tensor) {
            continue;
        }
        let message = format!(
            "tensor_model_parallel_size {tensor} does not divide {what} {size}: {size} % {tensor} = {}",
            size % tensor
        );
        let padded = u64::from(size).next_multiple_of(u64::from(tensor));
        let legal = list(divisors(size).into_iter().filter(|t| model.num_attention_heads.is_multiple_of(*t)), tensor);
        let pad = if what == "vocab_size" {
            format!("pad the vocabulary to {padded}, as with make_vocab_size_divisible_by")
        } else {
            format!("use {what} = {padded}")
        };
        faults.push(Fault::new(TENSOR, "parallel::width", message, format!("use {legal}, or {pad}")));
    }
}

/// Experts live on the ranks that data and context parallelism give other tokens.
fn experts(facts: &Facts<'_>, model: &ModelShape, faults: &mut Vec<Fault>) {
    let Mesh { expert, data, context, .. } = *facts.mesh;
    if expert == 1 {
        return;
    }
    let Some(experts) = model.mixture_of_experts else {
        let message = format!("expert_model_parallel_size is {expert}, but the model has no experts");
        faults.push(Fault::new(EXPERT, "parallel::experts", message, "use 1, or leave it out"));
        return;
    };
    let n = experts.num_experts;
    let replicas = u64::from(data) * u64::from(context);
    let legal = || {
        let divides = |e: &u32| replicas.is_multiple_of(u64::from(*e));
        list(divisors(n).into_iter().filter(divides), expert)
    };
    if !n.is_multiple_of(expert) {
        let message =
            format!("expert_model_parallel_size {expert} does not divide {n} experts: {n} % {expert} = {}", n % expert);
        faults.push(Fault::new(EXPERT, "parallel::experts", message, format!("use {}", legal())));
    }
    let rest = replicas % u64::from(expert);
    if rest != 0 {
        let of = if context > 1 { "data * context parallel sizes" } else { "data_parallel_size" };
        let product = if context > 1 { format!("{data}*{context} = {replicas}") } else { replicas.to_string() };
        let message = format!(
            "expert_model_parallel_size {expert} does not divide {of} {product}, on whose ranks experts live: {replicas} % \
             {expert} = {rest}"
        );
        faults.push(Fault::new(EXPERT, "parallel::experts", message, format!("use {}", legal())));
    }
}

/// Number formats that the GPU does not have, or that do not go together.
fn formats(facts: &Facts<'_>, faults: &mut Vec<Fault>) {
    let Setup { dtype, gradient_dtype, .. } = *facts.setup;
    let gpu = facts.cluster.map(|cluster| &cluster.hardware.gpu);
    if let Some(gpu) = gpu.filter(|gpu| gpu.peak_flops.of(dtype).is_none()) {
        let legal: Vec<String> = [Dtype::Bf16, Dtype::Fp16, Dtype::Fp32]
            .into_iter()
            .filter(|dtype| gpu.peak_flops.of(*dtype).is_some())
            .map(|dtype| format!("\"{}\"", dtype.name()))
            .collect();
        let message = format!("{} has no {} arithmetic", gpu.name, dtype.name());
        faults.push(Fault::new("training.dtype", "setup::dtype", message, format!("use {}", legal.join(" or "))));
    }
    if gradient_dtype != dtype && gradient_dtype != Dtype::Fp32 {
        let (weights, gradients) = (dtype.name(), gradient_dtype.name());
        let message = format!("gradients in {gradients} do not go with weights in {weights}");
        let help =
            if dtype == Dtype::Fp32 { "use \"fp32\"".to_owned() } else { format!("use \"{weights}\" or \"fp32\"") };
        faults.push(Fault::new("training.gradient_dtype", "setup::gradient-dtype", message, help));
    }
}

/// A list of recomputation has one entry a stage.
pub(super) fn recompute_fault(setup: &Setup, stages: u32) -> Option<Fault> {
    let entries = setup.recompute.len();
    if entries == 1 || entries == stages as usize {
        return None;
    }
    let message = format!("recompute has {entries} entries for {stages} stages");
    let help = format!("write {stages} of \"none\", \"selective\" and \"full\", or one word for all");
    Some(Fault::new("training.recompute", "setup::recompute", message, help))
}

/// The divisors of `n`, the smallest first.
pub(super) fn divisors(n: u32) -> Vec<u32> {
    let root = n.isqrt();
    let small: Vec<u32> = (1..=root).filter(|d| n.is_multiple_of(*d)).collect();
    let large: Vec<u32> = small.iter().rev().map(|d| n / d).filter(|d| *d > root).collect();
    [small, large].concat()
}

/// Most legal values that are listed.
const LISTED: usize = 12;

/// Legal values in words: all of them where they are few, else those around `near`.
pub(super) fn list(legal: impl Iterator<Item = u32>, near: u32) -> String {
    let mut legal: Vec<u32> = legal.collect();
    legal.sort_unstable();
    let from = legal.partition_point(|n| *n < near).saturating_sub(LISTED / 2);
    let from = from.min(legal.len().saturating_sub(LISTED));
    let shown: Vec<String> = legal.iter().skip(from).take(LISTED).map(u32::to_string).collect();
    shown.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisors_come_in_order_and_once() {
        assert_eq!(divisors(36), [1, 2, 3, 4, 6, 9, 12, 18, 36]);
        assert_eq!(divisors(28), [1, 2, 4, 7, 14, 28]);
        assert_eq!(divisors(1), [1]);
        assert_eq!(divisors(u32::MAX).last(), Some(&u32::MAX));
        assert_eq!(list(divisors(28).into_iter(), 8), "1, 2, 4, 7, 14, 28");
        assert_eq!(list(1..1000, 500), "494, 495, 496, 497, 498, 499, 500, 501, 502, 503, 504, 505");
    }
}
