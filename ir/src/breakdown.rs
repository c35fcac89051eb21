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

use crate::action::Op;
use crate::explain::{Cause, Causes, Explanation};
use crate::ids::{Rank, TaskId};
use crate::mesh::Axis;
use crate::schedule::Schedule;
use crate::segments::{Body, Phase, Programs, Step};
use crate::task::{Dep, Lane, Task};
use crate::timeline::{Span, Timeline};
use petgraph::Direction;
use petgraph::graph::NodeIndex;
use petgraph::visit::EdgeRef;

/// A place for time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// F.
    Forward,
    /// Forward again, in backward.
    Recompute,
    /// B, where it is not taken apart.
    Backward,
    /// I.
    BackwardInput,
    /// W.
    BackwardWeight,
    /// The optimizer, and what is fixed in a step.
    Optimizer,
    /// A message over an axis that compute waits for.
    Exposed(Axis),
    /// The rank has nothing to compute. A hop is an exposed message of the pipeline, not a bubble.
    Bubble(Cause),
}

impl Part {
    /// Every place, in the order of tables and pictures.
    pub const ALL: [Part; 18] = [
        Part::Forward,
        Part::Recompute,
        Part::Backward,
        Part::BackwardInput,
        Part::BackwardWeight,
        Part::Optimizer,
        Part::Exposed(Axis::Tensor),
        Part::Exposed(Axis::Context),
        Part::Exposed(Axis::Expert),
        Part::Exposed(Axis::Pipeline),
        Part::Exposed(Axis::Data),
        Part::Bubble(Cause::Fill),
        Part::Bubble(Cause::Drain),
        Part::Bubble(Cause::Forward),
        Part::Bubble(Cause::Backward),
        Part::Bubble(Cause::Imbalance),
        Part::Bubble(Cause::MemoryLimit),
        Part::Bubble(Cause::Barrier),
    ];

    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Part::Forward => "forward",
            Part::Recompute => "recompute",
            Part::Backward => "backward",
            Part::BackwardInput => "backward_input",
            Part::BackwardWeight => "backward_weight",
            Part::Optimizer => "optimizer",
            Part::Exposed(Axis::Tensor) => "exposed_tp",
            Part::Exposed(Axis::Context) => "exposed_cp",
            Part::Exposed(Axis::Expert) => "exposed_ep",
            Part::Exposed(Axis::Pipeline) => "exposed_pp",
            Part::Exposed(Axis::Data | Axis::DataContext | Axis::ExpertData) => "exposed_dp",
            Part::Bubble(Cause::Fill) => "bubble_fill",
            Part::Bubble(Cause::Drain) => "bubble_drain",
            Part::Bubble(Cause::Forward) => "bubble_forward",
            Part::Bubble(Cause::Backward) => "bubble_backward",
            Part::Bubble(Cause::Imbalance) => "bubble_imbalance",
            Part::Bubble(Cause::MemoryLimit) => "bubble_memory_limit",
            Part::Bubble(Cause::Barrier) => "bubble_barrier",
            Part::Bubble(Cause::Hop) => "bubble_hop",
        }
    }

    fn index(self) -> usize {
        Part::ALL.iter().position(|part| *part == self).unwrap_or(0)
    }

    /// What a phase of an action is.
    fn of(op: Op, phase: Option<Phase>) -> Self {
        match (op, phase) {
            (_, Some(Phase::Recompute)) => Part::Recompute,
            (_, Some(Phase::Input)) => Part::BackwardInput,
            (_, Some(Phase::Weight)) => Part::BackwardWeight,
            (Op::Forward, _) => Part::Forward,
            (Op::FullBackward, _) => Part::Backward,
            (Op::BackwardInput, _) => Part::BackwardInput,
            (Op::BackwardWeight, _) => Part::BackwardWeight,
            _ => Part::Optimizer,
        }
    }
}

/// What the steps of a schedule at the detail of segments are, and how long each takes: a run of several phases is shared
/// out by them.
#[derive(Clone, Copy, Debug)]
pub struct Steps<'a> {
    /// The programs that the schedule was cut by.
    pub programs: &'a Programs,
    /// Times of [`Programs::steps`] \[s\].
    pub times: &'a [f64],
}

