//! The path that leads to a wait: what each task waited for, back in time.

use crate::ids::TaskId;
use crate::schedule::Schedule;
use crate::task::{Dep, Lane};
use crate::timeline::{Span, Timeline};

/// Something that a compute task needs.
#[derive(Clone, Copy)]
pub(super) struct Input {
    /// The task that makes it: compute, or a reduction over ranks.
    pub(super) from: TaskId,
    /// The send and the receive that bring it, from another rank.
    message: Option<(TaskId, TaskId)>,
}

/// What is on the path at a moment.
#[derive(Clone, Copy)]
pub(super) enum Piece {
    /// A task runs.
    Work,
    /// A message is under way, or a rank is busy with messages.
    Message,
    /// A rank waits for a step to begin, or for a reduction over ranks.
    Barrier,
}

/// The inputs of every compute task, and the order of each compute lane.
pub(super) struct Paths<'a> {
    pub(super) schedule: &'a Schedule,
    pub(super) timeline: &'a Timeline,
    /// Task -> its slice of `inputs`: from entry `i` to entry `i + 1`.
    start: Vec<u32>,
    inputs: Vec<Input>,
    /// Task -> the compute task before it in its lane, in the same step.
    before: Vec<Option<TaskId>>,
    /// Rank -> its last compute task.
    last: Vec<Option<TaskId>>,
}

impl<'a> Paths<'a> {
    pub(super) fn new(schedule: &'a Schedule, timeline: &'a Timeline) -> Self {
        let mut paths = Self {
            schedule,
            timeline,
            start: vec![0],
            inputs: Vec::new(),
            before: vec![None; schedule.len()],
            last: vec![None; schedule.ranks()],
        };
        for (id, task) in schedule.tasks() {
            if task.lane == Lane::Compute {
                paths.before[id.index()] = paths.last[task.rank.index()].replace(id);
                paths.add_inputs(id);
            }
            paths.start.push(TaskId::at(paths.inputs.len()).0);
        }
        paths
    }

    fn add_inputs(&mut self, id: TaskId) {
        for (from, dep) in self.schedule.inputs(id) {
            let task = self.schedule.task(from);
            if dep == Dep::Program {
                continue;
            }
            if !task.action.op.is_receive() {
                self.inputs.push(Input { from, message: None });
                continue;
            }
            // Back from the receive to its send and to the task whose output that sends.
            let send = self.schedule.inputs(from).find(|(_, dep)| *dep == Dep::Transfer).map(|(send, _)| send);
            let maker = send.and_then(|send| self.schedule.inputs(send).find(|(_, dep)| *dep == Dep::Data));
            if let (Some(send), Some((maker, _))) = (send, maker) {
                self.inputs.push(Input { from: maker, message: Some((send, from)) });
            }
        }
    }

    fn inputs(&self, id: TaskId) -> &[Input] {
        &self.inputs[self.start[id.index()] as usize..self.start[id.index() + 1] as usize]
    }

    /// When an input is on the rank that needs it.
    fn arrival(&self, step: usize, input: &Input) -> f64 {
        self.timeline.span(step, input.message.map_or(input.from, |(_, receive)| receive)).end
    }

    /// When all inputs of a task are there; before all time where it needs none.
    pub(super) fn inputs_there(&self, step: usize, id: TaskId) -> f64 {
        self.inputs(id).iter().map(|input| self.arrival(step, input)).fold(f64::NEG_INFINITY, f64::max)
    }

    /// The input whose arrival ended the wait of a task; `None` where all were there when its lane became free.
    pub(super) fn awaited(&self, step: usize, id: TaskId, wait: Span) -> Option<Input> {
        self.latest(step, id, wait.end, wait.start).filter(|(_, at)| *at > wait.start).map(|(input, _)| input)
    }

    /// The input of a task that came last, with its arrival. The first part of a compound action that starts later than
    /// its lane is free and its own inputs are there waits for those of the other parts.
    fn latest(&self, step: usize, id: TaskId, start: f64, lane: f64) -> Option<(Input, f64)> {
        let group = self.schedule.task(id).group;
        let mut latest: Option<(Input, f64)> = None;
        for part in (id.0..TaskId::at(self.schedule.len()).0).map(TaskId) {
            let own = part == id;
            if !own {
                let late = f64::max(lane, latest.map_or(f64::NEG_INFINITY, |l| l.1)) < start;
                if group != Some(id) || self.schedule.task(part).group != group || !late {
                    break;
                }
            }
            for input in self.inputs(part) {
                let at = self.arrival(step, input);
                let outside = own || (at <= start && self.schedule.task(input.from).group != group);
                if outside && latest.is_none_or(|(_, before)| at > before) {
                    latest = Some((*input, at));
                }
            }
        }
        latest
    }

