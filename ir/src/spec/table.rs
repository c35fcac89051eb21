//! Where every action stands: (operation, stage, microbatch) -> task. Notes R01 and duplicates (R02, R06) on the way.

use super::{Report, Rule};
use crate::action::Op;
use crate::ids::{Microbatch, Stage, TaskId};
use crate::schedule::Draft;

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

pub(super) struct Table<'a> {
    pub(super) draft: &'a Draft,
    pub(super) stages: u32,
    pub(super) microbatches: u32,
    cells: usize,
    first: Vec<u32>,
}

impl<'a> Table<'a> {
    pub(super) fn new(draft: &'a Draft, report: &mut Report<'_>) -> Self {
        let (stages, microbatches) = (draft.placement.stages(), draft.microbatches);
        let cells = stages as usize * microbatches as usize;
        let mut table = Self { draft, stages, microbatches, cells, first: vec![NONE; cells * OPS.len()] };
        for (id, task) in draft.tasks() {
            let action = task.action;
            let in_range = action.stage.0 < stages && action.microbatch.is_none_or(|m| m.0 < microbatches);
            if !in_range {
                let message =
                    format!("{action} is outside the plan of {stages} stages and {microbatches} microbatches");
                let help = format!(
                    "stages run from 0 to {}, microbatches from 0 to {}",
                    stages.saturating_sub(1),
                    microbatches.saturating_sub(1)
                );
                report.add(Rule::InRange, message, help, &[id]);
                continue;
            }
            let Some(slot) = action.microbatch.and_then(|m| table.slot(action.op, action.stage, m)) else { continue };
            if table.first[slot] == NONE {
                table.first[slot] = id.0;
            } else {
                let rule = if action.op.is_compute() { Rule::ExactlyOnce } else { Rule::MessagePairs };
                let first = TaskId(table.first[slot]);
                report.add(rule, format!("{action} stands more than once"), "remove one of them", &[first, id]);
            }
        }
        table
    }

    fn slot(&self, op: Op, stage: Stage, microbatch: Microbatch) -> Option<usize> {
        let kind = OPS.iter().position(|o| *o == op)?;
        Some(kind * self.cells + stage.index() * self.microbatches as usize + microbatch.index())
    }

    /// The first task with this operation, stage and microbatch.
    pub(super) fn get(&self, op: Op, stage: Stage, microbatch: Microbatch) -> Option<TaskId> {
        let id = self.slot(op, stage, microbatch).and_then(|slot| self.first.get(slot))?;
        (*id != NONE).then_some(TaskId(*id))
    }

    /// The task that makes the gradient of the input: B or I.
    pub(super) fn input_gradient(&self, stage: Stage, microbatch: Microbatch) -> Option<TaskId> {
        self.get(Op::FullBackward, stage, microbatch).or_else(|| self.get(Op::BackwardInput, stage, microbatch))
    }

    /// Whether `a` stands before `b`; tasks on different ranks have no common order and count as fine.
    pub(super) fn before(&self, a: TaskId, b: TaskId) -> bool {
        a < b || self.draft.task(a).rank != self.draft.task(b).rank
    }

    /// Every (stage, microbatch).
    pub(super) fn cells(&self) -> impl Iterator<Item = (Stage, Microbatch)> + use<> {
        let microbatches = self.microbatches;
        (0..self.stages).flat_map(move |s| (0..microbatches).map(move |m| (Stage(s), Microbatch(m))))
    }
}
