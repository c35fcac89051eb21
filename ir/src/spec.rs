//! The law: every rule that a valid schedule keeps.
//!
//! One law of its own: a check reports *all* violations with evidence, never the first alone, and never panics on a
//! wrong draft. Each rule below has a number, a line, and a test in `spec/tests.rs` that breaks it.

mod coverage;
pub(crate) mod deadlock;
mod memory;
mod messages;
mod step_end;
mod table;
#[cfg(test)]
mod tests;

use crate::ids::TaskId;
use crate::schedule::Draft;
use crate::task::Task;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How a send behaves until its receive is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Semantics {
    /// A send never waits: the message is buffered (MPI's buffered sends, our threads). Receives are posted ahead.
    #[default]
    Eager,
    /// A send returns when it has been received, and every rank does one thing at a time in program order.
    Rendezvous,
    /// Sends and receives between two ranks queue on one stream and pair up head to head (NCCL point-to-point);
    /// compute runs beside it.
    StreamFifo,
}

impl Semantics {
    /// All semantics.
    pub const ALL: [Semantics; 3] = [Semantics::Eager, Semantics::Rendezvous, Semantics::StreamFifo];

    /// Its name for people and in options.
    pub fn name(self) -> &'static str {
        match self {
            Semantics::Eager => "eager",
            Semantics::Rendezvous => "rendezvous",
            Semantics::StreamFifo => "stream-fifo",
        }
    }
}

/// A rule of the law.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// R01: every action names a stage and a microbatch that exist.
    InRange,
    /// R02: each (stage, microbatch) has exactly one F, and either one B or one I and one W.
    ExactlyOnce,
    /// R03: an action runs on the rank that holds its stage.
    Placement,
    /// R04: on its rank, F stands before its B or I.
    ForwardFirst,
    /// R05: on its rank, I stands before its W.
    InputBeforeWeight,
    /// R06: each tensor that crosses to another rank has exactly one send and one receive, and no other message exists.
    MessagePairs,
    /// R07: a send and its receive agree on the size.
    MessageSize,
    /// R08: messages from one rank to another are received in the order they are sent.
    ChannelOrder,
    /// R09: a send stands after the action that makes its tensor, a receive before the action that uses it.
    MessagePlace,
    /// R10: the program comes to its end under the named semantics of sends.
    DeadlockFree,
    /// R11: every member of a collective takes part, with the same size.
    Collective,
    /// R12: a buffer is used only between its allocation and its end, and nothing is left over at the end of the step.
    Buffers,
    /// R13: reductions and optimizer steps come after the last gradient of their stage; with an optimizer at all,
    /// every stage has exactly one, and with a sum over the tensor-parallel ranks at all likewise.
    StepEnd,
    /// R14: slices of a microbatch go forward in order and backward in the opposite order: a slice attends to those
    /// before it.
    SliceOrder,
    /// R15: the parts of a compound action are compute and stand side by side on one rank, none before what it needs.
    Compound,
}

impl Rule {
    /// Number and name, `R02 exactly-once`.
    pub fn name(self) -> &'static str {
        match self {
            Rule::InRange => "R01 in-range",
            Rule::ExactlyOnce => "R02 exactly-once",
            Rule::Placement => "R03 placement",
            Rule::ForwardFirst => "R04 forward-first",
            Rule::InputBeforeWeight => "R05 input-before-weight",
            Rule::MessagePairs => "R06 message-pairs",
            Rule::MessageSize => "R07 message-size",
            Rule::ChannelOrder => "R08 channel-order",
            Rule::MessagePlace => "R09 message-place",
            Rule::DeadlockFree => "R10 deadlock-free",
            Rule::Collective => "R11 collective",
            Rule::Buffers => "R12 buffers",
            Rule::StepEnd => "R13 step-end",
            Rule::SliceOrder => "R14 slice-order",
            Rule::Compound => "R15 compound",
        }
    }
}

/// One way in which a draft breaks the law.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// What is wrong, with names and numbers.
    pub message: String,
    /// How to mend it.
    pub help: String,
    /// The tasks involved, as `rank 1: 1F0`.
    pub tasks: Vec<String>,
    /// Their ids in the draft, one each.
    pub ids: Vec<TaskId>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule.name(), self.message)
    }
}

/// Collects violations with the names of their tasks.
pub(crate) struct Report<'a> {
    draft: &'a Draft,
    violations: Vec<Violation>,
}

/// A task as evidence names it.
fn named(task: &Task) -> String {
    format!("rank {}: {}", task.rank, task.action)
}

impl Report<'_> {
    fn add(&mut self, rule: Rule, message: String, help: impl Into<String>, tasks: &[TaskId]) {
        let ids = tasks.to_vec();
        let tasks = tasks.iter().map(|id| named(self.draft.task(*id))).collect();
        self.violations.push(Violation { rule, message, help: help.into(), tasks, ids });
    }
}

/// All violations of `draft` under `semantics`, and a topological order of its tasks (complete only without R10).
pub(crate) fn check(draft: &Draft, semantics: Semantics) -> (Vec<Violation>, Vec<TaskId>) {
    let mut report = Report { draft, violations: Vec::new() };
    let table = table::Table::new(draft);
    // One walk over the tasks, which are many and large; what looks at each (stage, microbatch) comes after it.
    let mut channels = messages::Channels::new(draft);
    let mut step_end = step_end::StepEnd::new(draft);
    for (id, task) in draft.tasks() {
        table.check(id, task, &mut report);
        coverage::check_task(draft, id, task, &mut report);
        channels.check(&table, id, task, &mut report);
        step_end.note(draft, id, task);
    }
    coverage::check(&table, &mut report);
    messages::check(&table, &mut report);
    step_end.check(&table, &mut report);
    let order = deadlock::check(draft, semantics, &mut report);
    // Buffers follow from the order; behind another fault they would only repeat it.
    if report.violations.is_empty() {
        memory::check(&order, &mut report);
    }
    report.violations.sort_by_key(|v| v.rule);
    (report.violations, order)
}
