//! The fast path: one pass over the tasks in a topological order that was found once.
//!
//! A task starts when its inputs are there and its lane is free. With a static order per lane both are predecessors in
//! the graph, so no queue of events is needed: `start = max over predecessors (end + latency)`.

use crate::Options;
use crate::cost::CostModel;
use crate::shared::{self, Machine};
use petgraph::Direction;
use petgraph::graph::NodeIndex;
use petgraph::visit::EdgeRef;
use pipewright_ir::ids::TaskId;
use pipewright_ir::schedule::Schedule;
use pipewright_ir::spec::Semantics;
use pipewright_ir::task::{Dep, Lane, Task};
use pipewright_ir::timeline::{Source, Span, Timeline};
use std::ops::Range;

/// A schedule compiled for simulation under one semantics of sends.
///
/// Slots `0 .. tasks` are tasks; behind them comes one slot for each queue of each rank, which holds when it
/// became free in the step before.
#[derive(Clone, Debug)]
pub struct Engine {
    pub(crate) tasks: usize,
    /// Tasks in topological order.
    pub(crate) order: Vec<u32>,
    /// Predecessor slots of task `id`: entries `start[id] .. start[id + 1]`.
    pub(crate) start: Vec<u32>,
    pub(crate) predecessors: Vec<Predecessor>,
    /// Task -> the latency of what is transferred to it.
    pub(crate) latency: Vec<f64>,
    /// Task -> its duration.
    pub(crate) duration: Vec<f64>,
    /// Tasks that happen together, in order.
    pub(crate) sets: Vec<Set>,
    /// Last task of each lane slot.
    pub(crate) lane_tails: Vec<Option<u32>>,
    /// Whether a task runs on a compute lane.
    pub(crate) is_compute: Vec<bool>,
}

/// What a task waits for: a slot, and whether something is transferred from there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Predecessor(u32);

impl Predecessor {
    /// Slots leave the highest bit free.
    const TRANSFER: u32 = 1 << 31;

    pub(crate) fn new(slot: u32, transfer: bool) -> Self {
        Self(slot | if transfer { Self::TRANSFER } else { 0 })
    }

    pub(crate) fn slot(self) -> u32 {
        self.0 & !Self::TRANSFER
    }

    pub(crate) fn is_transfer(self) -> bool {
        self.0 & Self::TRANSFER != 0
    }
}

/// Tasks that happen together; they stand side by side in the order.
#[derive(Clone, Debug)]
pub(crate) struct Set {
    pub(crate) range: Range<usize>,
    pub(crate) kind: SetKind,
    /// How long they take together.
    pub(crate) duration: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetKind {
    /// The parts of a compound action.
    Compound,
    /// A send that waits and its receive.
    Message,
    /// The members of a collective.
    Collective,
}

impl SetKind {
    fn of(task: &Task) -> Self {
        match task.lane {
            Lane::Compute => SetKind::Compound,
            Lane::Send | Lane::Receive => SetKind::Message,
            _ => SetKind::Collective,
        }
    }
}

impl Engine {
    /// Compiles a schedule whose sends never wait. All costs are 0 until [`Engine::set_costs`].
    pub fn new(schedule: &Schedule) -> Self {
        Self::compile(schedule, schedule.topological(), Semantics::Eager)
    }

    /// Compiles a schedule under a semantics of sends; `None` where it deadlocks under it.
    ///
    /// Under rendezvous a rank does one thing at a time and both ends of a message are busy for the hop. Under stream
    /// FIFO only the streams between the two ranks are: messages of two ranks, whichever way they go, wait for each
    /// other. Under eager sends a hop holds up nobody but the receiver.
    pub fn under(schedule: &Schedule, semantics: Semantics) -> Option<Self> {
        Some(Self::compile(schedule, &schedule.order_under(semantics)?, semantics))
    }

