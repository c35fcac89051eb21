//! From an order to the task graph: tasks, lanes, typed edges and memory effects.

use super::Draft;
use super::index::Index;
use super::work::WorkTable;
use crate::action::{Action, Op};
use crate::ids::{BufferId, Microbatch, Rank, Stage, TaskId};
use crate::order::PipelineOrder;
use crate::placement::Placement;
use crate::task::{Buffer, Dep, Lane, MemoryClass, MemoryEffect, StepOf, Task, Touch};
use crate::workload::{SplitWorkload, StageWorkload, Workload};
use petgraph::graph::{DiGraph, NodeIndex};

const NONE: u32 = u32::MAX;

pub(super) fn lower(order: &PipelineOrder, workload: &Workload) -> Draft {
    let index = Index::new(order);
    let workload = &workload.sliced(order.slices);
    let mut graph = DiGraph::with_capacity(order.len(), order.len() * 3);
    let mut programs = Vec::with_capacity(order.ranks.len());
    for (r, actions) in order.ranks.iter().enumerate() {
        let start = TaskId::at(graph.node_count()).0;
        for cell in actions.chunk_by(|_, next| next.joins_previous) {
            let group = (cell.len() > 1).then(|| TaskId::at(graph.node_count()));
            for action in cell {
                graph.add_node(Task { group, ..task(*action, Rank::at(r), &order.placement, workload) });
            }
        }
        programs.push(start..TaskId::at(graph.node_count()).0);
    }
    for range in &programs {
        add_edges(&mut graph, range.clone(), &index, &order.placement);
    }
    let mut memory = Memory::new(&index, workload, &graph);
    for id in 0..graph.node_count() {
        memory.add(TaskId::at(id), &graph[NodeIndex::new(id)], &order.placement);
    }
    let persistent = persistent(&order.placement, workload);
    let (buffers, effects, effects_start) = (memory.buffers, memory.effects, memory.effects_start);
    let (placement, microbatches) = (order.placement.clone(), order.microbatches);
    let work = WorkTable::of_stages(workload.stages.iter().map(|stage| stage.forward_flops).collect());
    Draft { graph, placement, microbatches, programs, buffers, effects, effects_start, persistent, index, work }
}

fn task(action: Action, rank: Rank, placement: &Placement, workload: &Workload) -> Task {
    let Action { stage, op, .. } = action;
    let stage_workload = workload.stage(stage);
    let output_of = |stage: Option<Stage>| stage.map_or(0, |s| workload.stage(s).output);
    let (peer_stage, payload) = match op {
        Op::SendForward => (placement.next(stage), stage_workload.output),
        Op::RecvForward => (placement.previous(stage), output_of(placement.previous(stage))),
        Op::SendBackward => (placement.previous(stage), output_of(placement.previous(stage))),
        Op::RecvBackward => (placement.next(stage), stage_workload.output),
        Op::ReduceGrad => (placement.reduced_with(op, stage), stage_workload.gradients),
        Op::ReduceData => (None, stage_workload.reduced),
        Op::ReduceTensor => (None, stage_workload.tensor_reduced),
        Op::GatherParam => (None, stage_workload.gathered),
        Op::ReduceTied => (placement.reduced_with(op, stage), stage_workload.tied),
        _ => (None, 0),
    };
    let peer = peer_stage.and_then(|s| placement.rank_of(s)).filter(|r| *r != rank && r.0 < placement.ranks());
    Task {
        action,
        rank,
        lane: Lane::of(op),
        peer,
        layers: stage_workload.layers,
        payload,
        group: None,
        step: StepOf::default(),
    }
}

/// Edges into every task of one rank's program.
fn add_edges(graph: &mut DiGraph<Task, Dep>, range: std::ops::Range<u32>, index: &Index, placement: &Placement) {
    // A queue a lane; receives queue for each peer apart, so that no message waits behind one from another rank.
    let mut tails: Vec<Option<NodeIndex>> = vec![None; Lane::queues(placement.ranks())];
    // Stages of this rank whose gradients an action of this step has made or reduced, with the latest such action.
    let mut gradients: Vec<(Stage, NodeIndex)> = Vec::new();
    for id in range {
        let node = NodeIndex::new(id as usize);
        let task = graph[node];
        if let Some(tail) = tails.get_mut(task.queue()).and_then(|tail| tail.replace(node)) {
            graph.add_edge(tail, node, Dep::Program);
        }
        add_inputs(graph, node, &task, index, placement);
        if task.action.op.makes_weight_gradients() {
            match gradients.iter_mut().find(|(s, _)| *s == task.action.stage) {
                Some((_, last)) => *last = node,
                None => gradients.push((task.action.stage, node)),
            }
        } else if !task.action.op.has_microbatch() {
            add_whole_stage_inputs(graph, node, &task, index, placement, &mut gradients);
        }
    }
}

