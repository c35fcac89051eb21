//! R02 to R05, R14, R15: everything is computed once, in its place, in an order that can be.

use super::table::Table;
use super::{Report, Rule};
use crate::action::{Action, Op};
use crate::ids::{Microbatch, Stage, TaskId};
use crate::schedule::Draft;
use crate::task::{Dep, Task};
use petgraph::Direction;
use petgraph::graph::NodeIndex;
use petgraph::visit::EdgeRef;

pub(super) fn check(table: &Table<'_>, report: &mut Report<'_>) {
    let (microbatches, pipes) = (table.draft.microbatches as usize, table.draft.placement.pipes().len());
    if !microbatches.is_multiple_of(pipes) {
        let message = format!("{microbatches} microbatches cannot go half down and half up: one would go neither way");
        let help = format!("use {} or {} microbatches", microbatches - 1, microbatches + 1);
        report.add(Rule::ExactlyOnce, message, help, &[]);
    }
    for (cell, (stage, microbatch)) in table.cells().enumerate() {
        let [forward, full, input, weight] =
            [Op::Forward, Op::FullBackward, Op::BackwardInput, Op::BackwardWeight].map(|op| table.at(op, cell));
        let computed = Computed { forward, full, input, weight };
        computed.exactly_once(stage, microbatch, report);
        computed.in_order(table, report);
        slice_order(table, stage, microbatch, report);
    }
}

/// R03 and R15, for one task.
pub(super) fn check_task(draft: &Draft, id: TaskId, task: &Task, report: &mut Report<'_>) {
    let stage = task.action.stage;
    if let Some(home) = draft.placement.rank_of(stage).filter(|home| *home != task.rank) {
        let message = format!("{} stands on rank {}, but stage {stage} lives on rank {home}", task.action, task.rank);
        report.add(Rule::Placement, message, format!("move it to rank {home}"), &[id]);
    }
    if task.action.joins_previous || task.group.is_some() {
        compound(draft, id, task, report);
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
fn compound(draft: &Draft, id: TaskId, task: &Task, report: &mut Report<'_>) {
    let before = id.0.checked_sub(1).map(|before| draft.task(TaskId(before)));
    let fits = |before: &Task| before.rank == task.rank && before.action.op.is_compute();
    if task.action.joins_previous && !(task.action.op.is_compute() && before.is_some_and(fits)) {
        let message = format!("{} is to run as one with what stands before it, which is no compute", task.action);
        report.add(Rule::Compound, message, "let the parts of a compound action stand side by side", &[id]);
    }
    for edge in draft.graph.edges_directed(NodeIndex::new(id.index()), Direction::Incoming) {
        let needed = TaskId::at(edge.source().index());
        let other = draft.task(needed);
        // Where both parts are of one stage another rule says so.
        let parts = task.group.is_some() && other.group == task.group && other.action.stage != task.action.stage;
        if parts && needed > id && *edge.weight() != Dep::Program {
            let (a, b) = (other.action, task.action);
            let message = format!("{b} runs as one with {a}, which stands behind it and whose result it needs");
            report.add(Rule::Compound, message, format!("move {a} before {b}"), &[id, needed]);
        }
    }
}
