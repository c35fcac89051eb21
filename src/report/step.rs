//! The report of a step: where its time goes, how fast it is, what is sent, what is in memory. Table and JSON.
//!
//! One law: the shares of a breakdown sum to 1.

mod text;

pub(super) use text::words;

use super::json::Speed;
use pipewright_ir::breakdown::{Breakdown, MessageTime, Part, Parts};
use pipewright_ir::communication::Traffic;
use pipewright_ir::flops::Throughput;
use pipewright_ir::memory;
use pipewright_ir::metrics::Metrics;
use pipewright_ir::plan::Plan;
use pipewright_ir::task::MemoryClass;
use serde::Serialize;
use std::collections::BTreeMap;

/// The answer of `report`.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    /// Version of this format: 1.
    pub schema_version: u32,
    /// Name of the scenario.
    pub scenario: String,
    /// `units` under unit costs, else `s`.
    pub time_unit: &'static str,
    /// One entry a schedule.
    pub runs: Vec<StepReport>,
}

/// One schedule.
#[derive(Clone, Debug, Serialize)]
pub struct StepReport {
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
    /// `segment` where costs are those of a model on a cluster, else `stage`.
    pub detail: &'static str,
    /// Devices of the mesh; each rank stands for equal ones.
    pub devices: u64,
    /// First start to last end of one step \[s or units\].
    pub makespan: f64,
    /// How fast that is, where costs are those of a model on a cluster.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub speed: Option<Speed>,
    /// What the speed is counted from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counted: Option<Counted>,
    /// Where the time goes, the mean over the ranks; shares sum to 1.
    pub breakdown: Vec<PartRow>,
    /// What a rank sends, the mean over the ranks.
    pub communication: Vec<AxisRow>,
    /// One entry a rank.
    pub ranks: Vec<RankReport>,
}

/// What the speed is counted from.
#[derive(Clone, Debug, Serialize)]
pub struct Counted {
    /// Tokens of a step, over all replicas.
    pub tokens: f64,
    /// FLOPs of forward and backward of the unsplit model in a step.
    pub model_flops: f64,
    /// FLOPs of all devices in a step, recomputation included.
    pub hardware_flops: f64,
    /// Peak of one device in the format that training uses \[FLOP/s\].
    pub peak_flops: f64,
    /// The formulas.
    pub formulas: BTreeMap<&'static str, &'static str>,
}

/// The formulas of [`Speed`] and [`Counted`].
const FORMULAS: [(&str, &str); 6] = [
    (
        "model_flops",
        "multiplications of forward and backward, masked pairs included; of a GPT 72 B L s h^2 (1 + s/6h + V/12hL)",
    ),
    ("hardware_flops", "model_flops + recomputation + what tensor parallelism computes on every rank"),
    ("tflops_per_gpu", "model_flops / step_seconds / devices / 1e12"),
    ("hardware_tflops_per_gpu", "hardware_flops / step_seconds / devices / 1e12"),
    ("mfu", "model_flops / (step_seconds x devices x peak_flops)"),
    ("hfu", "hardware_flops / (step_seconds x devices x peak_flops)"),
];

/// A part of the step.
#[derive(Clone, Debug, Serialize)]
pub struct PartRow {
    /// What it is.
    pub part: &'static str,
    /// Its time \[s or units\].
    pub time: f64,
    /// Of the makespan.
    pub share: f64,
}

/// Messages over one axis.
#[derive(Clone, Debug, Default, Serialize)]
pub struct AxisRow {
    /// The axis.
    pub axis: &'static str,
    /// Bytes sent \[B\].
    pub sent_bytes: f64,
    /// Bytes received \[B\].
    pub received_bytes: f64,
    /// Of the bytes sent, those that leave the node \[B\].
    pub across_nodes_bytes: f64,
    /// Of the bytes sent, the share that stays in the node; null where nothing is sent.
    pub share_in_node: Option<f64>,
    /// While a message is under way \[s or units\].
    pub time: f64,
    /// Of that, while compute waits for it.
    pub exposed: f64,
    /// Of that, beside compute.
    pub hidden: f64,
    /// The same by kind of message, without times.
    pub kinds: Vec<KindRow>,
}

/// Messages of one kind over one axis.
#[derive(Clone, Debug, Serialize)]
pub struct KindRow {
    /// The kind.
    pub kind: &'static str,
    /// How many.
    pub messages: f64,
    /// Bytes sent \[B\].
    pub sent_bytes: f64,
    /// Bytes received \[B\].
    pub received_bytes: f64,
    /// Of the bytes sent, those that leave the node \[B\].
    pub across_nodes_bytes: f64,
}

/// One rank.
#[derive(Clone, Debug, Serialize)]
pub struct RankReport {
    /// The rank.
    pub rank: usize,
    /// Where its time goes; shares sum to 1.
    pub breakdown: Vec<PartRow>,
    /// What it sends.
    pub communication: Vec<AxisRow>,
    /// Most memory alive \[B\]; 0 where sizes are not known.
    pub peak_memory_bytes: u64,
    /// What was alive then, by class \[B\].
    pub memory_at_peak: BTreeMap<&'static str, u64>,
}