    fn compile(schedule: &Schedule, order: &[TaskId], semantics: Semantics) -> Self {
        let tasks = schedule.len();
        let graph = schedule.graph();
        let queues = schedule.ranks() * Lane::queues(TaskId::at(schedule.ranks()).0);
        let mut compound = false;
        let mut is_compute = |task: &Task| {
            compound |= task.group.is_some();
            task.lane == Lane::Compute
        };
        let is_compute = schedule.tasks().map(|(_, task)| is_compute(task)).collect();
        // Under eager sends only the parts of compound actions happen together.
        let together = (compound || semantics != Semantics::Eager).then(|| schedule.together(semantics));
        let joined = |a: usize, b: usize| together.as_ref().is_some_and(|together| together[a] == together[b]);
        let mut engine = Self {
            tasks,
            order: order.iter().map(|id| id.0).collect(),
            start: Vec::with_capacity(tasks + 1),
            predecessors: Vec::with_capacity(graph.edge_count() + queues),
            // Pages of it that no transfer stands on are never touched.
            latency: vec![0.0; tasks],
            duration: vec![0.0; tasks],
            sets: together.as_ref().map_or_else(Vec::new, |together| sets(schedule, order, together)),
            lane_tails: vec![None; queues],
            is_compute,
        };
        engine.start.push(0);
        for (id, _) in schedule.tasks() {
            let queue = schedule.queue(id, semantics);
            // Tasks of a queue come in program order, so the latest seen is the one before.
            let before = engine.lane_tails[queue].replace(id.0);
            engine.predecessors.push(Predecessor::new(before.unwrap_or_else(|| TaskId::at(tasks + queue).0), false));
            for edge in graph.edges_directed(NodeIndex::new(id.index()), Direction::Incoming) {
                let from = edge.source().index();
                let transferred = match edge.weight() {
                    Dep::Program => continue,
                    Dep::Transfer if joined(from, id.index()) => continue,
                    Dep::Transfer => true,
                    Dep::Data | Dep::Weight => false,
                };
                engine.predecessors.push(Predecessor::new(TaskId::at(from).0, transferred));
            }
            engine.start.push(TaskId::at(engine.predecessors.len()).0);
        }
        engine
    }

