//! Costs from the shapes of the model, the hardware and a few fitted parameters of the software stack.
//!
//! Every step of a stage's program has a time; a task at the detail of segments takes that of its step, one at the detail
//! of stages what its steps take together.
//!
//! One law: no constant of a measured row. Whatever is fitted is a parameter of a stack, stored with its source.

mod collective;
mod fold;
mod kernel;
mod of_plan;
mod parameters;
mod segment;

pub use collective::{Group, Links};
pub use kernel::Device;
pub use of_plan::{AnalyticError, parameters_of};
pub use parameters::{Parameters, STACKS, stack};
pub use segment::SegmentCost;

use super::CostModel;
use fold::Clocks;
use pipewright_ir::action::Op;
use pipewright_ir::cluster::Cluster;
use pipewright_ir::ids::{Rank, Stage};
use pipewright_ir::mesh::{Axis, Mesh};
use pipewright_ir::placement::Placement;
use pipewright_ir::scenario::Recompute;
use pipewright_ir::segments::{Body, Bucket, Collective, CollectiveKind, Programs, StageProgram};
use pipewright_ir::setup::Setup;
use pipewright_ir::task::Task;

/// What the costs of a plan follow from.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// What every stage does.
    pub programs: &'a Programs,
    /// The mesh.
    pub mesh: &'a Mesh,
    /// Numbers and switches.
    pub setup: &'a Setup,
    /// The cluster.
    pub cluster: &'a Cluster,
    /// The software stack.
    pub parameters: &'a Parameters,
    /// Bytes of `[B, S, H]` on one rank, for the passes that a stack makes beside those counted \[B\].
    pub activation_bytes: f64,
    /// Bytes of a message from one stage to the next \[B\].
    pub message_bytes: u64,
    /// Which rank holds which stages.
    pub placement: &'a Placement,
}

/// Times of one stage \[s\].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StageCost {
    /// F.
    pub forward: f64,
    /// I.
    pub input: f64,
    /// W.
    pub weight: f64,
    /// B.
    pub backward: f64,
    /// What is left of the gradients' reduction once the last backward has ended.
    pub reduce: f64,
    /// The optimizer.
    pub optimizer: f64,
    /// What no forward hides of the gather of updated weights.
    pub gather: f64,
}

/// Costs of one plan.
#[derive(Clone, Debug)]
pub struct AnalyticCost {
    /// Times of the steps of the programs \[s\].
    pub steps: Vec<f64>,
    /// Times of the stages \[s\].
    pub stages: Vec<StageCost>,
    links: Links,
    mesh: Mesh,
    gpus_per_node: u32,
    /// Whether messages between nodes are cut over the tensor-parallel ranks, which all have the same.
    scatter_gather: bool,
    /// What each stage's forward and backward spend before they compute: on the host, and in a receive that blocks.
    before: Vec<[f64; 2]>,
    /// Of that, the receive: 0 where messages go on beside compute \[s\].
    pub received: Vec<[f64; 2]>,
    /// Whether receives block compute; otherwise a message is on its way beside it.
    blocking: bool,
    /// The norm of the gradients over all ranks.
    clip: f64,
    /// Share of hidden messages' time that compute loses to them.
    overlap_cost: f64,
}

/// Bytes of the fp32 number that the ranks reduce to clip gradients \[B\].
const NORM_BYTES: u64 = 4;