/// What a report is made of.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Metrics of its prediction.
    pub metrics: &'a Metrics,
    /// How fast it is.
    pub throughput: Option<&'a Throughput>,
    /// Where its time goes.
    pub breakdown: &'a Breakdown,
    /// What each rank sends.
    pub traffic: &'a [Vec<Traffic>],
    /// Whether the prediction is at the detail of segments.
    pub segments: bool,
}

impl StepReport {
    /// The report of a prediction.
    pub fn new(facts: &Facts<'_>) -> Self {
        let Facts { plan, metrics, breakdown, .. } = facts;
        let rank = |(rank, parts): (usize, &Parts)| {
            let peak = metrics.ranks.get(rank).map(|r| r.memory.peak.live).unwrap_or_default();
            let sent = facts.traffic.get(rank).map_or(&[][..], Vec::as_slice);
            RankReport {
                rank,
                breakdown: parts_rows(parts, breakdown.makespan),
                communication: axis_rows(sent, &breakdown.messages[rank]),
                peak_memory_bytes: memory::total(&peak),
                memory_at_peak: MemoryClass::ALL.iter().map(|c| (c.name(), peak[c.index()])).collect(),
            }
        };
        let ranks: Vec<RankReport> = breakdown.ranks.iter().enumerate().map(rank).collect();
        let counted = |t: &Throughput| Counted {
            tokens: t.tokens,
            model_flops: t.model_flops,
            hardware_flops: t.hardware_flops,
            peak_flops: t.peak_flops,
            formulas: FORMULAS.into_iter().collect(),
        };
        Self {
            schedule: plan.family.clone(),
            name: plan.name.clone(),
            p: plan.ranks(),
            m: plan.batch.microbatches,
            v: plan.chunks,
            detail: if facts.segments { "segment" } else { "stage" },
            devices: plan.mesh.devices(),
            makespan: breakdown.makespan,
            speed: facts.throughput.map(Speed::of),
            counted: facts.throughput.map(counted),
            breakdown: parts_rows(&breakdown.mean(), breakdown.makespan),
            communication: mean(&ranks),
            ranks,
        }
    }
}

fn parts_rows(parts: &Parts, makespan: f64) -> Vec<PartRow> {
    let whole = if makespan > 0.0 { makespan } else { 1.0 };
    let row = |part: &Part| {
        let time = parts.get(*part);
        PartRow { part: part.name(), time, share: time / whole }
    };
    Part::ALL.iter().map(row).collect()
}

fn axis_rows(traffic: &[Traffic], times: &[MessageTime; Breakdown::AXES.len()]) -> Vec<AxisRow> {
    let mut rows = Vec::new();
    for (axis, time) in Breakdown::AXES.into_iter().zip(times) {
        let mut row = AxisRow { axis: axis.name(), ..AxisRow::default() };
        (row.time, row.exposed, row.hidden) = (time.total, time.exposed, time.hidden());
        for kind in traffic.iter().filter(|traffic| traffic.axis == axis) {
            row.kinds.push(KindRow {
                kind: kind.kind.name(),
                messages: kind.messages as f64,
                sent_bytes: kind.sent as f64,
                received_bytes: kind.received as f64,
                across_nodes_bytes: kind.across_nodes,
            });
        }
        row.sum();
        rows.push(row);
    }
    rows
}

impl AxisRow {
    /// The bytes of all kinds.
    fn sum(&mut self) {
        let sum = |of: fn(&KindRow) -> f64| self.kinds.iter().map(of).sum();
        let (sent, received, across) =
            (sum(|k| k.sent_bytes), sum(|k| k.received_bytes), sum(|k| k.across_nodes_bytes));
        (self.sent_bytes, self.received_bytes, self.across_nodes_bytes) = (sent, received, across);
        self.share_in_node = (sent > 0.0).then(|| 1.0 - across / sent);
    }
}

/// The mean over the ranks of what each sends; axes without messages are left out.
fn mean(ranks: &[RankReport]) -> Vec<AxisRow> {
    let count = ranks.len().max(1) as f64;
    let mut means: Vec<AxisRow> = Vec::new();
    for row in ranks.iter().flat_map(|rank| &rank.communication) {
        let at = means.iter().position(|mean| mean.axis == row.axis).unwrap_or_else(|| {
            means.push(AxisRow { axis: row.axis, ..AxisRow::default() });
            means.len() - 1
        });
        let mean = &mut means[at];
        mean.time += row.time / count;
        mean.exposed += row.exposed / count;
        mean.hidden += row.hidden / count;
        for kind in &row.kinds {
            let at = mean.kinds.iter().position(|k| k.kind == kind.kind).unwrap_or_else(|| {
                let [messages, sent_bytes, received_bytes, across_nodes_bytes] = [0.0; 4];
                let kind = kind.kind;
                mean.kinds.push(KindRow { kind, messages, sent_bytes, received_bytes, across_nodes_bytes });
                mean.kinds.len() - 1
            });
            let sum = &mut mean.kinds[at];
            sum.messages += kind.messages / count;
            sum.sent_bytes += kind.sent_bytes / count;
            sum.received_bytes += kind.received_bytes / count;
            sum.across_nodes_bytes += kind.across_nodes_bytes / count;
        }
    }
    means.iter_mut().for_each(AxisRow::sum);
    means.retain(|row| !row.kinds.is_empty() || row.time > 0.0);
    means
}
