//! Memory over time, from the buffers of a schedule and the times of a timeline.
//!
//! One law: memory is replayed, not estimated: each buffer counts from the start of the task that allocates it to the
//! end of the task that frees it, and the step ends where it began.

use crate::action::Op;
use crate::ids::{BufferId, Rank, TaskId};
use crate::schedule::Schedule;
use crate::task::{Buffer, MemoryClass, Task, Touch};
use crate::timeline::Timeline;
use std::collections::BTreeSet;

/// Bytes by class, in the order of [`MemoryClass::ALL`] \[B\].
pub type ByClass = [u64; MemoryClass::ALL.len()];

/// Memory of one rank at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryPoint {
    /// When \[s or units\].
    pub time: f64,
    /// What is alive from then on.
    pub live: ByClass,
}

/// Memory of one rank over time.
#[derive(Clone, Debug, PartialEq)]
pub struct RankMemory {
    /// Every change, in order of time.
    pub points: Vec<MemoryPoint>,
    /// The first moment at which most is alive.
    pub peak: MemoryPoint,
}

/// Sum over classes \[B\].
pub fn total(live: &ByClass) -> u64 {
    live.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
}

/// Memory that a rank holds outside a step: parameters and optimizer state.
pub fn persistent(schedule: &Schedule, rank: Rank) -> ByClass {
    let mut live = ByClass::default();
    for (_, _, class, bytes) in schedule.persistent().iter().filter(|(r, ..)| *r == rank) {
        let slot = &mut live[class.index()];
        *slot = slot.saturating_add(*bytes);
    }
    live
}

/// A change of memory: when, in which step, at which position, whether a task ends there, and which.
type Event = (f64, usize, u32, bool, TaskId);

/// The moments at which tasks of a rank that touch memory start and end.
///
/// At equal times events go in the schedule's topological order, a task's start before its end: what an earlier task
/// frees is gone when a later one allocates.
fn events(schedule: &Schedule, timeline: &Timeline, rank: Rank, position: &[u32]) -> Vec<Event> {
    let mut events = Vec::new();
    for step in 0..timeline.steps() {
        for (id, _) in schedule.program(rank) {
            if schedule.effects(id).is_empty() {
                continue;
            }
            let (span, at) = (timeline.span(step, id), position.get(id.index()).copied().unwrap_or_default());
            events.push((span.start, step, at, false, id));
            events.push((span.end, step, at, true, id));
        }
    }
    events.sort_by(|a, b| a.0.total_cmp(&b.0).then((a.1, a.2, a.3).cmp(&(b.1, b.2, b.3))));
    events
}

/// Buffers that an event makes (`true`) and ends (`false`).
fn changes(schedule: &Schedule, event: Event) -> impl Iterator<Item = (BufferId, bool)> + '_ {
    let (_, _, _, end, id) = event;
    schedule.effects(id).iter().filter_map(move |effect| match (effect.touch, end) {
        (Touch::Allocate | Touch::Workspace, false) => Some((effect.buffer, true)),
        (Touch::Free | Touch::Workspace, true) => Some((effect.buffer, false)),
        _ => None,
    })
}

/// Memory of `rank` over the timeline.
pub fn of_rank(schedule: &Schedule, timeline: &Timeline, rank: Rank, position: &[u32]) -> RankMemory {
    let events = events(schedule, timeline, rank, position);
    let mut live = persistent(schedule, rank);
    let begin = events.first().map_or(0.0, |e| e.0);
    let mut memory =
        RankMemory { points: vec![MemoryPoint { time: begin, live }], peak: MemoryPoint { time: begin, live } };
    for event in events {
        for (buffer, made) in changes(schedule, event) {
            let Buffer { class, bytes, .. } = *schedule.buffer(buffer);
            let slot = &mut live[class.index()];
            *slot = if made { slot.saturating_add(bytes) } else { slot.saturating_sub(bytes) };
        }
        memory.points.push(MemoryPoint { time: event.0, live });
        if total(&live) > total(&memory.peak.live) {
            memory.peak = MemoryPoint { time: event.0, live };
        }
    }
    memory
}

/// The buffers that are alive on `rank` at the first moment at which most is, beside those that outlive the step.
pub fn alive_at_peak(schedule: &Schedule, timeline: &Timeline, rank: Rank, position: &[u32]) -> Vec<BufferId> {
    let (mut alive, mut at_peak) = (BTreeSet::new(), BTreeSet::new());
    let (mut live, mut most) = (0_u64, 0_u64);
    for event in events(schedule, timeline, rank, position) {
        for (id, made) in changes(schedule, event) {
            let bytes = schedule.buffer(id).bytes;
            if made {
                alive.insert(id);
                live = live.saturating_add(bytes);
            } else {
                alive.remove(&id);
                live = live.saturating_sub(bytes);
            }
        }
        if live > most {
            most = live;
            at_peak.clone_from(&alive);
        }
    }
    at_peak.into_iter().collect()
}

/// Task -> its position in the topological order, as [`of_rank`] wants it.
pub fn positions(schedule: &Schedule) -> Vec<u32> {
    let mut position = vec![0; schedule.len()];
    for (i, id) in schedule.topological().iter().enumerate() {
        position[id.index()] = TaskId::at(i).0;
    }
    position
}

/// How many activations more there are once a task has begun, and how many fewer once it has ended: those of a
/// microbatch live from its F to its B or W.
pub fn activations_of(task: &Task) -> (u32, u32) {
    let op = task.action.op;
    let (begins, ends) = (!task.step.continues, !task.step.continued);
    (u32::from(begins && op == Op::Forward), u32::from(ends && op.makes_weight_gradients()))
}

/// Most activations alive at once on a rank, in chunks. Follows the compute lane in program order, which is its order in
/// time on every timeline.
pub fn peak_activations(schedule: &Schedule, rank: Rank) -> u32 {
    let (mut live, mut peak) = (0_u32, 0_u32);
    for (_, task) in schedule.program(rank) {
        let (more, fewer) = activations_of(task);
        live = (live + more).saturating_sub(fewer);
        peak = peak.max(live);
    }
    peak
}

/// Activation buffers of one microbatch on a rank: one for each chunk of one pipe and each slice. (A bidirectional order
/// holds as many stages again, but no larger a share of the model.)
pub fn activations_of_microbatch(schedule: &Schedule, rank: Rank) -> u32 {
    let chunks = schedule.placement().stages_of(rank).count().div_ceil(schedule.placement().pipes().len()).max(1);
    TaskId::at(chunks * usize::from(schedule.cells().slices())).0
}