/// Edges into a task from the tasks of the same microbatch that it needs.
fn add_inputs(graph: &mut DiGraph<Task, Dep>, node: NodeIndex, task: &Task, index: &Index, placement: &Placement) {
    let Action { stage, op, microbatch: Some(microbatch), .. } = task.action else { return };
    let mut link = |from: Option<TaskId>, dep| {
        if let Some(from) = from.map(|id| NodeIndex::new(id.index())).filter(|from| *from != node) {
            graph.add_edge(from, node, dep);
        }
    };
    let from = |op, stage: Option<Stage>| index.get(op, stage?, microbatch);
    let gradient_from = |stage: Option<Stage>| index.input_gradient(stage?, microbatch);
    // The input comes by message, or straight from a neighbouring stage on the same rank.
    let beside = |stage: Option<Stage>| stage.filter(|s| placement.rank_of(*s) == Some(task.rank));
    match op {
        Op::Forward => {
            link(from(Op::RecvForward, Some(stage)), Dep::Data);
            link(from(Op::Forward, beside(placement.previous(stage))), Dep::Data);
            // A slice attends to the keys and values of the slices before it.
            link(slice_before(microbatch).and_then(|m| index.get(Op::Forward, stage, m)), Dep::Data);
        }
        Op::FullBackward | Op::BackwardInput => {
            link(from(Op::Forward, Some(stage)), Dep::Data);
            link(from(Op::RecvBackward, Some(stage)), Dep::Data);
            link(gradient_from(beside(placement.next(stage))), Dep::Data);
            // ... so its backward needs what theirs have put on its keys and values.
            link(slice_behind(microbatch).and_then(|m| index.input_gradient(stage, m)), Dep::Data);
        }
        Op::BackwardWeight => link(from(Op::BackwardInput, Some(stage)), Dep::Data),
        Op::SendForward => link(from(Op::Forward, Some(stage)), Dep::Data),
        Op::SendBackward => link(gradient_from(Some(stage)), Dep::Data),
        Op::RecvForward => link(from(Op::SendForward, placement.previous(stage)), Dep::Transfer),
        Op::RecvBackward => link(from(Op::SendBackward, placement.next(stage)), Dep::Transfer),
        _ => {}
    }
}

/// The slice before this one, of the same microbatch.
fn slice_before(microbatch: Microbatch) -> Option<Microbatch> {
    microbatch.slice()?.checked_sub(1).map(|k| microbatch.sliced(k))
}

/// The slice behind this one; where there is none the index knows nothing of it.
fn slice_behind(microbatch: Microbatch) -> Option<Microbatch> {
    microbatch.slice()?.checked_add(1).map(|k| microbatch.sliced(k))
}

/// Edges into a task that acts once a step, from what last made or reduced the gradients it uses.
fn add_whole_stage_inputs(
    graph: &mut DiGraph<Task, Dep>,
    node: NodeIndex,
    task: &Task,
    index: &Index,
    placement: &Placement,
    gradients: &mut [(Stage, NodeIndex)],
) {
    let Action { stage, op, .. } = task.action;
    // A reduction between two stages of one rank stands for both.
    let other = placement.reduced_with(op, stage).filter(|s| placement.rank_of(*s) == Some(task.rank));
    let clips = op == Op::ClipGrad;
    for (_, last) in gradients.iter_mut().filter(|(s, _)| clips || *s == stage || Some(*s) == other) {
        graph.add_edge(*last, node, Dep::Weight);
        if op.is_collective() {
            // A collective starts when every member is ready.
            for member in index.collectives.iter().map(|id| NodeIndex::new(id.index())) {
                if member != node && other.is_none() && same_collective(&graph[member], task) {
                    graph.add_edge(*last, member, Dep::Transfer);
                }
            }
        }
        *last = node;
    }
}

/// Whether two tasks are members of one collective.
pub(crate) fn same_collective(a: &Task, b: &Task) -> bool {
    let op = a.action.op;
    let of_all = matches!(op, Op::ReduceTied | Op::ClipGrad);
    op == b.action.op && (of_all || a.action.stage.number() == b.action.stage.number())
}

