//! What each rank holds: parameters, gradients, optimizer state, what layers keep for backward, and what running tasks
//! need beside it, as a [`Workload`] that lowering turns into buffers.
//!
//! ```text
//! peak = state + persistent buffers + kept tensors of the microbatches in flight + workspace of the task + overhead
//! ```
//!
//! Which microbatches are in flight, and when, is the schedule's; here are the sizes only.
//!
//! One law: every size is a table of named tensors, elements times bytes over ranks; what one software stack does
//! differently from another is a field of [`MemoryParameters`] with its source, never a number of a measured row.

mod fits;
mod kept;
mod parameters;
mod stage;
mod state;
mod why;

pub use fits::{Fit, Knobs, nearest_knobs};
pub use kept::{Divided, Kept, Until, layer, output_gradients};
pub use parameters::{MEMORY_STACKS, MemoryParameters, OptimizerBytes, StateBytes, memory_stack};
pub use state::State;
pub use why::{Holding, Why, in_words, why};

use crate::ids::{Rank, Stage};
use crate::model::StagePart;
use crate::placement::Placement;
use crate::scenario::Recompute;
use crate::segments::{Block, Body, Cut, Kernel, Phase, Programs};
use crate::workload::Workload;
use std::collections::BTreeSet;

/// The sizes of a plan whose stages hold `parts` and compute `programs`, under a software stack.
pub fn workload(
    cut: &Cut<'_>,
    parts: &[StagePart],
    programs: &Programs,
    placement: &Placement,
    stack: &MemoryParameters,
) -> Workload {
    let stages = parts.iter().zip(&programs.stages).enumerate();
    let stages = stages.map(|(s, (part, program))| {
        let facts = stage::Facts { cut, stack, part: *part, program, programs, placement, stage: Stage::at(s) };
        facts.workload()
    });
    Workload {
        stages: stages.collect(),
        rank_overhead: stack.overhead.value,
        rank_buffers: (0..placement.ranks())
            .map(|rank| rank_buffers(cut, parts, placement, stack, Rank(rank)))
            .collect(),
        gradients_persist: stack.gradients_persist.value,
    }
}

/// Bytes that the layers of one kind keep for backward of one microbatch on one rank \[B\].
pub fn layer_bytes(cut: &Cut<'_>, recompute: Recompute, experts: bool, stack: &MemoryParameters) -> u64 {
    let tensors = kept::layer(cut, experts);
    let bytes = |keep: &dyn Fn(&Kept) -> bool| tensors.iter().filter(|t| keep(t)).map(|t| t.bytes(cut)).sum();
    match recompute {
        Recompute::None => bytes(&|_| true),
        Recompute::Selective => bytes(&|tensor| !tensor.core_attention),
        Recompute::Full => {
            let tokens = if stack.shards_checkpoints.value { cut.shard_tokens() } else { cut.tokens() };
            tokens.saturating_mul(cut.hidden()).saturating_mul(cut.width())
        }
    }
}

/// Buffers of the libraries that a rank holds all the time \[B\].
fn rank_buffers(
    cut: &Cut<'_>,
    parts: &[StagePart],
    placement: &Placement,
    stack: &MemoryParameters,
    rank: Rank,
) -> u64 {
    let mut shapes = BTreeSet::new();
    for part in placement.stages_of(rank).filter_map(|stage| parts.get(stage.index())) {
        let kinds: BTreeSet<bool> = (part.layers.start..part.layers.end).map(|l| cut.model.is_moe_layer(l)).collect();
        let layers = kinds.into_iter().map(|experts| cut.layer(Recompute::None, experts));
        let head = part.head.then(|| cut.head(true));
        layers.chain(head).for_each(|block| shapes.extend(weight_shapes(&block)));
    }
    let experts = shapes.iter().any(|shape| shape.grouped);
    let shapes: BTreeSet<(u64, u64)> = shapes.into_iter().map(|shape| (shape.outputs, shape.inputs)).collect();
    let dummies: u64 = shapes.iter().map(|(m, n)| m.saturating_mul(*n).saturating_mul(cut.width())).sum();
    let dummies = if stack.dummy_weight_gradients.value { dummies } else { 0 };
    let grouped = if experts { stack.grouped_gemm_workspace.value } else { 0 };
    dummies.saturating_add(stack.gemm_workspace.value).saturating_add(grouped)
}

/// The shape of a weight on one rank.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct WeightShape {
    outputs: u64,
    inputs: u64,
    /// Of an expert.
    grouped: bool,
}

/// The shape of every weight of a block, from the kernels that make its gradients.
fn weight_shapes(block: &Block) -> impl Iterator<Item = WeightShape> + '_ {
    let steps = block.backward.iter().filter(|step| step.phase == Phase::Weight);
    let kernels = steps.flat_map(|step| match &step.body {
        Body::Compute(kernels) => kernels.as_slice(),
        Body::Communicate { .. } | Body::Run(_) => &[],
    });
    kernels.filter_map(|kernel| match kernel {
        Kernel::Gemm { m, n, grouped, .. } => Some(WeightShape { outputs: *m, inputs: *n, grouped: *grouped }),
        _ => None,
    })
}
