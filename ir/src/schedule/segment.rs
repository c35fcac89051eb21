//! From the detail of stages to that of segments: every F, B, I and W becomes the steps of its stage's program.
//!
//! One law: what was sealed stays lawful. Steps stand where their action stood, so no rank's order changes; messages of an
//! axis stand in one order on every member of its groups, because all members run the same program.

use super::{Draft, Schedule};
use crate::action::{Action, Op};
use crate::ids::{LayerRange, TaskId};
use crate::segments::{Bucket, Placed, Programs, Step};
use crate::task::{Dep, Lane, MemoryEffect, StepOf, Task, Touch};
use petgraph::graph::{DiGraph, NodeIndex};
use std::ops::Range;

impl Schedule {
    /// The same schedule at the detail of segments. The parts of a compound action then run one after another.
    #[must_use]
    pub fn segmented(&self, programs: &Programs) -> Schedule {
        let mut cut = Cutter::new(self, programs);
        cut.effects_start.push(0);
        for range in &self.draft.programs {
            cut.rank(range.clone());
        }
        cut.link();
        let mut topological = Vec::with_capacity(cut.graph.node_count());
        topological.extend(self.topological.iter().flat_map(|id| cut.tasks_of(*id).map(TaskId)));
        let first = |id: TaskId| TaskId(cut.starts[id.index()]);
        let ranks = self.draft.programs.iter();
        let ranks = ranks.map(|r| cut.starts[r.start as usize]..cut.starts[r.end as usize]).collect();
        let draft = Draft {
            index: self.draft.index.moved(first),
            graph: cut.graph,
            placement: self.draft.placement.clone(),
            microbatches: self.draft.microbatches,
            programs: ranks,
            buffers: self.draft.buffers.clone(),
            effects: cut.effects,
            effects_start: cut.effects_start,
            persistent: self.draft.persistent.clone(),
            work: self.draft.work.with_steps(programs),
        };
        Schedule { draft, topological }
    }
}

struct Cutter<'a> {
    old: &'a Schedule,
    programs: &'a Programs,
    graph: DiGraph<Task, Dep>,
    /// Old task -> its first new one; one entry more at the end.
    starts: Vec<u32>,
    effects: Vec<MemoryEffect>,
    effects_start: Vec<u32>,
    /// Messages that only the end of the step waits for.
    unjoined: Vec<bool>,
}

impl<'a> Cutter<'a> {
    fn new(old: &'a Schedule, programs: &'a Programs) -> Self {
        // Every task but an empty action has one step at least, and a reduction one for each bucket.
        let steps = |task: &Task| list(programs, task).map_or(1, <[Placed]>::len).max(1);
        let buckets: usize = programs.stages.iter().map(|stage| stage.buckets.len()).sum();
        let tasks = old.tasks().map(|(_, task)| steps(task)).sum::<usize>() + buckets;
        Self {
            old,
            programs,
            graph: DiGraph::with_capacity(tasks, 2 * tasks),
            starts: Vec::with_capacity(old.len() + 1),
            // A workspace becomes two effects.
            effects: Vec::with_capacity(2 * old.draft.effects.len()),
            effects_start: Vec::with_capacity(tasks + 1),
            unjoined: Vec::with_capacity(tasks),
        }
    }

    fn tasks_of(&self, old: TaskId) -> Range<u32> {
        self.starts[old.index()]..self.starts[old.index() + 1]
    }

