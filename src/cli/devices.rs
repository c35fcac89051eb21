//! Every device of a mesh, where a simulation did not fold replicas.

use super::predict::Predicted;
use pipewright::ir::memory;
use pipewright::ir::mesh::Axis;
use pipewright::ir::metrics::Metrics;
use pipewright::ir::plan::Plan;
use pipewright::ir::schedule::Schedule;
use pipewright::ir::timeline::Timeline;
use pipewright::report::json::DeviceRow;

/// A device of the mesh.
pub(crate) struct Device {
    pub(crate) number: u64,
    /// Its place on each axis of the mesh.
    pub(crate) coordinates: [(Axis, u32); 4],
    /// Compute time \[s\].
    pub(crate) busy: f64,
    /// When its last compute task ends \[s\].
    pub(crate) last_end: f64,
    /// Most memory alive \[B\].
    pub(crate) peak_memory: u64,
}

impl Device {
    /// Its row in an answer.
    pub(crate) fn row(&self) -> DeviceRow {
        DeviceRow {
            device: self.number,
            coordinates: self.coordinates.iter().map(|(axis, at)| (axis.name(), *at)).collect(),
            busy: self.busy,
            last_end: self.last_end,
            peak_memory_bytes: self.peak_memory,
        }
    }
}

/// Every device of the mesh, from the timelines of its replicas.
pub(crate) fn every_device(plan: &Plan, schedule: &Schedule, replicas: &[Timeline]) -> Vec<Device> {
    let mesh = &plan.mesh;
    let [tensor, context] = [mesh.tensor, mesh.context].map(|n| n.max(1));
    let mut devices = Vec::new();
    for (timeline, replica) in replicas.iter().zip(0_u32..) {
        let metrics = Metrics::of(schedule, timeline);
        for (rank, pipeline) in metrics.ranks.iter().zip(0_u32..) {
            let place = |axis| match axis {
                Axis::Tensor => replica % tensor,
                Axis::Context => replica / tensor % context,
                Axis::Data => replica / tensor / context,
                _ => pipeline,
            };
            devices.push(Device {
                number: mesh.device(place),
                coordinates: mesh.order.map(|axis| (axis, place(axis))),
                busy: rank.busy,
                last_end: rank.last_end,
                peak_memory: memory::total(&rank.memory.peak.live),
            });
        }
    }
    devices.sort_by_key(|device| device.number);
    devices
}

/// Whether the replicas of a full simulation are equal, in a line; nothing where they were folded.
pub(crate) fn whether_equal(plan: &Plan, predicted: &Predicted) -> String {
    let devices = &predicted.devices;
    if devices.is_empty() {
        return String::new();
    }
    let pipeline =
        |device: &Device| device.coordinates.iter().find(|(axis, _)| *axis == Axis::Pipeline).map(|(_, r)| *r);
    let ranks = &predicted.metrics.ranks;
    let differs = |device: &&Device| {
        let rank = pipeline(device).and_then(|rank| ranks.get(rank as usize));
        rank.is_none_or(|rank| {
            (device.busy, device.last_end) != (rank.busy, rank.last_end)
                || device.peak_memory != memory::total(&rank.memory.peak.live)
        })
    };
    let count = devices.len();
    match devices.iter().filter(differs).count() {
        0 => format!("{}: all {count} devices simulated, replicas are equal in time and memory\n", plan.name),
        other => format!("{}: all {count} devices simulated, {other} differ from their replica 0\n", plan.name),
    }
}
