//! The numbers people compare schedules by, each with its formula.
//!
//! One law: a function of a schedule and a timeline; a prediction and a measurement go through the same code.

use crate::ids::Rank;
use crate::memory::{self, RankMemory};
use crate::schedule::Schedule;
use crate::task::Lane;
use crate::timeline::Timeline;

/// Metrics of one rank. Times in seconds \[s\], or abstract units under unit costs.
#[derive(Clone, Debug, PartialEq)]
pub struct RankMetrics {
    /// Time of its compute lane: F, B, I, W and the optimizer.
    pub busy: f64,
    /// `makespan - busy`.
    pub idle: f64,
    /// When its first compute task starts, from the start of the timeline.
    pub first_start: f64,
    /// When its last compute task ends.
    pub last_end: f64,
    /// `last_end - first_start - busy`: the idle time inside the rank's own span, which the zero-bubble papers count.
    pub span_idle: f64,
    /// Most activations alive, in microbatches of a rank's whole share: chunks alive / `v`, slices of a microbatch
    /// counted by their share.
    pub peak_activations: f64,
    /// Memory over time.
    pub memory: RankMemory,
}

/// Metrics of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Metrics {
    /// First start to last end over all ranks and steps.
    pub makespan: f64,
    /// Sum over ranks of idle / (ranks makespan).
    pub bubble_fraction: f64,
    /// Sum over ranks of idle / sum over ranks of busy; infinite where nothing computes.
    pub bubble_overhead: f64,
    /// Messages between different ranks in one step.
    pub messages: usize,
    /// Bytes of those messages \[B\].
    pub message_bytes: u64,
    /// Each rank.
    pub ranks: Vec<RankMetrics>,
}

impl Metrics {
    /// Metrics of a timeline of `schedule`.
    pub fn of(schedule: &Schedule, timeline: &Timeline) -> Self {
        let zero = timeline.spans.iter().map(|s| s.start).fold(f64::INFINITY, f64::min);
        let makespan = timeline.makespan();
        let position = memory::positions(schedule);
        let ranks: Vec<_> = (0..schedule.ranks())
            .map(|r| rank_metrics(schedule, timeline, Rank::at(r), makespan, zero, &position))
            .collect();
        let idle: f64 = ranks.iter().map(|r| r.idle).sum();
        let busy: f64 = ranks.iter().map(|r| r.busy).sum();
        let sent = schedule.tasks().filter(|(_, t)| t.action.op.is_send());
        let share = |part: f64, whole: f64| match (part > 0.0, whole > 0.0) {
            (_, true) => part / whole,
            (true, false) => f64::INFINITY,
            (false, false) => 0.0,
        };
        Self {
            makespan,
            bubble_fraction: share(idle, idle + busy),
            bubble_overhead: share(idle, busy),
            messages: schedule.messages(),
            message_bytes: sent.map(|(_, t)| t.payload).fold(0, u64::saturating_add),
            ranks,
        }
    }

    /// The largest peak memory over the ranks \[B\].
    pub fn peak_memory(&self) -> u64 {
        self.ranks.iter().map(|r| memory::total(&r.memory.peak.live)).max().unwrap_or(0)
    }

    /// The most activations any rank holds, in microbatches of its whole share.
    pub fn peak_activations(&self) -> f64 {
        self.ranks.iter().map(|r| r.peak_activations).fold(0.0, f64::max)
    }
}

fn rank_metrics(
    schedule: &Schedule,
    timeline: &Timeline,
    rank: Rank,
    makespan: f64,
    zero: f64,
    position: &[u32],
) -> RankMetrics {
    let (mut busy, mut first, mut last) = (0.0, f64::INFINITY, zero);
    for step in 0..timeline.steps() {
        for (id, _) in schedule.program(rank).filter(|(_, t)| t.lane == Lane::Compute) {
            let span = timeline.span(step, id);
            busy += span.duration();
            first = f64::min(first, span.start);
            last = f64::max(last, span.end);
        }
    }
    let first = if first.is_finite() { first } else { zero };
    let whole = f64::from(memory::activations_of_microbatch(schedule, rank));
    RankMetrics {
        busy,
        idle: makespan - busy,
        first_start: first - zero,
        last_end: last - zero,
        span_idle: last - first - busy,
        peak_activations: f64::from(memory::peak_activations(schedule, rank)) / whole,
        memory: memory::of_rank(schedule, timeline, rank, position),
    }
}
