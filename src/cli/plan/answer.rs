//! What `plan` answers, as scripts read it.

use crate::cli::load::Loaded;
use pipewright::ir::cluster::Cluster;
use pipewright::ir::ids::Stage;
use pipewright::ir::mesh::{Axis, Group, Mesh};
use pipewright::ir::plan::{Batch, Plan};
use pipewright::ir::scenario::{Recompute, SequenceParallel};
use pipewright::ir::setup::Setup;
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Serialize)]
pub(super) struct Answer {
    schema_version: u32,
    ok: bool,
    pub(super) scenario: String,
    /// That of the first schedule.
    #[serde(flatten)]
    pub(super) setting: Setting,
    pub(super) schedules: Vec<ScheduleRow>,
    warnings: Vec<String>,
}

/// Everything of a plan but its schedule.
#[derive(PartialEq, Serialize)]
pub(super) struct Setting {
    pub(super) cluster: Option<ClusterRow>,
    pub(super) mesh: MeshRow,
    /// The groups of devices that messages are exchanged in; kinds of one device a group are left out.
    pub(super) groups: Vec<GroupRow>,
    pub(super) batch: BatchRow,
    pub(super) training: TrainingRow,
}

#[derive(PartialEq, Serialize)]
pub(super) struct ClusterRow {
    pub(super) name: String,
    pub(super) nodes: u32,
    pub(super) gpus: u64,
    pub(super) gpus_per_node: u32,
    pub(super) gpu: String,
    pub(super) intra_node: &'static str,
    /// Of a GPU, one way \[B/s\].
    pub(super) intra_node_bandwidth: f64,
    pub(super) inter_node: String,
    pub(super) nics_per_node: u32,
    /// Of a network interface, one way \[B/s\].
    pub(super) nic_bandwidth: f64,
    stack: String,
}

#[derive(PartialEq, Serialize)]
pub(super) struct MeshRow {
    pub(super) devices: u64,
    /// Axes of the mesh, innermost first.
    pub(super) order: Vec<&'static str>,
    /// Ranks of each axis, the expert axis too.
    pub(super) sizes: BTreeMap<&'static str, u32>,
}

#[derive(PartialEq, Serialize)]
pub(super) struct GroupRow {
    /// An axis; `dp-cp` reduces gradients, `edp` those of experts.
    pub(super) group: &'static str,
    /// Devices of a group.
    pub(super) size: u64,
    /// Groups of the kind.
    pub(super) groups: u64,
    /// The first group's devices, at most 1024 of them.
    pub(super) first: Vec<u64>,
    /// Groups with devices in more than one node, and most nodes of one group; null without a cluster.
    pub(super) crossing_groups: Option<u64>,
    pub(super) nodes: Option<u64>,
}

#[derive(PartialEq, Serialize)]
pub(super) struct BatchRow {
    pub(super) global_batch_size: u64,
    pub(super) micro_batch_size: u32,
    pub(super) num_microbatches: u32,
    pub(super) accumulation_rounds: u32,
    pub(super) seq_length: u32,
    /// Of a step over all replicas.
    pub(super) tokens: u64,
}

#[derive(PartialEq, Serialize)]
pub(super) struct TrainingRow {
    pub(super) dtype: &'static str,
    pub(super) gradient_dtype: &'static str,
    pub(super) attention: &'static str,
    /// One word for all stages, or one a stage.
    pub(super) recompute: Vec<&'static str>,
    pub(super) sequence_parallel: Vec<&'static str>,
    pub(super) zero_stage: u32,
    pub(super) dropout: bool,
    pub(super) clip_grad: Option<f64>,
    pub(super) overlap_grad_reduce: bool,
    pub(super) overlap_param_gather: bool,
    pub(super) tp_comm_overlap: bool,
    pub(super) overlap_p2p_comm: bool,
    pub(super) cross_entropy_fusion: bool,
}

#[derive(Serialize)]
pub(super) struct ScheduleRow {
    pub(super) schedule: String,
    pub(super) p: u32,
    pub(super) m: u32,
    pub(super) v: u32,
    /// Where a variant has another than the scenario's first schedule.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(super) setting: Option<Setting>,
    pub(super) stages: Vec<StageRow>,
}

#[derive(Serialize)]
pub(super) struct StageRow {
    pub(super) stage: u32,
    /// Pipeline rank.
    pub(super) rank: u32,
    /// The first device of that rank.
    first_device: u64,
    /// First layer and one past the last; null without a model.
    pub(super) layers: Option<[u32; 2]>,
    pub(super) embedding: bool,
    pub(super) head: bool,
    /// Before tensor parallelism cuts them; null without a model.
    pub(super) parameters: Option<u64>,
    pub(super) recompute: &'static str,
}

/// Devices of a group that are listed.
const LISTED: usize = 1024;

impl Answer {
    /// Of a scenario; `None` without a schedule.
    pub(super) fn of(loaded: &Loaded) -> Option<Self> {
        let first = loaded.plans.first()?;
        let mut warnings: Vec<String> = Vec::new();
        for warning in loaded.plans.iter().flat_map(|plan| &plan.warnings) {
            if !warnings.contains(warning) {
                warnings.push(warning.clone());
            }
        }
        Some(Self {
            schema_version: 1,
            ok: true,
            scenario: loaded.scenario.name.clone(),
            setting: Setting::of(first),
            schedules: loaded.plans.iter().map(|plan| schedule_row(plan, first)).collect(),
            warnings,
        })
    }
}

