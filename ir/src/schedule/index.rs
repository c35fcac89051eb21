//! Where each action of each (stage, microbatch) stands in a draft.

use crate::action::{Action, Op};
use crate::cells::Cells;
use crate::ids::{Microbatch, Stage, TaskId};
use crate::order::PipelineOrder;

const NONE: u32 = u32::MAX;

/// The operations that stand once for each (stage, microbatch): the first eight of [`Op`], by their number.
const OPS: usize = Op::RecvBackward as usize + 1;

/// (operation, stage, microbatch) -> the first task that does it. Task ids count the order's actions rank by rank.
#[derive(Clone, Debug)]
pub(crate) struct Index {
    pub(crate) cells: Cells,
    /// A table an operation; empty for one that the order has not.
    first: [Vec<u32>; OPS],
    /// The tasks that reduce something over ranks.
    pub(crate) collectives: Vec<TaskId>,
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
        let Some(cell) = self.cell(action) else { return };
        let Some(table) = self.first.get_mut(action.op as usize) else { return };
        if table.is_empty() {
            table.resize(self.cells.len(), NONE);
        }
        if table[cell] == NONE {
            table[cell] = id.0;
        }
    }

    /// The same index after every task has got another id.
    pub(crate) fn moved(&self, to: impl Fn(TaskId) -> TaskId) -> Self {
        let id = |id: &u32| if *id == NONE { NONE } else { to(TaskId(*id)).0 };
        Self {
            cells: self.cells,
            first: self.first.each_ref().map(|table| table.iter().map(id).collect()),
            collectives: self.collectives.iter().map(|id| to(*id)).collect(),
        }
    }

    /// The number of the action's (stage, microbatch).
    pub(crate) fn cell(&self, action: Action) -> Option<usize> {
        self.cells.index(action.stage, action.microbatch?)
    }

    /// The first task with this operation on the (stage, microbatch) of this number.
    pub(crate) fn at(&self, op: Op, cell: usize) -> Option<TaskId> {
        let id = *self.first.get(op as usize)?.get(cell)?;
        (id != NONE).then_some(TaskId(id))
    }

    /// The first task with this operation, stage and microbatch.
    pub(crate) fn get(&self, op: Op, stage: Stage, microbatch: Microbatch) -> Option<TaskId> {
        self.at(op, self.cells.index(stage, microbatch)?)
    }

    /// The task that makes the gradient of the input: B or I.
    pub(crate) fn input_gradient(&self, stage: Stage, microbatch: Microbatch) -> Option<TaskId> {
        let cell = self.cells.index(stage, microbatch)?;
        self.at(Op::FullBackward, cell).or_else(|| self.at(Op::BackwardInput, cell))
    }
}