    /// Sets all durations and latencies from a cost model.
    pub fn set_costs(&mut self, schedule: &Schedule, cost: &dyn CostModel) {
        for (id, task) in schedule.tasks() {
            let id = id.index();
            self.duration[id] = cost.duration(task);
            let range = self.start[id] as usize..self.start[id + 1] as usize;
            if self.predecessors[range].iter().any(|predecessor| predecessor.is_transfer()) {
                self.latency[id] = cost.latency(task);
            }
        }
        for set in &mut self.sets {
            let parts: Vec<&Task> = self.order[set.range.clone()].iter().map(|id| schedule.task(TaskId(*id))).collect();
            let durations = || parts.iter().map(|task| cost.duration(task));
            set.duration = match set.kind {
                SetKind::Compound => cost.compound(&parts),
                SetKind::Message => {
                    let receive = parts.iter().find(|task| task.lane == Lane::Receive);
                    durations().sum::<f64>() + receive.map_or(0.0, |task| cost.latency(task))
                }
                SetKind::Collective => durations().fold(0.0, f64::max),
            };
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
                        None => self.run_step(options.compound, &mut ends, slice),
                    }
                    self.carry_over(&mut ends, options.barrier);
                }
            }
        }
        Timeline { source: Source::Predicted, tasks: self.tasks, spans, memory: Vec::new() }
    }

    /// Runs the tasks of a stretch of `order` one by one.
    fn run_range(&self, range: Range<usize>, ends: &mut [f64], spans: &mut [Span]) {
        for id in &self.order[range] {
            let id = *id as usize;
            let start = self.ready(id, ends, |_| true);
            let end = start + self.duration[id];
            ends[id] = end;
            spans[id] = Span { start, end };
        }
    }

    /// When the inputs and the lane of a task are there, of the predecessors that `counts`.
    fn ready(&self, id: usize, ends: &[f64], counts: impl Fn(u32) -> bool) -> f64 {
        let range = self.start[id] as usize..self.start[id + 1] as usize;
        let mut start = 0.0;
        for predecessor in &self.predecessors[range] {
            let slot = predecessor.slot();
            let ready = ends[slot as usize] + if predecessor.is_transfer() { self.latency[id] } else { 0.0 };
            if ready > start && counts(slot) {
                start = ready;
            }
        }
        start
    }

    /// Runs one step. Whoever waits for a task of a set waits for the whole set.
    fn run_step(&self, compound: bool, ends: &mut [f64], spans: &mut [Span]) {
        let mut next = 0;
        for set in self.sets.iter().filter(|set| compound || set.kind != SetKind::Compound) {
            self.run_range(next..set.range.start, ends, spans);
            next = set.range.end;
            let parts = &self.order[set.range.clone()];
            let others = |slot: u32| !parts.contains(&slot);
            let start = parts.iter().map(|id| self.ready(*id as usize, ends, others)).fold(0.0, f64::max);
            let end = start + set.duration;
            if set.kind == SetKind::Compound {
                self.share(set, start, spans);
            } else {
                parts.iter().for_each(|id| spans[*id as usize] = Span { start, end });
            }
            parts.iter().for_each(|id| ends[*id as usize] = end);
        }
        self.run_range(next..self.tasks, ends, spans);
    }

    /// Each part's span is its share of the compound action, one behind the other, so that the spans of a lane never
    /// overlap.
    fn share(&self, set: &Set, start: f64, spans: &mut [Span]) {
        let parts = &self.order[set.range.clone()];
        let sum: f64 = parts.iter().map(|id| self.duration[*id as usize]).sum();
        let stretch = if sum > 0.0 { set.duration / sum } else { 0.0 };
        let mut at = start;
        for (i, id) in parts.iter().enumerate() {
            let last = i + 1 == parts.len();
            let end = if last { start + set.duration } else { at + self.duration[*id as usize] * stretch };
            spans[*id as usize] = Span { start: at, end };
            at = end;
        }
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

/// The tasks that happen together, without their durations. The order has them side by side.
fn sets(schedule: &Schedule, order: &[TaskId], together: &[TaskId]) -> Vec<Set> {
    let mut sets = Vec::new();
    let mut at = 0;
    for parts in order.chunk_by(|a, b| together[a.index()] == together[b.index()]) {
        if parts.len() > 1 {
            sets.push(Set { range: at..at + parts.len(), kind: SetKind::of(schedule.task(parts[0])), duration: 0.0 });
        }
        at += parts.len();
    }
    sets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::UnitCost;
    use pipewright_ir::order::PipelineOrder;
    use pipewright_ir::passes::add_send_recv;
    use pipewright_ir::schedule::Draft;
    use pipewright_ir::unit_costs::UnitCosts;
    use pipewright_ir::workload::Workload;

    fn makespan(csv: &str, hop: f64, semantics: Semantics) -> f64 {
        let order = PipelineOrder::from_csv(csv, 2).unwrap();
        let stages = order.placement.stages();
        let schedule = Draft::lower(&add_send_recv(&order), &Workload::abstract_stages(stages)).seal().unwrap();
        let mut engine = Engine::under(&schedule, semantics).unwrap();
        engine.set_costs(&schedule, &UnitCost::new(&UnitCosts { hop, ..UnitCosts::default() }, &schedule));
        engine.run(&Options::default()).makespan()
    }

    /// GPipe, p = 2, m = 2, F = 1, B = 2, hop 1, worked out by hand. Rendezvous: rank 0 sends at 1 and 3, rank 1 computes
    /// F0 2-3, F1 4-5, B0 5-7, B1 8-10, rank 0 receives again at 7 and, after B0 8-10, at 10.
    #[test]
    fn a_hop_costs_what_its_semantics_says() {
        let gpipe = "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n";
        assert_eq!(makespan(gpipe, 0.0, Semantics::Rendezvous), 9.0);
        assert_eq!(makespan(gpipe, 1.0, Semantics::Eager), 11.0);
        assert_eq!(makespan(gpipe, 1.0, Semantics::StreamFifo), 11.0);
        assert_eq!(makespan(gpipe, 1.0, Semantics::Rendezvous), 13.0);
        // A hop longer than F: the second message waits for the stream, 1-3 and 3-5.
        assert_eq!(makespan(gpipe, 2.0, Semantics::Eager), 13.0);
        assert_eq!(makespan(gpipe, 2.0, Semantics::StreamFifo), 14.0);
    }
}
