//! What a picture shows: a schedule, when it ran, and how to call it.

use super::text;
use pipewright_ir::metrics::Metrics;
use pipewright_ir::schedule::Schedule;
use pipewright_ir::timeline::Timeline;

/// What the numbers of a timeline mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeUnit {
    /// Seconds \[s\].
    Seconds,
    /// Units without a size, from unit costs.
    Abstract,
}

/// One schedule and one timeline of it.
#[derive(Clone, Debug)]
pub struct Run<'a> {
    /// The schedule's name.
    pub name: &'a str,
    /// The schedule.
    pub schedule: &'a Schedule,
    /// When its tasks ran.
    pub timeline: &'a Timeline,
    /// The unit of the timeline.
    pub unit: TimeUnit,
    /// Chunks a rank `v`.
    pub chunks: u32,
    /// A line of the caller's, such as a warning; in a comparison it stands in place of the bubble's numbers.
    pub note: Option<String>,
}

/// A time unit to write in: its name and its length in the timeline's unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TimeScale {
    pub(super) name: &'static str,
    pub(super) length: f64,
}

impl TimeUnit {
    /// The scale in which times up to `longest` read well.
    pub(super) fn scale(self, longest: f64) -> TimeScale {
        let (name, length) = match self {
            TimeUnit::Abstract => ("units", 1.0),
            TimeUnit::Seconds if longest >= 1.0 => ("s", 1.0),
            TimeUnit::Seconds if longest >= 1e-3 => ("ms", 1e-3),
            TimeUnit::Seconds => ("µs", 1e-6),
        };
        TimeScale { name, length }
    }
}

impl TimeScale {
    /// A time with its unit.
    pub(super) fn show(self, time: f64) -> String {
        let number = text::number(time / self.length, 4);
        match (number.as_str(), self.name) {
            ("1", "units") => "1 unit".to_owned(),
            (number, name) => format!("{number} {name}"),
        }
    }
}

/// Numbers of a run that pictures need, computed once.
pub(super) struct Facts {
    /// When the first task starts; pictures count from there.
    pub(super) zero: f64,
    pub(super) metrics: Metrics,
}

impl Facts {
    pub(super) fn of(run: &Run<'_>) -> Self {
        Self { zero: zero(run.timeline), metrics: Metrics::of(run.schedule, run.timeline) }
    }
}

/// When the first task of a timeline starts; 0 without tasks.
pub(super) fn zero(timeline: &Timeline) -> f64 {
    let first = timeline.spans.iter().map(|s| s.start).fold(f64::INFINITY, f64::min);
    if first.is_finite() { first } else { 0.0 }
}

impl Run<'_> {
    /// `p = 4 ranks, m = 8 microbatches, v = 1 chunk`, with the steps where there are several.
    pub(super) fn shape(&self) -> String {
        let ranks = text::count(self.schedule.ranks(), "rank", "ranks");
        let microbatches = text::count(self.schedule.microbatches() as usize, "microbatch", "microbatches");
        let chunks = text::count(self.chunks as usize, "chunk", "chunks");
        let steps = match self.timeline.steps() {
            0 | 1 => String::new(),
            steps => format!(", {steps} steps"),
        };
        format!("p = {ranks}, m = {microbatches}, v = {chunks}{steps}")
    }

    /// Bubble and activations in words.
    pub(super) fn bubble(&self, facts: &Facts) -> String {
        let metrics = &facts.metrics;
        let peak = metrics.peak_activations();
        format!(
            "bubble fraction {}, bubble overhead {} · peak activations {} {}",
            text::percent(metrics.bubble_fraction),
            text::percent(metrics.bubble_overhead),
            text::number(peak, 3),
            if peak == 1.0 { "microbatch" } else { "microbatches" },
        )
    }
}
