//! The fast path: one pass over the tasks in a topological order that was found once.
//!
//! A task starts when its inputs are there and its lane is free. With a static order per lane both are predecessors in
//! the graph, so no queue of events is needed: `start = max over predecessors (end + latency)`.

use crate::Options;
use crate::cost::CostModel;
use crate::shared::{self, Machine};
use petgraph::Direction;
use petgraph::visit::EdgeRef;
use pipewright_ir::ids::TaskId;
use pipewright_ir::schedule::Schedule;
use pipewright_ir::task::{Dep, Lane, Task};
use pipewright_ir::timeline::{Source, Span, Timeline};
use std::ops::Range;

/// A schedule compiled for simulation.
///
/// Slots `0 .. tasks` are tasks; behind them comes one slot for each queue of each rank, which holds when it
/// became free in the step before.
#[derive(Clone, Debug)]
pub struct Engine {
    pub(crate) tasks: usize,
    /// Tasks in topological order.
    pub(crate) order: Vec<u32>,
    /// Predecessor slots of the k-th task in order: entries `start[k] .. start[k + 1]`.
    pub(crate) start: Vec<u32>,
    pub(crate) predecessors: Vec<u32>,
    /// Latency of each predecessor entry, 0 but on transfers.
    pub(crate) latency: Vec<f64>,
    transfers: Vec<(u32, TaskId)>,
    /// Duration of the k-th task in order.
    pub(crate) duration: Vec<f64>,
    /// Compound actions: where the parts stand in `order`, side by side, and how long they take together.
    compounds: Vec<(usize, usize, f64)>,
    /// Last task of each lane slot.
    pub(crate) lane_tails: Vec<Option<u32>>,
    /// Whether a task runs on a compute lane.
    pub(crate) is_compute: Vec<bool>,
}

impl Engine {
    /// Compiles a schedule. All costs are 0 until [`Engine::set_costs`].
    pub fn new(schedule: &Schedule) -> Self {
        let tasks = schedule.len();
        let graph = schedule.graph();
        let queues = Lane::queues(TaskId::at(schedule.ranks()).0);
        let lanes = schedule.ranks() * queues;
        let mut engine = Self {
            tasks,
            order: schedule.topological().iter().map(|id| id.0).collect(),
            start: Vec::with_capacity(tasks + 1),
            predecessors: Vec::with_capacity(graph.edge_count() + lanes),
            latency: Vec::new(),
            transfers: Vec::new(),
            duration: vec![0.0; tasks],
            compounds: compounds(schedule),
            lane_tails: vec![None; lanes],
            is_compute: schedule.tasks().map(|(_, t)| t.lane == Lane::Compute).collect(),
        };
        engine.start.push(0);
        for id in schedule.topological() {
            let node = petgraph::graph::NodeIndex::new(id.index());
            let task = &graph[node];
            let lane = task.rank.index() * queues + task.queue();
            let mut first_of_lane = true;
            for edge in graph.edges_directed(node, Direction::Incoming) {
                match edge.weight() {
                    Dep::Program => first_of_lane = false,
                    Dep::Transfer => engine.transfers.push((TaskId::at(engine.predecessors.len()).0, *id)),
                    Dep::Data | Dep::Weight => {}
                }
                engine.predecessors.push(TaskId::at(edge.source().index()).0);
            }
            if first_of_lane {
                engine.predecessors.push(TaskId::at(tasks + lane).0);
            }
            // Tasks of a lane come in program order, so the latest seen is the lane's last.
            engine.lane_tails[lane] = Some(id.0);
            engine.start.push(TaskId::at(engine.predecessors.len()).0);
        }
        engine.latency = vec![0.0; engine.predecessors.len()];
        engine
    }

    /// Sets all durations and latencies from a cost model.
    pub fn set_costs(&mut self, schedule: &Schedule, cost: &dyn CostModel) {
        for (duration, id) in self.duration.iter_mut().zip(&self.order) {
            *duration = cost.duration(schedule.task(TaskId(*id)));
        }
        for (entry, receiver) in &self.transfers {
            self.latency[*entry as usize] = cost.latency(schedule.task(*receiver));
        }
        for (first, end, duration) in &mut self.compounds {
            let parts: Vec<&Task> = self.order[*first..*end].iter().map(|id| schedule.task(TaskId(*id))).collect();
            *duration = cost.compound(&parts);
        }
    }

