//! What each stage computes, keeps and sends for one microbatch, in FLOPs and bytes.
//!
//! One law: a workload is per stage, in the order of the stages; lowering copies its numbers onto tasks and buffers.

use crate::ids::{LayerRange, Stage};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The workload of one stage. All sizes in bytes \[B\]; in JSON what is left out is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StageWorkload {
    /// Layers of the stage.
    pub layers: LayerRange,
    /// Its parameters.
    pub parameters: u64,
    /// Its gradients, alive from the first backward of a step to the optimizer.
    pub gradients: u64,
    /// Optimizer state.
    pub optimizer: u64,
    /// What one microbatch's forward keeps for backward, without the received input and the logits.
    pub activations: u64,
    /// Logits and what the loss keeps of one microbatch; 0 but on the last stage.
    pub logits: u64,
    /// Output of the stage, the message to the next one.
    pub output: u64,
    /// Memory that a forward needs only while it runs.
    pub forward_workspace: u64,
    /// Memory that a backward needs only while it runs, its own gradients before they are added to the step's included:
    /// the first backward of a step has nothing to add to and its gradients become the step's.
    pub backward_workspace: u64,
    /// Memory that the optimizer needs only while it runs.
    pub optimizer_workspace: u64,
    /// Gradients that are reduced over the data-parallel replicas; 0 with one replica.
    pub reduced: u64,
    /// Gradients that are reduced over the tensor-parallel ranks, parts of a sum that each of them has; 0 with one.
    pub tensor_reduced: u64,
    /// Weights that are gathered behind the optimizer, where the replicas share its state; 0 elsewhere.
    pub gathered: u64,
    /// The tied embedding's gradient, to be summed between the first and the last stage; 0 elsewhere or when untied.
    pub tied: u64,
    /// FLOPs of one microbatch's forward.
    pub forward_flops: f64,
    /// The backward in two parts, where its sizes are known; otherwise everything that F keeps counts until W.
    pub split: Option<SplitWorkload>,
}

/// What a backward in two parts keeps and needs. All sizes in bytes \[B\].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SplitWorkload {
    /// What one microbatch keeps from I to W, in the place of activations, logits and messages.
    pub kept: u64,
    /// Memory that I needs only while it runs.
    pub input_workspace: u64,
    /// Memory that W needs only while it runs, its own gradients before they are added to the step's included.
    pub weight_workspace: u64,
}

impl StageWorkload {
    const NOTHING: Self = Self {
        layers: LayerRange { start: 0, end: 0 },
        parameters: 0,
        gradients: 0,
        optimizer: 0,
        activations: 0,
        logits: 0,
        output: 0,
        forward_workspace: 0,
        backward_workspace: 0,
        optimizer_workspace: 0,
        reduced: 0,
        tensor_reduced: 0,
        gathered: 0,
        tied: 0,
        forward_flops: 0.0,
        split: None,
    };
}

/// The workload of a whole plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Workload {
    /// Memory that no tensor of a rank accounts for: device context, libraries, what the allocator cannot use \[B\].
    pub rank_overhead: u64,
    /// Buffers that each rank holds all the time, one entry a rank \[B\]; what is left out is 0.
    pub rank_buffers: Vec<u64>,
    /// Whether gradients have buffers of their own that outlive the step (Megatron's main gradients): backwards add to
    /// them and reductions work in place. Otherwise the first backward of a step makes them and the optimizer frees them.
    pub gradients_persist: bool,
    /// One entry a stage.
    pub stages: Vec<StageWorkload>,
}

impl Workload {
    /// A workload of `stages` stages without sizes, for abstract costs.
    pub fn abstract_stages(stages: u32) -> Self {
        Self { stages: vec![StageWorkload::default(); stages as usize], ..Self::default() }
    }

    /// The workload of a stage; one that does not exist weighs nothing.
    pub fn stage(&self, stage: Stage) -> &StageWorkload {
        const NOTHING: StageWorkload = StageWorkload::NOTHING;
        self.stages.get(stage.index()).unwrap_or(&NOTHING)
    }

    /// The workload of one of `slices` equal sequence slices: what one microbatch makes is shared out, what a stage
    /// holds is not.
    pub(crate) fn sliced(&self, slices: u16) -> Self {
        let share = |bytes: u64| bytes.div_ceil(u64::from(slices.max(1)));
        let stage = |s: &StageWorkload| StageWorkload {
            activations: share(s.activations),
            logits: share(s.logits),
            output: share(s.output),
            forward_flops: s.forward_flops / f64::from(slices.max(1)),
            split: s.split.map(|split| SplitWorkload { kept: share(split.kept), ..split }),
            ..*s
        };
        let stages = self.stages.iter().map(stage).collect();
        Self { stages, rank_buffers: self.rank_buffers.clone(), ..*self }
    }
}
