//! How long a message over a group of ranks takes: latency and bandwidth of the slowest link that it crosses.
//!
//! A ring inside a node; across nodes a ring whose edges between nodes carry everything once, on the network interfaces of
//! the members that a node has. Latency and transfer overlap in part (a p-norm), as measurements of all sizes show.

use super::parameters::Parameters;
use pipewright_ir::cluster::Cluster;
use pipewright_ir::mesh::{Axis, Mesh};
use pipewright_ir::segments::{Collective, CollectiveKind};

/// Where the ranks of a group of one axis are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Ranks.
    pub ranks: u64,
    /// Of them in one node.
    pub per_node: u64,
}

impl Group {
    /// The groups of an axis on nodes of `gpus_per_node` devices.
    pub fn of(mesh: &Mesh, axis: Axis, gpus_per_node: u32) -> Self {
        let ranks = u64::from(mesh.size(axis).max(1));
        let stride = mesh.stride(axis).max(1);
        let per_node = (u64::from(gpus_per_node) / stride).clamp(1, ranks);
        Self { ranks, per_node }
    }

    /// Nodes that it spans.
    pub fn nodes(&self) -> u64 {
        self.ranks.div_ceil(self.per_node)
    }
}

/// The links of a cluster under a software stack.
#[derive(Clone, Debug)]
pub struct Links {
    /// A GPU's share of its node's network, one way \[B/s\].
    network_share: f64,
    /// Of a node, and of one of its interfaces, one way \[B/s\].
    network: f64,
    interface: f64,
    gpus_per_node: u32,
    parameters: Parameters,
}

/// How latency and transfer add: 1 is the sum, infinity the longer of the two.
const OVERLAP_NORM: f64 = 0.8;
/// Least members of a group in one node for which NCCL lets switches add.
const LEAST_SWITCHED: u64 = 5;

impl Links {
    /// The links of a cluster.
    pub fn new(cluster: &Cluster, parameters: &Parameters) -> Self {
        let (network, efficiency) = (&cluster.hardware.inter_node, parameters.network_efficiency.value);
        Self {
            network_share: cluster.inter_node_share() * efficiency,
            network: network.node_bandwidth() * efficiency,
            interface: network.bandwidth.value * efficiency,
            gpus_per_node: cluster.gpus_per_node(),
            parameters: parameters.clone(),
        }
    }

    /// Time of a message \[s\].
    pub fn collective(&self, collective: &Collective, mesh: &Mesh) -> f64 {
        let group = Group::of(mesh, collective.axis, self.gpus_per_node);
        let (p, ranks, nodes) = (&self.parameters, group.ranks, group.nodes());
        if ranks < 2 || collective.bytes == 0 {
            return 0.0;
        }
        let switched = p.switch_reduce_bandwidth.value;
        if collective.kind == CollectiveKind::AllReduce && nodes == 1 && ranks >= LEAST_SWITCHED && switched > 0.0 {
            return add(p.collective_latency.value, collective.bytes as f64 / switched);
        }
        let rounds = match collective.kind {
            CollectiveKind::AllReduce => 2.0,
            CollectiveKind::Exchange => 1.0 / (ranks - 1) as f64,
            _ => 1.0,
        };
        let (inner, outer) = if nodes > 1 { (ranks - nodes, nodes - 1) } else { (ranks - 1, 0) };
        let steps = inner as f64 * p.ring_step_intra.value + outer as f64 * p.ring_step_inter.value;
        let latency = p.collective_latency.value + rounds * steps;
        let network = group.per_node as f64 * self.network_share;
        let bandwidth =
            if nodes > 1 { p.intra_node_bandwidth.value.min(network) } else { p.intra_node_bandwidth.value };
        add(latency, collective.sent(mesh) as f64 / bandwidth)
    }

    /// Time of a message of `bytes` between two stages \[s\], across nodes or inside one. Between nodes all devices of a
    /// stage that a node has send at once: they share its network, and each has at most one interface.
    pub fn point_to_point(&self, bytes: u64, crosses: bool, mesh: &Mesh) -> f64 {
        let senders = mesh.stride(Axis::Pipeline).clamp(1, u64::from(self.gpus_per_node.max(1)));
        let bandwidth = if crosses {
            (self.network / senders as f64).min(self.interface)
        } else {
            self.parameters.intra_node_bandwidth.value
        };
        self.parameters.p2p_latency.value + bytes as f64 / bandwidth
    }
}

fn add(latency: f64, transfer: f64) -> f64 {
    (latency.powf(OVERLAP_NORM) + transfer.powf(OVERLAP_NORM)).powf(1.0 / OVERLAP_NORM)
}
