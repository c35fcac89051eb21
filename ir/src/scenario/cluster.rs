//! The scenario's `cluster`: which GPUs, and how many.
//!
//! One law: a choice only; what the hardware is like stands in [`cluster`](crate::cluster).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which cluster, and how much of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterChoice {
    /// A shipped cluster, `dgx-a100-80g`.
    pub preset: Option<String>,
    /// Path of a cluster of one's own as JSON, relative to the scenario; `pipewright schema cluster` describes it.
    pub file: Option<String>,
    /// Nodes. Default: as many as the GPUs need.
    pub nodes: Option<u32>,
    /// GPUs. Default: all of the nodes; without nodes, as many as `parallel` asks for.
    pub gpus: Option<u32>,
    /// The software stack whose fitted parameters costs are predicted with. Default: the cluster's own.
    pub stack: Option<String>,
}
