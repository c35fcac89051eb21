//! The JSON that scripts read: names here are a contract (`schema_version` 1).

use pipewright_ir::flops::Throughput;
use pipewright_ir::memory;
use pipewright_ir::metrics::{Metrics, RankMetrics};
use pipewright_ir::plan::Plan;
use pipewright_ir::schedule::Schedule;
use pipewright_ir::task::MemoryClass;
use pipewright_ir::timeline::Timeline;
use serde::Serialize;
use std::collections::BTreeMap;

/// The answer of `simulate`.
#[derive(Clone, Debug, Serialize)]
pub struct Simulation {
    /// Version of this format: 1.
    pub schema_version: u32,
    /// Name of the scenario.
    pub scenario: String,
    /// `units` under unit costs, else `s`.
    pub time_unit: &'static str,
    /// One entry a schedule.
    pub runs: Vec<RunRow>,
}

/// One schedule.
#[derive(Clone, Debug, Serialize)]
pub struct RunRow {
    /// The family, or `custom`.
    pub schedule: String,
    /// The family with `v`, or the file of a custom order.
    pub name: String,
    /// Pipeline ranks.
    pub p: u32,
    /// Microbatches of one pass of the pipeline.
    pub m: u32,
    /// Chunks a rank.
    pub v: u32,
    /// Passes that accumulate gradients before each optimizer step.
    pub accumulation_rounds: u32,
    /// Steps.
    pub steps: usize,
    /// First start to last end over all steps \[s or units\].
    pub makespan: f64,
    /// No order of the same stages on the same ranks, within the memory limit where one is given, has a shorter step;
    /// null where that is not known \[s or units\].
    pub lower_bound: Option<f64>,
    /// Idle / makespan, over all ranks.
    pub bubble_fraction: f64,
    /// Idle / busy, over all ranks.
    pub bubble_overhead: f64,
    /// Messages between different ranks in one step.
    pub messages: usize,
    /// Their bytes \[B\]; 0 where sizes are not known.
    pub message_bytes: u64,
    /// Whether no other schedule of the answer is better in time or peak memory and not worse in the other.
    pub pareto: bool,
    /// Whether it fits in the memory of its devices, where `--fits` asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fits: Option<FitsRow>,
    /// One entry a rank.
    pub ranks: Vec<RankRow>,
    /// How fast a step is, where costs are those of a model on a cluster.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub speed: Option<Speed>,
    /// Where every device was simulated, each of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub devices: Option<Vec<DeviceRow>>,
    /// What `compare` measured of it, where it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<serde_json::Value>,
}

/// How fast a step is.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Speed {
    /// Time of a step \[s\].
    pub step_seconds: f64,
    /// Tokens a second, of all devices.
    pub tokens_per_second: f64,
    /// Model TFLOP/s of one device.
    pub tflops_per_gpu: f64,
    /// Hardware TFLOP/s of one device: with recomputation.
    pub hardware_tflops_per_gpu: f64,
    /// Model FLOPs / (time x devices x peak).
    pub mfu: f64,
    /// Hardware FLOPs / (time x devices x peak).
    pub hfu: f64,
}

impl Speed {
    /// Of a step.
    pub fn of(throughput: &Throughput) -> Self {
        Self {
            step_seconds: throughput.step_seconds,
            tokens_per_second: throughput.tokens_per_second(),
            tflops_per_gpu: throughput.tflops_per_gpu(),
            hardware_tflops_per_gpu: throughput.hardware_tflops_per_gpu(),
            mfu: throughput.mfu(),
            hfu: throughput.hfu(),
        }
    }
}

/// One device of the mesh.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceRow {
    /// Its number.
    pub device: u64,
    /// Its place on each axis.
    pub coordinates: BTreeMap<&'static str, u32>,
    /// Compute time \[s\].
    pub busy: f64,
    /// Last end of a compute task \[s\].
    pub last_end: f64,
    /// Most memory alive \[B\].
    pub peak_memory_bytes: u64,
}

/// Whether a plan fits in the memory of its devices.
#[derive(Clone, Debug, Serialize)]
pub struct FitsRow {
    /// Whether every rank does.
    pub fits: bool,
    /// Memory of a device \[B\].
    pub capacity_bytes: u64,
    /// What is left on each rank, negative where it does not fit \[B\].
    pub margin_bytes: Vec<i64>,
    /// The answer in words.
    pub answer: String,
    /// Why the heaviest rank is.
    pub why: String,
    /// The nearest knobs that would make it fit.
    pub nearest: Vec<String>,
}

/// One rank.
#[derive(Clone, Debug, Serialize)]
pub struct RankRow {
    /// The rank.
    pub rank: usize,
    /// Compute time \[s or units\].
    pub busy: f64,
    /// Makespan - busy.
    pub idle: f64,
    /// First start of a compute task.
    pub first_start: f64,
    /// Last end of a compute task.
    pub last_end: f64,
    /// Idle between the two.
    pub span_idle: f64,
    /// Most activations alive, in microbatches of a rank's whole share.
    pub peak_activations: f64,
    /// Most memory alive \[B\]; 0 where sizes are not known.
    pub peak_memory_bytes: u64,
    /// What was alive then, by class \[B\].
    pub memory_at_peak: BTreeMap<&'static str, u64>,
}

impl RunRow {
    /// The row of a plan's metrics over `steps` steps; `pareto` as [`on_front`](super::pareto::on_front) says.
    pub fn new(plan: &Plan, metrics: &Metrics, steps: usize, pareto: bool) -> Self {
        Self {
            schedule: plan.family.clone(),
            name: plan.name.clone(),
            p: plan.ranks(),
            m: plan.batch.microbatches,
            v: plan.chunks,
            accumulation_rounds: plan.batch.rounds,
            steps,
            makespan: metrics.makespan,
            lower_bound: None,
            bubble_fraction: metrics.bubble_fraction,
            bubble_overhead: metrics.bubble_overhead,
            messages: metrics.messages,
            message_bytes: metrics.message_bytes,
            pareto,
            ranks: metrics.ranks.iter().enumerate().map(|(rank, m)| RankRow::new(rank, m)).collect(),
            speed: None,
            devices: None,
            measured: None,
            fits: None,
        }
    }
}

impl RankRow {
    fn new(rank: usize, metrics: &RankMetrics) -> Self {
        let peak = &metrics.memory.peak.live;
        Self {
            rank,
            busy: metrics.busy,
            idle: metrics.idle,
            first_start: metrics.first_start,
            last_end: metrics.last_end,
            span_idle: metrics.span_idle,
            peak_activations: metrics.peak_activations,
            peak_memory_bytes: memory::total(peak),
            memory_at_peak: MemoryClass::ALL.iter().map(|c| (c.name(), peak[c.index()])).collect(),
        }
    }
}

/// Every task with its times, as a file of its own: what `run` leaves behind.
pub fn timeline_json(schedule: &Schedule, timeline: &Timeline) -> serde_json::Value {
    let mut tasks = Vec::new();
    for step in 0..timeline.steps() {
        for (id, task) in schedule.tasks() {
            let span = timeline.span(step, id);
            let memory = timeline.memory(step, id).map(|m| [m.before, m.peak, m.after]);
            tasks.push(serde_json::json!({
                "step": step, "task": id.0, "action": task.action.to_string(), "rank": task.rank.0,
                "lane": task.lane.name(), "start": span.start, "end": span.end, "memory_bytes": memory,
            }));
        }
    }
    serde_json::json!({ "schema_version": 1, "source": timeline.source.name(), "time_unit": "s", "tasks": tasks })
}