impl Setting {
    fn of(plan: &Plan) -> Self {
        let Plan { mesh, setup, cluster, batch, .. } = plan;
        Self {
            cluster: cluster.as_ref().map(cluster_row),
            mesh: mesh_row(mesh),
            groups: groups(mesh, cluster.as_ref()),
            batch: batch_row(batch, mesh),
            training: training_row(setup),
        }
    }
}

fn cluster_row(cluster: &Cluster) -> ClusterRow {
    let hardware = &cluster.hardware;
    ClusterRow {
        name: hardware.name.clone(),
        nodes: cluster.nodes,
        gpus: cluster.gpus,
        gpus_per_node: cluster.gpus_per_node(),
        gpu: hardware.gpu.name.clone(),
        intra_node: hardware.intra_node.kind.name(),
        intra_node_bandwidth: hardware.intra_node.bandwidth.value,
        inter_node: hardware.inter_node.kind.clone(),
        nics_per_node: hardware.inter_node.nics_per_node.value,
        nic_bandwidth: hardware.inter_node.bandwidth.value,
        stack: cluster.stack.clone(),
    }
}

fn mesh_row(mesh: &Mesh) -> MeshRow {
    let axes = mesh.order.into_iter().chain([Axis::Expert]);
    MeshRow {
        devices: mesh.devices(),
        order: mesh.order.iter().map(|axis| axis.name()).collect(),
        sizes: axes.map(|axis| (axis.name(), mesh.size(axis))).collect(),
    }
}

fn groups(mesh: &Mesh, cluster: Option<&Cluster>) -> Vec<GroupRow> {
    let row = |group: Group| {
        let crossing = cluster.map(|cluster| mesh.crossing(group, cluster.gpus_per_node()));
        let first = mesh.groups(group).next().unwrap_or_default();
        let size = mesh.group_size(group);
        GroupRow {
            group: group.name(),
            size,
            groups: mesh.devices() / size.max(1),
            first: first.into_iter().take(LISTED).collect(),
            crossing_groups: crossing.map(|crossing| crossing.crossing),
            nodes: crossing.map(|crossing| crossing.nodes),
        }
    };
    // Groups that are those of another kind too are told once.
    let told = |group: &Group| match group {
        Group::DataContext => mesh.context > 1 && mesh.data > 1,
        Group::ExpertData => mesh.expert > 1 && mesh.group_size(*group) > 1,
        Group::Along(axis) => mesh.size(*axis) > 1,
    };
    Group::ALL.into_iter().filter(told).map(row).collect()
}

fn batch_row(batch: &Batch, mesh: &Mesh) -> BatchRow {
    let sequences = [mesh.data, batch.micro_batch_size, batch.microbatches, batch.rounds].map(u64::from);
    BatchRow {
        global_batch_size: sequences.into_iter().fold(1, u64::saturating_mul),
        micro_batch_size: batch.micro_batch_size,
        num_microbatches: batch.microbatches,
        accumulation_rounds: batch.rounds,
        seq_length: batch.seq_length,
        tokens: batch.tokens().saturating_mul(u64::from(mesh.data)),
    }
}

fn training_row(setup: &Setup) -> TrainingRow {
    let megatron = setup.megatron_sequence_parallel.then_some(SequenceParallel::Megatron);
    let over_context = Some(setup.sequence_parallel).filter(|kind| kind.is_over_context());
    TrainingRow {
        dtype: setup.dtype.name(),
        gradient_dtype: setup.gradient_dtype.name(),
        attention: setup.attention.name(),
        recompute: setup.recompute.iter().copied().map(Recompute::name).collect(),
        sequence_parallel: megatron.into_iter().chain(over_context).map(SequenceParallel::name).collect(),
        zero_stage: setup.zero_stage,
        dropout: setup.dropout(),
        clip_grad: setup.clip_grad,
        overlap_grad_reduce: setup.overlap_grad_reduce,
        overlap_param_gather: setup.overlap_param_gather,
        tp_comm_overlap: setup.tp_comm_overlap,
        overlap_p2p_comm: setup.overlap_p2p,
        cross_entropy_fusion: setup.cross_entropy_fusion,
    }
}

fn schedule_row(plan: &Plan, first: &Plan) -> ScheduleRow {
    let placement = plan.placement();
    let row = |stage: Stage| {
        let part = plan.part(stage);
        let model = plan.model.as_ref();
        let rank = placement.rank_of(stage).map_or(0, |rank| rank.0);
        StageRow {
            stage: stage.number(),
            rank,
            first_device: plan.mesh.device(|axis| if axis == Axis::Pipeline { rank } else { 0 }),
            layers: model.map(|_| [part.layers.start, part.layers.end]),
            embedding: part.embedding,
            head: part.head,
            parameters: model.map(|model| model.part_parameters(part)),
            recompute: plan.setup.recompute_of(stage.index()).name(),
        }
    };
    ScheduleRow {
        schedule: plan.name.clone(),
        p: plan.ranks(),
        m: plan.batch.microbatches,
        v: plan.chunks,
        setting: Some(Setting::of(plan)).filter(|setting| *setting != Setting::of(first)),
        stages: (0..placement.stages()).map(|s| row(Stage::new(s))).collect(),
    }
}
