//! The idle time of a rank: messages that compute waits for, and what they leave to the causes of a bubble.

use super::{Breakdown, MessageTime, Part, Parts};
use crate::explain::{Cause, Causes};
use crate::ids::{Rank, TaskId};
use crate::mesh::Axis;
use crate::schedule::Schedule;
use crate::task::{Dep, Lane};
use crate::timeline::{Span, Timeline};

/// The place of [`Axis::Pipeline`] in [`Breakdown::AXES`].
pub(super) const PIPELINE: usize = 3;

pub(super) fn axis_of(lane: Lane) -> Option<usize> {
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
pub(super) struct Taking<'a> {
    pub(super) parts: &'a mut Parts,
    pub(super) messages: &'a mut [MessageTime; Breakdown::AXES.len()],
}

impl Taking<'_> {
    /// A gap: `own` messages of the rank by axis, and of what they leave the causes.
    pub(super) fn gap(&mut self, length: f64, own: [f64; Breakdown::AXES.len()], causes: Causes) {
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

    /// A message that blocks compute.
    pub(super) fn receive(&mut self, time: f64) {
        self.messages[PIPELINE].total += time;
        self.expose(PIPELINE, time);
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

/// When the message of a receive left: the end of its send.
pub(super) fn sent_at(schedule: &Schedule, timeline: &Timeline, receive: TaskId) -> f64 {
    let send = schedule.inputs(receive).find(|(_, dep)| *dep == Dep::Transfer);
    send.map_or_else(|| timeline.span(0, receive).start, |(send, _)| timeline.span(0, send).end)
}

/// Times nearer than this share of a gap, or of the time itself, are the same moment, rounded.
const ROUNDING: (f64, f64) = (1e-9, 1e-12);

/// Of the gap before a compute task, the time of the messages on the path that led to it, by axis.
pub(super) fn exposed(
    schedule: &Schedule,
    timeline: &Timeline,
    task: TaskId,
    gap: Span,
) -> [f64; Breakdown::AXES.len()] {
    let mut exposed = [0.0; Breakdown::AXES.len()];
    let near = gap.duration() * ROUNDING.0 + gap.end * ROUNDING.1;
    let (mut at, mut until) = (task, gap.end);
    while until - near > gap.start {
        let ends = |(from, _): &(TaskId, Dep)| (*from, timeline.span(0, *from).end);
        let latest = schedule.inputs(at).map(|edge| ends(&edge)).max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)));
        let Some((from, end)) = latest.filter(|(_, end)| *end + near >= until) else { break };
        let Some(axis) = axis_of(schedule.task(from).lane) else { break };
        let start = timeline.span(0, from).start.max(gap.start);
        exposed[axis] += (until.min(end) - start).max(0.0);
        (at, until) = (from, start);
    }
    exposed
}

/// Of the time behind the last compute task of a rank, that of its own messages, by axis.
pub(super) fn after_the_last(
    schedule: &Schedule,
    timeline: &Timeline,
    rank: Rank,
    gap: Span,
) -> [f64; Breakdown::AXES.len()] {
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
