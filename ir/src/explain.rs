//! Where the idle time of each rank's compute lane goes, by cause.
//!
//! One law: a function of a schedule and a timeline, predicted or measured; every idle moment has exactly one cause, so
//! the causes of a rank sum to its idle time.
//!
//! A wait is a gap on a rank's compute lane before some task. Its causes are read off the path that led to it: from the
//! task back to the input that came last, to the task that made it, to what that task waited for (its lane or its own
//! last input), and so on. At each moment of the gap the path shows one of:
//!
//! 1. **a message under way**, from the end of the task that made it to the end of its receive: [`Cause::Hop`]. Also
//!    what no input explains: in a measurement the rank's own thread sends and receives between its tasks, and a send
//!    that waits holds up its rank until it is received.
//! 2. **a rank held back though inputs and lane are there**, by the beginning of a step, or by a reduction over ranks
//!    before the optimizer: [`Cause::Barrier`].
//! 3. **a task that runs** on another rank. Of this time, first, as much is [`Cause::Imbalance`] as slower stages have
//!    delayed the awaited task more than the waiting rank itself: see below. Of the rest, the moments at which a later
//!    task of the waiting rank has all its inputs are [`Cause::MemoryLimit`]: the order, by its memory or warm-up limit, holds
//!    it back. What is left is [`Cause::Forward`] or [`Cause::Backward`], after the task whose output the rank waits for.
//!
//! *Imbalance.* A task that lasts longer than the waiting rank's own tasks of its kind (F, B, I or W) do on average
//! exceeds them by the difference. A task's delay is the sum of what the tasks on its whole path exceed. The awaited
//! task's delay less that of the rank's task before the gap is the part of the gap that would vanish if the tasks on
//! the path lasted as long as the rank's own; it is charged to the stages nearest on the path that exceed.
//!
//! The gap before a rank's first task of a step is not taken apart but for barriers: it is [`Cause::Drain`] until the
//! step before has ended on every rank and [`Cause::Fill`] from then on. After the last task of all it is drain.

mod path;

use crate::action::Op;
use crate::ids::{Rank, Stage, TaskId};
use crate::memory;
use crate::schedule::Schedule;
use crate::task::{Lane, Task};
use crate::timeline::{Span, Timeline};
use path::{Paths, Piece};

/// Why a rank does not compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// Before its first task of a step: the pipe fills.
    Fill,
    /// After its last task of a step: the pipe drains.
    Drain,
    /// It waits for an activation.
    Forward,
    /// It waits for a gradient.
    Backward,
    /// The message it waits for is under way.
    Hop,
    /// A stage is slower than its own.
    Imbalance,
    /// The order holds back a task that is ready: by its warm-up it limits what the rank has in memory.
    MemoryLimit,
    /// The step has not begun, or a reduction over ranks has not ended.
    Barrier,
}

impl Cause {
    /// Every cause, in the order of tables.
    pub const ALL: [Cause; 8] = [
        Cause::Fill,
        Cause::Drain,
        Cause::Forward,
        Cause::Backward,
        Cause::Hop,
        Cause::Imbalance,
        Cause::MemoryLimit,
        Cause::Barrier,
    ];

    /// Its name for people and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Fill => "fill",
            Cause::Drain => "drain",
            Cause::Forward => "forward",
            Cause::Backward => "backward",
            Cause::Hop => "hop",
            Cause::Imbalance => "imbalance",
            Cause::MemoryLimit => "memory_limit",
            Cause::Barrier => "barrier",
        }
    }
}

/// Idle time by cause \[s or units\].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Causes([f64; Cause::ALL.len()]);

impl Causes {
    /// The time of one cause.
    pub fn get(&self, cause: Cause) -> f64 {
        self.0[cause as usize]
    }

    /// The time of all causes.
    pub fn total(&self) -> f64 {
        self.0.iter().sum()
    }

    fn add(&mut self, cause: Cause, time: f64) {
        if time > 0.0 {
            self.0[cause as usize] += time;
        }
    }

    /// Adds the times of another.
    pub fn extend(&mut self, other: &Causes) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }
}

