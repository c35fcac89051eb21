//! What a software stack does with memory: a few switches and numbers, each with its source.
//!
//! One law: a field is a mechanism of the stack, or the one number of what no tensor accounts for; nothing is of a row.

use crate::cluster::Sourced;
use crate::scenario::Dtype;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a software stack uses memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemoryParameters {
    /// Name of the stack.
    pub name: String,
    /// What it is.
    pub description: String,
    /// The published measurements that it was compared with, and what was fitted on them.
    pub fitted_on: String,
    /// What a parameter weighs beside its gradient.
    pub state: StateBytes,
    /// Whether gradients have buffers that outlive the step.
    pub gradients_persist: Sourced<bool>,
    /// Whether one buffer for each different shape of a weight on the rank stands in for gradients that are added to the
    /// accumulated ones inside the multiplication (TransformerEngine's dummy weight gradients).
    pub dummy_weight_gradients: Sourced<bool>,
    /// Whether a stage keeps its output until the microbatch's backward (DeepSpeed's pipeline engine).
    pub keeps_stage_output: Sourced<bool>,
    /// Whether full recomputation keeps a layer's input in sequence shards under Megatron's sequence parallelism.
    pub shards_checkpoints: Sourced<bool>,
    /// Workspaces of the matrix multiplication library \[B\].
    pub gemm_workspace: Sourced<u64>,
    /// Further ones where experts are multiplied side by side \[B\].
    pub grouped_gemm_workspace: Sourced<u64>,
    /// What no tensor accounts for \[B\]: context of the device, communicators, what the allocator cannot use.
    pub overhead: Sourced<u64>,
}

/// What a parameter weighs beside its gradient, by the format of training \[B\].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StateBytes {
    /// fp32 throughout.
    pub fp32: OptimizerBytes,
    /// bf16 with an fp32 copy.
    pub bf16: OptimizerBytes,
    /// fp16 with an fp32 copy.
    pub fp16: OptimizerBytes,
    /// Where it comes from.
    pub source: String,
}

/// Bytes of one parameter \[B\].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OptimizerBytes {
    /// The parameter itself.
    pub parameters: u64,
    /// Optimizer state that ZeRO shards.
    pub sharded: u64,
    /// Optimizer state that it does not.
    pub whole: u64,
}

impl StateBytes {
    /// Bytes of one parameter in training with `dtype`.
    pub fn of(&self, dtype: Dtype) -> OptimizerBytes {
        match dtype {
            Dtype::Fp32 => self.fp32,
            Dtype::Bf16 => self.bf16,
            Dtype::Fp16 => self.fp16,
        }
    }
}

macro_rules! stacks {
    ($($name:literal),* $(,)?) => {
        /// The stacks whose use of memory pipewright knows: name and file.
        pub const MEMORY_STACKS: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../stacks/memory-", $name, ".json")))),*];
    };
}

stacks!("megatron-core", "megatron-lm", "megatron-deepspeed", "fsdp");

/// How a stack that pipewright knows uses memory; `None` for an unknown name.
pub fn memory_stack(name: &str) -> Option<MemoryParameters> {
    let (_, text) = MEMORY_STACKS.iter().find(|(known, _)| *known == name)?;
    serde_json::from_str(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_reads_and_says_where_its_numbers_come_from() {
        for (name, _) in MEMORY_STACKS {
            let stack = memory_stack(name).unwrap();
            assert_eq!(&stack.name, name);
            let sources = [
                &stack.state.source,
                &stack.gradients_persist.source,
                &stack.dummy_weight_gradients.source,
                &stack.keeps_stage_output.source,
                &stack.shards_checkpoints.source,
                &stack.gemm_workspace.source,
                &stack.grouped_gemm_workspace.source,
                &stack.overhead.source,
            ];
            assert!(sources.iter().all(|source| source.len() > 8), "{name}: {sources:?}");
        }
        assert_eq!(memory_stack("none"), None);
    }
}
