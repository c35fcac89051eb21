//! R13: what happens once a step comes after everything it sums up.

use super::table::Table;
use super::{Report, Rule};
use crate::action::{Action, Op};
use crate::ids::{Stage, TaskId};

pub(super) fn check(table: &Table<'_>, report: &mut Report<'_>) {
    let stages = table.stages as usize;
    let mut last_gradient: Vec<Option<TaskId>> = vec![None; stages];
    let mut optimizers: Vec<Vec<TaskId>> = vec![Vec::new(); stages];
    let mut reductions = Vec::new();
    for (id, task) in table.draft.tasks() {
        let s = task.action.stage.index();
        if s >= stages {
            continue;
        }
        match task.action.op {
            Op::FullBackward | Op::BackwardWeight => last_gradient[s] = last_gradient[s].max(Some(id)),
            Op::OptimizerStep => optimizers[s].push(id),
            Op::ReduceTied => reductions.push(id),
            _ => {}
        }
    }
    let any_optimizer = optimizers.iter().any(|ids| !ids.is_empty());
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
        // A local reduction stands for both copies.
        let task = table.draft.task(*reduction);
        let own = [task.action.stage.index(), task.action.stage.index()];
        let both = [0, table.draft.placement.last().index()];
        for s in if task.peer.is_none() { both } else { own } {
            if let Some(last) = last_gradient.get(s).copied().flatten() {
                after(last, *reduction);
            }
            for id in optimizers.get(s).into_iter().flatten() {
                after(*reduction, *id);
            }
        }
    }
    for (s, ids) in optimizers.iter().enumerate() {
        let action = Action::whole_stage(Stage::at(s), Op::OptimizerStep);
        match ids.as_slice() {
            [] if any_optimizer => {
                report.add(
                    Rule::StepEnd,
                    format!("{action} is missing"),
                    format!("add {action} behind the last backward"),
                    &[],
                );
            }
            [_, _, ..] => report.add(Rule::StepEnd, format!("{action} stands more than once"), "keep one", ids),
            _ => {}
        }
    }
}