/// One gap on a rank's compute lane.
#[derive(Clone, Debug, PartialEq)]
pub struct Wait {
    /// Who waits.
    pub rank: Rank,
    /// In which step: that of the task behind the gap.
    pub step: usize,
    /// From when to when, from the start of the timeline.
    pub span: Span,
    /// The task behind the gap; `None` at the end.
    pub task: Option<TaskId>,
    /// The task whose output came last; `None` where no input was missing.
    pub input: Option<TaskId>,
    /// The first of the later tasks of the rank that the order holds back though its inputs are there.
    pub held_back: Option<TaskId>,
    /// Activations that the rank holds meanwhile, in microbatches of its whole share.
    pub activations: f64,
    /// What it waits for.
    pub causes: Causes,
    /// The part that each slower stage is to blame for, in the order of stages; sums to [`Cause::Imbalance`].
    pub slow_stages: Vec<(Stage, f64)>,
}

/// The idle time of every rank, taken apart.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// Idle time of each rank by cause; sums to the rank's [`idle`](crate::metrics::RankMetrics::idle).
    pub ranks: Vec<Causes>,
    /// Every gap, rank by rank in order of time.
    pub waits: Vec<Wait>,
}

impl Explanation {
    /// Takes the idle time of a timeline of `schedule` apart.
    pub fn of(schedule: &Schedule, timeline: &Timeline) -> Self {
        let paths = Paths::new(schedule, timeline);
        let zero = timeline.spans.iter().map(|s| s.start).fold(f64::INFINITY, f64::min);
        let end = timeline.spans.iter().map(|s| s.end).fold(0.0, f64::max);
        let step_ends: Vec<f64> = timeline
            .spans
            .chunks(timeline.tasks.max(1))
            .map(|step| step.iter().map(|s| s.end).fold(f64::NEG_INFINITY, f64::max))
            .collect();
        let mut waits = Vec::new();
        let mut ranks = Vec::with_capacity(schedule.ranks());
        let mut paces: Vec<Pace> = Vec::new();
        for rank in (0..schedule.ranks()).map(Rank::at) {
            let tasks = compute_tasks(schedule, rank);
            let means = means(schedule, timeline, &tasks);
            let known = paces.iter().position(|pace| pace.is_of(&means)).unwrap_or_else(|| {
                paces.push(Pace::new(&paths, means));
                paces.len() - 1
            });
            let lane = ComputeLane::new(&paths, rank, tasks, &paces[known], &step_ends);
            let before = waits.len();
            lane.waits(zero, end, &mut waits);
            let mut causes = Causes::default();
            waits[before..].iter().for_each(|wait| causes.extend(&wait.causes));
            ranks.push(causes);
        }
        for wait in &mut waits {
            wait.span = Span { start: wait.span.start - zero, end: wait.span.end - zero };
        }
        Self { ranks, waits }
    }

    /// The idle time of all ranks by cause.
    pub fn total(&self) -> Causes {
        let mut total = Causes::default();
        self.ranks.iter().for_each(|causes| total.extend(causes));
        total
    }

    /// The idle time that each slower stage is to blame for, in the order of stages.
    pub fn slow_stages<'a>(waits: impl IntoIterator<Item = &'a Wait>) -> Vec<(Stage, f64)> {
        let mut stages = Vec::new();
        waits.into_iter().flat_map(|w| &w.slow_stages).for_each(|(stage, time)| blame(&mut stages, *stage, *time));
        stages
    }

    /// The waits for something of another rank, longest first; of equal ones the first.
    pub fn longest(&self) -> Vec<&Wait> {
        let mut waits: Vec<&Wait> = self.waits.iter().filter(|w| w.input.is_some()).collect();
        waits.sort_by(|a, b| {
            b.span.duration().total_cmp(&a.span.duration()).then(a.span.start.total_cmp(&b.span.start))
        });
        waits
    }
}

fn blame(stages: &mut Vec<(Stage, f64)>, stage: Stage, time: f64) {
    let at = stages.partition_point(|(s, _)| *s < stage);
    match stages.get_mut(at) {
        Some((s, sum)) if *s == stage => *sum += time,
        _ => stages.insert(at, (stage, time)),
    }
}

/// The kinds of tasks whose times are compared between ranks: F, B, I and W, each alone and in compound actions, whose
/// parts may take less time together.
const KINDS: usize = 8;

fn kind(task: &Task) -> Option<usize> {
    let ops = [Op::Forward, Op::FullBackward, Op::BackwardInput, Op::BackwardWeight];
    let op = ops.iter().position(|op| *op == task.action.op)?;
    Some(2 * op + usize::from(task.group.is_some()))
}

/// Differences of times below this share are rounding.
const ROUNDING: f64 = 1e-6;

fn compute_tasks(schedule: &Schedule, rank: Rank) -> Vec<TaskId> {
    schedule.program(rank).filter(|(_, t)| t.lane == Lane::Compute).map(|(id, _)| id).collect()
}

