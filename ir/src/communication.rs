//! What each rank sends and receives in a step, by axis and kind of message.
//!
//! One law: every message of the schedule counts once, and what a group sends is what it receives.
//!
//! *Across nodes.* The members of a group form a ring in the order of their numbers on the axis. Of what a rank sends to
//! its neighbour in the ring all or nothing crosses to another node; of an all-to-all the share of members that are in
//! other nodes does. A pipeline rank stands for all devices at its place of the pipeline, so its share is their mean.

use crate::action::Op;
use crate::ids::Rank;
use crate::mesh::{Axis, Group, Mesh};
use crate::schedule::Schedule;
use crate::segments::{Collective, CollectiveKind, Programs};
use crate::setup::Setup;
use crate::task::{Lane, Task};
use std::collections::BTreeMap;

/// Kinds of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MessageKind {
    /// Over a group of ranks.
    Collective(CollectiveKind),
    /// From one stage to the next: activations.
    SendForward,
    /// From one stage to the one before: gradients.
    SendBackward,
}

impl MessageKind {
    /// Its name for people and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            MessageKind::Collective(kind) => kind.name(),
            MessageKind::SendForward => "send-forward",
            MessageKind::SendBackward => "send-backward",
        }
    }
}

/// Messages of one kind over one axis, of one rank in one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traffic {
    /// The axis.
    pub axis: Axis,
    /// The kind.
    pub kind: MessageKind,
    /// How many it takes part in.
    pub messages: u64,
    /// Bytes that it sends \[B\].
    pub sent: u64,
    /// Bytes that it receives \[B\].
    pub received: u64,
    /// Of those it sends, those that leave its node, the mean of the devices it stands for \[B\].
    pub across_nodes: f64,
}

/// What the ranks of a schedule stand on.
#[derive(Clone, Copy, Debug)]
pub struct Network<'a> {
    /// The mesh.
    pub mesh: &'a Mesh,
    /// How it is trained: the ZeRO stage says what reduces gradients.
    pub setup: &'a Setup,
    /// What the stages do, which says over which axis each part of the gradients goes; `None` where that is not known, and
    /// all go over the replicas.
    pub programs: Option<&'a Programs>,
    /// Devices of a node.
    pub gpus_per_node: u32,
}

/// Bytes of the fp32 number that all devices reduce to clip gradients \[B\].
const NORM: u64 = 4;

/// One message as its rank sees it.
struct Message {
    axis: Axis,
    kind: MessageKind,
    sent: u64,
    received: u64,
    /// Which share of what is sent leaves the node.
    crossing: f64,
}

/// The traffic of each rank, by axis and kind. At the detail of stages the messages inside a stage are not there.
pub fn traffic(schedule: &Schedule, network: &Network<'_>) -> Vec<Vec<Traffic>> {
    let shares = Shares::of(network, schedule.ranks());
    let mut partners = Partners::default();
    let mut ranks: Vec<Vec<Traffic>> = vec![Vec::new(); schedule.ranks()];
    for (_, task) in schedule.tasks() {
        let rows = &mut ranks[task.rank.index()];
        for message in messages(task, network, &shares[task.rank.index()], &mut partners) {
            let (axis, kind) = (message.axis, message.kind);
            let at = rows.iter().position(|row| row.axis == axis && row.kind == kind).unwrap_or_else(|| {
                rows.push(Traffic { axis, kind, messages: 0, sent: 0, received: 0, across_nodes: 0.0 });
                rows.len() - 1
            });
            let row = &mut rows[at];
            row.messages += 1;
            row.sent = row.sent.saturating_add(message.sent);
            row.received = row.received.saturating_add(message.received);
            row.across_nodes += message.sent as f64 * message.crossing;
        }
    }
    for rows in &mut ranks {
        // Both ends of a pipeline message are the same kind to people.
        rows.sort_by_key(|row| (row.axis, row.kind));
    }
    ranks
}

