//! From an order to the task graph: tasks, lanes, typed edges and memory effects.

use super::Draft;
use crate::action::{Action, Op};
use crate::ids::{BufferId, Microbatch, Rank, Stage, TaskId};
use crate::order::PipelineOrder;
use crate::placement::Placement;
use crate::task::{Buffer, Dep, Lane, MemoryClass, MemoryEffect, Task, Touch, Work};
use crate::workload::Workload;
use petgraph::graph::{DiGraph, NodeIndex};

const NONE: u32 = u32::MAX;

pub(super) fn lower(order: &PipelineOrder, workload: &Workload) -> Draft {
    let index = Index::new(order);
    let mut graph = DiGraph::with_capacity(order.len(), order.len() * 3);
    let mut programs = Vec::with_capacity(order.ranks.len());
    for (r, actions) in order.ranks.iter().enumerate() {
        let start = TaskId::at(graph.node_count()).0;
        for action in actions {
            graph.add_node(task(*action, Rank::at(r), &order.placement, workload));
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
    let placement = order.placement.clone();
    Draft { graph, placement, microbatches: order.microbatches, programs, buffers, effects, effects_start, persistent }
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
        Op::ReduceTied => (tied_peer(placement, stage), stage_workload.tied),
        _ => (None, 0),
    };
    let peer = peer_stage.and_then(|s| placement.rank_of(s)).filter(|r| *r != rank && r.0 < placement.ranks());
    let passes = match op {
        Op::Forward | Op::BackwardInput | Op::BackwardWeight => 1.0,
        Op::FullBackward => 2.0,
        _ => 0.0,
    };
    let work = Work { flops: passes * stage_workload.forward_flops, bytes: 0.0 };
    Task { action, rank, lane: Lane::of(op), peer, layers: stage_workload.layers, work, payload }
}

/// The other holder of a tied embedding.
fn tied_peer(placement: &Placement, stage: Stage) -> Option<Stage> {
    Some(if stage == Stage(0) { placement.last() } else { Stage(0) })
}

/// Where each action of each (stage, microbatch) stands in the graph; the first where there are several.
pub(super) struct Index {
    microbatches: u32,
    stages: u32,
    forward: Vec<u32>,
    /// B or I: makes the gradient of the input.
    input_gradient: Vec<u32>,
    /// `SEND_F`, `RECV_F`, `SEND_B`, `RECV_B`; empty where the order has none.
    messages: [Vec<u32>; 4],
    /// `REDUCE_TIED` tasks.
    tied: Vec<u32>,
}

fn message_slot(op: Op) -> Option<usize> {
    match op {
        Op::SendForward => Some(0),
        Op::RecvForward => Some(1),
        Op::SendBackward => Some(2),
        Op::RecvBackward => Some(3),
        _ => None,
    }
}

impl Index {
    fn new(order: &PipelineOrder) -> Self {
        let (stages, microbatches) = (order.placement.stages(), order.microbatches);
        let cells = stages as usize * microbatches as usize;
        let table = || vec![NONE; cells];
        let messages = order.has(|op| message_slot(op).is_some());
        let message = || if messages { table() } else { Vec::new() };
        let mut index = Self {
            microbatches,
            stages,
            forward: table(),
            input_gradient: table(),
            messages: [message(), message(), message(), message()],
            tied: Vec::new(),
        };
        for (id, action) in order.ranks.iter().flatten().enumerate() {
            index.note(TaskId::at(id).0, *action);
        }
        index
    }

    fn note(&mut self, id: u32, action: Action) {
        if action.op == Op::ReduceTied {
            self.tied.push(id);
        }
        let Some(cell) = self.cell(action) else { return };
        let set = |table: &mut Vec<u32>| {
            if let Some(slot) = table.get_mut(cell)
                && *slot == NONE
            {
                *slot = id;
            }
        };
        match action.op {
            Op::Forward => set(&mut self.forward),
            Op::FullBackward | Op::BackwardInput => set(&mut self.input_gradient),
            Op::BackwardWeight => {}
            op => {
                if let Some(slot) = message_slot(op) {
                    set(&mut self.messages[slot]);
                }
            }
        }
    }

    fn cell(&self, action: Action) -> Option<usize> {
        let microbatch = action.microbatch?;
        (action.stage.0 < self.stages && microbatch.0 < self.microbatches)
            .then(|| action.stage.index() * self.microbatches as usize + microbatch.index())
    }

    fn get(&self, op: Op, stage: Stage, microbatch: Microbatch) -> Option<NodeIndex> {
        let cell = self.cell(Action::new(stage, op, microbatch))?;
        let table = match op {
            Op::Forward => &self.forward,
            Op::FullBackward | Op::BackwardInput => &self.input_gradient,
            Op::BackwardWeight => return None,
            op => &self.messages[message_slot(op)?],
        };
        table.get(cell).filter(|id| **id != NONE).map(|id| NodeIndex::new(*id as usize))
    }
}

/// Edges into every task of one rank's program.
fn add_edges(graph: &mut DiGraph<Task, Dep>, range: std::ops::Range<u32>, index: &Index, placement: &Placement) {
    // A queue a lane; receives queue for each peer apart, so that no message waits behind one from another rank.
    let mut tails: Vec<Option<NodeIndex>> = vec![None; Lane::queues(placement.ranks())];
    // Stages of this rank whose weights an action of this step has a gradient for, with the latest such action.
    let mut last_gradient: Vec<(Stage, NodeIndex)> = Vec::new();
    for id in range {
        let node = NodeIndex::new(id as usize);
        let task = graph[node];
        if let Some(tail) = tails.get_mut(task.queue()).and_then(|tail| tail.replace(node)) {
            graph.add_edge(tail, node, Dep::Program);
        }
        if matches!(task.action.op, Op::FullBackward | Op::BackwardWeight) {
            match last_gradient.iter_mut().find(|(s, _)| *s == task.action.stage) {
                Some((_, last)) => *last = node,
                None => last_gradient.push((task.action.stage, node)),
            }
        }
        add_inputs(graph, node, &task, index, placement);
        if !task.action.op.has_microbatch() {
            add_whole_stage_inputs(graph, node, &task, index, &last_gradient);
        }
    }
}

/// Edges into a task from the tasks of the same microbatch that it needs.
fn add_inputs(graph: &mut DiGraph<Task, Dep>, node: NodeIndex, task: &Task, index: &Index, placement: &Placement) {
    let Action { stage, op, microbatch: Some(microbatch) } = task.action else { return };
    let mut link = |from: Option<NodeIndex>, dep| {
        if let Some(from) = from.filter(|from| *from != node) {
            graph.add_edge(from, node, dep);
        }
    };
    let from = |op, stage: Option<Stage>| index.get(op, stage?, microbatch);
    // The input comes by message, or straight from a neighbouring stage on the same rank.
    let beside = |stage: Option<Stage>| stage.filter(|s| placement.rank_of(*s) == Some(task.rank));
    match op {
        Op::Forward => {
            link(from(Op::RecvForward, Some(stage)), Dep::Data);
            link(from(Op::Forward, beside(placement.previous(stage))), Dep::Data);
        }
        Op::FullBackward | Op::BackwardInput => {
            link(from(Op::Forward, Some(stage)), Dep::Data);
            link(from(Op::RecvBackward, Some(stage)), Dep::Data);
            link(from(Op::BackwardInput, beside(placement.next(stage))), Dep::Data);
        }
        Op::BackwardWeight => link(from(Op::BackwardInput, Some(stage)), Dep::Data),
        Op::SendForward => link(from(Op::Forward, Some(stage)), Dep::Data),
        Op::SendBackward => link(from(Op::BackwardInput, Some(stage)), Dep::Data),
        Op::RecvForward => link(from(Op::SendForward, placement.previous(stage)), Dep::Transfer),
        Op::RecvBackward => link(from(Op::SendBackward, placement.next(stage)), Dep::Transfer),
        Op::ReduceTied | Op::OptimizerStep => {}
    }
}

/// Edges into a task that acts once a step: the last gradients of its stage, and for the optimizer the tied reduction.
fn add_whole_stage_inputs(
    graph: &mut DiGraph<Task, Dep>,
    node: NodeIndex,
    task: &Task,
    index: &Index,
    last_gradient: &[(Stage, NodeIndex)],
) {
    let reduction = task.action.op == Op::ReduceTied;
    for (stage, last) in last_gradient {
        // A local reduction stands for both stages of its rank.
        if *stage != task.action.stage && !(reduction && task.peer.is_none()) {
            continue;
        }
        graph.add_edge(*last, node, Dep::Weight);
        if reduction {
            // A collective starts when every member is ready.
            for other in index.tied.iter().map(|id| NodeIndex::new(*id as usize)).filter(|other| *other != node) {
                graph.add_edge(*last, other, Dep::Transfer);
            }
        }
    }
    if task.action.op == Op::OptimizerStep {
        for reduction in index.tied.iter().map(|id| NodeIndex::new(*id as usize)) {
            if graph[reduction].rank == task.rank {
                graph.add_edge(reduction, node, Dep::Weight);
            }
        }
    }
}

/// Memory that outlives the step.
fn persistent(placement: &Placement, workload: &Workload) -> Vec<(Rank, Stage, MemoryClass, u64)> {
    let mut persistent = Vec::new();
    for s in 0..placement.stages() {
        let (stage, sizes) = (Stage(s), workload.stage(Stage(s)));
        let Some(rank) = placement.rank_of(stage) else { continue };
        let classes = [(MemoryClass::Parameters, sizes.parameters), (MemoryClass::Optimizer, sizes.optimizer)];
        persistent.extend(classes.into_iter().filter(|(_, n)| *n > 0).map(|(class, n)| (rank, stage, class, n)));
    }
    for rank in (0..placement.ranks()).map(Rank).filter(|_| workload.rank_overhead > 0) {
        let stage = placement.stages_of(rank).next().unwrap_or_default();
        persistent.push((rank, stage, MemoryClass::Buffers, workload.rank_overhead));
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
    /// (class, stage, microbatch) -> buffer; a table a class that has buffers per microbatch.
    activations: Vec<u32>,
    logits: Vec<u32>,
    received: [Vec<u32>; 2],
    input_gradients: Vec<u32>,
    /// Stage -> its gradient buffer.
    gradients: Vec<u32>,
    /// Whether the order ends with an optimizer, so that gradients have an end.
    optimizer: bool,
}

impl<'a> Memory<'a> {
    fn new(index: &'a Index, workload: &'a Workload, graph: &'a DiGraph<Task, Dep>) -> Self {
        let cells = index.forward.len();
        let sized = |f: fn(&crate::workload::StageWorkload) -> u64| {
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
            logits: sized(|s| s.logits),
            received: [messages(), messages()],
            input_gradients: messages(),
            gradients: vec![NONE; index.stages as usize],
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
        let sizes = self.workload.stage(task.action.stage);
        let cell = self.index.cell(task.action);
        match (task.action.op, cell) {
            (Op::Forward, Some(cell)) => self.forward(cell, task, &sizes),
            (Op::FullBackward | Op::BackwardInput | Op::BackwardWeight, Some(cell)) => {
                self.backward(cell, task, &sizes, placement);
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
                let buffer = self.gradients.get(task.action.stage.index()).copied().unwrap_or(NONE);
                self.touch(buffer, Touch::Free);
                self.workspace(sizes.optimizer_workspace, task);
            }
            (Op::ReduceTied, _) => self.workspace(task.payload, task),
            _ => {}
        }
        debug_assert_eq!(id.index() + 1, self.effects_start.len());
        self.effects_start.push(TaskId::at(self.effects.len()).0);
    }

    fn forward(&mut self, cell: usize, task: &Task, sizes: &crate::workload::StageWorkload) {
        let received = self.received[0].get(cell).copied().unwrap_or(NONE);
        self.touch(received, Touch::Use);
        let activations = self.buffer(MemoryClass::Activations, sizes.activations, task.rank, task.action);
        self.touch(activations, Touch::Allocate);
        self.activations[cell] = activations;
        if sizes.logits > 0 {
            let logits = self.buffer(MemoryClass::Logits, sizes.logits, task.rank, task.action);
            self.touch(logits, Touch::Allocate);
            self.logits[cell] = logits;
        }
        self.workspace(sizes.forward_workspace, task);
    }

    fn backward(&mut self, cell: usize, task: &Task, sizes: &crate::workload::StageWorkload, placement: &Placement) {
        let op = task.action.op;
        let last = op != Op::BackwardInput;
        let release = if last { Touch::Free } else { Touch::Use };
        let kept = [Some(&self.activations), Some(&self.logits), self.received.first()];
        let kept = kept.map(|table| table.and_then(|t| t.get(cell)).copied().unwrap_or(NONE));
        for buffer in kept {
            self.touch(buffer, release);
        }
        if op != Op::BackwardWeight {
            let received = self.received[1].get(cell).copied().unwrap_or(NONE);
            self.touch(received, Touch::Free);
            self.input_gradient(cell, task, placement);
        }
        let stage = task.action.stage.index();
        let mut workspace = sizes.backward_workspace;
        if last && self.optimizer && sizes.gradients > 0 {
            if self.gradients[stage] == NONE {
                let buffer = self.buffer(MemoryClass::Gradients, sizes.gradients, task.rank, task.action);
                self.gradients[stage] = buffer;
                self.touch(buffer, Touch::Allocate);
                workspace = workspace.saturating_sub(sizes.gradients);
            } else {
                self.touch(self.gradients[stage], Touch::Use);
            }
        }
        self.workspace(workspace, task);
    }

    /// The gradient of the input lives until it is sent; without a send it is the neighbour's on the same rank.
    fn input_gradient(&mut self, cell: usize, task: &Task, placement: &Placement) {
        let Some(microbatch) = task.action.microbatch else { return };
        let sent = self.index.get(Op::SendBackward, task.action.stage, microbatch);
        let bytes = placement.previous(task.action.stage).map_or(0, |s| self.workload.stage(s).output);
        if bytes > 0 && sent.is_some_and(|send| self.graph[send].rank == task.rank) {
            let buffer = self.buffer(MemoryClass::Buffers, bytes, task.rank, task.action);
            self.touch(buffer, Touch::Allocate);
            self.input_gradients[cell] = buffer;
        }
    }
}