    /// Runs all steps.
    pub fn run(&self, options: &Options) -> Timeline {
        let mut ends = vec![0.0; self.tasks + self.lane_tails.len()];
        let mut spans = vec![Span::default(); self.tasks * options.steps];
        match Machine::of(options) {
            Some(machine) if !options.barrier => shared::run(self, machine, &mut ends, &mut spans),
            machine => {
                for slice in spans.chunks_exact_mut(self.tasks.max(1)) {
                    match machine {
                        Some(machine) => shared::run(self, machine, &mut ends, slice),
                        None if options.compound => self.run_step_with_compounds(&mut ends, slice),
                        None => self.run_range(0..self.tasks, &mut ends, slice),
                    }
                    self.carry_over(&mut ends, options.barrier);
                }
            }
        }
        Timeline { source: Source::Predicted, tasks: self.tasks, spans, memory: Vec::new() }
    }

    /// Runs the tasks of a stretch of `order` one by one.
    fn run_range(&self, range: Range<usize>, ends: &mut [f64], spans: &mut [Span]) {
        for k in range {
            let start = self.ready(k, ends, |_| true);
            let end = start + self.duration[k];
            let id = self.order[k] as usize;
            ends[id] = end;
            spans[id] = Span { start, end };
        }
    }

    /// When the inputs and the lane of the k-th task in order are there, of the predecessors that `counts`.
    fn ready(&self, k: usize, ends: &[f64], counts: impl Fn(u32) -> bool) -> f64 {
        let range = self.start[k] as usize..self.start[k + 1] as usize;
        let mut start = 0.0;
        for (predecessor, latency) in self.predecessors[range.clone()].iter().zip(&self.latency[range]) {
            let ready = ends[*predecessor as usize] + latency;
            if ready > start && counts(*predecessor) {
                start = ready;
            }
        }
        start
    }

    /// One step in which the parts of a compound action start and end together. Each part's span is its share of the
    /// whole, in order, so that the spans of a lane never overlap; whoever waits for a part waits for the whole.
    fn run_step_with_compounds(&self, ends: &mut [f64], spans: &mut [Span]) {
        let mut next = 0;
        for (first, last, duration) in &self.compounds {
            self.run_range(next..*first, ends, spans);
            next = *last;
            let parts = &self.order[*first..*last];
            let others = |id: u32| !parts.contains(&id);
            let start = (*first..*last).map(|k| self.ready(k, ends, others)).fold(0.0, f64::max);
            let end = start + duration;
            let sum: f64 = self.duration[*first..*last].iter().sum();
            let stretch = if sum > 0.0 { duration / sum } else { 0.0 };
            let mut at = start;
            for (k, id) in (*first..*last).zip(parts) {
                let until = if k + 1 == *last { end } else { at + self.duration[k] * stretch };
                ends[*id as usize] = end;
                spans[*id as usize] = Span { start: at, end: until };
                at = until;
            }
        }
        self.run_range(next..self.tasks, ends, spans);
    }

    /// When each lane is free for the next step.
    fn carry_over(&self, ends: &mut [f64], barrier: bool) {
        let (tasks, lanes) = ends.split_at_mut(self.tasks);
        let last = tasks.iter().copied().fold(0.0, f64::max);
        for (lane, tail) in lanes.iter_mut().zip(&self.lane_tails) {
            *lane = match tail {
                _ if barrier => last,
                Some(id) => tasks[*id as usize],
                None => *lane,
            };
        }
    }
}

/// The compound actions in topological order, without their durations. The law puts their parts side by side there.
fn compounds(schedule: &Schedule) -> Vec<(usize, usize, f64)> {
    let group = |id: &TaskId| schedule.task(*id).group;
    let mut compounds = Vec::new();
    let mut at = 0;
    for parts in schedule.topological().chunk_by(|a, b| group(a).is_some() && group(a) == group(b)) {
        if parts.len() > 1 {
            compounds.push((at, at + parts.len(), 0.0));
        }
        at += parts.len();
    }
    compounds
}
