//! R13: what happens once a step comes after everything it sums up.

use super::table::Table;
use super::{Report, Rule};
use crate::action::{Action, Op};
use crate::ids::TaskId;
use crate::schedule::Draft;
use crate::task::Task;

/// What happens once a step, and what it waits for.
pub(super) struct StepEnd {
    last_gradient: Vec<Option<TaskId>>,
    optimizers: Vec<Vec<TaskId>>,
    reductions: Vec<TaskId>,
    over_tensor: Vec<Vec<TaskId>>,
    gathers: Vec<TaskId>,
}

impl StepEnd {
    pub(super) fn new(draft: &Draft) -> Self {
        let stages = draft.index.cells.stages().count();
        Self {
            last_gradient: vec![None; stages],
            optimizers: vec![Vec::new(); stages],
            reductions: Vec::new(),
            over_tensor: vec![Vec::new(); stages],
            gathers: Vec::new(),
        }
    }

    pub(super) fn note(&mut self, draft: &Draft, id: TaskId, task: &Task) {
        let Some(s) = draft.index.cells.stage(task.action.stage) else { return };
        match task.action.op {
            Op::FullBackward | Op::BackwardWeight => self.last_gradient[s] = self.last_gradient[s].max(Some(id)),
            Op::OptimizerStep => self.optimizers[s].push(id),
            Op::ReduceGrad | Op::ReduceData | Op::ReduceTied | Op::ClipGrad => self.reductions.push(id),
            Op::ReduceTensor => {
                self.reductions.push(id);
                self.over_tensor[s].push(id);
            }
            Op::GatherParam => self.gathers.push(id),
            _ => {}
        }
    }

    pub(super) fn check(self, table: &Table<'_>, report: &mut Report<'_>) {
        let (cells, placement) = (table.draft.index.cells, &table.draft.placement);
        let Self { last_gradient, optimizers, reductions, over_tensor, gathers } = self;
        let mut after = |first: TaskId, second: TaskId| {
            if !table.before(first, second) {
                let [a, b] = [first, second].map(|id| table.draft.task(id).action);
                let message = format!("{b} stands before {a}, which still adds to the same gradients");
                report.add(Rule::StepEnd, message, format!("move {b} behind {a}"), &[second, first]);
            }
        };
        for (last, optimizer) in last_gradient.iter().zip(&optimizers) {
            for id in optimizer {
                if let Some(last) = last {
                    after(*last, *id);
                }
            }
        }
        for reduction in &reductions {
            // A local reduction stands for both stages.
            let Task { action, peer, .. } = *table.draft.task(*reduction);
            let other = placement.reduced_with(action.op, action.stage);
            for s in [Some(action.stage), other.filter(|_| peer.is_none())].into_iter().flatten() {
                let Some(s) = cells.stage(s) else { continue };
                if let Some(last) = last_gradient[s] {
                    after(last, *reduction);
                }
                for id in &optimizers[s] {
                    after(*reduction, *id);
                }
                // The tied embedding is summed over its two ends, and parts over the tensor-parallel ranks, after each is
                // summed over its copies; the norm of the gradients is one of sums.
                let comes_first = |id: &&TaskId| {
                    let earlier = table.draft.task(**id).action;
                    let copies = matches!(earlier.op, Op::ReduceGrad | Op::ReduceData);
                    match action.op {
                        Op::ReduceTied | Op::ReduceTensor => copies && cells.stage(earlier.stage) == Some(s),
                        Op::ClipGrad => earlier.op == Op::ReduceTensor,
                        _ => false,
                    }
                };
                for earlier in reductions.iter().filter(comes_first) {
                    after(*earlier, *reduction);
                }
            }
        }
        for gather in &gathers {
            let Some(s) = cells.stage(table.draft.task(*gather).action.stage) else { continue };
            for id in optimizers[s].iter().filter(|id| !table.before(**id, *gather)) {
                let [a, b] = [*id, *gather].map(|id| table.draft.task(id).action);
                let message = format!("{b} stands before {a}, which makes the weights that it gathers");
                report.add(Rule::StepEnd, message, format!("move {b} behind {a}"), &[*gather, *id]);
            }
        }
        for (op, each) in [(Op::OptimizerStep, &optimizers), (Op::ReduceTensor, &over_tensor)] {
            let any = each.iter().any(|ids| !ids.is_empty());
            for (stage, ids) in cells.stages().zip(each) {
                let action = Action::whole_stage(stage, op);
                let (message, help) = match ids.as_slice() {
                    [] if any => (format!("{action} is missing"), format!("add {action} behind the last backward")),
                    [_, _, ..] => (format!("{action} stands more than once"), "keep one".to_owned()),
                    _ => continue,
                };
                report.add(Rule::StepEnd, message, help, ids);
            }
        }
    }
}
