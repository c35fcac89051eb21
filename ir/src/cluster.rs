//! What a cluster's hardware is: GPUs, nodes and links.
//!
//! One law: hardware only, from data sheets and specifications, each number with its source. What a software stack makes
//! of it is fitted elsewhere and found by the name of the stack.

mod presets;
mod sourced;

pub use presets::{PRESETS, preset};
pub use sourced::Sourced;

use crate::scenario::{Dtype, Training};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The hardware of a cluster, as a file describes it. Numbers may stand alone, or as `{ "value": ..., "source": "..." }`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Hardware {
    /// Its name.
    pub name: String,
    /// What it is, in a sentence.
    #[serde(default)]
    pub description: String,
    /// The GPU.
    pub gpu: Gpu,
    /// GPUs of a node.
    pub gpus_per_node: Sourced<u32>,
    /// How the GPUs of a node are connected.
    pub intra_node: IntraNode,
    /// How nodes are connected.
    pub inter_node: InterNode,
    /// The software stack whose fitted parameters belong to it, unless a scenario names another.
    pub stack: String,
    /// What `training` means where a scenario leaves it out: the switches that this software has on or off.
    #[serde(default)]
    pub training: Training,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// Its name.
    pub name: String,
    /// Peak floating-point operations by format, dense.
    pub peak_flops: PeakFlops,
    /// Device memory \[B\].
    pub memory: Sourced<u64>,
    /// Memory bandwidth \[B/s\].
    pub memory_bandwidth: Sourced<f64>,
    /// Streaming multiprocessors.
    pub streaming_multiprocessors: Sourced<u32>,
    /// L2 cache \[B\].
    pub l2_cache: Sourced<u64>,
}

/// Peak floating-point operations by format, dense \[FLOP/s\]. A format that is left out is not supported.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PeakFlops {
    /// 32-bit floats.
    pub fp32: Sourced<f64>,
    /// 16-bit brain floats.
    pub bf16: Option<Sourced<f64>>,
    /// 16-bit floats.
    pub fp16: Option<Sourced<f64>>,
    /// 8-bit floats.
    pub fp8: Option<Sourced<f64>>,
}

/// Kinds of links inside a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LinkKind {
    /// NVLink from GPU to GPU.
    Nvlink,
    /// NVLink through switches: any pair has the full bandwidth.
    Nvswitch,
    /// PCI Express.
    Pcie,
}

impl LinkKind {
    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            LinkKind::Nvlink => "NVLink",
            LinkKind::Nvswitch => "NVSwitch",
            LinkKind::Pcie => "PCIe",
        }
    }
}

/// How the GPUs of a node are connected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IntraNode {
    /// Kind of the links.
    pub kind: LinkKind,
    /// Of one GPU to all others together, one way \[B/s\].
    pub bandwidth: Sourced<f64>,
    /// Of one message \[s\].
    pub latency: Sourced<f64>,
}

/// How nodes are connected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InterNode {
    /// Kind of the network, `InfiniBand HDR`.
    pub kind: String,
    /// Network interfaces of a node that compute uses.
    pub nics_per_node: Sourced<u32>,
    /// Of one interface, one way \[B/s\].
    pub bandwidth: Sourced<f64>,
    /// Of one message \[s\].
    pub latency: Sourced<f64>,
}

impl PeakFlops {
    /// Of a format \[FLOP/s\]; `None` where the GPU does not have it.
    pub fn of(&self, dtype: Dtype) -> Option<f64> {
        match dtype {
            Dtype::Fp32 => Some(self.fp32.value),
            Dtype::Bf16 => self.bf16.as_ref().map(|peak| peak.value),
            Dtype::Fp16 => self.fp16.as_ref().map(|peak| peak.value),
        }
    }
}

impl Gpu {
    /// Whether FlashAttention-2 runs on it: on Ampere and newer, the GPUs that have bf16.
    pub fn has_flash_attention(&self) -> bool {
        self.peak_flops.bf16.is_some()
    }
}

impl InterNode {
    /// Bandwidth of a node, one way \[B/s\].
    pub fn node_bandwidth(&self) -> f64 {
        f64::from(self.nics_per_node.value) * self.bandwidth.value
    }
}

/// A cluster that a scenario chose.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// Its hardware.
    pub hardware: Hardware,
    /// Nodes.
    pub nodes: u32,
    /// GPUs that may be used, on the first nodes first.
    pub gpus: u64,
    /// The software stack whose fitted parameters are used.
    pub stack: String,
}

impl Cluster {
    /// GPUs of a node.
    pub fn gpus_per_node(&self) -> u32 {
        self.hardware.gpus_per_node.value.max(1)
    }

    /// A GPU's share of its node's network when all of them send, one way \[B/s\].
    pub fn inter_node_share(&self) -> f64 {
        self.hardware.inter_node.node_bandwidth() / f64::from(self.gpus_per_node())
    }
}