    /// The tasks of one rank, with the edges inside each action and along each lane.
    fn rank(&mut self, range: Range<u32>) {
        let mut tails: Vec<Option<NodeIndex>> = vec![None; Lane::queues(self.old.draft.placement.ranks())];
        for id in range.map(TaskId) {
            self.starts.push(self.next());
            let task = *self.old.task(id);
            match list(self.programs, &task) {
                Some(placed) => self.steps(&task, placed),
                None => self.buckets(&task),
            }
            let new = self.starts[id.index()]..self.next();
            if new.is_empty() {
                self.push(task);
            }
            let new = self.starts[id.index()]..self.next();
            for node in new.clone().map(|i| NodeIndex::new(i as usize)) {
                let queue = self.graph[node].queue();
                if let Some(tail) = tails.get_mut(queue).and_then(|tail| tail.replace(node)) {
                    self.graph.add_edge(tail, node, Dep::Program);
                }
            }
            self.memory(id, new);
        }
        // Ranks come in order; the entry behind the last task is that of the next rank's first.
        if self.starts.len() == self.old.len() {
            self.starts.push(self.next());
        }
    }

    fn push(&mut self, task: Task) -> NodeIndex {
        self.unjoined.push(false);
        self.graph.add_node(task)
    }

    /// The reduction of a stage's gradients in buckets, a block each; any other task stays whole.
    fn buckets(&mut self, task: &Task) {
        let stage = self.programs.stages.get(task.action.stage.index());
        let buckets = stage.filter(|_| task.action.op == Op::ReduceData && self.programs.overlap_grad_reduce);
        let buckets = buckets.map_or(&[][..], |stage| &stage.buckets);
        for (i, bucket) in buckets.iter().enumerate() {
            let collective = self.programs.step(bucket.step).and_then(Step::collective);
            let step = StepOf {
                continues: i > 0,
                continued: i + 1 < buckets.len(),
                ..StepOf::new(bucket.step, TaskId::at(i).0, collective.map(|c| c.kind))
            };
            let layers = LayerRange { start: bucket.layer, end: bucket.layer.saturating_add(1) };
            self.push(Task { payload: collective.map_or(0, |c| c.bytes), step, layers, ..*task });
        }
        if buckets.is_empty() {
            self.push(*task);
        }
    }

    fn next(&self) -> u32 {
        TaskId::at(self.graph.node_count()).0
    }

    /// The steps of one action: each message waits for the compute before it, and is waited for where it is joined.
    fn steps(&mut self, task: &Task, placed: &[Placed]) {
        let mut compute: Option<NodeIndex> = None;
        // Messages on their way, with the place of the step that waits for them.
        let mut pending: Vec<(usize, NodeIndex)> = Vec::new();
        let first = self.graph.node_count();
        for (place, placed) in placed.iter().enumerate() {
            let collective = self.programs.step(placed.step).and_then(Step::collective);
            let continues = self.graph.node_count() > first;
            let node = self.push(Task {
                lane: collective.map_or(Lane::Compute, |c| Lane::of_axis(c.axis)),
                layers: LayerRange { start: placed.layer, end: placed.layer.saturating_add(1) },
                payload: collective.map_or(0, |c| c.bytes),
                group: None,
                step: StepOf {
                    continues,
                    continued: true,
                    ..StepOf::new(placed.step, TaskId::at(place).0, collective.map(|c| c.kind))
                },
                ..*task
            });
            for (_, message) in pending.extract_if(.., |(joined, _)| *joined <= place) {
                self.graph.add_edge(message, node, Dep::Data);
            }
            match collective {
                None => compute = Some(node),
                Some(_) => {
                    if let Some(compute) = compute {
                        self.graph.add_edge(compute, node, Dep::Data);
                    }
                    pending.push((place.saturating_add(placed.joined_after as usize), node));
                }
            }
        }
        if let Some(last) = self.graph.node_count().checked_sub(1).filter(|last| *last >= first) {
            self.graph[NodeIndex::new(last)].step.continued = false;
        }
        for (joined, message) in pending {
            self.unjoined[message.index()] = joined >= Placed::NEVER as usize;
        }
    }

