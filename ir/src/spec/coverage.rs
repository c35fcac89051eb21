//! R02 to R05, R14, R15: everything is computed once, in its place, in an order that can be.

use super::table::Table;
use super::{Report, Rule};
use crate::action::{Action, Op};
use crate::ids::{Microbatch, Rank, Stage, TaskId};
use crate::task::Dep;

pub(super) fn check(table: &Table<'_>, report: &mut Report<'_>) {
    for (cell, (stage, microbatch)) in table.cells().enumerate() {
        let [forward, full, input, weight] =
            [Op::Forward, Op::FullBackward, Op::BackwardInput, Op::BackwardWeight].map(|op| table.at(op, cell));
        let computed = Computed { forward, full, input, weight };
        computed.exactly_once(stage, microbatch, report);
        computed.in_order(table, report);
        slice_order(table, stage, microbatch, report);
    }
    compounds(table, report);
    for (id, task) in table.draft.tasks() {
        let home = table.draft.placement.rank_of(task.action.stage);
        if let Some(home) = home.filter(|home| *home != task.rank) {
            let message = format!(
                "{} stands on rank {}, but stage {} lives on rank {home}",
                task.action, task.rank, task.action.stage
            );
            report.add(Rule::Placement, message, format!("move it to rank {home}"), &[id]);
        }
    }
}

/// The tasks that compute one microbatch on one stage.
struct Computed {
    forward: Option<TaskId>,
    full: Option<TaskId>,
    input: Option<TaskId>,
    weight: Option<TaskId>,
}

impl Computed {
    fn exactly_once(&self, stage: Stage, microbatch: Microbatch, report: &mut Report<'_>) {
        let Self { forward, full, input, weight } = *self;
        if forward.is_some() && full.is_some() && input.is_none() && weight.is_none() {
            return;
        }
        let name = |op| Action::new(stage, op, microbatch).to_string();
        if forward.is_none() {
            let help = format!("add {}", name(Op::Forward));
            report.add(Rule::ExactlyOnce, format!("{} is missing", name(Op::Forward)), help, &[]);
        }
        let split: Vec<_> = input.into_iter().chain(weight).collect();
        match (full, split.as_slice()) {
            (Some(full), [_, ..]) => {
                let message =
                    format!("{} stands beside a split backward of the same microbatch", name(Op::FullBackward));
                let tasks: Vec<_> = std::iter::once(full).chain(split).collect();
                report.add(Rule::ExactlyOnce, message, "keep either B, or I and W", &tasks);
            }
            (None, []) => {
                let message = format!("stage {stage} has no backward for microbatch {microbatch}");
                report.add(Rule::ExactlyOnce, message, format!("add {}", name(Op::FullBackward)), &[]);
            }
            (None, [only]) => {
                let missing = if input.is_none() { Op::BackwardInput } else { Op::BackwardWeight };
                let help = format!("add {}", name(missing));
                report.add(Rule::ExactlyOnce, format!("{} is missing", name(missing)), help, &[*only]);
            }
            _ => {}
        }
    }

    fn in_order(&self, table: &Table<'_>, report: &mut Report<'_>) {
        stands_before(table, self.forward, self.full.or(self.input), Rule::ForwardFirst, report);
        stands_before(table, self.input, self.weight, Rule::InputBeforeWeight, report);
    }
}

fn stands_before(
    table: &Table<'_>,
    first: Option<TaskId>,
    second: Option<TaskId>,
    rule: Rule,
    report: &mut Report<'_>,
) {
    let (Some(first), Some(second)) = (first, second) else { return };
    if !table.before(first, second) {
        let [a, b] = [first, second].map(|id| table.draft.task(id).action);
        let message = format!("{b} stands before {a}, whose result it needs");
        report.add(rule, message, format!("move {a} before {b}"), &[second, first]);
    }
}

/// R14: slices of a microbatch go forward in order and backward in the opposite order.
fn slice_order(table: &Table<'_>, stage: Stage, microbatch: Microbatch, report: &mut Report<'_>) {
    let Some(behind) = microbatch.slice().map(|k| microbatch.sliced(k.saturating_add(1))) else { return };
    let forward = |m| table.get(Op::Forward, stage, m);
    let gradient = |m| table.input_gradient(stage, m);
    stands_before(table, forward(microbatch), forward(behind), Rule::SliceOrder, report);
    stands_before(table, gradient(behind), gradient(microbatch), Rule::SliceOrder, report);
}

/// R15: what runs as one is compute, stands side by side, and each part behind those that it needs.
fn compounds(table: &Table<'_>, report: &mut Report<'_>) {
    let mut before: Option<(Rank, Op)> = None;
    for (id, task) in table.draft.tasks() {
        let Action { op, joins_previous, .. } = task.action;
        let fits = op.is_compute() && before.is_some_and(|(rank, op)| rank == task.rank && op.is_compute());
        if joins_previous && !fits {
            let message = format!("{} is to run as one with what stands before it, which is no compute", task.action);
            report.add(Rule::Compound, message, "let the parts of a compound action stand side by side", &[id]);
        }
        before = Some((task.rank, op));
    }
    // Where both parts are of one stage another rule says so.
    for edge in table.draft.graph.raw_edges().iter().filter(|e| e.weight != Dep::Program) {
        let [needed, part] = [edge.source(), edge.target()].map(|node| TaskId::at(node.index()));
        let [a, b] = [needed, part].map(|id| table.draft.task(id));
        if needed > part && a.group.is_some() && a.group == b.group && a.action.stage != b.action.stage {
            let (a, b) = (a.action, b.action);
            let message = format!("{b} runs as one with {a}, which stands behind it and whose result it needs");
            report.add(Rule::Compound, message, format!("move {a} before {b}"), &[part, needed]);
        }
    }
}