impl Steps<'_> {
    /// The shares of phases in a step of the table.
    fn shares(&self, step: u32) -> Vec<(Phase, f64)> {
        let mut shares: Vec<(Phase, f64)> = Vec::new();
        let Some(Step { body, phase, .. }) = self.programs.step(step) else { return shares };
        let Body::Run(parts) = body else { return vec![(*phase, 1.0)] };
        let time = |step: &u32| self.times.get(*step as usize).copied().unwrap_or(0.0);
        let all: f64 = parts.iter().map(time).sum();
        for (phase, part) in parts.iter().filter_map(|part| Some((self.programs.step(*part)?.phase, part))) {
            let share = if all > 0.0 { time(part) / all } else { 1.0 / parts.len() as f64 };
            match shares.iter_mut().find(|(known, _)| *known == phase) {
                Some((_, sum)) => *sum += share,
                None => shares.push((phase, share)),
            }
        }
        shares
    }
}

/// Time by place \[s or units\].
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Parts([f64; Part::ALL.len()]);

impl Parts {
    /// The time of one place.
    pub fn get(&self, part: Part) -> f64 {
        self.0[part.index()]
    }

    /// The time of all places.
    pub fn total(&self) -> f64 {
        self.0.iter().sum()
    }

    fn add(&mut self, part: Part, time: f64) {
        self.0[part.index()] += time;
    }

    /// The time of a compute task, by the phases that it has.
    fn compute(&mut self, op: Op, shares: &[(Phase, f64)], time: f64) {
        if shares.is_empty() {
            self.add(Part::of(op, None), time);
        }
        shares.iter().for_each(|(phase, share)| self.add(Part::of(op, Some(*phase)), time * share));
    }

    /// The mean over several ranks.
    fn mean<'a>(ranks: impl ExactSizeIterator<Item = &'a Parts>) -> Self {
        let mut mean = Self::default();
        let count = ranks.len().max(1) as f64;
        for parts in ranks {
            mean.0.iter_mut().zip(parts.0).for_each(|(sum, time)| *sum += time);
        }
        mean.0.iter_mut().for_each(|sum| *sum /= count);
        mean
    }
}

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
            |task: &Task| task.step.program.and_then(|step| shares.get(step as usize)).map_or(&[][..], Vec::as_slice);
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
                    taking.parts.compute(task.action.op, shares_of(task), span.duration());
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

/// The place of [`Axis::Pipeline`] in [`Breakdown::AXES`].
const PIPELINE: usize = 3;

fn axis_of(lane: Lane) -> Option<usize> {
    let axis = match lane {
        Lane::Tensor => Axis::Tensor,
        Lane::Context => Axis::Context,
        Lane::Expert => Axis::Expert,
        Lane::Data => Axis::Data,
        Lane::Collective => Axis::Pipeline,
        Lane::Compute | Lane::Send | Lane::Receive => return None,
    };
    Breakdown::AXES.iter().position(|a| *a == axis)
}

/// Time of a rank as it is given to its places.
struct Taking<'a> {
    parts: &'a mut Parts,
    messages: &'a mut [MessageTime; Breakdown::AXES.len()],
}

impl Taking<'_> {
    /// A gap: `own` messages of the rank by axis, and of what they leave the causes.
    fn gap(&mut self, length: f64, own: [f64; Breakdown::AXES.len()], causes: Causes) {
        let messages: f64 = own.iter().sum();
        let times = left(length, messages, Cause::ALL.map(|cause| causes.get(cause)));
        for (i, time) in own.into_iter().enumerate() {
            self.expose(i, time);
        }
        for cause in Cause::ALL {
            match cause {
                Cause::Hop => self.expose(PIPELINE, times[cause as usize]),
                cause => self.parts.add(Part::Bubble(cause), times[cause as usize]),
            }
        }
    }

    fn expose(&mut self, axis: usize, time: f64) {
        self.messages[axis].exposed += time;
        self.parts.add(Part::Exposed(Breakdown::AXES[axis]), time);
    }
}