    /// When the maker of an input has let go of it: at its end, or where its message leaves only with the whole
    /// compound action, then.
    fn released(&self, step: usize, input: &Input) -> f64 {
        let end = self.timeline.span(step, input.from).end;
        let (Some((send, _)), Some(group)) = (input.message, self.schedule.task(input.from).group) else { return end };
        let parts = (input.from.0..TaskId::at(self.schedule.len()).0).map(TaskId);
        let parts = parts.take_while(|id| self.schedule.task(*id).group == Some(group));
        let whole = parts.map(|id| self.timeline.span(step, id).end).fold(end, f64::max);
        self.timeline.span(step, send).start.clamp(end, whole)
    }

    /// The compute task before one in its lane, in its step or the one before.
    pub(super) fn lane_before(&self, step: usize, id: TaskId) -> Option<(usize, TaskId)> {
        match self.before[id.index()] {
            Some(before) => Some((step, before)),
            None => Some((step.checked_sub(1)?, self.last[self.schedule.task(id).rank.index()]?)),
        }
    }

    /// What a task that starts at `start` waited for.
    fn behind(&self, step: usize, id: TaskId, start: f64) -> Behind {
        let lane = self.lane_before(step, id);
        let free = lane.map_or(f64::NEG_INFINITY, |(step, id)| self.timeline.span(step, id).end);
        Behind { lane, free, input: self.latest(step, id, start, free) }
    }

    /// The task before this one on the path that led to it.
    pub(super) fn leader(&self, step: usize, id: TaskId) -> Option<(usize, TaskId)> {
        let behind = self.behind(step, id, self.timeline.span(step, id).start);
        match behind.late_input() {
            Some(input) => (!self.schedule.task(input.from).action.op.is_collective()).then_some((step, input.from)),
            None => behind.lane,
        }
    }

    /// Gives what is on the path at each moment of the wait of a task, from its end back to its start, to `add`: pieces
    /// that neither overlap nor leave anything out.
    pub(super) fn back(&self, step: usize, id: TaskId, wait: Span, add: &mut dyn FnMut(Span, Piece)) {
        let mut until = wait.end;
        let (mut step, mut id) = (step, id);
        let mut piece = |from: f64, until: &mut f64, piece: Piece| {
            let start = f64::max(from, wait.start);
            if start < *until {
                add(Span { start, end: *until }, piece);
                *until = start;
            }
        };
        while until > wait.start {
            let behind = self.behind(step, id, until);
            // All was there, and yet it did not start.
            let first_of_step = behind.lane.is_some_and(|(before, _)| before != step);
            let held = if first_of_step { Piece::Barrier } else { Piece::Message };
            piece(f64::max(behind.free, behind.arrival()), &mut until, held);
            match (behind.late_input(), behind.lane) {
                (Some(input), _) => {
                    if self.schedule.task(input.from).action.op.is_collective() {
                        piece(wait.start, &mut until, Piece::Barrier);
                        return;
                    }
                    piece(self.released(step, &input), &mut until, Piece::Message);
                    piece(self.timeline.span(step, input.from).start, &mut until, Piece::Work);
                    id = input.from;
                }
                (None, Some((before, task))) => {
                    piece(self.timeline.span(before, task).start, &mut until, Piece::Work);
                    (step, id) = (before, task);
                }
                (None, None) => return,
            }
        }
    }
}

/// What a task waited for.
struct Behind {
    /// The compute task before it in its lane ...
    lane: Option<(usize, TaskId)>,
    /// ... and when that has ended.
    free: f64,
    /// The input that came last, with its arrival.
    input: Option<(Input, f64)>,
}

impl Behind {
    fn arrival(&self) -> f64 {
        self.input.map_or(f64::NEG_INFINITY, |(_, at)| at)
    }

    /// The input for which it waited longer than for its lane.
    fn late_input(&self) -> Option<Input> {
        self.input.filter(|(_, at)| *at > self.free).map(|(input, _)| input)
    }
}
