//! A draft as the rules look at it: where every action stands. Notes R01 and duplicates (R02, R06) on the way.

use super::{Report, Rule};
use crate::action::Op;
use crate::ids::{Microbatch, Stage, TaskId};
use crate::schedule::Draft;
use crate::task::Task;

pub(super) struct Table<'a> {
    pub(super) draft: &'a Draft,
    /// Task -> the size of its message \[B\], apart from the tasks: the rules on messages jump to and fro.
    payloads: Vec<u64>,
}

impl<'a> Table<'a> {
    pub(super) fn new(draft: &'a Draft) -> Self {
        Self { draft, payloads: draft.tasks().map(|(_, task)| task.payload).collect() }
    }

    /// R01, and the second of two alike.
    pub(super) fn check(&self, id: TaskId, task: &Task, report: &mut Report<'_>) {
        let (action, cells) = (task.action, self.draft.index.cells);
        let number = match action.microbatch {
            Some(microbatch) => cells.index(action.stage, microbatch),
            None => cells.stage(action.stage),
        };
        let Some(cell) = number else {
            let (stages, microbatches) = (cells.stages, cells.microbatches);
            let pipes = if cells.pipes.len() > 1 { " in each of two pipes" } else { "" };
            let slices = if cells.slices > 1 { format!(" of {} slices", cells.slices) } else { String::new() };
            let message = format!(
                "{action} is outside the plan of {stages} stages and {microbatches} microbatches{slices}{pipes}"
            );
            let help = format!(
                "stages run from 0 to {}, microbatches from 0 to {}",
                stages.saturating_sub(1),
                microbatches.saturating_sub(1)
            );
            report.add(Rule::InRange, message, help, &[id]);
            return;
        };
        let first = self.at(action.op, cell).filter(|_| action.microbatch.is_some());
        if let Some(first) = first.filter(|first| *first != id) {
            let rule = if action.op.is_compute() { Rule::ExactlyOnce } else { Rule::MessagePairs };
            report.add(rule, format!("{action} stands more than once"), "remove one of them", &[first, id]);
        }
    }

    /// The size of a task's message \[B\].
    pub(super) fn payload(&self, id: TaskId) -> u64 {
        self.payloads[id.index()]
    }

    /// The first task with this operation on the (stage, microbatch) of this number.
    pub(super) fn at(&self, op: Op, cell: usize) -> Option<TaskId> {
        self.draft.index.at(op, cell)
    }

    /// The first task with this operation, stage and microbatch.
    pub(super) fn get(&self, op: Op, stage: Stage, microbatch: Microbatch) -> Option<TaskId> {
        self.draft.index.get(op, stage, microbatch)
    }

    /// The task that makes the gradient of the input: B or I.
    pub(super) fn input_gradient(&self, stage: Stage, microbatch: Microbatch) -> Option<TaskId> {
        self.draft.index.input_gradient(stage, microbatch)
    }

    /// Whether `a` stands before `b`; tasks on different ranks have no common order and count as fine.
    pub(super) fn before(&self, a: TaskId, b: TaskId) -> bool {
        a < b || self.draft.task(a).rank != self.draft.task(b).rank
    }

    /// Every (stage, microbatch).
    pub(super) fn cells(&self) -> impl Iterator<Item = (Stage, Microbatch)> + use<> {
        self.draft.index.cells.iter()
    }
}