impl AnalyticCost {
    /// The costs of a plan.
    pub fn new(facts: &Facts<'_>) -> Self {
        let p = facts.parameters;
        let gpu = &facts.cluster.hardware.gpu;
        let device = Device {
            peak_flops: gpu.peak_flops.of(facts.setup.dtype).unwrap_or(gpu.peak_flops.fp32.value),
            memory_bandwidth: gpu.memory_bandwidth.value,
            multiprocessors: f64::from(gpu.streaming_multiprocessors.value.max(1)),
            dtype: facts.setup.dtype,
            parameters: p.clone(),
        };
        let links = Links::new(facts.cluster, p);
        let exposed = if facts.setup.tp_comm_overlap { p.tensor_exposed.value } else { 1.0 };
        let time = |body: &Body| match body {
            Body::Compute(kernels) => kernels.iter().map(|kernel| device.kernel(kernel)).sum(),
            // Summed up below, once its steps have all their costs.
            Body::Run(_) => 0.0,
            Body::Communicate { collective, .. } => {
                let shown = if collective.axis == Axis::Tensor { exposed } else { 1.0 };
                links.collective(collective, facts.mesh) * shown
            }
        };
        let mut steps: Vec<f64> = facts.programs.steps.iter().map(|step| time(&step.body)).collect();
        let host = if facts.setup.zero_stage >= 2 { p.host_per_block.value } else { 0.0 };
        let passes = |n: f64| device.memory(n * facts.activation_bytes);
        for layer in &facts.programs.layers {
            let [forward, backward] =
                [&p.extra_forward_passes, &p.extra_backward_passes].map(|n| passes(n.value) + host);
            let forward = forward + p.layer_overhead.value;
            let again = if layer.recompute == Recompute::Full { forward } else { 0.0 };
            for (step, more) in [(layer.forward, forward), (layer.backward, backward + again)] {
                if let Some(time) = steps.get_mut(step as usize) {
                    *time += more;
                }
            }
        }
        for (at, step) in facts.programs.steps.iter().enumerate() {
            if let Body::Run(parts) = &step.body {
                steps[at] = parts.iter().filter_map(|part| steps.get(part.step as usize)).sum();
            }
        }
        let world = Mesh { data: u32::try_from(facts.mesh.devices()).unwrap_or(u32::MAX), ..Mesh::default() };
        let norm = Collective { kind: CollectiveKind::AllReduce, axis: Axis::Data, bytes: NORM_BYTES };
        let mut cost = Self {
            stages: Vec::new(),
            links,
            mesh: *facts.mesh,
            gpus_per_node: facts.cluster.gpus_per_node(),
            scatter_gather: p.scatter_gather && !facts.setup.megatron_sequence_parallel,
            before: Vec::new(),
            received: Vec::new(),
            blocking: !facts.setup.overlap_p2p,
            clip: 0.0,
            overlap_cost: p.overlap_cost.value,
            steps,
        };
        cost.received = facts.placement.all_stages().map(|stage| cost.received(facts, stage)).collect();
        cost.before = cost.received.iter().map(|times| times.map(|time| time + p.chunk_overhead.value)).collect();
        cost.clip = cost.links.collective(&norm, &world);
        cost.stages = facts.programs.stages.iter().map(|stage| cost.stage(facts, &device, stage)).collect();
        cost.gathers(facts);
        cost
    }

    fn stage(&self, facts: &Facts<'_>, device: &Device, stage: &StageProgram) -> StageCost {
        let p = facts.parameters;
        let overlap_cost = p.overlap_cost.value;
        let alone = |list| {
            let mut clocks = Clocks::default();
            fold::run(facts.programs, list, &self.steps, overlap_cost, &mut clocks);
            fold::finish(&mut clocks)
        };
        let zero = facts.setup.zero_stage;
        let shards = |axis| if zero > 0 { f64::from(facts.mesh.size(axis).max(1)) } else { 1.0 };
        let experts = stage.expert_parameters as f64;
        let shared = stage.parameters as f64 - experts;
        let shard = shared / shards(facts.mesh.replica_axis()) + experts / shards(Axis::ExpertData);
        // The optimizer reads and writes its shard; gradients are cleared, and read for their norm: whole where they are.
        let gradients = if zero >= 2 { shard } else { stage.parameters as f64 };
        let touched = shard * p.optimizer_bytes.value + gradients * facts.setup.gradient_dtype.bytes() as f64;
        StageCost {
            forward: alone(&stage.forward),
            backward: alone(&stage.backward),
            input: alone(&stage.input),
            weight: alone(&stage.weight),
            reduce: self.reduction(facts, stage),
            // A rank's ends of the step are shared out over its stages.
            optimizer: device.memory(touched) + p.step_overhead.value / facts.placement.chunks().max(1.0),
            gather: 0.0,
        }
    }