/// The messages of a task: one, but for the gradients of a whole stage, of which experts go another way.
fn messages(task: &Task, network: &Network<'_>, shares: &Shares, partners: &mut Partners) -> Vec<Message> {
    let over = |Collective { kind, axis, bytes }: Collective| {
        let sent = Collective { kind, axis, bytes }.sent(network.mesh);
        let shown = if matches!(axis, Axis::DataContext | Axis::ExpertData) { Axis::Data } else { axis };
        let kind = MessageKind::Collective(kind);
        Message { axis: shown, kind, sent, received: sent, crossing: shares.of_collective(axis, kind) }
    };
    if task.lane != Lane::Data {
        let step = |axis| task.step.collective.map(|kind| over(Collective { kind, axis, bytes: task.payload }));
        return match task.lane {
            Lane::Tensor if task.action.op == Op::ReduceTensor => {
                let (kind, axis) = (CollectiveKind::AllReduce, Axis::Tensor);
                Some(Collective { kind, axis, bytes: task.payload }).filter(|sum| sum.bytes > 0).map(over)
            }
            Lane::Tensor => step(Axis::Tensor),
            Lane::Context => step(Axis::Context),
            Lane::Expert => step(Axis::Expert),
            _ => between_stages(task, network, shares, partners),
        }
        .into_iter()
        .collect();
    }
    let step = |step: u32| network.programs.and_then(|programs| programs.step(step)?.collective());
    if let Some(collective) = task.step.program().and_then(step) {
        return vec![over(Collective { bytes: task.payload, ..collective })];
    }
    let zero = network.setup.zero_stage;
    let kind = match task.action.op {
        Op::GatherParam => CollectiveKind::AllGather,
        _ if zero == 0 => CollectiveKind::AllReduce,
        _ => CollectiveKind::ReduceScatter,
    };
    let stage = network.programs.and_then(|programs| programs.stages.get(task.action.stage.index()));
    // Weights have as many numbers as their gradients, of another size.
    let experts = stage.map_or(0, |stage| {
        let [bytes, experts, all] = [task.payload, stage.expert_parameters, stage.parameters.max(1)].map(u128::from);
        u64::try_from(bytes * experts / all).unwrap_or(u64::MAX)
    });
    [(network.mesh.replica_axis(), task.payload.saturating_sub(experts)), (Axis::ExpertData, experts)]
        .into_iter()
        .filter(|(_, bytes)| *bytes > 0)
        .map(|(axis, bytes)| over(Collective { kind, axis, bytes }))
        .collect()
}

/// The messages of the pipeline, and those over all devices.
fn between_stages(task: &Task, network: &Network<'_>, shares: &Shares, partners: &mut Partners) -> Option<Message> {
    let both = |kind, bytes: u64, crossing| {
        let kind = MessageKind::Collective(kind);
        Some(Message { axis: Axis::Pipeline, kind, sent: bytes, received: bytes, crossing })
    };
    match task.action.op {
        // Two ranks: each sends all that it has.
        Op::ReduceGrad | Op::ReduceTied => {
            let peer = task.peer.filter(|peer| *peer != task.rank)?;
            both(CollectiveKind::AllReduce, task.payload, partners.crossing(network, task.rank, peer))
        }
        Op::ClipGrad => {
            let world = Mesh { data: u32::try_from(network.mesh.devices()).unwrap_or(u32::MAX), ..Mesh::default() };
            let norm = Collective { kind: CollectiveKind::AllReduce, axis: Axis::Data, bytes: NORM };
            both(CollectiveKind::AllReduce, norm.sent(&world), shares.world)
        }
        op @ (Op::SendForward | Op::SendBackward) => {
            let kind = if op == Op::SendForward { MessageKind::SendForward } else { MessageKind::SendBackward };
            let crossing = task.peer.map_or(0.0, |peer| partners.crossing(network, task.rank, peer));
            Some(Message { axis: Axis::Pipeline, kind, sent: task.payload, received: 0, crossing })
        }
        op @ (Op::RecvForward | Op::RecvBackward) => {
            let kind = if op == Op::RecvForward { MessageKind::SendForward } else { MessageKind::SendBackward };
            Some(Message { axis: Axis::Pipeline, kind, sent: 0, received: task.payload, crossing: 0.0 })
        }
        _ => None,
    }
}

