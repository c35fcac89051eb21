//! `Timeline`: when every task of a schedule ran, predicted or measured.
//!
//! One law: a timeline says what happened and nothing else; every table, picture and trace is a function of a schedule
//! and a timeline, so each works on predictions and measurements alike.

use crate::ids::TaskId;
use serde::{Deserialize, Serialize};

/// Where a timeline comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The simulator.
    Predicted,
    /// The executor.
    Measured,
}

impl Source {
    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Source::Predicted => "predicted",
            Source::Measured => "measured",
        }
    }
}

/// When one task ran \[s, or abstract units under unit costs\].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// Start.
    pub start: f64,
    /// End.
    pub end: f64,
}

impl Span {
    /// `end - start`.
    pub fn duration(self) -> f64 {
        self.end - self.start
    }
}

/// Live bytes of a rank around one task, as the executor counted them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemorySample {
    /// Live bytes when the task began \[B\].
    pub before: u64,
    /// Most live bytes while it ran \[B\].
    pub peak: u64,
    /// Live bytes when it ended \[B\].
    pub after: u64,
}

/// When every task of every step ran.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    /// Predicted or measured.
    pub source: Source,
    /// Tasks of one step.
    pub tasks: usize,
    /// Step by step, the span of each task in order of task ids.
    pub spans: Vec<Span>,
    /// The same order as `spans`; empty unless memory was counted.
    pub memory: Vec<MemorySample>,
}

impl Timeline {
    /// Number of steps.
    pub fn steps(&self) -> usize {
        self.spans.len().checked_div(self.tasks).unwrap_or(0)
    }

    /// The span of a task in a step; an empty span for one that is not there.
    pub fn span(&self, step: usize, task: TaskId) -> Span {
        self.spans.get(step * self.tasks + task.index()).copied().unwrap_or_default()
    }

    /// Counted memory around a task in a step.
    pub fn memory(&self, step: usize, task: TaskId) -> Option<MemorySample> {
        self.memory.get(step * self.tasks + task.index()).copied()
    }

    /// One step alone, shifted to begin at 0.
    pub fn step(&self, step: usize) -> Timeline {
        let range = step * self.tasks..(step + 1) * self.tasks;
        let spans = self.spans.get(range.clone()).unwrap_or_default();
        let zero = spans.iter().map(|s| s.start).fold(f64::INFINITY, f64::min);
        Timeline {
            source: self.source,
            tasks: self.tasks,
            spans: spans.iter().map(|s| Span { start: s.start - zero, end: s.end - zero }).collect(),
            memory: self.memory.get(range).unwrap_or_default().to_vec(),
        }
    }

    /// First start to last end over all tasks \[s or units\].
    pub fn makespan(&self) -> f64 {
        let end = self.spans.iter().map(|s| s.end).fold(0.0, f64::max);
        let start = self.spans.iter().map(|s| s.start).fold(f64::INFINITY, f64::min);
        if self.spans.is_empty() { 0.0 } else { end - start }
    }
}