/// Memory that outlives the step.
fn persistent(placement: &Placement, workload: &Workload) -> Vec<(Rank, Stage, MemoryClass, u64)> {
    let mut persistent = Vec::new();
    for stage in placement.all_stages() {
        let sizes = workload.stage(stage);
        let Some(rank) = placement.rank_of(stage) else { continue };
        let gradients = if workload.gradients_persist { sizes.gradients } else { 0 };
        let classes = [
            (MemoryClass::Parameters, sizes.parameters),
            (MemoryClass::Optimizer, sizes.optimizer),
            (MemoryClass::Gradients, gradients),
        ];
        persistent.extend(classes.into_iter().filter(|(_, n)| *n > 0).map(|(class, n)| (rank, stage, class, n)));
    }
    for rank in (0..placement.ranks()).map(Rank) {
        let stage = placement.stages_of(rank).next().unwrap_or_default();
        let buffers = workload.rank_buffers.get(rank.index()).copied().unwrap_or(0);
        let classes = [(MemoryClass::Buffers, buffers), (MemoryClass::Overhead, workload.rank_overhead)];
        persistent.extend(classes.into_iter().filter(|(_, n)| *n > 0).map(|(class, n)| (rank, stage, class, n)));
    }
    persistent
}

/// Collects buffers and effects, task by task.
struct Memory<'a> {
    index: &'a Index,
    workload: &'a Workload,
    graph: &'a DiGraph<Task, Dep>,
    buffers: Vec<Buffer>,
    effects: Vec<MemoryEffect>,
    effects_start: Vec<u32>,
    /// (class, stage, microbatch) -> buffer; a table a class that has buffers per microbatch. With a split backward of
    /// known sizes, `activations` is what I ends, `carried` what W still needs of F, and `added` what it needs of I.
    activations: Vec<u32>,
    carried: Vec<u32>,
    added: Vec<u32>,
    logits: Vec<u32>,
    received: [Vec<u32>; 2],
    input_gradients: Vec<u32>,
    /// Stage of each pipe -> its gradient buffer.
    gradients: Vec<u32>,
    /// Whether the order ends with an optimizer, so that gradients have an end.
    optimizer: bool,
}

impl<'a> Memory<'a> {
    fn new(index: &'a Index, workload: &'a Workload, graph: &'a DiGraph<Task, Dep>) -> Self {
        let cells = index.cells.len();
        let sized = |f: fn(&StageWorkload) -> u64| {
            if workload.stages.iter().any(|s| f(s) > 0) { vec![NONE; cells] } else { Vec::new() }
        };
        let messages = || sized(|s| s.output);
        let mut effects_start = Vec::with_capacity(graph.node_count() + 1);
        effects_start.push(0);
        Self {
            index,
            workload,
            graph,
            buffers: Vec::with_capacity(cells),
            effects: Vec::with_capacity(cells * 3),
            effects_start,
            activations: vec![NONE; cells],
            carried: sized(|s| s.split.map_or(0, |split| split.kept)),
            added: sized(|s| s.split.map_or(0, |split| split.kept.saturating_sub(s.activations))),
            logits: sized(|s| s.logits),
            received: [messages(), messages()],
            input_gradients: messages(),
            gradients: vec![NONE; index.cells.stages().count()],
            optimizer: graph.node_weights().any(|t| t.action.op == Op::OptimizerStep),
        }
    }

    /// The buffer that `make` allocates, under whatever task touches it first.
    fn buffer(&mut self, class: MemoryClass, bytes: u64, rank: Rank, of: Action) -> u32 {
        self.buffers.push(Buffer { rank, class, bytes, of });
        BufferId::at(self.buffers.len() - 1).0
    }

    fn touch(&mut self, buffer: u32, touch: Touch) {
        if buffer != NONE {
            self.effects.push(MemoryEffect { buffer: BufferId(buffer), touch });
        }
    }

    fn workspace(&mut self, bytes: u64, task: &Task) {
        if bytes > 0 {
            let buffer = self.buffer(MemoryClass::Buffers, bytes, task.rank, task.action);
            self.touch(buffer, Touch::Workspace);
        }
    }

    fn add(&mut self, id: TaskId, task: &Task, placement: &Placement) {
        let workload: &'a Workload = self.workload;
        let sizes = workload.stage(task.action.stage);
        let cell = self.index.cell(task.action);
        match (task.action.op, cell) {
            (Op::Forward, Some(cell)) => self.forward(cell, task, sizes),
            (Op::FullBackward | Op::BackwardInput | Op::BackwardWeight, Some(cell)) => {
                self.backward(cell, task, sizes, placement);
            }
            (Op::RecvForward | Op::RecvBackward, Some(cell)) if task.payload > 0 => {
                let buffer = self.buffer(MemoryClass::Buffers, task.payload, task.rank, task.action);
                let direction = usize::from(task.action.op == Op::RecvBackward);
                if let Some(slot) = self.received[direction].get_mut(cell) {
                    *slot = buffer;
                }
                self.touch(buffer, Touch::Allocate);
            }
            (Op::SendForward, Some(_)) => self.workspace(task.payload, task),
            (Op::SendBackward, Some(cell)) => {
                let buffer = self.input_gradients.get(cell).copied().unwrap_or(NONE);
                self.touch(buffer, Touch::Free);
            }
            (Op::OptimizerStep, _) => {
                let row = self.index.cells.stage(task.action.stage);
                let buffer = row.and_then(|row| self.gradients.get(row)).copied().unwrap_or(NONE);
                self.touch(buffer, Touch::Free);
                self.workspace(sizes.optimizer_workspace, task);
            }
            (Op::ReduceGrad | Op::ReduceTied | Op::ReduceData | Op::ReduceTensor, _) if !workload.gradients_persist => {
                self.workspace(task.payload, task);
            }
            _ => {}
        }
        debug_assert_eq!(id.index() + 1, self.effects_start.len());
        self.effects_start.push(TaskId::at(self.effects.len()).0);
    }