const AXES: [Axis; 6] = [Axis::Tensor, Axis::Context, Axis::Data, Axis::Expert, Axis::DataContext, Axis::ExpertData];

/// Which share of a rank's messages leaves its node, by axis.
#[derive(Clone, Copy, Debug, Default)]
struct Shares {
    /// Of messages to the neighbour in the ring, in the order of [`AXES`].
    ring: [f64; AXES.len()],
    /// Of all-to-alls.
    all: [f64; AXES.len()],
    /// Of the ring of all devices.
    world: f64,
}

impl Shares {
    /// Those of each pipeline rank.
    fn of(network: &Network<'_>, ranks: usize) -> Vec<Self> {
        let (mesh, per_node) = (network.mesh, u64::from(network.gpus_per_node.max(1)));
        let node = |device: u64| device / per_node;
        let mut shares = vec![Self::default(); ranks];
        let share = 1.0 / (mesh.devices() / u64::from(mesh.pipeline.max(1))).max(1) as f64;
        for (i, axis) in AXES.into_iter().enumerate().filter(|(_, axis)| mesh.size(*axis) > 1) {
            for group in mesh.groups(Group::from(axis)) {
                let rank = group.first().map_or(0, |device| mesh.coordinate(*device, Axis::Pipeline));
                let Some(shares) = shares.get_mut(rank as usize) else { continue };
                let mut nodes: Vec<u64> = group.iter().map(|device| node(*device)).collect();
                let next = nodes.iter().cycle().skip(1);
                shares.ring[i] += nodes.iter().zip(next).filter(|(a, b)| a != b).count() as f64 * share;
                nodes.sort_unstable();
                let others = nodes.len().saturating_sub(1).max(1) as f64;
                for same in nodes.chunk_by(|a, b| a == b) {
                    shares.all[i] += (same.len() * (nodes.len() - same.len())) as f64 / others * share;
                }
            }
        }
        let devices = mesh.devices();
        for device in (0..devices).filter(|device| node(*device) != node((device + 1) % devices)) {
            if let Some(shares) = shares.get_mut(mesh.coordinate(device, Axis::Pipeline) as usize) {
                shares.world += share;
            }
        }
        shares
    }

    fn of_collective(&self, axis: Axis, kind: MessageKind) -> f64 {
        let table = if kind == MessageKind::Collective(CollectiveKind::AllToAll) { &self.all } else { &self.ring };
        AXES.iter().position(|a| *a == axis).map_or(0.0, |i| table[i])
    }
}

/// Which share of the devices at a place of the pipeline has its partner at another place in another node.
#[derive(Default)]
struct Partners(BTreeMap<(Rank, Rank), f64>);

impl Partners {
    fn crossing(&mut self, network: &Network<'_>, rank: Rank, peer: Rank) -> f64 {
        *self.0.entry((rank, peer)).or_insert_with(|| {
            let (mesh, per_node) = (network.mesh, u64::from(network.gpus_per_node.max(1)));
            let stride = mesh.stride(Axis::Pipeline);
            let (mut crossing, mut all) = (0.0_f64, 0.0_f64);
            for device in (0..mesh.devices()).filter(|d| mesh.coordinate(*d, Axis::Pipeline) == rank.0) {
                let partner = device - u64::from(rank.0) * stride + u64::from(peer.0) * stride;
                all += 1.0;
                crossing += f64::from(u8::from(partner / per_node != device / per_node));
            }
            crossing / all.max(1.0)
        })
    }
}
