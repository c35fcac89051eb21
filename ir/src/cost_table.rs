//! `CostTable`: measured costs of tasks, written by `profile`, read by the simulator.
//!
//! One law: the only way back from the executor to the simulator, and it is a file.

use crate::ids::LayerRange;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Longest time of one task that is accepted \[s\].
const MAX_SECONDS: f64 = 1e6;
/// Largest size of one thing that is accepted \[B\]: a petabyte.
const MAX_BYTES: u64 = 1 << 50;

/// Several measurements of one thing, condensed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// Median \[s\].
    pub median: f64,
    /// Tenth percentile \[s\].
    pub p10: f64,
    /// Ninetieth percentile \[s\].
    pub p90: f64,
    /// How many measurements.
    pub samples: u32,
}

impl Measured {
    /// Condenses measurements \[s\]; all zeros without any.
    pub fn of(samples: &[f64]) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().saturating_sub(1);
        let at = |share: f64| sorted.get((share * last as f64).round() as usize).copied().unwrap_or(0.0);
        Self { median: at(0.5), p10: at(0.1), p90: at(0.9), samples: u32::try_from(samples.len()).unwrap_or(u32::MAX) }
    }
}

/// Measured costs of one stage and one microbatch, while no other rank works.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StageCosts {
    /// Layers of the stage, `[first, one past last]`.
    pub layers: [u32; 2],
    /// F.
    pub forward: Measured,
    /// B.
    pub backward: Measured,
    /// Optimizer step of the stage, once a step.
    pub optimizer: Measured,
    /// What F keeps for B, without the received input and the logits \[B\].
    pub activations: u64,
    /// Logits and what the loss keeps; 0 but on the last stage \[B\].
    pub logits: u64,
    /// Memory that F needs only while it runs \[B\].
    pub forward_workspace: u64,
    /// Memory that B needs only while it runs, its own gradients before they are added included \[B\].
    pub backward_workspace: u64,
    /// Memory that the optimizer needs only while it runs \[B\].
    pub optimizer_workspace: u64,
    /// Parameters \[B\].
    pub parameters: u64,
    /// Gradients \[B\].
    pub gradients: u64,
    /// Optimizer state \[B\].
    pub optimizer_state: u64,
    /// The backward in two parts, I and W; measured where a schedule has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<SplitCosts>,
    /// The microbatch in sequence slices, one entry for each number of slices that a schedule has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sliced: Vec<SlicedCosts>,
}

/// Measured costs of a backward in two parts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SplitCosts {
    /// I.
    pub backward_input: Measured,
    /// W.
    pub backward_weight: Measured,
    /// What a microbatch keeps from I to W: inputs of the linear layers and gradients of their outputs \[B\].
    pub kept: u64,
    /// Memory that I needs only while it runs \[B\].
    pub input_workspace: u64,
    /// Memory that W needs only while it runs, its own gradients before they are added included \[B\].
    pub weight_workspace: u64,
}

/// Measured costs of a microbatch in sequence slices. They are measured slice by slice and not scaled: a later slice
/// attends to more tokens than an earlier one, and small matrix products are less efficient.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SlicedCosts {
    /// F of each slice.
    pub forward: Vec<Measured>,
    /// B of each slice.
    pub backward: Vec<Measured>,
    /// What F of all slices together keeps for B, without the received input and the logits \[B\].
    pub activations: u64,
    /// Memory that F of any slice needs only while it runs \[B\].
    pub forward_workspace: u64,
    /// Memory that B of any slice needs only while it runs \[B\].
    pub backward_workspace: u64,
}

impl StageCosts {
    /// I and W of one microbatch \[s\]: as measured; where they were not, half of B each.
    pub fn input_and_weight(&self) -> [f64; 2] {
        match &self.split {
            Some(split) => [split.backward_input.median, split.backward_weight.median],
            None => [self.backward.median / 2.0; 2],
        }
    }

    /// The costs of a cut into `slices` slices, where it was measured.
    pub fn in_slices(&self, slices: u16) -> Option<&SlicedCosts> {
        self.sliced.iter().find(|sliced| sliced.forward.len() == usize::from(slices))
    }
}

/// Measured costs of one way to cut the model into stages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LayoutCosts {
    /// Memory that a rank holds beside its stages' parameters and optimizer state: library and thread state \[B\].
    pub rank_overhead: u64,
    /// One entry a stage.
    pub stages: Vec<StageCosts>,
}