    /// How long a stage's forward and backward are blocked by receiving what they need.
    fn received(&self, facts: &Facts<'_>, stage: Stage) -> [f64; 2] {
        let placement = facts.placement;
        [placement.previous(stage), placement.next(stage)].map(|other| {
            let ranks = other.and_then(|other| placement.rank_of(other)).zip(placement.rank_of(stage));
            let received = ranks.filter(|(from, to)| self.blocking && from != to);
            received.map_or(0.0, |(from, to)| self.hop(facts.message_bytes, from.0, to.0))
        })
    }

    /// Time of a stage's output from one pipeline rank to another.
    fn hop(&self, bytes: u64, from: u32, to: u32) -> f64 {
        let crosses = self.crosses(from, to);
        let shards = u64::from(self.mesh.tensor.max(1));
        if !(crosses && self.scatter_gather && shards > 1) {
            return self.links.point_to_point(bytes, crosses, &self.mesh);
        }
        let gather = Collective { kind: CollectiveKind::AllGather, axis: Axis::Tensor, bytes };
        self.links.point_to_point(bytes / shards, crosses, &self.mesh) + self.links.collective(&gather, &self.mesh)
    }

    fn step(&self, step: u32) -> f64 {
        self.steps.get(step as usize).copied().unwrap_or(0.0)
    }

    /// What is left of the reduction of gradients once the stage's last backward has ended: all of it, or with overlap what
    /// does not fit beside that backward, and at least the last bucket.
    fn reduction(&self, facts: &Facts<'_>, stage: &StageProgram) -> f64 {
        if !facts.setup.overlap_grad_reduce {
            let messages = stage.buckets.iter().filter_map(|b| facts.programs.step(b.step)?.collective());
            return self.at_once(messages);
        }
        let overlap_cost = facts.parameters.overlap_cost.value;
        let mut clocks = Clocks::default();
        let (mut from, mut data) = (0, 0.0_f64);
        for bucket in &stage.buckets {
            let to = (bucket.place as usize + 1).min(stage.backward.len()).max(from);
            fold::run(facts.programs, &stage.backward[from..to], &self.steps, overlap_cost, &mut clocks);
            fold::finish(&mut clocks);
            data = data.max(clocks.compute) + self.step(bucket.step);
            from = to;
        }
        (data - clocks.compute).max(0.0)
    }

    /// Messages over the same axis in one.
    fn at_once(&self, messages: impl Iterator<Item = Collective>) -> f64 {
        let mut sums: Vec<Collective> = Vec::new();
        for message in messages {
            match sums.iter_mut().find(|sum| sum.axis == message.axis) {
                Some(sum) => sum.bytes = sum.bytes.saturating_add(message.bytes),
                None => sums.push(message),
            }
        }
        sums.iter().map(|sum| self.links.collective(sum, &self.mesh)).sum()
    }

