//! Where each action of each (stage, microbatch) stands in a draft.

use crate::action::{Action, Op};
use crate::cells::Cells;
use crate::ids::{Microbatch, Stage, TaskId};
use crate::order::PipelineOrder;

const NONE: u32 = u32::MAX;
const OPS: [Op; 8] = [
    Op::Forward,
    Op::FullBackward,
    Op::BackwardInput,
    Op::BackwardWeight,
    Op::SendForward,
    Op::RecvForward,
    Op::SendBackward,
    Op::RecvBackward,
];

/// (operation, stage, microbatch) -> the first task that does it. Task ids count the order's actions rank by rank.
#[derive(Clone, Debug)]
pub(crate) struct Index {
    pub(crate) cells: Cells,
    /// A table an operation; empty for one that the order has not.
    first: [Vec<u32>; OPS.len()],
    /// The tasks that reduce something over ranks.
    pub(crate) collectives: Vec<TaskId>,
}

fn slot(op: Op) -> Option<usize> {
    OPS.iter().position(|o| *o == op)
}

impl Index {
    pub(crate) fn new(order: &PipelineOrder) -> Self {
        let cells = order.cells();
        let mut index = Self { cells, first: Default::default(), collectives: Vec::new() };
        for (id, action) in order.ranks.iter().flatten().enumerate() {
            index.note(TaskId::at(id), *action);
        }
        index
    }

    fn note(&mut self, id: TaskId, action: Action) {
        if action.op.is_collective() {
            self.collectives.push(id);
        }
        let Some((op, cell)) = slot(action.op).zip(self.cell(action)) else { return };
        let table = &mut self.first[op];
        if table.is_empty() {
            table.resize(self.cells.len(), NONE);
        }
        if table[cell] == NONE {
            table[cell] = id.0;
        }
    }

    /// The number of the action's (stage, microbatch).
    pub(crate) fn cell(&self, action: Action) -> Option<usize> {
        self.cells.index(action.stage, action.microbatch?)
    }

    /// The first task with this operation, stage and microbatch.
    pub(crate) fn get(&self, op: Op, stage: Stage, microbatch: Microbatch) -> Option<TaskId> {
        let table = &self.first[slot(op)?];
        if table.is_empty() {
            return None;
        }
        let id = table.get(self.cells.index(stage, microbatch)?)?;
        (*id != NONE).then_some(TaskId(*id))
    }

    /// The task that makes the gradient of the input: B or I.
    pub(crate) fn input_gradient(&self, stage: Stage, microbatch: Microbatch) -> Option<TaskId> {
        self.get(Op::FullBackward, stage, microbatch).or_else(|| self.get(Op::BackwardInput, stage, microbatch))
    }
}