/// Measured costs of a message between two ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MessageCosts {
    /// Size of the message that was measured \[B\].
    pub bytes: u64,
    /// Time the sender is busy.
    pub send: Measured,
    /// From the end of the send to the moment the receiver has it.
    pub hop: Measured,
    /// Time the receiver is busy taking it in.
    pub receive: Measured,
}

/// A file of measured costs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CostTable {
    /// Version of this format: 1.
    pub schema_version: u32,
    /// What it was measured on.
    pub device: String,
    /// Cores that ranks share \[count\]; ranks beyond it wait for each other.
    pub cores: u32,
    /// How much longer a task takes for each further rank that works at the same time, as a share of its time alone:
    /// ranks of one machine share memory bandwidth, caches and clock. 0 is no contention.
    pub contention: f64,
    /// The job it is for: model, microbatch and sequence; a table is refused for another job.
    pub job: String,
    /// One entry for each way of cutting that was measured.
    pub layouts: Vec<LayoutCosts>,
    /// A message between two ranks.
    pub message: MessageCosts,
}

impl CostTable {
    /// The first number that cannot be a cost: negative, not finite, or beyond any machine.
    pub fn first_fault(&self) -> Option<String> {
        self.first_time_fault().or_else(|| self.first_size_fault())
    }

    fn first_size_fault(&self) -> Option<String> {
        let stages = self.layouts.iter().flat_map(|l| &l.stages).enumerate();
        let sizes = stages.flat_map(|(s, costs)| {
            [
                ("activations", costs.activations),
                ("logits", costs.logits),
                ("forward_workspace", costs.forward_workspace),
                ("backward_workspace", costs.backward_workspace),
                ("optimizer_workspace", costs.optimizer_workspace),
                ("parameters", costs.parameters),
                ("gradients", costs.gradients),
                ("optimizer_state", costs.optimizer_state),
            ]
            .map(|(what, bytes)| (format!("{what} of stage entry {s}"), bytes))
        });
        let overheads = self.layouts.iter().map(|l| ("rank_overhead".to_owned(), l.rank_overhead));
        let mut faults = sizes.chain(overheads).filter(|(_, bytes)| *bytes > MAX_BYTES);
        faults.next().map(|(what, bytes)| format!("{what} is {bytes} bytes; more than {MAX_BYTES} is taken for a slip"))
    }

    fn first_time_fault(&self) -> Option<String> {
        let stages = self.layouts.iter().flat_map(|l| &l.stages).enumerate();
        let times = stages.flat_map(|(s, costs)| {
            let whole = [("forward", costs.forward), ("backward", costs.backward), ("optimizer", costs.optimizer)];
            let split = costs.split.iter().flat_map(|split| {
                [("backward_input", split.backward_input), ("backward_weight", split.backward_weight)]
            });
            let slices = costs.sliced.iter().flat_map(|sliced| {
                let forward = sliced.forward.iter().map(|time| ("forward of a slice", *time));
                forward.chain(sliced.backward.iter().map(|time| ("backward of a slice", *time)))
            });
            let all: Vec<_> = whole.into_iter().chain(split).chain(slices).collect();
            all.into_iter().map(move |(what, time)| (format!("{what} of stage entry {s}"), time.median))
        });
        let message = [("send", self.message.send), ("hop", self.message.hop), ("receive", self.message.receive)];
        let message = message.map(|(what, time)| (format!("{what} of a message"), time.median));
        let all = times.chain(message).chain([("contention".to_owned(), self.contention)]);
        let mut faults = all.filter(|(_, value)| !(0.0..=MAX_SECONDS).contains(value));
        faults.next().map(|(what, value)| {
            format!("{what} is {value:e}; a cost is a number of seconds from 0 to {MAX_SECONDS:e}")
        })
    }

    /// The costs of the cut into exactly these stages.
    pub fn layout(&self, stages: &[LayerRange]) -> Option<&LayoutCosts> {
        self.layouts.iter().find(|layout| {
            layout.stages.len() == stages.len()
                && layout.stages.iter().zip(stages).all(|(costs, s)| costs.layers == [s.start, s.end])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_spread() {
        let m = Measured::of(&[5.0, 1.0, 2.0, 4.0, 3.0]);
        assert_eq!((m.median, m.p10, m.p90, m.samples), (3.0, 1.0, 5.0, 5));
        assert_eq!(Measured::of(&[]), Measured::default());
    }
}
