//! From a model, a mesh and a schedule family to the replayed memory of every rank.

use pipewright::ir::footprint::{self, MemoryParameters, memory_stack};
use pipewright::ir::ids::{LayerRange, Rank};
use pipewright::ir::memory::{self, RankMemory};
use pipewright::ir::mesh::Mesh;
use pipewright::ir::model::{ModelShape, StagePart};
use pipewright::ir::order::PipelineOrder;
use pipewright::ir::passes::{add_optimizer_step, add_send_recv};
use pipewright::ir::schedule::{Draft, Schedule};
use pipewright::ir::schedules::{ScheduleParams, find};
use pipewright::ir::segments::{Cut, Programs};
use pipewright::ir::setup::Setup;
use pipewright::ir::task::MemoryClass;
use pipewright::ir::timeline::Timeline;
use pipewright::ir::unit_costs::UnitCosts;
use pipewright::sim::cost::UnitCost;
use pipewright::sim::{Options, simulate};

pub(crate) const MIB: f64 = 1024.0 * 1024.0;
pub(crate) const GIB: f64 = 1024.0 * MIB;

/// How a model is trained, all but its schedule.
pub(crate) struct Case {
    pub(crate) model: ModelShape,
    pub(crate) mesh: Mesh,
    pub(crate) setup: Setup,
    pub(crate) micro_batch_size: u64,
    pub(crate) seq_length: u64,
    /// Layers of each stage.
    pub(crate) layers: Vec<u32>,
    pub(crate) stack: &'static str,
}

/// A replayed step.
pub(crate) struct Replay {
    pub(crate) schedule: Schedule,
    pub(crate) timeline: Timeline,
    pub(crate) ranks: Vec<RankMemory>,
}

impl Case {
    pub(crate) fn cut(&self) -> Cut<'_> {
        let Self { model, mesh, setup, micro_batch_size, seq_length, .. } = self;
        Cut { model, mesh, setup, micro_batch_size: *micro_batch_size, seq_length: *seq_length }
    }

    pub(crate) fn parts(&self) -> Vec<StagePart> {
        let mut start = 0;
        let last = self.layers.len() - 1;
        let part = |(s, n): (usize, &u32)| {
            let layers = LayerRange { start, end: start + n };
            start += n;
            StagePart { layers, embedding: s == 0, head: s == last }
        };
        self.layers.iter().enumerate().map(part).collect()
    }

    pub(crate) fn stack(&self) -> MemoryParameters {
        memory_stack(self.stack).unwrap()
    }

    /// Replays a step, every F, I and W of a rank's whole share a unit of time.
    pub(crate) fn replay(&self, order: &PipelineOrder) -> Replay {
        self.replay_with(order, &UnitCosts::default())
    }

    /// Replays a step that takes these times.
    pub(crate) fn replay_with(&self, order: &PipelineOrder, costs: &UnitCosts) -> Replay {
        let (cut, parts) = (self.cut(), self.parts());
        let programs = Programs::new(&cut, &parts, true);
        let workload = footprint::workload(&cut, &parts, &programs, &order.placement, &self.stack());
        let schedule = Draft::lower(&add_optimizer_step(add_send_recv(order)), &workload).seal().unwrap();
        let timeline = simulate(&schedule, &UnitCost::new(costs, &schedule), &Options::default());
        let position = memory::positions(&schedule);
        let ranks =
            (0..schedule.ranks()).map(|r| memory::of_rank(&schedule, &timeline, Rank::at(r), &position)).collect();
        Replay { schedule, timeline, ranks }
    }
}

impl Replay {
    /// Most that tensors take on each rank [B]: what PyTorch calls allocated.
    pub(crate) fn allocated(&self) -> Vec<f64> {
        let overhead = MemoryClass::Overhead.index();
        self.ranks.iter().map(|r| (memory::total(&r.peak.live) - r.peak.live[overhead]) as f64).collect()
    }

    /// Most memory of any rank [B].
    pub(crate) fn most(&self) -> f64 {
        self.ranks.iter().map(|r| memory::total(&r.peak.live) as f64).fold(0.0, f64::max)
    }
}

/// The order of a family for `p` ranks, `m` microbatches and `v` chunks.
pub(crate) fn order(family: &str, [p, m, v]: [u32; 3]) -> PipelineOrder {
    find(family).unwrap().order(&ScheduleParams::new(p, m, v)).unwrap()
}