/// Mean time of some tasks by kind; infinite where there is none, so that nothing exceeds it. In single precision: what is
/// left of a small whole number is then exact, and so are sums of it.
fn means(schedule: &Schedule, timeline: &Timeline, tasks: &[TaskId]) -> [f64; KINDS] {
    let mut sums = [(0.0, 0.0); KINDS];
    for (id, kind) in tasks.iter().filter_map(|id| Some((*id, kind(schedule.task(*id))?))) {
        for step in 0..timeline.steps() {
            sums[kind].0 += timeline.span(step, id).duration();
            sums[kind].1 += 1.0;
        }
    }
    sums.map(|(sum, count)| if count > 0.0 { f64::from((sum / count) as f32) } else { f64::INFINITY })
}

/// How fast a rank is, and what slower ones cost it: equal for ranks whose tasks take equally long.
struct Pace {
    /// Mean time of a task of each kind.
    means: [f64; KINDS],
    /// Step by step in order of task ids, how much tasks on the path of each exceed these.
    delays: Vec<f64>,
}

impl Pace {
    fn new(paths: &Paths<'_>, means: [f64; KINDS]) -> Self {
        let Paths { schedule, timeline, .. } = paths;
        let mut pace = Self { means, delays: vec![0.0; timeline.spans.len()] };
        let all = || schedule.tasks().flat_map(|(id, _)| (0..timeline.steps()).map(move |step| (step, id)));
        if all().all(|(step, id)| pace.excess(paths, step, id) <= 0.0) {
            return pace;
        }
        for step in 0..timeline.steps() {
            for id in schedule.topological().iter().filter(|id| schedule.task(**id).lane == Lane::Compute) {
                let before = paths.leader(step, *id).map_or(0.0, |(step, id)| pace.delay(paths, step, id));
                pace.delays[step * timeline.tasks + id.index()] = before + pace.excess(paths, step, *id);
            }
        }
        pace
    }

    fn is_of(&self, means: &[f64; KINDS]) -> bool {
        self.means.iter().zip(means).all(|(a, b)| a == b || (a - b).abs() <= ROUNDING * f64::min(*a, *b))
    }

    /// How much longer a task lasts than those of this pace.
    fn excess(&self, paths: &Paths<'_>, step: usize, id: TaskId) -> f64 {
        let Some(kind) = kind(paths.schedule.task(id)) else { return 0.0 };
        let (mean, time) = (self.means[kind], paths.timeline.span(step, id).duration());
        if time > mean * (1.0 + ROUNDING) { time - mean } else { 0.0 }
    }

    fn delay(&self, paths: &Paths<'_>, step: usize, id: TaskId) -> f64 {
        self.delays.get(step * paths.timeline.tasks + id.index()).copied().unwrap_or(0.0)
    }

    /// Charges `time` to the stages nearest on the path of a task that exceed this pace.
    fn charge(&self, paths: &Paths<'_>, (step, id): (usize, TaskId), time: f64) -> Vec<(Stage, f64)> {
        let (mut stages, mut left, mut at) = (Vec::new(), time, Some((step, id)));
        while let Some((step, id)) = at.filter(|_| left > 0.0) {
            let part = self.excess(paths, step, id).min(left);
            if part > 0.0 {
                blame(&mut stages, paths.schedule.task(id).action.stage, part);
                left -= part;
            }
            at = paths.leader(step, id);
        }
        stages
    }
}

/// The compute lane of one rank.
struct ComputeLane<'a> {
    paths: &'a Paths<'a>,
    rank: Rank,
    /// Its tasks in program order.
    tasks: Vec<TaskId>,
    pace: &'a Pace,
    /// Activations it holds before each task, in microbatches.
    activations: Vec<f64>,
    /// When each step ends on the last rank.
    step_ends: &'a [f64],
}

/// A later task that is ready, and since when.
type Ready = Option<(f64, TaskId)>;

impl<'a> ComputeLane<'a> {
    fn new(paths: &'a Paths<'a>, rank: Rank, tasks: Vec<TaskId>, pace: &'a Pace, step_ends: &'a [f64]) -> Self {
        let activations = activations(paths.schedule, rank, &tasks);
        Self { paths, rank, tasks, pace, activations, step_ends }
    }