    /// What the action did to memory: allocations at its first step, ends at its last.
    fn memory(&mut self, old: TaskId, new: Range<u32>) {
        let one = new.len() == 1;
        for id in new.clone() {
            let (first, last) = (id == new.start, id + 1 == new.end);
            let effects = if first || last { self.old.effects(old) } else { &[] };
            for effect in effects {
                let touch = match effect.touch {
                    Touch::Workspace if one => Some(Touch::Workspace),
                    Touch::Workspace if first => Some(Touch::Allocate),
                    Touch::Workspace if last => Some(Touch::Free),
                    Touch::Free if last => Some(Touch::Free),
                    touch @ (Touch::Allocate | Touch::Use) if first => Some(touch),
                    _ => None,
                };
                self.effects.extend(touch.map(|touch| MemoryEffect { touch, ..*effect }));
            }
            self.effects_start.push(TaskId::at(self.effects.len()).0);
        }
    }

    /// The edges between actions: from the last steps of one to the first steps of the other.
    fn link(&mut self) {
        for (id, _) in self.old.tasks() {
            let to = self.first_steps(id);
            for (source, dep) in self.old.inputs(id).filter(|(_, dep)| *dep != Dep::Program) {
                if self.is_cut(id) && self.old.task(source).action.op.makes_weight_gradients() {
                    self.link_buckets(source, id);
                    continue;
                }
                for from in self.last_steps(source, dep) {
                    for to in to.clone() {
                        self.graph.add_edge(NodeIndex::new(from as usize), NodeIndex::new(to as usize), dep);
                    }
                }
            }
        }
    }

    /// Whether a reduction stands in buckets.
    fn is_cut(&self, id: TaskId) -> bool {
        let task = self.graph[NodeIndex::new(self.starts[id.index()] as usize)];
        task.action.op == Op::ReduceData && task.step.program().is_some()
    }

    /// Each bucket waits for the step of the last backward that completes it.
    fn link_buckets(&mut self, backward: TaskId, reduction: TaskId) {
        let Action { op, stage, .. } = self.old.task(backward).action;
        let split = op == Op::BackwardWeight;
        let buckets = self.programs.stages.get(stage.index()).map_or(&[][..], |stage| &stage.buckets);
        for bucket in self.tasks_of(reduction) {
            let of = |b: &Bucket| if split { b.weight_place } else { b.place };
            let place = buckets.get(self.graph[NodeIndex::new(bucket as usize)].step.place as usize).map_or(0, of);
            let range = self.tasks_of(backward);
            let made_by = |i: &u32| {
                let task = self.graph[NodeIndex::new(*i as usize)];
                task.lane == Lane::Compute && task.step.place <= place
            };
            let from = range.clone().rev().find(made_by).unwrap_or(range.start);
            self.graph.add_edge(NodeIndex::new(from as usize), NodeIndex::new(bucket as usize), Dep::Weight);
        }
    }

    /// Everything up to the first compute step.
    fn first_steps(&self, id: TaskId) -> Range<u32> {
        let range = self.tasks_of(id);
        let compute = range.clone().find(|i| self.graph[NodeIndex::new(*i as usize)].lane == Lane::Compute);
        range.start..compute.map_or(range.end, |i| i + 1)
    }

    /// The last compute step and the messages behind it; those that only the end of the step waits for come in where
    /// the end of the step asks.
    fn last_steps(&self, id: TaskId, dep: Dep) -> Vec<u32> {
        let range = self.tasks_of(id);
        let is_compute = |i: &u32| self.graph[NodeIndex::new(*i as usize)].lane == Lane::Compute;
        let from = range.clone().rev().find(is_compute).unwrap_or(range.start);
        let step_end = dep == Dep::Weight;
        let late = |i: &u32| self.unjoined[*i as usize];
        let mut last: Vec<u32> = (from..range.end).filter(|i| !late(i)).collect();
        if step_end {
            last.extend(range.filter(late));
        }
        last
    }
}

/// The steps of an action.
fn list<'a>(programs: &'a Programs, task: &Task) -> Option<&'a [Placed]> {
    programs.stages.get(task.action.stage.index())?.list(task.action.op)
}
