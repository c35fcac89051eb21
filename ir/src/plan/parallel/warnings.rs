//! Splits that are legal, but hardly what one wants.
//!
//! One law: a warning says what it costs, or why it changes nothing, and what to do instead.

use super::Facts;
use crate::mesh::{Axis, Group, Mesh};
use crate::plan::Batch;
use crate::scenario::{Attention, CostModelName, Recompute};
use crate::setup::Setup;

/// What is worth a word about the split, for a schedule on `ranks` pipeline ranks.
pub(in crate::plan) fn warnings(facts: &Facts<'_>, batch: &Batch, ranks: u32) -> Vec<String> {
    let mut warnings = Vec::new();
    zero(facts, batch, ranks, &mut warnings);
    kernels(facts, &mut warnings);
    overlaps(facts, &mut warnings);
    nodes(facts, &mut warnings);
    replicated_heads(facts, &mut warnings);
    layout(facts, &mut warnings);
    not_predicted(facts, &mut warnings);
    warnings
}

fn zero(facts: &Facts<'_>, batch: &Batch, ranks: u32, warnings: &mut Vec<String>) {
    let stage = facts.setup.zero_stage;
    if stage >= 2 && ranks > 1 {
        let m = batch.microbatches.saturating_mul(batch.rounds);
        warnings.push(format!(
            "ZeRO 2 and 3 shard gradients that a pipeline accumulates over all its microbatches, here {m}: each would have \
             to be reduced and gathered again for every microbatch; use ZeRO 1 with pipeline parallelism"
        ));
    }
    if stage > 0 && facts.mesh.group_size(Group::DataContext) == 1 {
        warnings.push(format!("ZeRO {stage} shards over the replicas, and there is one: it changes nothing"));
    }
}

fn kernels(facts: &Facts<'_>, warnings: &mut Vec<String>) {
    let Setup { attention, recompute, dtype, .. } = facts.setup;
    if *attention == Attention::Flash && recompute.contains(&Recompute::Selective) {
        warnings.push(
            "selective recomputation saves the s x s matrices of attention, and flash attention keeps none: with both it \
             changes nothing"
                .to_owned(),
        );
    }
    if let Some(gpu) = facts.cluster.map(|cluster| &cluster.hardware.gpu) {
        if *attention == Attention::Flash && !gpu.has_flash_attention() {
            warnings.push(format!(
                "FlashAttention runs on Ampere and newer, not on {}: what is predicted for it cannot be had there; use \
                 \"standard\"",
                gpu.name
            ));
        }
        if gpu.peak_flops.of(*dtype).is_some_and(|peak| peak <= gpu.peak_flops.fp32.value)
            && (gpu.peak_flops.bf16.is_some() || gpu.peak_flops.fp16.is_some())
        {
            warnings.push(format!("{} leaves the tensor cores of {} unused", dtype.name(), gpu.name));
        }
    }
}

fn overlaps(facts: &Facts<'_>, warnings: &mut Vec<String>) {
    // What is on by the habit of the cluster's software needs no word.
    let (setup, mesh, written) = (facts.setup, facts.mesh, &facts.scenario.training);
    let without_sharding = !(setup.megatron_sequence_parallel && mesh.tensor > 1);
    for (on, missing, knob, needs) in [
        (written.overlap_param_gather, setup.zero_stage == 0, "overlap_param_gather", "ZeRO 1 or more"),
        (written.tp_comm_overlap, without_sharding, "tp_comm_overlap", "Megatron's sequence parallelism"),
        (
            written.overlap_grad_reduce,
            mesh.group_size(Group::DataContext) == 1,
            "overlap_grad_reduce",
            "more than one replica",
        ),
    ] {
        if on == Some(true) && missing {
            warnings.push(format!("training.{knob} needs {needs} and changes nothing here"));
        }
    }
}

