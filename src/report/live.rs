//! Memory of every rank over time, ready to be drawn: bytes by class, or activations where no bytes are known.

use super::run::{Run, zero};
use pipewright_ir::ids::Rank;
use pipewright_ir::memory;
use pipewright_ir::schedule::Schedule;
use pipewright_ir::task::{Lane, MemoryClass};

/// What is alive, by class in the order of [`MemoryClass::ALL`] [B, or microbatches of a rank's whole share].
pub(super) type Levels = [f64; MemoryClass::ALL.len()];

/// What is alive from a moment on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Level {
    /// When, from the first start of the run.
    pub(super) time: f64,
    pub(super) levels: Levels,
}

impl Level {
    pub(super) fn total(&self) -> f64 {
        self.levels.iter().sum()
    }
}

/// One rank's memory.
#[derive(Clone, Debug)]
pub(super) struct Live {
    /// Every change, in order of time.
    pub(super) changes: Vec<Level>,
    /// The first moment at which most is alive.
    pub(super) peak: Level,
}

/// Whether the schedule knows the size of anything.
pub(super) fn has_bytes(schedule: &Schedule) -> bool {
    let of_task = |id| schedule.effects(id).iter().any(|e| schedule.buffer(e.buffer).bytes > 0);
    schedule.persistent().iter().any(|(.., bytes)| *bytes > 0) || schedule.tasks().any(|(id, _)| of_task(id))
}

/// Memory of every rank: bytes if the schedule knows them, else activations.
pub(super) fn of_run(run: &Run<'_>) -> Vec<Live> {
    let ranks = (0..run.schedule.ranks()).map(Rank::at);
    if !has_bytes(run.schedule) {
        return ranks.map(|rank| activations(run, rank)).collect();
    }
    let (positions, zero) = (memory::positions(run.schedule), zero(run.timeline));
    let of_rank = |rank| {
        let memory = memory::of_rank(run.schedule, run.timeline, rank, &positions);
        let level =
            |p: &memory::MemoryPoint| Level { time: (p.time - zero).max(0.0), levels: p.live.map(|b| b as f64) };
        let mut changes: Vec<_> = memory.points.iter().map(level).collect();
        // What exists before the first task exists from the start.
        if let Some(first) = changes.first_mut() {
            first.time = 0.0;
        }
        Live { changes, peak: level(&memory.peak) }
    };
    ranks.map(of_rank).collect()
}

/// Activations alive, counted like [`memory::peak_activations`].
fn activations(run: &Run<'_>, rank: Rank) -> Live {
    let schedule = run.schedule;
    let chunk = 1.0 / f64::from(run.chunks.max(1));
    let zero = zero(run.timeline);
    let nothing = Level { time: 0.0, levels: Levels::default() };
    let mut live = Live { changes: vec![nothing], peak: nothing };
    let mut now = 0_i64;
    for step in 0..run.timeline.steps() {
        for (id, task) in schedule.program(rank).filter(|(_, task)| task.lane == Lane::Compute) {
            let (more, fewer) = memory::activations_of(task);
            let span = run.timeline.span(step, id);
            for (time, change) in [(span.start, i64::from(more)), (span.end, -i64::from(fewer))] {
                if change == 0 {
                    continue;
                }
                now += change;
                let mut levels = Levels::default();
                levels[MemoryClass::Activations.index()] = now as f64 * chunk;
                let level = Level { time: time - zero, levels };
                live.changes.push(level);
                if level.total() > live.peak.total() {
                    live.peak = level;
                }
            }
        }
    }
    live
}

/// Counted memory of a rank as corners of a line: time from the first start, and live bytes \[B\]. A task's peak counts
/// for as long as the task ran. Empty if nothing was counted.
pub(super) fn counted(run: &Run<'_>, rank: Rank) -> Vec<(f64, f64)> {
    let zero = zero(run.timeline);
    let mut samples = Vec::new();
    for step in 0..run.timeline.steps() {
        for (id, _) in run.schedule.program(rank) {
            // A rank always holds something; a sample of nothing is a task whose memory was not counted.
            if let Some(sample) = run.timeline.memory(step, id).filter(|sample| sample.peak > 0) {
                samples.push((run.timeline.span(step, id), sample));
            }
        }
    }
    samples.sort_by(|a, b| a.0.start.total_cmp(&b.0.start).then(a.0.end.total_cmp(&b.0.end)));
    let mut corners: Vec<(f64, f64)> = Vec::with_capacity(samples.len() * 4);
    for (span, sample) in samples {
        let corner =
            [(span.start, sample.before), (span.start, sample.peak), (span.end, sample.peak), (span.end, sample.after)];
        for (time, bytes) in corner {
            // Lanes may overlap; the line never runs back.
            let time = corners.last().map_or(time - zero, |last| f64::max(last.0, time - zero));
            corners.push((time, bytes as f64));
        }
    }
    corners
}