    /// Every gap from `zero` to `end`.
    fn waits(&self, zero: f64, end: f64, waits: &mut Vec<Wait>) {
        let timeline = self.paths.timeline;
        let mut free = zero;
        for step in 0..timeline.steps() {
            let ready = self.ready(step);
            for (k, id) in self.tasks.iter().enumerate() {
                let span = timeline.span(step, *id);
                if span.start > free {
                    waits.push(self.wait(step, k, Span { start: free, end: span.start }, ready[k]));
                }
                free = f64::max(free, span.end);
            }
        }
        if end > free {
            let mut wait = self.empty(timeline.steps().saturating_sub(1), Span { start: free, end });
            wait.causes.add(Cause::Drain, wait.span.duration());
            waits.push(wait);
        }
    }

    fn empty(&self, step: usize, span: Span) -> Wait {
        Wait {
            rank: self.rank,
            step,
            span,
            task: None,
            input: None,
            held_back: None,
            activations: 0.0,
            causes: Causes::default(),
            slow_stages: Vec::new(),
        }
    }

    /// For each task of a step, the first to be ready of those behind it and its compound action.
    fn ready(&self, step: usize) -> Vec<Ready> {
        let mut ready: Vec<Ready> = vec![None; self.tasks.len()];
        let (mut first, mut group): (Ready, Ready) = (None, None);
        for (k, id) in self.tasks.iter().enumerate().rev() {
            let task = self.task(*id);
            let next = self.tasks.get(k + 1).map(|next| self.task(*next));
            if !next.is_some_and(|next| next.group.is_some() && next.group == task.group) {
                group = first;
            }
            ready[k] = group;
            let since = self.paths.inputs_there(step, *id);
            if task.action.op.has_microbatch() && first.is_none_or(|(earliest, _)| since <= earliest) {
                first = Some((since, *id));
            }
        }
        ready
    }

    fn task(&self, id: TaskId) -> &Task {
        self.paths.schedule.task(id)
    }

    /// The gap before the k-th task.
    fn wait(&self, step: usize, k: usize, span: Span, ready: Ready) -> Wait {
        let id = self.tasks[k];
        let input = self.paths.awaited(step, id, span);
        let ready = ready.filter(|(since, _)| *since < span.end);
        let mut wait = Wait {
            task: Some(id),
            input: input.map(|input| input.from),
            activations: self.activations[k],
            ..self.empty(step, span)
        };
        let direct = match input.map(|input| self.task(input.from).action.op) {
            Some(Op::Forward) => Cause::Forward,
            Some(op) if op.is_collective() => Cause::Barrier,
            Some(_) => Cause::Backward,
            None => Cause::Hop,
        };
        let drained = step.checked_sub(1).and_then(|s| self.step_ends.get(s)).copied().unwrap_or(f64::NEG_INFINITY);
        let delay = |at: Option<(usize, TaskId)>| at.map_or(0.0, |(s, id)| self.pace.delay(self.paths, s, id));
        let awaited = input.map(|input| (step, input.from));
        let mut slower = delay(awaited) - delay(self.paths.lane_before(step, id));
        let causes = &mut wait.causes;
        self.paths.back(step, id, span, &mut |Span { start, end }, piece| match piece {
            Piece::Barrier => causes.add(Cause::Barrier, end - start),
            _ if k == 0 => {
                let middle = drained.clamp(start, end);
                causes.add(Cause::Drain, middle - start);
                causes.add(Cause::Fill, end - middle);
            }
            Piece::Message => causes.add(Cause::Hop, end - start),
            Piece::Work => {
                let imbalance = slower.clamp(0.0, end - start);
                causes.add(Cause::Imbalance, imbalance);
                slower -= imbalance;
                // Not before the start, however it is rounded.
                let end = f64::max(end - imbalance, start);
                let since = ready.map_or(end, |(since, _)| since.clamp(start, end));
                causes.add(direct, since - start);
                if end > since {
                    causes.add(Cause::MemoryLimit, end - since);
                    wait.held_back = ready.map(|(_, id)| id);
                }
            }
        });
        let imbalance = wait.causes.get(Cause::Imbalance);
        wait.slow_stages = awaited.map_or_else(Vec::new, |at| self.pace.charge(self.paths, at, imbalance));
        wait
    }
}

/// Activations that a rank holds before each of `tasks`, in microbatches of its whole share.
fn activations(schedule: &Schedule, rank: Rank, tasks: &[TaskId]) -> Vec<f64> {
    let whole = f64::from(memory::activations_of_microbatch(schedule, rank));
    let mut live = 0_u32;
    let before = |id: &TaskId| {
        let held = f64::from(live) / whole;
        let (more, fewer) = memory::activations_of(schedule.task(*id));
        live = (live + more).saturating_sub(fewer);
        held
    };
    tasks.iter().map(before).collect()
}