fn nodes(facts: &Facts<'_>, warnings: &mut Vec<String>) {
    let Some(cluster) = facts.cluster.filter(|_| facts.mesh.devices() <= Mesh::MAX_DEVICES) else { return };
    let (mesh, node) = (facts.mesh, cluster.gpus_per_node());
    let tensor = mesh.crossing(Group::Along(Axis::Tensor), node);
    if tensor.crossing > 0 {
        let gigabytes = |bandwidth: f64| bandwidth / 1e9;
        let all = if tensor.crossing == tensor.groups {
            String::new()
        } else {
            format!(" ({} of {})", tensor.crossing, tensor.groups)
        };
        warnings.push(format!(
            "tensor-parallel groups of {} reach over {} nodes of {node} GPUs{all}: their messages, several a layer, go at \
             {:.1} GB/s a GPU over {} and not at {:.0} over {}; use a size of {node} or less that divides {node}, with tp \
             innermost in the order",
            mesh.tensor,
            tensor.nodes,
            gigabytes(cluster.inter_node_share()),
            cluster.hardware.inter_node.kind,
            gigabytes(cluster.hardware.intra_node.bandwidth.value),
            cluster.hardware.intra_node.kind.name(),
        ));
    }
}

fn replicated_heads(facts: &Facts<'_>, warnings: &mut Vec<String>) {
    let Some(model) = facts.model.filter(|model| model.latent_attention.is_none()) else { return };
    let (tensor, groups) = (facts.mesh.tensor, model.num_query_groups);
    if tensor > groups && groups > 0 {
        warnings.push(format!(
            "{tensor} tensor-parallel ranks share {groups} key-value heads: each head is on {} ranks, weights and work alike",
            tensor / groups
        ));
    }
}

fn layout(facts: &Facts<'_>, warnings: &mut Vec<String>) {
    let parallel = &facts.scenario.parallel;
    for (on, knob) in [
        (parallel.account_for_embedding_in_pipeline_split, "account_for_embedding_in_pipeline_split"),
        (parallel.account_for_loss_in_pipeline_split, "account_for_loss_in_pipeline_split"),
    ] {
        if on == Some(true) && parallel.layout.is_some() {
            warnings.push(format!("parallel.{knob} is for the default layout and changes nothing beside a layout"));
        }
    }
}

/// Abstract and measured costs are those of one pipeline: they know no mesh.
fn not_predicted(facts: &Facts<'_>, warnings: &mut Vec<String>) {
    let scenario = facts.scenario;
    let costs = scenario.costs.as_ref().map(|costs| costs.model);
    // What is executed is all of it.
    if scenario.execute.is_some() {
        return;
    }
    if facts.cluster.is_some() && costs.is_none_or(|model| model == CostModelName::Analytic) {
        return;
    }
    let why = match costs {
        Some(CostModelName::Unit) => "under unit costs",
        Some(CostModelName::Table) => "under measured costs",
        Some(CostModelName::Analytic) | None => "without a cluster",
    };
    let Mesh { tensor, data, context, expert, .. } = *facts.mesh;
    let (parallel, training) = (&scenario.parallel, &scenario.training);
    for (size, what) in [
        (tensor, "tensor parallelism"),
        (context, "context parallelism"),
        (data, "data parallelism"),
        (expert, "expert parallelism"),
    ] {
        if size > 1 {
            warnings.push(format!(
                "{what} over {size} ranks shapes the plan, but {why} its communication is not predicted: one pipeline is shown"
            ));
        }
    }
    let some = |recompute: &Recompute| *recompute != Recompute::None;
    for (set, knob) in [
        (facts.setup.zero_stage > 0, "parallel.zero_stage"),
        (parallel.sequence_parallel.is_some(), "parallel.sequence_parallel"),
        (training.dtype.is_some(), "training.dtype"),
        (facts.setup.recompute.iter().any(some), "training.recompute"),
        (training.attention.is_some(), "training.attention"),
    ] {
        if set {
            warnings.push(format!("{knob} changes nothing {why}: a cluster is needed to predict it"));
        }
    }
}
