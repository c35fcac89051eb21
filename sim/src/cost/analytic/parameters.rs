//! What a software stack makes of a GPU and its links: a few fitted numbers, each with its source.

use pipewright_ir::cluster::Sourced;
use pipewright_ir::footprint::{MemoryParameters, memory_stack};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The parameters of one (GPU, software stack).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// Name of the stack.
    pub name: String,
    /// What it is, on which GPU.
    pub description: String,
    /// The published measurements that the parameters were fitted on.
    pub fitted_on: String,
    /// How it uses memory: one of [`MEMORY_STACKS`](pipewright_ir::footprint::MEMORY_STACKS). Default `megatron-core`.
    #[serde(default = "megatron_core")]
    pub memory: String,
    /// Share of the peak that a matrix multiplication of whole tiles sustains.
    pub gemm_efficiency: Sourced<f64>,
    /// Fixed part of a tile, in steps of the sum: prologue and epilogue.
    pub gemm_fixed_k: Sourced<f64>,
    /// Speed of 128 x 128 tiles relative to 128 x 256.
    pub tile_128: Sourced<f64>,
    /// Speed of a tile with one side halved again, relative.
    pub tile_64: Sourced<f64>,
    /// How much of the idle part of the last wave is really lost, 0 to 1.
    pub wave_quantisation: Sourced<f64>,
    /// How the compute and the memory time of a multiplication add: as `(c^n + m^n)^(1/n)`. 1 is the sum, many the longer of
    /// the two.
    #[serde(default = "euclidean")]
    pub roofline_norm: Sourced<f64>,
    /// Share of the peak in the batched multiplications of unfused attention.
    pub batched_gemm_efficiency: Sourced<f64>,
    /// How much longer they take where a size is no multiple of 8.
    pub unaligned_slowdown: Sourced<f64>,
    /// Fixed time of each expert in a grouped multiplication \[s\].
    pub expert_overhead: Sourced<f64>,
    /// Fused attention, forward: FLOPs of all pairs / (time x peak); a causal kernel can exceed 1.
    pub attention_forward_efficiency: Sourced<f64>,
    /// The same, backward.
    pub attention_backward_efficiency: Sourced<f64>,
    /// Forward with query and value heads of two sizes (latent attention), relative.
    pub latent_attention_forward: Sourced<f64>,
    /// The same, backward.
    pub latent_attention_backward: Sourced<f64>,
    /// Fixed time of fused attention \[s\].
    pub attention_overhead: Sourced<f64>,
    /// Share of the memory bandwidth that elementwise kernels reach.
    pub memory_efficiency: Sourced<f64>,
    /// Fixed time of a kernel \[s\].
    pub launch: Sourced<f64>,
    /// Elementwise passes of a layer's forward beside those counted, in passes over `[B, S, H]`: bias, casts, copies.
    pub extra_forward_passes: Sourced<f64>,
    /// The same, backward.
    pub extra_backward_passes: Sourced<f64>,
    /// Time on the host for each block and pass under ZeRO 2 and 3 \[s\].
    pub host_per_block: Sourced<f64>,
    /// Time on the host for a layer's forward, and for its forward again under full recompute \[s\]: states of random
    /// numbers, synchronisation.
    #[serde(default = "none")]
    pub layer_overhead: Sourced<f64>,
    /// Time on the host for a stage's forward, and for its backward \[s\]: the schedule's own work. Stages only; the parts
    /// of a stage do not have it.
    #[serde(default = "none")]
    pub chunk_overhead: Sourced<f64>,
    /// Bandwidth of collectives inside a node, of one GPU one way \[B/s\].
    pub intra_node_bandwidth: Sourced<f64>,
    /// Share of the network's bandwidth that collectives reach.
    pub network_efficiency: Sourced<f64>,
    /// Bytes of an all-reduce a second through switches that add, where there are any \[B/s\]; 0 without.
    pub switch_reduce_bandwidth: Sourced<f64>,
    /// Fixed time of a collective \[s\].
    pub collective_latency: Sourced<f64>,
    /// Time of a step of a ring inside a node \[s\].
    pub ring_step_intra: Sourced<f64>,
    /// Time of a step of a ring between nodes \[s\].
    pub ring_step_inter: Sourced<f64>,
    /// Fixed time of a message between stages \[s\].
    pub p2p_latency: Sourced<f64>,
    /// Whether tensor-parallel ranks send a share of a stage's output each to another node and gather it there
    /// (scatter-gather, Narayanan et al. 2021, section 4.1).
    #[serde(default)]
    pub scatter_gather: bool,
    /// Share of tensor-parallel messages that stays exposed where they overlap with matrix multiplications.
    pub tensor_exposed: Sourced<f64>,
    /// Share of hidden messages' time that they cost anyway: multiprocessors, memory and links that compute lacks.
    pub overlap_cost: Sourced<f64>,
    /// Bytes that the optimizer reads and writes for a parameter \[B\].
    pub optimizer_bytes: Sourced<f64>,
    /// Fixed time of a step \[s\]: data loading, logging, synchronisation.
    pub step_overhead: Sourced<f64>,
}

fn megatron_core() -> String {
    "megatron-core".to_owned()
}

impl Parameters {
    /// How the stack uses memory; as Megatron-core does where its name is not known.
    pub fn memory_stack(&self) -> Option<MemoryParameters> {
        memory_stack(&self.memory).or_else(|| memory_stack(&megatron_core()))
    }
}

/// What a stack has nothing of.
fn none() -> Sourced<f64> {
    Sourced { value: 0.0, source: "none".to_owned() }
}

fn euclidean() -> Sourced<f64> {
    Sourced { value: 2.0, source: "set: loads run beside multiplications, but not all of them".to_owned() }
}

macro_rules! stacks {
    ($($name:literal),* $(,)?) => {
        /// The stacks that pipewright knows: name and file.
        pub const STACKS: &[(&str, &str)] = &[$(($name, include_str!(concat!("../../../stacks/", $name, ".json")))),*];
    };
}

stacks!(
    "a100-fsdp",
    "a100-megatron",
    "a100-megatron-deepspeed",
    "a100-vtrain",
    "a100-zero-bubble",
    "b200-megatron",
    "h100-fsdp",
    "h100-megatron",
    "v100-megatron"
);

/// The parameters of a stack that pipewright knows; `None` for an unknown name.
pub fn stack(name: &str) -> Option<Parameters> {
    let (_, text) = STACKS.iter().find(|(known, _)| *known == name)?;
    serde_json::from_str(text).ok()
}
