//! `Schedule`: the task DAG of one step, checked.
//!
//! One law: [`Draft::check`] is the only gate into [`Schedule`]; nothing past it validates again. A draft can be built
//! from any order at all, however wrong, so that every fault can be reported at once.

mod index;
mod lower;
mod segment;
mod work;

pub(crate) use index::Index;
pub(crate) use lower::same_collective;

use crate::cells::Cells;
use crate::ids::{BufferId, Microbatch, Pipe, Rank, Stage, TaskId};
use crate::order::PipelineOrder;
use crate::placement::Placement;
use crate::spec::{self, Semantics, Violation};
use crate::task::{Buffer, Dep, MemoryClass, MemoryEffect, Task, Work};
use crate::workload::Workload;
use petgraph::Direction;
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::EdgeRef;
use std::ops::Range;
use work::WorkTable;

/// A task graph that has not been checked.
#[derive(Clone, Debug)]
pub struct Draft {
    /// Node `i` is the task with id `i`; ids run rank by rank in program order.
    pub(crate) graph: DiGraph<Task, Dep>,
    pub(crate) placement: Placement,
    pub(crate) microbatches: u32,
    /// Rank -> its tasks, in program order.
    pub(crate) programs: Vec<Range<u32>>,
    pub(crate) buffers: Vec<Buffer>,
    pub(crate) effects: Vec<MemoryEffect>,
    /// Task -> its slice of `effects`: from entry `i` to entry `i + 1`.
    pub(crate) effects_start: Vec<u32>,
    /// Buffers that exist before and after the step: (rank, stage, class, bytes).
    pub(crate) persistent: Vec<(Rank, Stage, MemoryClass, u64)>,
    pub(crate) index: Index,
    work: WorkTable,
}

/// A checked task graph: what both engines run.
#[derive(Clone, Debug)]
pub struct Schedule {
    draft: Draft,
    topological: Vec<TaskId>,
}

impl Draft {
    /// Builds the task graph of `order`: tasks, lanes, typed edges, memory effects. Never fails; what cannot be linked
    /// stays unlinked and is found by [`Draft::check`].
    pub fn lower(order: &PipelineOrder, workload: &Workload) -> Self {
        lower::lower(order, workload)
    }

    /// Every violation of the law under one semantics of sends.
    pub fn check(&self, semantics: Semantics) -> Vec<Violation> {
        spec::check(self, semantics).0
    }

    /// Checks under eager sends, what both engines assume, and seals.
    ///
    /// # Errors
    /// Every violation of the law.
    pub fn seal(self) -> Result<Schedule, Vec<Violation>> {
        let (violations, topological) = spec::check(&self, Semantics::Eager);
        if violations.is_empty() { Ok(Schedule { draft: self, topological }) } else { Err(violations) }
    }

    pub(crate) fn tasks(&self) -> impl Iterator<Item = (TaskId, &Task)> {
        self.graph.node_weights().enumerate().map(|(i, task)| (TaskId::at(i), task))
    }

    pub(crate) fn task(&self, id: TaskId) -> &Task {
        &self.graph[NodeIndex::new(id.index())]
    }

    /// How much a task computes.
    pub(crate) fn work(&self, task: &Task) -> Work {
        self.work.of(task)
    }

    pub(crate) fn effects_of(&self, id: TaskId) -> &[MemoryEffect] {
        let range = self.effects_start[id.index()] as usize..self.effects_start[id.index() + 1] as usize;
        &self.effects[range]
    }
}

impl Schedule {
    pub(crate) fn draft(&self) -> &Draft {
        &self.draft
    }

    /// The task graph; node `i` is the task with id `i`.
    pub fn graph(&self) -> &DiGraph<Task, Dep> {
        &self.draft.graph
    }

    /// Number of tasks.
    pub fn len(&self) -> usize {
        self.draft.graph.node_count()
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A task by its id, which comes from this schedule.
    pub fn task(&self, id: TaskId) -> &Task {
        self.draft.task(id)
    }

    /// Every task with its id, rank by rank in program order.
    pub fn tasks(&self) -> impl Iterator<Item = (TaskId, &Task)> {
        self.draft.tasks()
    }

    /// The tasks of a rank in program order.
    pub fn program(&self, rank: Rank) -> impl DoubleEndedIterator<Item = (TaskId, &Task)> {
        let range = self.draft.programs.get(rank.index()).cloned().unwrap_or(0..0);
        range.map(|i| (TaskId(i), self.draft.task(TaskId(i))))
    }

    /// The tasks that a task waits for, and why.
    pub fn inputs(&self, id: TaskId) -> impl Iterator<Item = (TaskId, Dep)> + '_ {
        let edges = self.draft.graph.edges_directed(NodeIndex::new(id.index()), Direction::Incoming);
        edges.map(|edge| (TaskId::at(edge.source().index()), *edge.weight()))
    }

    /// How much a task of this schedule computes.
    pub fn work(&self, task: &Task) -> Work {
        self.draft.work(task)
    }

    /// What a task does to memory.
    pub fn effects(&self, id: TaskId) -> &[MemoryEffect] {
        self.draft.effects_of(id)
    }

    /// A buffer by its id, which comes from this schedule.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.draft.buffers[id.index()]
    }

    /// Memory that exists before and after the step: rank, stage, class, bytes.
    pub fn persistent(&self) -> &[(Rank, Stage, MemoryClass, u64)] {
        &self.draft.persistent
    }

    /// Which rank holds which stage.
    pub fn placement(&self) -> &Placement {
        &self.draft.placement
    }

    /// Microbatches of the step, accumulation rounds and both pipes included.
    pub fn microbatches(&self) -> u32 {
        self.draft.microbatches
    }

    /// The numbering of its (stage, microbatch) pairs.
    pub fn cells(&self) -> Cells {
        self.draft.index.cells
    }

    /// Which of the step's microbatches the `microbatch` of a stage's pipe is: the upward pipe has the second half.
    pub fn sample(&self, stage: Stage, microbatch: Microbatch) -> u32 {
        let before = if stage.pipe() == Pipe::Up { self.cells().microbatches } else { 0 };
        before + microbatch.number()
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.draft.programs.len()
    }

    /// All tasks in one order that every edge respects, found once when the schedule was checked.
    pub fn topological(&self) -> &[TaskId] {
        &self.topological
    }

    /// All tasks in one order that every queue of `semantics` respects, tasks that happen together side by side; `None`
    /// where the schedule deadlocks under it. Eager sends, under which it was checked, always have one.
    pub fn order_under(&self, semantics: Semantics) -> Option<Vec<TaskId>> {
        match semantics {
            Semantics::Eager => Some(self.topological.clone()),
            _ => spec::deadlock::order(&self.draft, semantics),
        }
    }

    /// Task -> the task that stands for it and all that happen together with it under `semantics`: the parts of a
    /// compound action, and with sends that wait a send and its receive.
    pub fn together(&self, semantics: Semantics) -> Vec<TaskId> {
        spec::deadlock::joined(&self.draft, semantics).into_iter().map(TaskId).collect()
    }

    /// The queue in which a task waits under `semantics`, below `ranks x Lane::queues(ranks)`.
    pub fn queue(&self, id: TaskId, semantics: Semantics) -> usize {
        spec::deadlock::queue_of(self.task(id), self.ranks(), semantics)
    }

    /// Messages between different ranks in one step.
    pub fn messages(&self) -> usize {
        self.tasks().filter(|(_, t)| t.action.op.is_send()).count()
    }
}
