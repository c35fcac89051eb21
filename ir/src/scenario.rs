//! `Scenario`: the file as the user wrote it.
//!
//! One law: nothing is decided here. [`plan`](crate::plan) resolves defaults, checks and combines.

mod cluster;
mod entry;
mod layout;
mod model;
mod one_or_many;
mod parallel;
mod training;
pub mod variant;

pub use cluster::ClusterChoice;
pub use entry::{PerRank, ScheduleEntry};
pub use layout::Layout;
pub use model::Model;
pub use one_or_many::OneOrMany;
pub use parallel::{Parallel, SequenceParallel};
pub use training::{Attention, Dtype, Recompute, Training};
pub use variant::Variant;

use crate::spec::Semantics;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A scenario file, version 1.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Where an editor finds the JSON schema of this file; not read by pipewright.
    #[serde(rename = "$schema")]
    pub schema: Option<String>,
    /// Version of this format: 1.
    pub schema_version: u32,
    /// Name of the scenario, used in titles and file names.
    pub name: String,
    /// Where task costs come from. Without it `compare` measures them on this machine.
    pub costs: Option<Costs>,
    /// The model to train.
    pub model: Option<Model>,
    /// The GPUs to train on. With it the plan is checked and predicted for them; without it nothing is known of devices.
    pub cluster: Option<ClusterChoice>,
    /// How the work is split.
    #[serde(default)]
    pub parallel: Parallel,
    /// The batch and its numbers.
    #[serde(default)]
    pub training: Training,
    /// The pipeline schedules to look at.
    pub schedules: Vec<ScheduleEntry>,
    /// How to really run it.
    pub execute: Option<Execute>,
    /// The same scenario with some knobs set otherwise, each beside the others. Without any, the scenario itself.
    #[serde(default)]
    pub variants: Vec<Variant>,
}

/// The cost models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CostModelName {
    /// Abstract numbers in this file.
    Unit,
    /// A file written by `profile`.
    Table,
    /// From the model, the cluster and what is known of its software stack.
    Analytic,
}

/// Where task costs come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// `unit`: the numbers below, in abstract units; `table`: the measured costs in `file`.
    pub model: CostModelName,
    /// Unit: F of one microbatch on a rank's whole share; a chunk costs `1 / v` of it. Default 1.
    pub forward: Option<f64>,
    /// Unit: I, likewise. Default 1.
    pub backward_input: Option<f64>,
    /// Unit: W, likewise; B = I + W. Default 1.
    pub backward_weight: Option<f64>,
    /// Unit: from the end of a task to the moment its output is on another rank. Default 0.
    pub hop: Option<f64>,
    /// Unit: the optimizer step of a rank's whole share. Default 0.
    pub optimizer: Option<f64>,
    /// Unit: multiplies every compute cost of stage `s`; one entry a stage (`p v`).
    pub stage_scale: Option<Vec<f64>>,
    /// How the parts of a compound action run (DualPipe's overlapped F and B). Default `sequential`.
    pub overlap: Option<Overlap>,
    /// How a send behaves until its receive is there. Default `eager`: it never waits.
    pub sends: Option<Semantics>,
    /// Unit, with `"overlap": "overlapped"`: how long an F and a B that overlap take together, on a rank's whole share;
    /// measured, it lies between the longer of the two and their sum.
    pub overlapped_forward_backward: Option<f64>,
    /// Table: path of the cost table, relative to the scenario.
    pub file: Option<String>,
}

/// How the parts of a compound action run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Overlap {
    /// One after another, each as soon as its own inputs are there.
    #[default]
    Sequential,
    /// All together once the inputs of all are there, in the sum of their times: no gain from the overlap.
    Atomic,
    /// All together, in the measured time `overlapped_forward_backward`.
    Overlapped,
}

impl Overlap {
    /// Its name for people and in options.
    pub fn name(self) -> &'static str {
        match self {
            Overlap::Sequential => "sequential",
            Overlap::Atomic => "atomic",
            Overlap::Overlapped => "overlapped",
        }
    }
}

/// Devices of the executor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceName {
    /// One core of this machine a rank.
    #[default]
    Cpu,
    /// One NVIDIA GPU a rank.
    Cuda,
}

/// Optimizers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OptimizerName {
    /// AdamW.
    Adamw,
    /// Stochastic gradient descent.
    Sgd,
}

/// The optimizer and its numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Optimizer {
    /// Which.
    pub kind: OptimizerName,
    /// Learning rate.
    pub lr: f64,
    /// AdamW: decay rates of the moments. Default 0.9 and 0.999.
    pub betas: Option<[f64; 2]>,
    /// AdamW: added to the denominator. Default 1e-8.
    pub eps: Option<f64>,
    /// AdamW: weight decay. Default 0.01.
    pub weight_decay: Option<f64>,
    /// SGD: momentum. Default 0.
    pub momentum: Option<f64>,
}

/// How to really run it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Execute {
    /// Where. Default `cpu`.
    pub device: Option<DeviceName>,
    /// Optimizer steps.
    pub steps: u32,
    /// A text file, relative to the scenario; the model learns to predict its bytes.
    pub data: String,
    /// Seed of the weights and of the order of the data. Default 0.
    pub seed: Option<u64>,
    /// The optimizer. Default AdamW with a learning rate of 3e-4.
    pub optimizer: Option<Optimizer>,
}
