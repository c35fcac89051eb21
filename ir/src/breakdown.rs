//! Where the time of a step goes, rank by rank: compute by what it is, messages that compute waits for by axis, and the
//! bubble by cause.
//!
//! One law: every moment of a rank's step has exactly one place, so the parts of a rank sum to the makespan.
//!
//! A moment at which the rank computes belongs to the phase of its task. An idle moment is *exposed* if a message over an
//! axis is under way that the next task waits for: read off the path back from that task, over messages alone, as long as
//! each begins when the one before it ends. (Before the optimizer the path may lead over the norm of the gradients to the
//! reduction of another rank, the last to end.) What is left of a gap is taken apart by [`Explanation`], on the timeline at
//! the detail of stages; a hop between stages counts as an exposed message of the pipeline axis.

mod gap;
mod part;

pub use part::{Part, Parts, Steps};

use crate::explain::{Causes, Explanation};
use crate::ids::{Rank, TaskId};
use crate::mesh::Axis;
use crate::schedule::Schedule;
use crate::segments::Phase;
use crate::task::{Lane, Task};
use crate::timeline::{Span, Timeline};
use gap::{PIPELINE, Taking, after_the_last, axis_of, exposed, sent_at};

/// Time of one axis' messages of a rank \[s or units\].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MessageTime {
    /// While one is under way.
    pub total: f64,
    /// Of that, while the rank does not compute because it waits for a message of this axis, be it that of another rank;
    /// at most all of it.
    pub exposed: f64,
}

impl MessageTime {
    /// While the rank computes, or waits for something else.
    pub fn hidden(self) -> f64 {
        (self.total - self.exposed).max(0.0)
    }
}

/// The step of every rank, taken apart.
#[derive(Clone, Debug, PartialEq)]
pub struct Breakdown {
    /// First start to last end over all ranks.
    pub makespan: f64,
    /// Each rank; the parts sum to the makespan.
    pub ranks: Vec<Parts>,
    /// Each rank's messages, in the order of [`Breakdown::AXES`].
    pub messages: Vec<[MessageTime; Breakdown::AXES.len()]>,
}

impl Breakdown {
    /// Axes with messages.
    pub const AXES: [Axis; 5] = [Axis::Tensor, Axis::Context, Axis::Expert, Axis::Pipeline, Axis::Data];

    /// Takes a timeline of one step apart. `schedule` is at any detail, `whole` the same at that of stages, from which it
    /// was cut by `steps`.
    pub fn of(schedule: &Schedule, timeline: &Timeline, whole: &Schedule, steps: Option<&Steps<'_>>) -> Self {
        let table = steps.map_or(0, |steps| steps.programs.steps.len());
        let shares: Vec<Vec<(Phase, f64)>> =
            (0..table).map(|step| steps.map_or_else(Vec::new, |steps| steps.shares(TaskId::at(step).0))).collect();
        let shares_of =
            |task: &Task| task.step.program().and_then(|step| shares.get(step as usize)).map_or(&[][..], Vec::as_slice);
        let ranges = ranges(schedule, whole);
        let coarse = coarse(schedule, timeline, &ranges);
        let explanation = Explanation::of(whole, &coarse);
        let makespan = timeline.makespan();
        let zero = timeline.spans.iter().map(|s| s.start).fold(f64::INFINITY, f64::min);
        let mut breakdown = Self { makespan, ranks: Vec::new(), messages: Vec::new() };
        for rank in (0..schedule.ranks()).map(Rank::at) {
            let mut parts = Parts::default();
            let mut messages = [MessageTime::default(); Self::AXES.len()];
            for (id, task) in schedule.program(rank) {
                if let Some(axis) = axis_of(task.lane) {
                    messages[axis].total += timeline.span(0, id).duration();
                } else if task.lane == Lane::Receive {
                    let hop = timeline.span(0, id).end - sent_at(schedule, timeline, id);
                    messages[PIPELINE].total += hop;
                }
            }
            let mut taking = Taking { parts: &mut parts, messages: &mut messages };
            let mut waits = explanation.waits.iter().filter(|wait| wait.rank == rank).peekable();
            let mut free = zero;
            for (action, _) in whole.program(rank).filter(|(_, task)| task.lane == Lane::Compute) {
                let tasks = ranges[action.index()].clone().map(TaskId);
                let mut wait = waits.next_if(|wait| wait.task == Some(action)).map(|wait| wait.causes);
                let mut first = true;
                for (id, task) in tasks.map(|id| (id, schedule.task(id))).filter(|(_, t)| t.lane == Lane::Compute) {
                    let span = timeline.span(0, id);
                    let received = steps.map_or(0.0, |steps| steps.received(task)).min(span.duration());
                    taking.receive(received);
                    taking.parts.compute(task.action.op, shares_of(task), span.duration() - received);
                    if span.start > free {
                        let gap = Span { start: free, end: span.start };
                        let own = exposed(schedule, timeline, id, gap);
                        // Nothing but messages stands between the steps of an action.
                        let inside = Causes::default();
                        taking.gap(gap.duration(), own, if first { wait.take().unwrap_or_default() } else { inside });
                    }
                    first = false;
                    free = f64::max(free, span.end);
                }
            }
            let gap = Span { start: free, end: zero + makespan };
            if gap.end > gap.start {
                let own = after_the_last(schedule, timeline, rank, gap);
                taking.gap(gap.duration(), own, waits.next().map_or_else(Causes::default, |wait| wait.causes));
            }
            messages.iter_mut().for_each(|message| message.exposed = message.exposed.min(message.total));
            breakdown.ranks.push(parts);
            breakdown.messages.push(messages);
        }
        breakdown
    }

    /// The mean over the ranks; sums to the makespan.
    pub fn mean(&self) -> Parts {
        Parts::mean(self.ranks.iter())
    }
}

/// Tasks of `whole` -> their tasks in `schedule`.
fn ranges(schedule: &Schedule, whole: &Schedule) -> Vec<std::ops::Range<u32>> {
    let mut ranges = Vec::with_capacity(whole.len());
    let mut at = 0;
    let cut = schedule.len() != whole.len();
    for _ in 0..whole.len() {
        let start = at;
        while cut && (at as usize) < schedule.len() && schedule.task(TaskId(at)).step.continued {
            at += 1;
        }
        at += 1;
        ranges.push(start..at);
    }
    ranges
}

/// The timeline at the detail of stages: an action lasts from its first compute step to its last.
fn coarse(schedule: &Schedule, timeline: &Timeline, ranges: &[std::ops::Range<u32>]) -> Timeline {
    let span = |range: &std::ops::Range<u32>| {
        let tasks = || range.clone().map(TaskId).filter(|id| id.index() < schedule.len());
        let is_compute = |id: &TaskId| schedule.task(*id).lane == Lane::Compute;
        let computes = tasks().any(|id| is_compute(&id));
        // Of gradients in buckets the last counts: it is what the optimizer waits for.
        let counts = |id: &TaskId| if computes { is_compute(id) } else { id.0 + 1 == range.end };
        let first = tasks().find(counts).map_or(0.0, |id| timeline.span(0, id).start);
        let last = tasks().rfind(counts).map_or(first, |id| timeline.span(0, id).end);
        Span { start: first, end: last }
    };
    Timeline {
        source: timeline.source,
        tasks: ranges.len(),
        spans: ranges.iter().map(span).collect(),
        memory: Vec::new(),
    }
}
