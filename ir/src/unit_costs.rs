//! Abstract costs, and the times of the tasks of each stage that a schedule can adapt to.

use crate::cost_table::{CostTable, StageCosts};
use crate::ids::LayerRange;
use crate::scenario::{Costs, Overlap};

/// Unit costs, resolved. Abstract units.
#[derive(Clone, Debug, PartialEq)]
pub struct UnitCosts {
    /// F of one microbatch on a rank's whole share.
    pub forward: f64,
    /// I, likewise.
    pub backward_input: f64,
    /// W, likewise; B = I + W.
    pub backward_weight: f64,
    /// From the end of a task to the moment its output is on another rank.
    pub hop: f64,
    /// Optimizer step of a rank's whole share.
    pub optimizer: f64,
    /// Multiplier of each stage; empty for all 1.
    pub stage_scale: Vec<f64>,
    /// How long an overlapped F and B of one microbatch each take together, on a rank's whole share; `None` for the sum
    /// of both.
    pub overlapped_forward_backward: Option<f64>,
}

impl Default for UnitCosts {
    fn default() -> Self {
        let (forward, backward_input, backward_weight) = (1.0, 1.0, 1.0);
        Self { forward, backward_input, backward_weight, hop: 0.0, ..Self::FREE }
    }
}

impl From<&Costs> for UnitCosts {
    fn from(costs: &Costs) -> Self {
        Self {
            forward: costs.forward.unwrap_or(1.0),
            backward_input: costs.backward_input.unwrap_or(1.0),
            backward_weight: costs.backward_weight.unwrap_or(1.0),
            hop: costs.hop.unwrap_or(0.0),
            optimizer: costs.optimizer.unwrap_or(0.0),
            stage_scale: costs.stage_scale.clone().unwrap_or_default(),
            overlapped_forward_backward: costs
                .overlapped_forward_backward
                .filter(|_| costs.overlap == Some(Overlap::Overlapped)),
        }
    }
}

impl UnitCosts {
    const FREE: Self = Self {
        forward: 0.0,
        backward_input: 0.0,
        backward_weight: 0.0,
        hop: 0.0,
        optimizer: 0.0,
        stage_scale: Vec::new(),
        overlapped_forward_backward: None,
    };

    /// The multiplier of a stage.
    pub fn scale(&self, stage: usize) -> f64 {
        self.stage_scale.get(stage).copied().unwrap_or(1.0)
    }
}

/// Times of one microbatch on one stage \[s, or abstract units\].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChunkTimes {
    /// F.
    pub forward: f64,
    /// I.
    pub backward_input: f64,
    /// W; B = I + W.
    pub backward_weight: f64,
}

/// What the tasks of a plan take: what a schedule can adapt to.
#[derive(Clone, Debug, PartialEq)]
pub struct StageTimes {
    /// One entry a stage.
    pub stages: Vec<ChunkTimes>,
    /// From the end of a task to the moment its output is on another rank.
    pub hop: f64,
}

impl StageTimes {
    /// Unit costs over `stages` stages on `ranks` ranks: a chunk costs ranks / stages of a rank's whole share.
    pub fn of(costs: &UnitCosts, ranks: u32, stages: u32) -> Self {
        let chunks = f64::from(stages) / f64::from(ranks.max(1));
        let stage = |s: u32| {
            let [forward, backward_input, backward_weight] =
                [costs.forward, costs.backward_input, costs.backward_weight]
                    .map(|c| c / chunks * costs.scale(s as usize));
            ChunkTimes { forward, backward_input, backward_weight }
        };
        Self { stages: (0..stages).map(stage).collect(), hop: costs.hop }
    }

    /// The measured times \[s\] of a cut into these stages; `None` where the table has none of them.
    pub fn measured(table: &CostTable, layers: &[LayerRange]) -> Option<Self> {
        let stage = |costs: &StageCosts| {
            let [backward_input, backward_weight] = costs.input_and_weight();
            ChunkTimes { forward: costs.forward.median, backward_input, backward_weight }
        };
        let layout = table.layout(layers)?;
        Some(Self { stages: layout.stages.iter().map(stage).collect(), hop: table.message.hop.median })
    }
}