/// What the messages of a rank leave of the causes of a gap. They are what nothing else explains, so they are taken from a
/// barrier or a hop first; and what no cause explains was before the first task that any rank computed.
fn left(length: f64, messages: f64, mut causes: [f64; Cause::ALL.len()]) -> [f64; Cause::ALL.len()] {
    const FIRST: [Cause; 8] = [
        Cause::Barrier,
        Cause::Hop,
        Cause::Drain,
        Cause::Fill,
        Cause::Backward,
        Cause::Forward,
        Cause::MemoryLimit,
        Cause::Imbalance,
    ];
    causes[Cause::Fill as usize] += length - causes.iter().sum::<f64>();
    let mut left = messages;
    for cause in FIRST {
        let slot = &mut causes[cause as usize];
        let taken = left.min(slot.max(0.0));
        *slot -= taken;
        left -= taken;
    }
    causes
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

fn incoming(schedule: &Schedule, id: TaskId) -> impl Iterator<Item = (TaskId, Dep)> + '_ {
    let edges = schedule.graph().edges_directed(NodeIndex::new(id.index()), Direction::Incoming);
    edges.map(|edge| (TaskId::at(edge.source().index()), *edge.weight()))
}

/// When the message of a receive left: the end of its send.
fn sent_at(schedule: &Schedule, timeline: &Timeline, receive: TaskId) -> f64 {
    let send = incoming(schedule, receive).find(|(_, dep)| *dep == Dep::Transfer);
    send.map_or_else(|| timeline.span(0, receive).start, |(send, _)| timeline.span(0, send).end)
}

/// Times nearer than this share of a gap, or of the time itself, are the same moment, rounded.
const ROUNDING: (f64, f64) = (1e-9, 1e-12);

/// Of the gap before a compute task, the time of the messages on the path that led to it, by axis.
fn exposed(schedule: &Schedule, timeline: &Timeline, task: TaskId, gap: Span) -> [f64; Breakdown::AXES.len()] {
    let mut exposed = [0.0; Breakdown::AXES.len()];
    let near = gap.duration() * ROUNDING.0 + gap.end * ROUNDING.1;
    let (mut at, mut until) = (task, gap.end);
    while until - near > gap.start {
        let ends = |(from, _): &(TaskId, Dep)| (*from, timeline.span(0, *from).end);
        let latest =
            incoming(schedule, at).map(|edge| ends(&edge)).max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)));
        let Some((from, end)) = latest.filter(|(_, end)| *end + near >= until) else { break };
        let Some(axis) = axis_of(schedule.task(from).lane) else { break };
        let start = timeline.span(0, from).start.max(gap.start);
        exposed[axis] += (until.min(end) - start).max(0.0);
        (at, until) = (from, start);
    }
    exposed
}

/// Of the time behind the last compute task of a rank, that of its own messages, by axis.
fn after_the_last(schedule: &Schedule, timeline: &Timeline, rank: Rank, gap: Span) -> [f64; Breakdown::AXES.len()] {
    let mut exposed = [0.0; Breakdown::AXES.len()];
    let mut spans: Vec<(usize, Span)> = schedule
        .program(rank)
        .filter_map(|(id, task)| Some((axis_of(task.lane)?, timeline.span(0, id))))
        .filter(|(_, span)| span.end > gap.start)
        .collect();
    spans.sort_by(|a, b| a.1.start.total_cmp(&b.1.start));
    let mut free = gap.start;
    for (axis, span) in spans {
        let (start, end) = (span.start.max(free), span.end.min(gap.end));
        if end > start {
            exposed[axis] += end - start;
            free = end;
        }
    }
    exposed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_has_a_name_and_a_place_of_its_own() {
        let mut names: Vec<_> = Part::ALL.iter().map(|part| part.name()).collect();
        assert!(Part::ALL.iter().enumerate().all(|(i, part)| part.index() == i));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Part::ALL.len());
    }

    #[test]
    fn messages_are_taken_from_the_waits_that_nothing_else_explains() {
        let cause = |cause| match cause {
            Cause::Barrier => 3.0,
            Cause::Drain => 2.0,
            Cause::Hop => 1.0,
            Cause::Backward => 4.0,
            _ => 0.0,
        };
        // Fill takes what is not explained: 11 - 10.
        assert_eq!(left(11.0, 4.5, Cause::ALL.map(cause)), [1.0, 1.5, 0.0, 4.0, 0.0, 0.0, 0.0, 0.0]);
    }
}