    fn forward(&mut self, cell: usize, task: &Task, sizes: &StageWorkload) {
        let received = self.received[0].get(cell).copied().unwrap_or(NONE);
        self.touch(received, Touch::Use);
        // Of what I and W both need, W's part is there from the start.
        let carried = self.split(task, sizes).map_or(0, |split| split.kept.min(sizes.activations));
        if carried > 0 {
            self.carried[cell] = self.activation_buffer(carried, task);
        }
        let bytes = sizes.activations - carried;
        self.activations[cell] = self.activation_buffer(bytes, task);
        if sizes.logits > 0 {
            let logits = self.buffer(MemoryClass::Logits, sizes.logits, task.rank, task.action);
            self.touch(logits, Touch::Allocate);
            self.logits[cell] = logits;
        }
        self.workspace(sizes.forward_workspace, task);
    }

    /// The sizes of a microbatch's split backward, if its backward is split and they are known.
    fn split(&self, task: &Task, sizes: &StageWorkload) -> Option<SplitWorkload> {
        let (split, microbatch) = (sizes.split?, task.action.microbatch?);
        self.index.get(Op::BackwardWeight, task.action.stage, microbatch).map(|_| split)
    }

    fn activation_buffer(&mut self, bytes: u64, task: &Task) -> u32 {
        let buffer = self.buffer(MemoryClass::Activations, bytes, task.rank, task.action);
        self.touch(buffer, Touch::Allocate);
        buffer
    }

    fn backward(&mut self, cell: usize, task: &Task, sizes: &StageWorkload, placement: &Placement) {
        let op = task.action.op;
        let split = self.split(task, sizes);
        let last = op.makes_weight_gradients();
        let of = |table: &[u32]| table.get(cell).copied().unwrap_or(NONE);
        let kept = [&self.activations, &self.logits, &self.received[0], &self.received[1]].map(|table| of(table));
        let for_weights = [&self.carried, &self.added].map(|table| of(table));
        let mut workspace = sizes.backward_workspace;
        match split {
            Some(split) if last => {
                for_weights.into_iter().for_each(|buffer| self.touch(buffer, Touch::Free));
                workspace = split.weight_workspace;
            }
            Some(split) => {
                kept.into_iter().for_each(|buffer| self.touch(buffer, Touch::Free));
                let added = split.kept.saturating_sub(sizes.activations);
                if added > 0 {
                    self.added[cell] = self.activation_buffer(added, task);
                }
                workspace = split.input_workspace;
            }
            // W still multiplies what F kept by what arrived as the gradient of the output.
            None => {
                let release = if last { Touch::Free } else { Touch::Use };
                kept.into_iter().for_each(|buffer| self.touch(buffer, release));
            }
        }
        if op.makes_input_gradient() {
            self.input_gradient(cell, task, placement);
        }
        if let Some(row) = self.index.cells.stage(task.action.stage).filter(|_| last && self.optimizer)
            && sizes.gradients > 0
            && !self.workload.gradients_persist
        {
            if self.gradients[row] == NONE {
                let buffer = self.buffer(MemoryClass::Gradients, sizes.gradients, task.rank, task.action);
                self.gradients[row] = buffer;
                self.touch(buffer, Touch::Allocate);
                workspace = workspace.saturating_sub(sizes.gradients);
            } else {
                self.touch(self.gradients[row], Touch::Use);
            }
        }
        self.workspace(workspace, task);
    }

    /// The gradient of the input lives until it is sent; without a send it is the neighbour's on the same rank.
    fn input_gradient(&mut self, cell: usize, task: &Task, placement: &Placement) {
        let Some(microbatch) = task.action.microbatch else { return };
        let sent = self.index.get(Op::SendBackward, task.action.stage, microbatch);
        let bytes = placement.previous(task.action.stage).map_or(0, |s| self.workload.stage(s).output);
        if bytes > 0 && sent.is_some_and(|send| self.graph[NodeIndex::new(send.index())].rank == task.rank) {
            let buffer = self.buffer(MemoryClass::Buffers, bytes, task.rank, task.action);
            self.touch(buffer, Touch::Allocate);
            self.input_gradients[cell] = buffer;
        }
    }
}
