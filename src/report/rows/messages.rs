//! Messages: a strip under a rank's boxes where they take time, arrows behind the boxes where they travel.

use super::{Band, Frame};
use crate::report::canvas::Canvas;
use crate::report::colour;
use crate::report::run::Run;
use pipewright_ir::action::Op;
use pipewright_ir::breakdown::Part;
use pipewright_ir::ids::{Rank, TaskId};
use pipewright_ir::mesh::Axis;
use pipewright_ir::task::{Dep, Lane, Task};
use plotters::style::RGBColor;
use std::collections::BTreeMap;

/// Most arrows of a picture; more are a thicket.
const MOST_ARROWS: usize = 250;

/// Draws sends, with collectives, in the upper half of the strip and receives in the lower one.
pub(super) fn draw_strip(canvas: &mut Canvas, run: &Run<'_>, zero: f64, rank: Rank, frame: &Frame, strip: Band) {
    let middle = f64::midpoint(strip.0, strip.1);
    let mut bars: BTreeMap<Kind, Vec<(f64, f64)>> = BTreeMap::new();
    for step in 0..run.timeline.steps() {
        for (id, task) in run.schedule.program(rank).filter(|(_, task)| task.lane != Lane::Compute) {
            let span = run.timeline.span(step, id);
            if span.duration() <= 0.0 {
                continue;
            }
            let (left, right) = (frame.axis.x(span.start - zero), frame.axis.x(span.end - zero));
            let bars = bars.entry(Kind::of(task)).or_default();
            match bars.last_mut() {
                // What would fall into the same pixel is one bar.
                Some(last) if left - last.1 < 0.8 * frame.stripe => last.1 = last.1.max(right),
                _ => bars.push((left, right.max(left + 0.4))),
            }
        }
    }
    for (kind, bars) in bars {
        let (top, bottom) = if kind == Kind::Op(Op::RecvForward) { (middle, strip.1) } else { (strip.0 + 0.5, middle) };
        let comb = bars.iter().flat_map(|(l, r)| [(*l, bottom), (*l, top), (*r, top), (*r, bottom)]).collect();
        canvas.polygon(comb, kind.colour());
    }
}

/// Messages of one colour: by axis where they are steps of a stage's work, else by operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Op(Op),
    Axis(Axis),
}

impl Kind {
    fn of(task: &Task) -> Self {
        match (axis_of(task), task.action.op) {
            (Some(axis), _) => Kind::Axis(axis),
            (None, op) if op.is_send() => Kind::Op(Op::SendForward),
            (None, op) if op.is_receive() => Kind::Op(Op::RecvForward),
            (None, op) => Kind::Op(op),
        }
    }

    fn colour(self) -> RGBColor {
        match self {
            Kind::Op(op) => colour::of_op(op),
            Kind::Axis(axis) => colour::of_part(Part::Exposed(axis)),
        }
    }
}

/// The axis of a message that is a step of a stage's work; gradients over replicas are an operation of their own.
pub(super) fn axis_of(task: &Task) -> Option<Axis> {
    match task.lane {
        Lane::Tensor if task.action.op.is_compute() => Some(Axis::Tensor),
        Lane::Context => Some(Axis::Context),
        Lane::Expert => Some(Axis::Expert),
        Lane::Data if task.action.op.is_compute() => Some(Axis::Data),
        _ => None,
    }
}

/// A message that took some time: the ends of its send and of its receive.
struct Trip {
    sender: usize,
    receiver: usize,
    sent: f64,
    received: f64,
}

/// Draws a line from each send to its receive, if messages travel for some time and are few enough to be read.
///
/// A receive may end late because its lane was busy; such a line ends after the shortest trip, not where it waited.
pub(super) fn draw_arrows(canvas: &mut Canvas, run: &Run<'_>, zero: f64, frame: &Frame) {
    if frame.pitch < 18.0 || run.schedule.messages() * run.timeline.steps() > MOST_ARROWS {
        return;
    }
    let trips = trips(run);
    let shortest = trips.iter().map(|t| t.received - t.sent).fold(f64::INFINITY, f64::min);
    if !shortest.is_finite() || frame.axis.x(shortest) - frame.axis.x(0.0) < 1.0 {
        return;
    }
    for Trip { sender, receiver, sent, .. } in trips {
        let (left, right) = (frame.axis.x(sent - zero), frame.axis.x(sent + shortest - zero));
        let (from, to) = (frame.bands(sender, false).0, frame.bands(receiver, false).0);
        let (y0, y1) = if sender < receiver { (from.1, to.0) } else { (from.0, to.1) };
        canvas.path(vec![(left - 0.5, y0), (right - 0.5, y1)], 1.0, colour::MESSAGE);
    }
}

fn trips(run: &Run<'_>) -> Vec<Trip> {
    let mut trips = Vec::new();
    for edge in run.schedule.graph().raw_edges().iter().filter(|e| e.weight == Dep::Transfer) {
        let (from, to) = (TaskId::at(edge.source().index()), TaskId::at(edge.target().index()));
        let [sender, receiver] = [from, to].map(|id| run.schedule.task(id).rank.index());
        for step in 0..run.timeline.steps() {
            let (sent, received) = (run.timeline.span(step, from).end, run.timeline.span(step, to).end);
            trips.push(Trip { sender, receiver, sent, received });
        }
    }
    trips
}