    /// The gathers of updated weights under ZeRO 1 and 2: all of them, or with overlap what the forwards of the next step
    /// wait for: a block waits for its own weights, and the blocks and chunks before it hide the rest.
    fn gathers(&mut self, facts: &Facts<'_>) {
        if !matches!(facts.setup.zero_stage, 1 | 2) {
            return;
        }
        let gather = |bucket: &Bucket| {
            let reduced = facts.programs.step(bucket.step)?.collective()?;
            let bytes = reduced.bytes / facts.setup.gradient_dtype.bytes() * facts.setup.dtype.bytes();
            Some(Collective { kind: CollectiveKind::AllGather, bytes, ..reduced })
        };
        let ranks = facts.placement.ranks();
        for rank in (0..ranks as usize).map(Rank::at) {
            // When the rank's forwards go on, and when the messages before have arrived.
            let (mut compute, mut data) = (0.0_f64, 0.0_f64);
            for stage in facts.placement.stages_of(rank) {
                let (Some(program), Some(cost)) =
                    (facts.programs.stages.get(stage.index()), self.stages.get(stage.index()))
                else {
                    continue;
                };
                let mut exposed = 0.0;
                if facts.setup.overlap_param_gather {
                    let layers = program.buckets.iter().map(|bucket| bucket.layer);
                    let [first, last] = [layers.clone().min(), layers.max()].map(|layer| layer.unwrap_or(0));
                    for bucket in program.buckets.iter().rev() {
                        data += gather(bucket).map_or(0.0, |message| self.links.collective(&message, &self.mesh));
                        let share = f64::from(bucket.layer - first) / f64::from(last - first + 1);
                        let late = (data - compute - exposed - share * cost.forward).max(0.0);
                        exposed += late;
                    }
                } else {
                    exposed = self.at_once(program.buckets.iter().filter_map(gather));
                }
                // As many microbatches as there are ranks go through a chunk before the next one begins.
                compute += exposed + cost.forward * f64::from(ranks);
                if let Some(cost) = self.stages.get_mut(stage.index()) {
                    cost.gather = exposed;
                }
            }
        }
    }

    /// Whether a message from one pipeline rank to another leaves the node.
    fn crosses(&self, from: u32, to: u32) -> bool {
        let stride = self.mesh.stride(Axis::Pipeline);
        let node = |rank: u32| u64::from(rank) * stride / u64::from(self.gpus_per_node.max(1));
        node(from) != node(to)
    }
}

impl CostModel for AnalyticCost {
    fn duration(&self, task: &Task) -> f64 {
        let [forward, backward] = self.before.get(task.action.stage.index()).copied().unwrap_or_default();
        if let Some(step) = task.step.program() {
            let before = match task.action.op {
                Op::Forward if !task.step.continues => forward,
                Op::FullBackward | Op::BackwardInput if !task.step.continues => backward,
                _ => 0.0,
            };
            return self.steps.get(step as usize).copied().unwrap_or(0.0) + before;
        }
        let Some(stage) = self.stages.get(task.action.stage.index()) else { return 0.0 };
        match task.action.op {
            Op::Forward => forward + stage.forward,
            Op::FullBackward => backward + stage.backward,
            Op::BackwardInput => backward + stage.input,
            Op::BackwardWeight => stage.weight,
            Op::ReduceData => stage.reduce,
            Op::ReduceTensor => {
                let (kind, axis) = (CollectiveKind::AllReduce, Axis::Tensor);
                self.links.collective(&Collective { kind, axis, bytes: task.payload }, &self.mesh)
            }
            Op::OptimizerStep => stage.optimizer,
            Op::GatherParam => stage.gather,
            Op::ClipGrad => self.clip,
            // Both ends send at once what both need.
            Op::ReduceGrad | Op::ReduceTied => {
                let peer = task.peer.map_or(task.rank.0, |peer| peer.0);
                if peer == task.rank.0 {
                    0.0
                } else {
                    2.0 * self.links.point_to_point(task.payload / 2, self.crosses(task.rank.0, peer), &self.mesh)
                }
            }
            // A copy engine sends beside compute: the hop is the message's latency.
            Op::SendForward | Op::RecvForward | Op::SendBackward | Op::RecvBackward => 0.0,
        }
    }

    fn latency(&self, receive: &Task) -> f64 {
        let peer = receive.peer.filter(|_| receive.action.op.is_receive() && !self.blocking);
        peer.map_or(0.0, |peer| self.hop(receive.payload, peer.0, receive.rank.0))
    }
}
